"""Results with gradients that share memory with inputs or with each other are views, as in eager, and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

Program = Callable[[Tensor], tuple[Tensor, ...]]


def hidden_base(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).exp().unbind(0)


def base_and_view(x: Tensor) -> tuple[Tensor, ...]:
    h = x.sin() * 3
    return h, h[:, 0], h.t()


def views_of_views(x: Tensor) -> tuple[Tensor, ...]:
    h = (x * 2).view(2, 6)
    return h[0], h[0].view(3, 2), h.chunk(2, 1)[1]


def view_of_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.t(), x.cos()


def only_views_of_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.flatten(), x[1]


def detached(x: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    return h, h.detach(), h.detach()[0]


def without_gradients(x: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    with torch.no_grad():
        v = h[0]
    return v, h[0], h.exp()


def reshaped(x: Tensor) -> tuple[Tensor, ...]:
    h = torch.nn.functional.linear(x, x)
    return h.reshape(-1), h.reshape(h.shape[0], -1, 1)


def written_view(x: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    v = h[0]
    v.mul_(3)
    return h, v


def written_base(x: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    v = h[0]
    h.add_(1)
    return v, h.sum()


def expanded(x: Tensor) -> tuple[Tensor, ...]:
    h = x.sum(0, keepdim=True)
    return h.expand(3, -1), h


def integers(x: Tensor) -> tuple[Tensor, ...]:
    order = x.argsort(1)
    return order, order[0], x.exp()


def literal(x: Tensor) -> tuple[Tensor, ...]:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return weights, weights[1:], x * weights


def sizes(x: Tensor) -> tuple[Tensor, ...]:
    h = x * 2
    return h[: x.shape[0] - 1], h.view(x.shape[0] * x.shape[1]), h.split([1, x.shape[1] - 1], 1)[1]


def of_a_product(x: Tensor) -> tuple[Tensor, ...]:
    """Its result shares the memory of a matrix that autograd knows nothing of: keys and values without a bias."""
    h = torch.nn.functional.linear(x.unsqueeze(0), x[:2, :4].repeat(4, 1))
    keys, values = h.chunk(2, -1)
    return keys.transpose(1, 2), values, h.exp()


def product_and_view(x: Tensor) -> tuple[Tensor, ...]:
    h = x.unsqueeze(0) @ x[:2].t()
    return h, h.view(-1), h.transpose(1, 2)


PROGRAMS: list[Program] = [
    hidden_base, base_and_view, views_of_views, view_of_input, only_views_of_input, detached, without_gradients,
    reshaped, written_view, written_base, expanded, integers, literal, sizes, of_a_product,
    product_and_view,
]  # fmt: skip


def facts(results: tuple[Tensor, ...], x: Tensor) -> list[object]:
    """What can be seen of results without data: strides, who shares whose memory, what autograd says of each."""
    starts = sorted({t.untyped_storage().data_ptr() for t in (x, *results)})
    return [
        (
            t.shape, t.stride(), t.storage_offset(), t.dtype, t.requires_grad, t.is_leaf,
            starts.index(t.untyped_storage().data_ptr()) == starts.index(x.untyped_storage().data_ptr()),
            [t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() for u in results],
        )
        for t in results
    ]  # fmt: skip


def gradients(program: Program, x: Tensor, only: int | None) -> list[Tensor | None]:
    """Of all results, or one alone."""
    leaf = x.clone().requires_grad_()
    results = [t for t in program(leaf) if t.requires_grad and t.grad_fn is not None]
    chosen = results if only is None else results[only : only + 1]
    if chosen:
        torch.stack([t.sin().sum() for t in chosen]).sum().backward()
    return [leaf.grad]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Program, backend: str, dynamic: bool | None) -> None:
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
    for rows in (3, 3, 5) if program in (base_and_view, sizes, reshaped) else (3, 3):
        x = torch.randn(rows, 4)
        theirs, ours = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, given = program(theirs), compiled(ours)
        assert facts(given, ours) == facts(expected, theirs)
        torch.testing.assert_close(given, expected)
        for only in (None, 0, 1, 2):
            torch.testing.assert_close(gradients(compiled, x, only), gradients(program, x, only))
    stats = magneto.stats()
    assert stats["joint_graphs"] and not stats["no_joint"]


def change_and_differentiate(program: Program, x: Tensor, which: int) -> object:
    """A write to one result is seen in the others, and in their gradients; where eager forbids it, its error."""
    leaf = x.clone().requires_grad_()
    results = program(leaf)
    before = [t._version for t in results]
    try:
        results[which].mul_(2)
        parts = [t.sin().sum() for t in results if t.requires_grad]
        torch.stack(parts).sum().backward()
    except RuntimeError as error:
        return str(error).partition("\n")[0].partition("Output 0")[0][:40]
    return [
        *(t.detach().clone() for t in results),
        leaf.grad,
        [t._version - old for t, old in zip(results, before, strict=True)],
    ]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_written_afterwards(program: Program, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    x = torch.randn(3, 4)
    for which in range(2):
        expected, given = (change_and_differentiate(p, x, which) for p in (program, compiled))
        assert isinstance(given, str) == isinstance(expected, str), (given, expected)
        torch.testing.assert_close(given, expected) if not isinstance(given, str) else None


@pytest.mark.parametrize("program", [hidden_base, base_and_view, view_of_input, reshaped])
def test_gradients_of_gradients(program: Program) -> None:
    def second(function: Program, x: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        total = torch.stack([t.sin().sum() for t in function(leaf)]).sum()
        (first,) = torch.autograd.grad(total, leaf, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), leaf)[0]

    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(second(magneto.compile(program), x), second(program, x))


def test_sizes_that_python_numbers_give() -> None:
    def split(x: Tensor, parts: int) -> tuple[Tensor, ...]:
        h = x * 2
        return h.view(parts, -1, 4), h.sin() * parts

    compiled = magneto.compile(split, dynamic=True)
    for parts, rows in ((2, 6), (3, 9), (4, 8)):
        theirs, ours = (torch.ones(rows, 4, requires_grad=True) for _ in range(2))
        expected, given = split(theirs, parts), compiled(ours, parts)
        torch.testing.assert_close(given, expected)
        for results in (expected, given):
            (results[0].sin().sum() + results[1].sum()).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert not magneto.stats()["no_joint"]
