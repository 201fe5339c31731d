"""Tensor.register_hook inside a compiled function: what the hook computes is part of the backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import Program, ProgramTable

import magneto
from magneto import _test_settings

Tensor = torch.Tensor
captured = CAPTURED = ProgramTable()
LIMITS = torch.tensor([0.5, 2.0])
SEEN: list[Any] = []


def clip(gradient: Tensor) -> Tensor:
    return gradient.clamp(-0.1, 0.1)


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scaled(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor


SCALER = Scaler(3.0)


# Each is given x and w, both with gradients.


@captured
def of_a_product(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g * 3)
    return (y * y).sum()


@captured
def by_a_function(x: Tensor, w: Tensor) -> Tensor:
    h = torch.tanh(x @ w)
    h.register_hook(clip)
    return h.sum() + h.exp().mean()


@captured
def by_a_method(x: Tensor, w: Tensor) -> Tensor:
    h = x.sin()
    if h.requires_grad:
        h.register_hook(SCALER.scaled)
    return (h @ w).sum()


@captured
def used_before_and_behind(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    early = y.sin() @ w
    y.register_hook(lambda g: torch.where(g > 0, g, 0.1 * g))
    return early.sum() + y.cos().sum()


@captured
def two_on_one(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * g)
    return y.sum()


@captured
def that_gives_nothing(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: None)
    return y.sum()


@captured
def that_reads_a_tensor(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g.clamp(max=LIMITS[0]) * LIMITS[1])
    return y.sin().sum()


@captured
def that_closes_over_a_number(x: Tensor, w: Tensor) -> Tensor:
    y, factor = x @ w, 0.5
    y.register_hook(lambda g: g * factor)
    return y.sum()


@captured
def in_front_of_a_write(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.add_(1)
    return (y @ w).sum()


@captured
def on_one_of_several(x: Tensor, w: Tensor) -> Tensor:
    first, second = (x @ w).chunk(2, dim=1)
    second.register_hook(lambda g: -g)
    return (first * second).sum()


@captured
def on_a_result(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    y.register_hook(lambda g: g * 10)
    return y, y.sum()


@captured
def of_several_results(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A backward over both calls the hook once, one after the other twice."""
    y = x * 2
    y.register_hook(lambda g: g * g)
    return (y.sin() @ w).sum(), y.cos().sum()


@captured
def that_records(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: SEEN.append(tuple(g.shape)))
    return y.sum()


@captured
def that_is_removed(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    handle = y.register_hook(lambda g: g * 3)
    handle.remove()
    return y.sum()


@captured
def that_closes_over_a_tensor(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    limit = y.detach().abs().mean()
    y.register_hook(lambda g: g.clamp(max=limit))
    return y.sum()


@captured
def that_reads_data(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g * 2 if g.sum().item() > 0 else g)
    return y.sum()


@captured
def on_an_argument(x: Tensor, w: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 2)
    return (x @ w).sum()


@captured
def of_another_size(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    y.register_hook(lambda g: g.sum())
    return y.sum()


def outcome(program: Program, scale: float) -> Any:
    x = (torch.arange(6.0, dtype=torch.float64).reshape(2, 3) * scale - 1).requires_grad_()
    w = (torch.arange(12.0, dtype=torch.float64).reshape(3, 4).cos() * scale).requires_grad_()
    SEEN.clear()
    try:
        results = program(x, w)
        results = results if isinstance(results, tuple) else (results,)
        sum(((r * r.detach().sin()).sum() for r in results), torch.zeros(())).backward()
    except Exception as error:
        return type(error)
    return results, x.grad, w.grad, list(SEEN)


def check(program: Program, **options: Any) -> None:
    compiled = magneto.compile(program, **options)
    for scale in (1.0, -0.5, 2.0):
        assert_same(outcome(compiled, scale), outcome(program, scale))


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("name", CAPTURED)
def test_is_one_graph(name: str, backend: str) -> None:
    check(CAPTURED[name], backend=backend, fullgraph=True)
    assert magneto.stats()["breaks"] == 0
    assert backend == "eager" or magneto.stats()["no_joint"] == {}


@pytest.mark.parametrize("name", CAPTURED)
def test_exits_anywhere(name: str) -> None:
    with _test_settings.patch(exit_every=3):
        check(CAPTURED[name])


def test_a_number_that_a_hook_reads_is_guarded() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        y.register_hook(SCALER.scaled)
        return y.sum()

    compiled = magneto.compile(program)
    try:
        for factor in (3.0, 5.0, -1.0, 3.0):
            SCALER.factor = factor
            assert_same(outcome(compiled, 1.0), outcome(program, 1.0))
    finally:
        SCALER.factor = 3.0


def test_gradients_of_gradients() -> None:
    x = torch.arange(4.0).requires_grad_()

    def program(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda g: g * g)
        return (y * x).sum()

    def twice(function: Program) -> Any:
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        return first, torch.autograd.grad(first.sum(), x)

    assert_same(twice(magneto.compile(program)), twice(program))
