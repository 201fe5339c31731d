"""Inputs that are written where autograd records have the history of what is written, as in eager, and it is compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

Program = Callable[[Tensor, Tensor], Tensor]


def scaled(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    return x.sum()


def one_row(x: Tensor, w: Tensor) -> Tensor:
    x[0] = w
    return x * 2


def masked(x: Tensor, w: Tensor) -> Tensor:
    x[torch.tensor([True, False, True])] = w
    return x.exp()


def accumulated(x: Tensor, w: Tensor) -> Tensor:
    x.index_add_(0, torch.tensor([0, 2, 0]), w.expand(3, -1) * 2)
    return w.sin()


def twice(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w)
    x.tanh_()
    return x.sum(0)


def in_a_view(x: Tensor, w: Tensor) -> Tensor:
    x.t()[1:].add_(w[1:, None])
    return x.sum(0)


def read_before(x: Tensor, w: Tensor) -> Tensor:
    y = x + w
    x.copy_(w.expand_as(x))
    return y


def view_given_back(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w)
    return x[1:]


def unused(x: Tensor, w: Tensor) -> Tensor:
    x.zero_()
    return w * 2


PROGRAMS: list[Program] = [
    scaled, one_row, masked, accumulated, twice, in_a_view, read_before, view_given_back, unused,
]  # fmt: skip


def run(program: Program, kind: str, parts: tuple[bool, bool]) -> object:
    """What is written, results, versions and gradients; `kind` of the written tensor; `parts`: whether the loss has the
    result in it, and the input."""
    torch.manual_seed(3)
    leaf, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    x = {"plain": lambda: leaf.detach().clone(), "history": lambda: leaf * 2, "view": lambda: (leaf * 2).view(3, 4)}[
        kind
    ]()
    y = program(x, w)
    terms = [t.sin().sum() for t, wanted in zip((y, x), parts, strict=True) if wanted and t.requires_grad]
    if terms:
        torch.stack(terms).sum().backward()
    kept = [x.detach().clone(), y.detach().clone(), leaf.grad, w.grad]
    return [*kept, x._version, x.requires_grad, y.requires_grad, x.grad_fn is None, y._is_view()]


@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("kind", ["plain", "history", "view"])
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Program, backend: str, kind: str, parts: tuple[bool, bool]) -> None:
    compiled = magneto.compile(program, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(run(compiled, kind, parts), run(program, kind, parts))
    stats = magneto.stats()
    if kind != "view":  # its base changes, too: the torch calls run under autograd
        assert stats["joint_graphs"] and not stats["no_joint"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_captured_for_one_kind_and_run_for_another(program: Program) -> None:
    compiled = magneto.compile(program)
    for kind in ("history", "view", "plain", "view", "history"):
        torch.testing.assert_close(run(compiled, kind, (True, True)), run(program, kind, (True, True)))


@pytest.mark.parametrize("program", PROGRAMS)
def test_leaf(program: Program) -> None:
    def error(function: Program) -> str:
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        with pytest.raises(RuntimeError) as caught:
            function(x, w)
        return str(caught.value)

    assert error(magneto.compile(program)) == error(program)


@pytest.mark.parametrize("program", [scaled, one_row, accumulated, twice])
def test_gradients_of_gradients(program: Program) -> None:
    def second(function: Program) -> list[Tensor]:
        torch.manual_seed(3)
        leaf, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        x = leaf * 2
        loss = function(x, w).sin().sum() + x.cos().sum()
        first = torch.autograd.grad(loss, (leaf, w), create_graph=True)
        return list(torch.autograd.grad(sum(g.pow(2).sum() for g in first), (leaf, w)))

    torch.testing.assert_close(second(magneto.compile(program)), second(program))


def test_a_leaf_written_without_gradients() -> None:
    def step(x: Tensor, w: Tensor) -> Tensor:
        y = (x + w).sin()
        with torch.no_grad():
            w.sub_(1)
        return y

    def second(function: Program) -> list[Tensor]:
        torch.manual_seed(3)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        (first,) = torch.autograd.grad(function(x, w).sum(), w, create_graph=True)
        return list(torch.autograd.grad(first.pow(2).sum(), (x, w)))

    torch.testing.assert_close(second(magneto.compile(step)), second(step))


def test_two_inputs_of_one_memory() -> None:
    def both(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        x.add_(w)
        return v * 2

    def result(function: Callable[..., Tensor]) -> list[Tensor | None]:
        torch.manual_seed(3)
        leaf, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        x = leaf * 2
        v = x[1:]
        y = function(x, v, w)
        (y.sum() + x.sin().sum()).backward()
        return [y.detach(), leaf.grad, w.grad]

    torch.testing.assert_close(result(magneto.compile(both)), result(both))
