"""What masks select, trained: how much it is only the data say, and its gradient is one graph for all sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from program_table import ProgramTable
from torch import Tensor

import magneto

TABLE = ProgramTable()


@TABLE
def mean(x: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0).mean()


@TABLE
def indexed(x: Tensor) -> Tensor:
    return x.sin()[x > 0].square().mean()


@TABLE
def handed_on(x: Tensor) -> Tensor:
    return x.masked_select(x > 0)


@TABLE
def mask_of_a_row(x: Tensor) -> Tensor:
    return x.exp().masked_select(x[0] > 0).square().sum()


@TABLE
def mask_of_a_column(x: Tensor) -> Tensor:
    return x.masked_select(x[:, :1] > 0).cos().sum()


@TABLE
def larger_mask(x: Tensor) -> Tensor:
    """The gradient is summed over what the tensor was expanded to."""
    return x[:1].masked_select(x > 0).square().sum() * x.mean()


@TABLE
def turned(x: Tensor) -> Tensor:
    return (x.t() * 2).masked_select(x.t() > 0).square().sum()


@TABLE
def twice(x: Tensor) -> Tensor:
    mask = x > 0
    return (x.masked_select(mask) * x.sin().masked_select(mask)).sum() + x.masked_select(~mask).square().mean()


@TABLE
def loss_without_padding(x: Tensor) -> Tensor:
    losses = F.cross_entropy(x, x.argmin(1), reduction="none")
    return losses.masked_select(losses > losses.mean()).mean()


@TABLE
def scattered_back(x: Tensor) -> Tensor:
    mask = x > 0
    return torch.zeros_like(x).masked_scatter(mask, x.masked_select(mask).exp()).square().sum()


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", TABLE)
def test_one_graph(name: str, backend: str) -> None:
    program = TABLE[name]
    compiled = magneto.compile(program, backend=backend)
    for seed, rows in enumerate([6, 8, 9, 5, 12]):
        x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))
        found = []
        for call in (compiled, program):
            leaf = x.clone().requires_grad_()
            result = call(leaf)
            (result * 3).sum().backward()
            assert leaf.grad is not None
            found.append((result.detach(), leaf.grad, leaf.grad.stride()))
        torch.testing.assert_close(*found)
    stats = magneto.stats()
    assert stats["frames"] == stats["joint_graphs"] == 2, stats
    assert not stats["breaks"] and not stats["no_joint"] and not stats["undone"], stats
