"""Gradients that are taken inside, of what is a leaf in one call and was computed before another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto


def backward_of_a_product(a: Tensor, b: Tensor) -> Tensor:
    loss = (a * b).pow(2).sum()
    loss.backward()
    return loss.detach()


def gradient_of_one(a: Tensor, b: Tensor) -> Tensor:
    return torch.autograd.grad((a * b).pow(2).sum(), a)[0]


def backward_beside_a_result(a: Tensor, b: Tensor) -> Tensor:
    (a.detach() * b).sum().backward(retain_graph=True)
    return b * 3 + a.detach()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [backward_of_a_product, gradient_of_one, backward_beside_a_result])
def test_a_leaf_of_the_capture_that_was_computed_in_a_later_run(program: Callable[..., Tensor], backend: str) -> None:
    def outcome(run: Callable[..., Tensor]) -> list[Tensor]:
        found = []
        for _ in range(2):
            leaf = torch.full((3,), 2.0, requires_grad=True)
            for other in (torch.ones(3, requires_grad=True), leaf * 2, leaf.detach(), (leaf * 3) * 2):
                if not (other.requires_grad or program is gradient_of_one):
                    other.requires_grad_()
                result = run(leaf, other)
                if result.requires_grad:
                    result.sum().backward(retain_graph=True)
                found.append(result.detach().clone())
                gradients = [t.grad for t in (leaf, other) if t.is_leaf and t.grad is not None]
                found += [g.clone() for g in gradients]
        return found

    torch.testing.assert_close(outcome(magneto.compile(program, backend=backend)), outcome(program))
