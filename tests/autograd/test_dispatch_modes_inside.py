"""Modes with a __torch_dispatch__ that are entered inside of what is compiled: what they call is in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)
LAYER = nn.Linear(6, 6).requires_grad_(False)
aten = torch.ops.aten


class Doubling(TorchDispatchMode):
    """Changes what operators give."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is aten.sin.default else result


class Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Replacing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.relu.default:
            return aten.where.self(args[0] > 0, args[0], args[0] * 0.1)
        return func(*args, **(kwargs or {}))


class Bare(TorchDispatchMode):
    def __init__(self, factor: float) -> None:  # without super().__init__()
        self.factor = factor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.mul.Tensor:
            return func(args[0], args[1] * self.factor, **kwargs)
        return func(*args, **kwargs)


class Nested(TorchDispatchMode):
    """Its own operators come back to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor:
            with self:
                return aten.mul.Tensor(args[0], 3)
        if func is aten.mul.Tensor:
            return func(args[0], 5)
        return func(*args, **(kwargs or {}))


def changed(x: Tensor) -> Tensor:
    y = x.cos()
    with Doubling():
        y = y.sin() + 1
    return y.sin()


def recorded(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode:
        y = F.softmax(LAYER(x).relu(), -1)
        z = torch.zeros(3) + y[:3]
        y.add_(1)
    return y * z.sum(), mode.seen


def replaced(x: Tensor) -> Tensor:
    with Replacing():
        return LAYER(x).relu()


def two(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode, Doubling(), Replacing():
        return x.sin().relu(), mode.seen


def bare(x: Tensor) -> Tensor:
    with Bare(2.0):
        y = x * 3
    return y * 3


def nested(x: Tensor) -> Tensor:
    with Nested():
        return x + 1


def composite(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode:
        y = torch.nn.functional.layer_norm(x.view(2, 3), (3,)).matmul(torch.ones(3, 2)).flatten()
    return y, mode.seen


def several_results(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode:
        values, places = x.topk(3)
        a, b = x.split(3)
    return values + places + a * b, mode.seen


def random(x: Tensor) -> Tensor:
    with Doubling():
        return x + torch.rand(6)


def raises(x: Tensor) -> Any:
    try:
        with Recording() as mode:
            y = x.sin()
            raise ValueError("inside")
    except ValueError as error:
        return x.cos(), mode.seen, str(error)
    return y


def in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode(), Doubling():
        return x.sin()


SHARED = Recording()


def from_outside(x: Tensor) -> Tensor:
    with SHARED:
        y = x.exp()
    return y


def made_inside(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode:
        y = x[torch.tensor([0, 2])]
    return y, mode.seen


PROGRAMS = [changed, recorded, replaced, two, bare, nested, composite, several_results, random, raises]
PROGRAMS += [in_inference_mode, from_outside, made_inside]


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[Tensor], Any], backend: str, dynamic: bool | None) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    for _ in range(3):
        SHARED.seen.clear()
        torch.manual_seed(1)
        want = program(X)
        seen = list(SHARED.seen)
        SHARED.seen.clear()
        torch.manual_seed(1)
        assert_same(compiled(X), want)
        assert SHARED.seen == seen
        assert torch._C._len_torch_dispatch_stack() == 0


def with_an_exit(x: Tensor) -> tuple[Tensor, list[str]]:
    with Recording() as mode:
        y = x.sin()
        magneto.graph_break()
        y = y.cos()
    return y, mode.seen


def with_gradients(x: Tensor) -> tuple[Tensor, list[str]]:
    w = x.clone().requires_grad_()
    with Recording() as mode:
        y = (w * 2).sum()
    y.backward()
    return w.grad, mode.seen  # type: ignore[return-value]


def refuses(x: Tensor) -> Tensor:
    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    try:
        with Refusing():
            return x.sin()
    except TypeError:
        return x.cos()


@pytest.mark.lenient
@pytest.mark.filterwarnings("ignore:Compiled functions run under CPython")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [with_an_exit, with_gradients, refuses], ids=lambda program: program.__name__)
def test_left_to_python(program: Callable[[Tensor], Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for _ in range(3):
        assert_same(compiled(X), program(X))
        assert torch._C._len_torch_dispatch_stack() == 0
