"""torch.autograd.Function: its backward is interpreted and compiled with the rest; what cannot be runs as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

import magneto

SCALE = 2.0
TABLE = {"scale": 3.0}
WEIGHT = torch.tensor([1.0, 2.0, 3.0])
SEEN: list[str] = []


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inner = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return gradient * (0.5 * x * ((1 - inner * inner) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + inner))


class Norm(torch.autograd.Function):
    """Attributes, sizes, several inputs, not all of which need gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, rstd)
        ctx.width = x.shape[-1]
        return x * rstd * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        scaled = gradient * weight
        dx = rstd * scaled - x * rstd.pow(3) * (scaled * x).sum(-1, keepdim=True) / ctx.width
        dw = (gradient * x * rstd).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return dx, dw, None


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x * factor, x.sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.factor = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        first, second = gradients
        return first * ctx.factor + second.expand(ctx.shape), None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.saved_tensors[0].exp()


class Indices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.sort(dim=-1)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> Tensor:
        return torch.zeros_like(gradient).scatter(-1, ctx.saved_tensors[0], gradient)


class Branching(torch.autograd.Function):
    """What is asked of a global, of a dict, of the gradient's sizes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.shape[0] > 100:
            return gradient * 7
        return gradient * (SCALE if SCALE > 1.5 else 0.25) * TABLE["scale"]


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.neg() * ctx.by, None


def helper(gradient: Tensor, **options: float) -> list[Tensor]:
    return [gradient * value for value in options.values()]


class Helped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        ctx.options = {"a": 2.0, "b": 3.0}
        return x * 5

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            x = ctx.x.requires_grad_(False) * 2
        return sum(helper(gradient, **ctx.options), x * 0)


class Prints(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        SEEN.append("backward")
        return gradient * 2


class Data(Prints):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        factor = 2 if gradient.sum() > 0 else 3
        return gradient * factor


class Chooses(Prints):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 if gradient.sum() > 0 else gradient * 3


class Recomputes(torch.autograd.Function):
    """As what saves memory does it: the forward once more, under autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin().exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = x.sin().exp()
        return torch.autograd.grad(y, x, gradient)[0]


class NoZeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        return first * 2 if second is None else second * 3


