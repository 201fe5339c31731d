"""Gradients beside tensors whose class has a __torch_dispatch__: weights as libraries of quantisation have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from torch.utils._pytree import tree_map_only

import magneto

BACKENDS = ("magneto", "aot_eager")


class Weight(torch.Tensor):
    """Integers and a scale for each row."""

    data_: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Weight:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self) -> Any:
        return ["data_", "scale"], None

    def plain(self) -> torch.Tensor:
        return self.data_.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return cls(func(args[0].data_), func(args[0].scale))
        args, kwargs = tree_map_only(cls, cls.plain, (args, kwargs or {}))
        return func(*args, **kwargs)


class Dispatched(Weight):
    """Operators multiply it out."""

    __torch_function__ = torch._C._disabled_torch_function_impl


# Called like PyTorch's, and none of them.
DTensor = type("DTensor", (Dispatched,), {})


class Overridden(Weight):
    """A layer of it is a custom function, which has the weight's gradient too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return Linear.apply(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: Overridden, bias: Any = None) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        out = x @ w.data_.T.to(x.dtype) * w.scale.T
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        return (
            (grad * w.scale.T) @ w.data_.to(grad.dtype),
            rows.T @ x.flatten(0, -2),
            rows.sum(0) if ctx.needs_input_grad[2:] else None,
        )


def weight(cls: type[Weight], rows: int, columns: int) -> Weight:
    data = (torch.arange(rows * columns) * 7 % 17 - 8).view(rows, columns).to(torch.int8)
    return cls(data, torch.linspace(0.05, 0.2, rows, dtype=torch.float64).unsqueeze(1))


class Layers(torch.nn.Module):
    def __init__(self, cls: type[Weight], trained: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        self.first.weight = torch.nn.Parameter(weight(cls, 16, 8), requires_grad=trained)
        self.last.weight = torch.nn.Parameter(weight(cls, 4, 16), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Adapted(torch.nn.Module):
    """A frozen weight and a small trained one beside it."""

    def __init__(self, cls: type[Weight], trained: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = torch.nn.Parameter(weight(cls, 8, 8), requires_grad=trained)
        self.down, self.up = torch.nn.Linear(8, 2), torch.nn.Linear(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + F.gelu(F.linear(x, self.frozen) + self.up(self.down(x)))
        return F.dropout(x, 0.3)


def train(function: Callable[..., Any], module: torch.nn.Module, sizes: list[tuple[int, ...]]) -> list[Any]:
    assert any(isinstance(parameter, Weight) for parameter in module.parameters())
    seen: list[Any] = []
    for step, size in enumerate(sizes):
        x = torch.linspace(-2, 2 + step, torch.Size(size).numel(), dtype=torch.float64).view(size).requires_grad_()
        module.zero_grad()
        torch.manual_seed(step)
        result = function(x)
        result.square().mean().backward()
        seen += [result.detach(), x.grad, *[None if p.grad is None else p.grad.clone() for p in module.parameters()]]
        with torch.no_grad():
            for parameter in module.parameters():
                if not isinstance(parameter, Weight):
                    parameter.sub_(parameter.grad, alpha=0.1)
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("cls", [Dispatched, Overridden, DTensor])
@pytest.mark.parametrize("module", [Layers, Adapted])
def test_models_train_in_one_graph(
    module: Callable[..., Any], cls: type[Weight], trained: bool, dynamic: bool, backend: str
) -> None:
    sizes = [(5, 8), (5, 8), (7, 8)] if dynamic else [(2, 5, 8)] * 3
    theirs, ours = (module(cls, trained).double() for _ in range(2))
    compiled = magneto.compile(ours, backend=backend, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(train(compiled, ours, sizes), train(theirs, theirs, sizes))
    assert (magneto.stats()["graphs"], magneto.stats()["recompiles"], magneto.stats()["no_joint"]) == (1, 0, {})


def saves_its_result(x: torch.Tensor, w: torch.Tensor) -> Any:
    return F.linear(x, w).sigmoid() * w.exp().mean()


def mixed(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.cat([x * w, F.linear(x.relu(), w.detach())]).sum() + w.plain().sum(), x.view_as(w) / w.norm()


def in_autocast(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w).float()


def half_without(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        y = F.linear(x, w)
    return y * F.linear(x, w)


def with_exits(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = F.linear(x, w)
    print(end="")
    return F.linear(y.relu(), w)


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    y = x * 2
    y.add_(w)
    return y


def in_a_branch(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.cond(x.sum() > -1e9, lambda x: F.linear(x, w), lambda x: x * 2, (x,))


def gradient_inside(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.autograd.grad(F.linear(x, w).square().sum(), x)[0] * x


CALLS = [saves_its_result, mixed, in_autocast, half_without, with_exits, written, gradient_inside]


@pytest.mark.parametrize("backend", [*BACKENDS, "eager"])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("call", [*CALLS, in_a_branch], ids=lambda call: call.__name__)
def test_gradients_are_those_of_eager(
    call: Callable[..., Any], trained: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(function: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 2, 64, dtype=torch.float64).view(8, 8).requires_grad_()
        w = torch.nn.Parameter(weight(Dispatched, 8, 8), requires_grad=trained)
        results = function(x, w)
        results = results if isinstance(results, tuple) else (results,)
        torch.stack([result.square().sum() for result in results]).sum().backward()
        return [result.detach() for result in results], x.grad, w.grad

    compiled = magneto.compile(call, backend=backend)
    got = [run(compiled) for _ in range(2)]
    if call is in_a_branch:  # which eager does not have of such tensors
        monkeypatch.setattr(torch, "cond", lambda condition, this, that, operands: this(*operands))
    for each in got:
        torch.testing.assert_close(each, run(call))


def test_another_weight_and_another_class() -> None:
    compiled = magneto.compile(F.linear, fullgraph=True)
    for w in (weight(Dispatched, 4, 8), weight(Overridden, 4, 8), weight(Dispatched, 8, 8), torch.ones(3, 8).double()):
        x, other = (torch.linspace(-1, 2, 40, dtype=torch.float64).view(5, 8).requires_grad_() for _ in range(2))
        compiled(x, w).sin().sum().backward()
        F.linear(other, w).sin().sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


def test_what_looks_on_runs_under_cpython() -> None:
    """Gradients of gradients are an error where somebody takes them."""
    w = weight(Dispatched, 4, 8)

    def call(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.sin(), w)

    compiled = magneto.compile(call)
    x = torch.linspace(-1, 2, 40, dtype=torch.float64).view(5, 8).requires_grad_()
    (first,), (expected,) = (torch.autograd.grad(f(x).sum(), x, create_graph=True) for f in (compiled, call))
    assert_same(first.detach(), expected.detach())
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        first.sum().backward()
    packed: list[list[Any]] = [[], []]
    grads = []
    with magneto.config.patch(strict=False):
        for function, list_ in zip((compiled, call), packed, strict=True):
            with torch.autograd.graph.saved_tensors_hooks(lambda t, to=list_: to.append(t.shape) or t, lambda t: t):
                result = function(x)
            grads.append(torch.autograd.grad(result.sum(), x)[0])
    assert packed[0] == packed[1]
    assert_same(*grads)
    result = compiled(x)
    first = torch.autograd.grad(result.sum(), x, retain_graph=True)
    assert_same(torch.autograd.grad(result.sum(), x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result.sum(), x)
