"""What a mask selects, put into rows again (`sim[~mask].view(n, -1)`, contrastive losses): the count is that of the
data, and one graph holds for all counts that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same

import magneto

Program = Callable[..., Any]


def without_diagonal(sim: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.logsumexp(sim[~mask].view(sim.size(0), -1), 1)


def both_sides(sim: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    n = sim.size(0)
    positive, negative = sim[mask].view(n, -1), sim[~mask].view(n, -1)
    return torch.logsumexp(negative, 1) - positive.sum(1)


def reshaped(sim: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    negative = sim[~mask].reshape(sim.shape[0], -1)
    logits = torch.cat([sim.diagonal()[:, None], negative], dim=1)
    return F.cross_entropy(logits, torch.zeros(sim.shape[0], dtype=torch.long))


def of_known_width(sim: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    n = sim.shape[0]
    return sim.masked_select(~mask).view(n, n - 1).softmax(-1)


def unflattened(sim: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return sim[~mask].unflatten(0, (-1, 2)).sum(1)


PROGRAMS = [without_diagonal, both_sides, reshaped, of_known_width, unflattened]


def compare_calls(compiled: Program, program: Program, sim: torch.Tensor, mask: torch.Tensor) -> None:
    got, expected = sim.clone().requires_grad_(), sim.clone().requires_grad_()
    left, right = compiled(got, mask), program(expected, mask)
    assert_same(left, right)
    left.square().sum().backward()
    right.square().sum().backward()
    assert_same(got.grad, expected.grad)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_in_one_graph(program: Program) -> None:
    compiled = magneto.compile(program, dynamic=False)
    for seed in range(4):
        torch.manual_seed(seed)
        compare_calls(compiled, program, torch.randn(6, 6), torch.eye(6, dtype=torch.bool)[torch.randperm(6)])
    stats = magneto.stats()
    assert (stats["breaks"], stats["undone"]) == (0, {}), (stats["break_reasons"], stats["undone"])


@pytest.mark.parametrize("program", [without_diagonal, both_sides, reshaped], ids=lambda program: program.__name__)
def test_of_all_sizes(program: Program) -> None:
    compiled = magneto.compile(program, dynamic=True)
    for n in (4, 6, 8, 12, 5):
        sim, mask = torch.randn(n, n), torch.eye(n, dtype=torch.bool)
        assert_same(compiled(sim, mask), program(sim, mask))
    assert magneto.stats()["breaks"] == 0, magneto.stats()["break_reasons"]


def test_gradients_of_all_sizes() -> None:
    """The backward asks for more than is known: a side exit, and eager's results."""
    compiled = magneto.compile(both_sides, dynamic=True)
    for n in (4, 6, 8):
        compare_calls(compiled, both_sides, torch.randn(n, n), torch.eye(n, dtype=torch.bool))


def test_other_counts() -> None:
    """As many to a row, but not always the same number."""
    compiled = magneto.compile(without_diagonal)
    for width in (3, 2, 1, 4):
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[:, :width] = False
        compare_calls(compiled, without_diagonal, torch.randn(5, 5), mask)


def test_counts_that_do_not_fit() -> None:
    compiled = magneto.compile(without_diagonal)
    sim, mask = torch.randn(4, 4), torch.eye(4, dtype=torch.bool)
    compare_calls(compiled, without_diagonal, sim, mask)
    uneven = mask.clone()
    uneven[0, 1] = True
    for _ in range(6):
        with pytest.raises(RuntimeError, match="invalid for input of size 11"):
            compiled(sim, uneven)
        compare_calls(compiled, without_diagonal, sim, mask)


def test_first_call_does_not_fit() -> None:
    compiled = magneto.compile(reshaped)
    sim, mask = torch.randn(4, 4), torch.eye(4, dtype=torch.bool)
    uneven = mask.clone()
    uneven[0, 1] = True
    with pytest.raises(RuntimeError, match="invalid for input of size 11"):
        compiled(sim, uneven)
    compare_calls(compiled, reshaped, sim, mask)


def test_supervised_contrastive_loss() -> None:
    def program(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        n = features.shape[0]
        sim = F.normalize(features, dim=1) @ F.normalize(features, dim=1).T / 0.1
        same = labels[:, None] == labels[None]
        others = ~torch.eye(n, dtype=torch.bool)
        positive = sim[same & others].view(n, -1)
        negative = sim[~same].view(n, -1)
        return (torch.logsumexp(negative, 1) - positive.mean(1)).mean()

    compiled = magneto.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        features, labels = torch.randn(8, 5), torch.arange(4).repeat(2)[torch.randperm(8)]
        compare_calls(compiled, program, features, labels)
    assert magneto.stats()["breaks"] == 0, magneto.stats()["break_reasons"]
