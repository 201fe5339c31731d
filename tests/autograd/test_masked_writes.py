"""Writes through masks, trained: what is written has as many elements as the mask counts, also where it is made twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto


def both_sides(x: Tensor) -> Tensor:
    mask = x > 0
    out = torch.zeros_like(x)
    out[mask] = x[mask].exp()
    out[~mask] = x[~mask] * 2
    return out


def one_side(x: Tensor) -> Tensor:
    out = torch.ones_like(x)
    out[~(x > 0)] = x[~(x > 0)] * 2
    return out


def inside_of_what_a_mask_gave(x: Tensor) -> Tensor:
    mask = x > 0
    y = x[mask]
    z = torch.zeros_like(y)
    z[y > 0.5] = y[y > 0.5] ** 2
    out = x * 1
    out[mask] = z
    return out


def two_conditions(x: Tensor) -> Tensor:
    out = x.sin()
    out[(x > -1) & (x < 1)] = x[(x > -1) & (x < 1)].cos()
    return out


def rows(x: Tensor) -> Tensor:
    keep = (x > 0).any(1)
    out = x * 0.5
    out[keep] = x[keep] @ x.t() @ x
    return out


def another_mask(x: Tensor) -> Tensor:
    """As many elements, but no mask that is the same."""
    out = x * 1
    out[x > 0] = x[x.neg() < 0] * 3
    return out


def mask_that_is_written(x: Tensor) -> Tensor:
    mask = x > 0
    places = mask.nonzero()
    mask.logical_not_()
    out = x * 1
    out[mask] = x[mask] - 1
    return out + places.sum()


ONE_GRAPH = [both_sides, one_side, inside_of_what_a_mask_gave, two_conditions, rows]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", [*ONE_GRAPH, another_mask, mask_that_is_written])
def test_gradients(program: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for seed in range(6):
        data = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        results = []
        for function in (program, compiled):
            x = (data if seed else data.abs()).clone().requires_grad_()
            result = function(x)
            result.backward(torch.arange(20, dtype=torch.float64).reshape(4, 5))
            results.append((result.detach(), x.grad))
        torch.testing.assert_close(results[1], results[0])
    if program in ONE_GRAPH:
        stats = magneto.stats()
        assert (stats["breaks"], stats["recompiles"], stats["no_joint"]) == (0, 0, {})
