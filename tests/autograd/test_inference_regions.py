"""torch.inference_mode entered inside of what is compiled: part of the graph, with results that are inference tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import Tensor, nn

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)
LAYER = nn.Linear(6, 6)


def whole(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.sin() * 2 + 1


@torch.inference_mode()
def decorated(x: Tensor) -> Tensor:
    return LAYER(x).relu()


def calls_decorated(x: Tensor) -> tuple[Tensor, Tensor]:
    return decorated(x), x.cos()


def used_behind(x: Tensor) -> tuple[Tensor, Tensor, bool]:
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled()
    return y, y + 1, inside and not torch.is_inference_mode_enabled()


def two_regions(x: Tensor) -> list[Tensor]:
    with torch.inference_mode():
        y = x.exp()
    z = x + 3
    with torch.inference_mode():
        return [y * z, z, y]


def nested(x: Tensor) -> Tensor:
    with torch.inference_mode():
        with torch.inference_mode():
            y = x + 1
        return y * torch.is_inference_mode_enabled()


def off_inside_nothing(x: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return x * 3


def written_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    z = x.clone()
    with torch.inference_mode():
        y = x * 2
        y[1:] += 1
        z.mul_(2)
    return y, z


def views_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        y = x * 2
        return y, y.view(2, 3)[1:]


def attributes(x: Tensor) -> tuple[bool, bool, bool]:
    with torch.inference_mode():
        y = x * 2
    return y.is_inference(), x.is_inference(), y.requires_grad


def beside_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    loss = (LAYER(x) ** 2).sum()
    with torch.inference_mode():
        metric = LAYER(x).argmax()
    return loss, metric


def step(x: Tensor) -> tuple[Tensor, Tensor]:
    loss = (LAYER(x) ** 2).sum()
    with torch.inference_mode():
        metric = loss * 2
    LAYER.zero_grad()
    loss.backward()
    return metric, LAYER.weight.grad.clone()  # type: ignore[union-attr]


def random(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x + torch.rand(x.shape)


def grad_inside(x: Tensor) -> tuple[Tensor, bool]:
    with torch.inference_mode(), torch.enable_grad():
        return LAYER(x), torch.is_grad_enabled()


def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        with torch.inference_mode():
            y = x.tanh()
        x = x + y
    return x


PROGRAMS = [whole, decorated, calls_decorated, used_behind, two_regions, nested, off_inside_nothing, written_inside]
PROGRAMS += [views_inside, attributes, beside_gradients, step, random, grad_inside, in_a_loop]


def flags(value: Any) -> Any:
    if isinstance(value, Tensor):
        version = None if value.is_inference() else value._version > 0
        return value.is_inference(), version, value.requires_grad, value._is_view()
    return [flags(item) for item in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[[Tensor], Any], backend: str, dynamic: bool | None) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    for _ in range(3):
        torch.manual_seed(1)
        want = program(X)
        torch.manual_seed(1)
        got = compiled(X)
        assert_same(got, want)
        assert flags(got) == flags(want)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert magneto.stats()["graphs"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_around_and_inside(backend: str) -> None:
    compiled = magneto.compile(whole, backend=backend, fullgraph=True)
    for _ in range(2):
        with torch.inference_mode():
            assert_same(compiled(X), whole(X))
        got = compiled(X)
        assert got.is_inference()
        assert_same(got, whole(X))


class Cache(nn.Module):
    kept: Tensor

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            self.kept = x * 2
        return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_kept_is_an_inference_tensor(backend: str) -> None:
    module = Cache()
    compiled = magneto.compile(module, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(X)
        assert module.kept.is_inference()
        assert_same(module.kept, X * 2)


def view_of_an_argument(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.view(2, 3)


def turned_off(x: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return x * 2


def saved_for_backward(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
    return (LAYER.weight * y).sum()


def breaks_inside(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
        magneto.graph_break()
        y = y + 1
    return y * torch.is_inference_mode_enabled()


def raises_inside(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
        raise ValueError("inside")
    return y


def result(function: Callable[[Tensor], Any]) -> Any:
    try:
        return function(X)
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.lenient
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [view_of_an_argument, saved_for_backward, breaks_inside, raises_inside])
def test_left_to_python(program: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for _ in range(3):
        want, got = result(program), result(compiled)
        assert_same(got, want)
        assert flags(got) == flags(want)
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


@pytest.mark.lenient
@pytest.mark.parametrize("backend", BACKENDS)
def test_turned_off_inside(backend: str) -> None:
    compiled = magneto.compile(turned_off, backend=backend)
    for _ in range(2):
        with torch.inference_mode():
            got = compiled(X)
            assert torch.is_inference_mode_enabled()
        assert not got.is_inference()
        assert_same(got, X * 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_that_raises_inside(backend: str) -> None:
    def program(x: Tensor, table: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.linalg.cholesky(table) @ x

    compiled = magneto.compile(program, backend=backend)
    good, bad = torch.eye(6), -torch.eye(6)
    assert_same(compiled(X, good), program(X, good))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(X, bad)
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert_same(compiled(X, good), program(X, good))