class Parts(torch.autograd.Function):
    """Of its results some may have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.exp()

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        (x,) = ctx.saved_tensors
        if first is None:
            return None if second is None else second * x.exp() + 100  # no part of a derivative: it shows
        return first * x.cos() if second is None else first * x.cos() + second * x.exp()


class ReadsTensor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * WEIGHT


class Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.calls = 0
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        ctx.calls += 1
        return gradient * ctx.calls


def w() -> Tensor:
    return torch.linspace(0.5, 1.5, 3, requires_grad=True)


COMPILED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "gelu": lambda x, w: Gelu.apply(x * w).sum(),
    "gelu_twice": lambda x, w: Gelu.apply(Gelu.apply(x) * w).sum(),
    "norm": lambda x, w: Norm.apply(x.sin(), w, 1e-6).pow(2).sum(),
    "norm_of_a_constant": lambda x, w: Norm.apply(x.sin() * w.sum(), torch.ones(3), 1e-6).exp().sum(),
    "setup": lambda x, w: sum(part.sum() for part in WithSetup.apply(x * w, 3.0)),
    "first_of_setup": lambda x, w: WithSetup.apply(x * w, 3.0)[0],
    "once": lambda x, w: Once.apply(x * w) * w,
    "indices": lambda x, w: Indices.apply(x * w)[0] * w,
    "branching": lambda x, w: (Branching.apply(x * w) * w).sum(),
    "reversal": lambda x, w: Reversal.apply(x * w, 0.5) * 2 + w,
    "helped": lambda x, w: Helped.apply(x * w) + w,
    "dirty": lambda x, w: Dirty.apply(x * w) + w,
    "recomputes": lambda x, w: Recomputes.apply(x * w) + w,
    "no_zeros": lambda x, w: NoZeros.apply(x * w)[0] + w,
    "one_part": lambda x, w: Parts.apply(x * w)[1] * w,
    "both_parts": lambda x, w: sum(Parts.apply(x * w)) + w,
    "reads_tensor": lambda x, w: ReadsTensor.apply(x * w) + w,
}
AS_IN_EAGER: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "prints": (lambda x, w: Prints.apply(x * w) + w, "changes objects"),
    "data": (lambda x, w: Data.apply(x * w) + w, ""),
    "counts": (lambda x, w: Counts.apply(x * w) + w, "changes its context"),
}


def run(program: Callable[[Tensor, Tensor], Any], rows: int = 4) -> list[Any]:
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 3, requires_grad=True), w()
    SEEN.clear()
    result = program(x, weight)
    result.sum().backward()
    return [result.detach(), x.grad, weight.grad, torch.tensor(len(SEEN))]


def check(program: Callable[[Tensor, Tensor], Any], compiled: Callable[..., Any], rows: int = 4) -> None:
    torch.testing.assert_close(run(compiled, rows), run(program, rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled(name: str, dynamic: bool, backend: str) -> None:
    compiled = magneto.compile(COMPILED[name], backend=backend, dynamic=dynamic, fullgraph=True)
    for rows in (4, 4, 7):
        check(COMPILED[name], compiled, rows)
    assert not magneto.stats()["no_joint"]
    assert magneto.stats()["graphs"] == (1 if dynamic else 2)


@pytest.mark.parametrize("name", AS_IN_EAGER)
def test_as_in_eager(name: str) -> None:
    program, why = AS_IN_EAGER[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = magneto.compile(program, fullgraph=True)
        for _ in range(2):
            check(program, compiled)
    (reason,) = magneto.stats()["no_joint"]
    assert "a custom autograd.Function" in reason and why in reason


def test_a_backward_that_chooses_is_compiled() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return Chooses.apply(x * weight) + weight

    check(program, magneto.compile(program, fullgraph=True))
    assert not magneto.stats()["no_joint"]


def test_what_a_backward_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = magneto.compile(COMPILED["branching"], dynamic=True)
    check(COMPILED["branching"], compiled)
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    check(COMPILED["branching"], compiled)
    monkeypatch.setitem(TABLE, "scale", 5.0)
    check(COMPILED["branching"], compiled)
    check(COMPILED["branching"], compiled, rows=150)
    monkeypatch.setattr(Branching, "backward", staticmethod(lambda ctx, gradient: gradient * 11))
    check(COMPILED["branching"], compiled)


def test_gradients_of_gradients() -> None:
    def twice(program: Callable[..., Any]) -> Tensor:
        torch.manual_seed(1)
        x = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(program(x, w()).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), x)[0]

    compiled = magneto.compile(COMPILED["gelu"])
    torch.testing.assert_close(twice(compiled), twice(COMPILED["gelu"]))
    compiled = magneto.compile(COMPILED["once"])
    for program in (COMPILED["once"], compiled):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            x = torch.randn(4, 3, requires_grad=True)
            (slope,) = torch.autograd.grad(program(x, w()).sum(), x, create_graph=True)
            slope.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_gradients_that_are_none(which: tuple[int, ...], backend: str) -> None:
    """set_materialize_grads(False): what is None is known when the backward runs."""

    def parts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return Parts.apply(x * w)

    def gradients(program: Callable[..., Any]) -> list[Tensor | None]:
        x, weight = torch.ones(2, 3, requires_grad=True), w()
        results = program(x, weight)
        sum(results[i].sum() for i in which).backward(retain_graph=True)
        sum(results[i].sum() for i in which).backward()
        with pytest.raises(RuntimeError, match="second time"):
            results[which[0]].sum().backward()
        return [x.grad, weight.grad]

    compiled = magneto.compile(parts, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(gradients(compiled), gradients(parts))
    assert magneto.stats()["joint_graphs"] == 1 and not magneto.stats()["no_joint"]


def test_results_whose_backward_is_one_call_or_two() -> None:
    def parts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return NoZeros.apply(x * w)

    def gradients(program: Callable[..., Any], at_once: bool) -> list[Tensor | None]:
        x, weight = torch.ones(2, 3, requires_grad=True), w()
        a, b = program(x, weight)
        if at_once:
            (a.sum() + b.sum()).backward()
        else:
            a.sum().backward(retain_graph=True)
            b.sum().backward()
        return [x.grad, weight.grad]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = magneto.compile(parts, fullgraph=True)
        for at_once in (True, False):
            torch.testing.assert_close(gradients(compiled, at_once), gradients(parts, at_once))


def test_partly_undefined() -> None:
    def parts(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return WithSetup.apply(x * w, 3.0)

    def gradients(program: Callable[..., Any], which: int) -> list[Tensor | None]:
        x, weight = torch.ones(2, 3, requires_grad=True), w()
        program(x, weight)[which].sum().backward()
        return [x.grad, weight.grad]

    compiled = magneto.compile(parts)
    for which in (0, 1):
        torch.testing.assert_close(gradients(compiled, which), gradients(parts, which))


class BySign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.cat([g, g])[: len(g)] if (x.sum() > 0).item() else g * 3


def test_a_backward_that_goes_by_the_data_is_the_data_s_in_each_run() -> None:
    def program(x: Tensor) -> Tensor:
        return BySign.apply(x).sum()

    compiled = magneto.compile(program)
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((3, 2), sign, requires_grad=True)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(program(x), x))
    assert magneto.stats()["no_joint"]
