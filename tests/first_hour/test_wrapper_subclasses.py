"""Tensors that wrap others (torch.Tensor._make_wrapper_subclass) and say in __torch_dispatch__ what operators do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch.utils._pytree import tree_map, tree_map_only

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")


def matrix(scale: float = 1.0) -> torch.Tensor:
    return (torch.arange(12.0).reshape(3, 4) - 5) * scale


class Pair(torch.Tensor):
    """Two tensors: operators are done to both."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    left: torch.Tensor
    right: torch.Tensor

    @staticmethod
    def __new__(cls, left: torch.Tensor, right: torch.Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(
            cls, left.shape, strides=left.stride(), dtype=left.dtype, device=left.device
        )
        made.left, made.right = left, right
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = []
        for side in ("left", "right"):
            given = tree_map_only(Pair, lambda pair: getattr(pair, side), (args, kwargs or {}))  # noqa: B023
            results.append(func(*given[0], **given[1]))
        if func is torch.ops.aten.add_.Tensor:
            return args[0]
        return tree_map(Pair, *results)


class Quantised(torch.Tensor):
    """Integers and a scale: multiplied out where it meets others."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    data_: torch.Tensor
    scale: torch.Tensor
    uses: list[str] = []

    @staticmethod
    def __new__(cls, data: torch.Tensor, scale: torch.Tensor) -> Quantised:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.data_, self.scale = data, scale

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.uses.append(str(func))
        if func in (torch.ops.aten.t.default, torch.ops.aten.detach.default):
            return Quantised(func(args[0].data_), args[0].scale)
        plain = tree_map_only(Quantised, lambda q: q.data_.to(q.scale.dtype) * q.scale, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def quantised(scale: float = 0.5) -> Quantised:
    return Quantised(torch.arange(12, dtype=torch.int8).reshape(3, 4), torch.tensor(scale))


def parts(value: Any) -> Any:
    if isinstance(value, Pair):
        return "pair", value.left, value.right, tuple(value.shape)
    if isinstance(value, Quantised):
        return "quantised", value.data_, value.scale
    return [parts(item) for item in value] if isinstance(value, (list, tuple)) else value


def operators(pair: Pair, x: torch.Tensor) -> Any:
    return (pair.sin() + x).relu() * 2, pair @ x.mT


def made_inside(x: torch.Tensor) -> Any:
    pair = Pair(x * 2, x + 1)
    result = pair.exp() + pair
    return result.left * result.right, result, pair.shape


def written(pair: Pair, x: torch.Tensor) -> Any:
    pair += x
    pair.left.mul_(3)
    return pair * 2


def questions(q: Quantised) -> Any:
    if not isinstance(q, Quantised) or q.dim() != 2 or q.shape[0] != 3:
        return None
    return q.data_.sum(), q.scale * q.shape[1], str(q.dtype), type(q).__name__, q.requires_grad


def attribute_set(q: Quantised) -> Any:
    q.scale = q.scale * 2
    return q.scale + 1


PROGRAMS: list[tuple[Callable[..., Any], Callable[[float], tuple[Any, ...]]]] = [
    (operators, lambda s: (Pair(matrix(), matrix(s)), matrix())),
    (made_inside, lambda s: (matrix(0.1 * s),)),
    (written, lambda s: (Pair(matrix(), matrix(s)), matrix())),
    (questions, lambda s: (quantised(s),)),
    (attribute_set, lambda s: (quantised(s),)),
    (lambda x, q: torch.nn.functional.linear(x, q).relu() + 1, lambda s: (matrix(s), quantised(s))),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("program", "make"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS])
def test_program_is_one_graph(program: Callable[..., Any], make: Callable[[float], Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for scale in (1.0, 2.0, 1.0):
        theirs, ours = make(scale), make(scale)
        Quantised.uses.clear()
        want = program(*theirs), list(Quantised.uses)
        Quantised.uses.clear()
        got = compiled(*ours), list(Quantised.uses)
        assert_same(parts(got), parts(want))
        assert_same(parts(ours), parts(theirs), path="arguments")
    assert magneto.stats()["recompiles"] == 0
    assert not magneto.stats()["fallbacks"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_a_module(backend: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3, bias=False), torch.nn.ReLU())
    module[0].weight = torch.nn.Parameter(quantised(), requires_grad=False)
    compiled = magneto.compile(module, backend=backend, fullgraph=True)
    for scale in (0.5, 2.0):
        module[0].weight = torch.nn.Parameter(quantised(scale), requires_grad=False)
        for _ in range(2):
            assert_same(compiled(matrix()), module(matrix()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_what_meets_them(backend: str) -> None:
    def run(function: Callable[..., Any]) -> Any:
        x = matrix().requires_grad_()
        function(x, quantised()).sum().backward()
        return x.grad

    def program(x: torch.Tensor, q: Quantised) -> torch.Tensor:
        return (x.sin() @ q.mT).exp() if q.dim() > 2 else torch.nn.functional.linear(x.sin(), q).relu()

    assert_same(run(magneto.compile(program, backend=backend)), run(program))
