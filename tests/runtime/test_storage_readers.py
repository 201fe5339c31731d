"""Operators that count from the start of their argument's storage: what is computed has one of its own there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

PART = torch.arange(4.0).reshape(2, 2)
PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "scatter": lambda x: torch.as_strided_scatter(x, PART, (2, 2), (3, 1), 1) * 2,
    "scatter_at_its_own_offset": lambda x: torch.as_strided_scatter(x, PART, (2, 2), (3, 1)) * 2,
    "scatter_of_columns": lambda x: torch.as_strided_scatter(x.t(), PART, (2, 2), (3, 1), 1) * 2,
    "copy": lambda x: torch.as_strided_copy(x, (2, 2), (3, 1), 1) * 2,
    "view": lambda x: torch.as_strided(x, (2, 2), (3, 1), 1) * 2,
    "write": lambda x: x.as_strided((2, 2), (3, 1), 1).copy_(PART).sum() + x,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_of_what_is_computed(name: str) -> None:
    def products(x: Tensor) -> Tensor:
        y = x @ x
        return PROGRAMS[name]((y @ x) @ y + 1 - 1)

    def kernels(x: Tensor) -> Tensor:
        y = (x * 2).cumsum(0)
        return PROGRAMS[name](y.cos().cumsum(1))

    for program in (products, kernels):
        x = torch.randn(3, 3)
        torch.testing.assert_close(magneto.compile(program)(x), program(x))
