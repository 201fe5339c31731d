"""`flag = mask.any().item()`: what it is in the call that is captured is assumed, and checked in each run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable

import magneto

Tensor = torch.Tensor
program = PROGRAMS = ProgramTable()


# Each is given x (6 numbers); whether one of them is negative differs from call to call.


@program
def picks_a_way(x: Tensor) -> Tensor:
    if (x < 0).any().item():
        x = torch.cat([x.abs(), x.new_ones(2)])
    return x * 2


@program
def goes_through_calls(x: Tensor) -> list[Any]:
    def layer(h: Tensor, wide: bool) -> tuple[Tensor, ...]:
        h = torch.cat([h, h]) if wide else h
        return (h.softmax(0), h) if wide else (h.softmax(0),)

    wide = (x < 0).flatten().any().item()
    return [layer(x, wide), layer(x + 1, wide), wide]


@program
def is_handed_back(x: Tensor) -> tuple[Any, Any, int]:
    flag = torch.all(x > 0).item()
    return flag, x * flag, [3, 4][flag]


@program
def returns_early(x: Tensor) -> Tensor | None:
    y = x.sin()
    if (y.abs() > 2).any().item():
        return None
    return x.sqrt() if (x >= 0).all().item() else -x


@program
def changes_an_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y = torch.rand(6)
    negative = (x.sum() < 6).item()
    x.mul_(2)
    return (y, torch.rand(2)) if negative else (y + x, torch.rand(1))


@program
def of_a_copy_that_was_written(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 100
    return y if (y > 99).any().item() else x


def call(function: Any, x: Tensor) -> Any:
    torch.manual_seed(0)
    x = x.clone()
    return function(x), x, torch.rand(1)


def numbers(turn: int) -> Tensor:
    return torch.arange(1.0, 7.0) - 3 * (turn % 3 == 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_as_eager(name: str, backend: str) -> None:
    compiled = magneto.compile(PROGRAMS[name], backend=backend)
    for turn in range(18):
        assert_same(call(compiled, numbers(turn)), call(PROGRAMS[name], numbers(turn)))


@pytest.mark.parametrize("name", ["picks_a_way", "goes_through_calls", "is_handed_back", "returns_early"])
def test_where_no_exit_is_wanted(name: str) -> None:
    """CPython runs the calls in which it does not hold."""
    compiled = magneto.compile(PROGRAMS[name], fullgraph=True)
    assert_same(call(compiled, numbers(0)), call(PROGRAMS[name], numbers(0)))
    with pytest.warns(RuntimeWarning, match="a bool that the data say is"):
        assert_same(call(compiled, numbers(1)), call(PROGRAMS[name], numbers(1)))
    for turn in range(2, 8):
        assert_same(call(compiled, numbers(turn)), call(PROGRAMS[name], numbers(turn)))
    assert (magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (0, 0)


def test_one_graph_as_long_as_it_holds() -> None:
    compiled = magneto.compile(goes_through_calls)
    for turn in range(1, 5):
        assert_same(call(compiled, torch.arange(6.0) * turn), call(goes_through_calls, torch.arange(6.0) * turn))
    assert (magneto.stats()["breaks"], magneto.stats()["recompiles"], magneto.stats()["undone"]) == (0, 0, {})


def test_often_otherwise_is_an_exit() -> None:
    """Each call that finds the other value runs under CPython; the fourth one has the next capture end in front of it."""
    compiled = magneto.compile(picks_a_way)
    compiled(torch.ones(6))
    for _ in range(6):
        assert_same(compiled(-torch.ones(6)), picks_a_way(-torch.ones(6)))
    assert sum(magneto.stats()["undone"].values()) == 4 and magneto.stats()["breaks"] == 1


def test_gradients() -> None:
    linear = torch.nn.Linear(6, 2)

    def function(x: Tensor) -> Tensor:
        y = linear(x)
        return y * 3 if (x < 0).any().item() else y

    compiled = magneto.compile(function)
    for turn in range(8):
        x = torch.arange(6.0) - turn % 2
        grads = []
        for each in (compiled, function):
            linear.zero_grad()
            each(x).square().sum().backward()
            grads.append(linear.weight.grad.clone())
        assert_same(grads[0], grads[1])


def test_an_export_has_no_such_assumption() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if (x < 0).any().item() else x

    magneto.install()
    try:
        with pytest.raises(Exception, match="data"):
            torch.export.export(Model(), (torch.ones(6),))
    finally:
        magneto.uninstall()
