"""Writes to parts of tensors, whose backward autograd computes in views by strides: as eager, and all of it in kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

Tensor = torch.Tensor


def rows(y: Tensor) -> None:
    y[:, 1:3].mul_(2)


def one_row(y: Tensor) -> None:
    y[2] = 0


def steps(y: Tensor) -> None:
    y[1::2, ::3].exp_()


def by_columns(y: Tensor) -> None:
    y.t()[1].add_(y[:, 2])


def joined_rows(y: Tensor) -> None:
    y.view(-1)[3:30].sin_()


def windows(y: Tensor) -> None:
    y.unfold(1, 3, 3)[..., 1:].mul_(3)


def halves(y: Tensor) -> None:
    y.view(6, 3, 3)[..., 0].mul_(3)


def one_after_the_other(y: Tensor) -> None:
    y[:, 0] = y[:, 1]
    y[:3, 1:] += y[3:, 1:]


def by_strides(y: Tensor) -> None:
    y.as_strided((3, 4), (18, 2), 1).add_(1)


def unit_dimensions(y: Tensor) -> None:
    y[:, None, 4:5].tanh_()


WRITES = (
    rows,
    one_row,
    steps,
    by_columns,
    joined_rows,
    halves,
    one_after_the_other,
    by_strides,
    unit_dimensions,
    windows,
)


def trained(write: Callable[[Tensor], None], compile: Callable[[Any], Any]) -> tuple[Tensor, Tensor | None]:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        y = x * weight
        write(y)
        return y * y

    x = torch.linspace(-1, 1, 54).view(6, 9).requires_grad_()
    result = compile(program)(x, torch.linspace(1, 2, 9))
    result.cos().sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_written_part(write: Callable[[Tensor], None]) -> None:
    torch.testing.assert_close(trained(write, magneto.compile), trained(write, lambda program: program))
    assert not magneto.stats()["no_joint"]
    assert not magneto.stats()["externs"]


def a_view(numbers: random.Random, base: Tensor) -> Tensor:
    """Some view of it."""
    view = base
    for _ in range(numbers.randint(1, 5)):
        dims = view.dim()
        dim = numbers.randrange(dims) if dims else 0
        kind = numbers.choice(("slice", "select", "transpose", "unsqueeze", "flat", "split"))
        if kind == "slice" and dims:
            start = numbers.randrange(view.shape[dim])
            view = view.narrow(dim, start, numbers.randint(1, view.shape[dim] - start))
            view = view[(slice(None),) * dim + (slice(None, None, numbers.randint(1, 3)),)]
        elif kind == "select" and dims > 1:
            view = view.select(dim, numbers.randrange(view.shape[dim]))
        elif kind == "transpose" and dims > 1:
            view = view.transpose(dim, numbers.randrange(dims))
        elif kind == "unsqueeze" and dims < 5:
            view = view.unsqueeze(numbers.randint(0, dims))
        elif kind == "flat" and view.is_contiguous():
            view = view.view(-1)
        elif kind == "split" and dims and view.shape[dim] % 2 == 0:
            view = view.unflatten(dim, (2, view.shape[dim] // 2))
    return view


@pytest.mark.parametrize("seed", range(25))
def test_any_strides(seed: int) -> None:
    """Sizes and strides of views, and some of none."""
    numbers = random.Random(seed)
    base = torch.arange(float(numbers.choice((24, 48, 72, 90)))).view(
        numbers.choice(((-1,), (2, -1), (-1, 3), (6, 1, -1)))
    )
    view = a_view(numbers, base)
    size, stride, offset = tuple(view.shape), list(view.stride()), view.storage_offset()
    if seed % 5 == 4 and size and size[-1] < 4:  # elements in several places, or no digits
        stride[-1] = numbers.randint(1, 5)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        y.as_strided(size, stride, offset).add_(100)
        part = y.as_strided(size, stride, offset)
        return y + 1, part * 2

    def run(compile: Callable[[Any], Any]) -> Any:
        x = base.clone().requires_grad_()
        try:
            whole, part = compile(program)(x)
        except RuntimeError as error:
            return type(error)
        (whole.square().sum() + part.sum()).backward()
        return whole.detach(), part.detach(), part.stride(), x.grad

    actual, expected = run(magneto.compile), run(lambda program: program)
    assert isinstance(actual, tuple) == isinstance(expected, tuple), (size, stride, offset)
    if isinstance(expected, tuple):
        torch.testing.assert_close(actual, expected)
