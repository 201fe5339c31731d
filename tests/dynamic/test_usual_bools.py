"""Programs that ask for what is unusual (`if not isfinite(x).all()`): one graph, and eager's results where it is so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

Tensor = torch.Tensor


MASK, NUMBERS = torch.tensor([True, False, True, False]), torch.tensor([1, 2, 3])


def as_in_detr(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x * 2, 0.1)
    if not torch.isfinite(y).all():
        most = torch.finfo(y.dtype).max - 1000
        y = torch.clamp(y, min=-most, max=most)
    return y.sin()


def draws_where_it_is_so(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x, 0.3)
    z = y * torch.rand(3, 4)
    if torch.isinf(y).any() or torch.isnan(y).any():
        z = z.nan_to_num().clamp(-1, 1) + torch.rand(3, 4)
    return z.sin()


def raises(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x, 0.3)
    if y.isnan().any():
        raise FloatingPointError("not a number")
    return y.cos()


def a_number(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x, 0.3)
    return y * 3 if y.isinf().any().item() else y.exp()


def of_a_sum(x: Tensor) -> Tensor:
    loss = torch.nn.functional.dropout(x, 0.3).square().sum()
    return x * 0 if torch.isnan(loss) else x * loss


def where_a_mask_is(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x, 0.3)
    return y.exp() if (torch.isinf(y) & MASK).any() else y * 2


def by_a_mask(x: Tensor) -> Tensor:
    return x.sin() if MASK.any() else x * 2


def by_numbers(x: Tensor) -> Tensor:
    return x.sin() if (NUMBERS > 1).any() else x * 2


def either_is_usual(x: Tensor) -> Tensor:
    y = torch.nn.functional.dropout(x, 0.3)
    return y.sin() if y.sum() > 0 else y.cos()


def rising(x: Tensor) -> Tensor:
    """What constants in the place of its numbers say is never so."""
    y = torch.nn.functional.dropout(x, 0.3).cumsum(1)[0]
    if not all(a < b for a, b in zip(y[:-1], y[1:], strict=True)):
        raise FloatingPointError("it does not rise")
    return x.sin()


def between(x: Tensor) -> Tensor:
    low = torch.nn.functional.dropout(x, 0.3)
    return x.sin() if (low < low + x.exp()).all() else x.cos()


def drawn(x: Tensor) -> Tensor:
    return x.sin() if torch.rand([]) < 0.5 else x * 2


def run(function: Callable[[Tensor], Tensor], gradients: bool) -> list[Any]:
    found = []
    for seed in range(10):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        if seed in (4, 7):
            x[0, seed % 3] = float("inf") if seed == 4 else float("nan")
        x.requires_grad_(gradients)
        torch.manual_seed(seed)
        try:
            result = function(x)
            if gradients:
                result.sum().backward()
        except FloatingPointError as error:
            found.append(str(error))
            continue
        found.append((result, x.grad, torch.rand(2)))
    return found


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("program", "one_graph"),
    [
        *(
            (program, True)
            for program in (as_in_detr, draws_where_it_is_so, raises, a_number, of_a_sum, where_a_mask_is)
        ),
        *((program, False) for program in (either_is_usual, between, drawn, by_a_mask, by_numbers)),
    ],
)
def test_as_in_eager(program: Callable[[Tensor], Tensor], one_graph: bool, gradients: bool) -> None:
    compiled = magneto.compile(program)
    assert_same(run(compiled, gradients), run(program, gradients), exact=False)
    # Without gradients both sides are computed, and one is chosen.
    assert (magneto.stats()["breaks"] == 0) == (one_graph or not gradients), magneto.stats()["break_reasons"]


def test_what_is_often_so_is_an_exit() -> None:
    compiled = magneto.compile(as_in_detr)
    x = torch.full((3, 4), float("inf"), requires_grad=True)
    for seed in range(20):
        torch.manual_seed(seed)
        got = compiled(x)
        torch.manual_seed(seed)
        assert_same(got, as_in_detr(x))
    assert sum(magneto.stats()["undone"].values()) < 10
    assert magneto.stats()["breaks"] > 0


@pytest.mark.parametrize("gradients", [False, True])
def test_the_order_of_computed_numbers(gradients: bool) -> None:
    assert_same(run(magneto.compile(rising), gradients), run(rising, gradients), exact=False)
    assert magneto.stats()["breaks"] > 0


def test_the_order_of_given_numbers() -> None:
    """As solvers of differential equations check their times: found wrong by chance, each call would be undone."""

    def program(times: Tensor) -> Tensor:
        if not all(a < b for a, b in zip(times[:-1], times[1:], strict=True)):
            raise ValueError("times must rise")
        return times * 2

    compiled = magneto.compile(program)
    for _ in range(6):
        assert_same(compiled(torch.linspace(0, 1, 3)), program(torch.linspace(0, 1, 3)))
    with pytest.raises(ValueError, match="must rise"):
        compiled(torch.tensor([0.0, 2.0, 1.0]))
    stats = magneto.stats()
    assert not stats["fallbacks"]
    assert sum(stats["undone"].values()) <= 1
