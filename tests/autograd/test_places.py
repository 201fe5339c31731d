"""`x[i]` with a tensor of one integer, a data-dependent place: one graph, with eager's gradients and aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto


def row(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[i] * 2


def second_use(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x.tanh()
    return (y[i].sin() + y.sum(0)).exp(), y[i + 1] * y.mean()


def found_inside(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[x.detach().sum(1).argmax()] * x[i]


def other_dimensions(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[:, i] + x[i, i] + x[..., i, None].sum() + x[i, :2].sum() + x[-i - 1, 0]


def views(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x.sin()
    k = y.sum(1).argmax()
    return x[i], x[k], y, y[k], y[i][i], k


def written_place(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * 2
    z = y[i]
    i.add_(1)
    return y, z


def row_times_matrix(x: torch.Tensor, i: torch.Tensor) -> Any:
    return torch.nn.functional.linear(x[i], x)


def gradient_inside(x: torch.Tensor, i: torch.Tensor) -> Any:
    return torch.autograd.grad((x.sin()[i] ** 3).sum(), x, create_graph=True)[0]


def put(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * 2
    y[i] = 0.5
    y[i - 1] = 0
    y[i + 1] = x[0] * x[i, i]
    y[i, i] = x[i].sum().double()
    return y * x


def sequences(x: torch.Tensor, i: torch.Tensor) -> Any:
    y = x * 2
    rows, columns = zip(*torch.stack([i - 1, i]).view(2, 1).expand(2, 2), strict=True)
    y[rows, columns] = 0.5
    y[:2, [i, i]] += x[0, 0]
    return y[[i, i - 1], 1:3], x[..., (i, i, i)], y


PROGRAMS = [
    put,
    sequences,
    row,
    second_use,
    found_inside,
    other_dimensions,
    views,
    written_place,
    row_times_matrix,
    gradient_inside,
]


def outcome(program: Callable[..., Any], rows: int, place: int) -> Any:
    x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4).requires_grad_()
    i = torch.tensor(place)
    try:
        results = program(x * 1, i)
    except IndexError as error:
        return str(error)
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((result * torch.arange(1.0, result.numel() + 1).reshape(result.shape)).sum() for result in results)
    aliases = [[left.data_ptr() == right.data_ptr() for right in results] for left in results]
    histories = [result.requires_grad for result in results]
    return [result.detach() for result in results], torch.autograd.grad(loss, x), i, aliases, histories


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_places_that_only_data_says(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = magneto.compile(program, dynamic=dynamic)
    # The last one lies outside: the run is undone, and CPython raises.
    for rows, place in ((5, 1), (5, 2), (4, 0), (6, 2), (4, 7)):
        assert_same(outcome(compiled, rows, place), outcome(program, rows, place))
    stats = magneto.stats()
    assert stats["uncompiled"] == {} and sum(stats["undone"].values()) <= 1
    if program is not gradient_inside:  # passes what was computed before the call
        assert stats["breaks"] == 0
    if program is not written_place:
        assert stats["no_joint"] == {}


def test_writes_to_a_result_are_eagers() -> None:
    def write(program: Callable[..., Any]) -> Any:
        x = torch.ones(3, 4, requires_grad=True)
        y, z = program(x, torch.tensor(1))
        z.mul_(3)
        return y.detach(), torch.autograd.grad((y * y).sum(), x)

    def program(x: torch.Tensor, i: torch.Tensor) -> Any:
        y = x * 2
        return y, y[i]

    assert_same(write(magneto.compile(program)), write(program))
