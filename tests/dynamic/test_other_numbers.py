"""Dynamic sizes beside numbers that are no plain int or float."""

from __future__ import annotations

import enum
from typing import Any

import pytest
import torch

import magneto


class Level(enum.IntEnum):
    LOW = 2


@pytest.mark.parametrize("other", [True, Level.LOW, 2j, 1.5, 3], ids=str)
def test_arithmetic_and_comparison(other: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        n = x.shape[0]
        found = [n + other, other + n, n - other, other - n, n * other, other * n, n / other, other / n]
        found += [n == other, other == n, n != other]
        if not isinstance(other, complex):
            found += [n < other, other < n, n <= other, other >= n, min(n, other), max(other, n), n % other, n // other]
        return x * 2, found

    compiled = magneto.compile(program, backend="eager", dynamic=True, fullgraph=True)
    for n in (5, 6, 7):
        x = torch.ones(n)
        (got, numbers), (want, expected) = compiled(x), program(x)
        assert torch.equal(got, want)
        assert [(type(a), a) for a in numbers] == [(type(a), a) for a in expected]
