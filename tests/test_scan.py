"""torch's scan and map inside captures: one step after the other, in the caller's graph, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan

import magneto


def loop(combine: Any, init: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    """What scan's documentation says that it gives."""
    leaves, structure = pytree.tree_flatten(xs)
    leaves = [leaf.movedim(dim, 0) for leaf in leaves]
    carry, outs = init, []
    count = leaves[0].shape[0]
    for i in reversed(range(count)) if reverse else range(count):
        carry, out = combine(carry, pytree.tree_unflatten([leaf[i] for leaf in leaves], structure))
        outs.append(pytree.tree_flatten(out))
    if reverse:
        outs.reverse()
    stacked = [torch.stack([out[0][k] for out in outs]) for k in range(len(outs[0][0]))]
    return carry, pytree.tree_unflatten([leaf.movedim(0, dim) if dim else leaf for leaf in stacked], outs[0][1])


def check(function: Any, reference: Any, *args: torch.Tensor, breaks: int = 0, **options: Any) -> None:
    magneto.reset()
    compiled = magneto.compile(function, **options)
    for _ in range(2):
        ours = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        theirs = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        got, spec = pytree.tree_flatten(compiled(*ours))
        want, wanted = pytree.tree_flatten(reference(*theirs))
        assert spec == wanted
        for mine, own in zip(got, want, strict=True):
            assert mine.stride() == own.stride() and mine.requires_grad == own.requires_grad
            torch.testing.assert_close(mine, own)
        if any(leaf.requires_grad for leaf in want):
            sum((leaf.sin().sum() for leaf in got if leaf.requires_grad), torch.zeros(())).backward()
            sum((leaf.sin().sum() for leaf in want if leaf.requires_grad), torch.zeros(())).backward()
            for mine, own in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine.grad, own.grad)
    stats = magneto.stats()
    assert stats["breaks"] == breaks
    assert breaks or stats["graphs"] == 1


def decayed(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    carry = 0.9 * carry + x
    return carry, carry.tanh()


def lstm(carry: tuple[torch.Tensor, torch.Tensor], x: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    h, c = carry
    c = c * torch.sigmoid(x["gate"]) + torch.tanh(x["value"] + h)
    h = c.tanh()
    return (h, c), {"h": h.clone(), "c": [c * 2]}


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dim, reverse", [(0, False), (0, True), (1, False), (-1, True)])
def test_scan(dim: int, reverse: bool, gradients: bool, backend: str) -> None:
    x = torch.randn(5, 6, 7)
    dims = dim % 3
    init = torch.randn([size for i, size in enumerate(x.shape) if i != dims])
    check(
        lambda init, x: scan(decayed, init, x, dim=dim, reverse=reverse),
        lambda init, x: loop(decayed, init, x, dims, reverse),
        init.requires_grad_(gradients),
        x.requires_grad_(gradients),
        backend=backend,
        fullgraph=True,
    )


@pytest.mark.parametrize("gradients", [False, True])
def test_trees_and_closures(gradients: bool) -> None:
    weight = torch.randn(4, requires_grad=gradients)

    def through(scan_: Any) -> Any:
        def function(h: torch.Tensor, gate: torch.Tensor, value: torch.Tensor) -> Any:
            return scan_(
                lambda carry, x: lstm(carry, {**x, "gate": x["gate"] * weight}),
                (h, h * 2),
                {"gate": gate, "value": value},
            )

        return function

    args = [torch.randn(3, 4), torch.randn(9, 3, 4), torch.randn(9, 3, 4)]
    check(through(scan), through(loop), *[arg.requires_grad_(gradients) for arg in args])


def test_lengths_are_captured_apart() -> None:
    compiled = magneto.compile(lambda x: scan(decayed, torch.zeros(3), x), dynamic=True)
    for length in (4, 5, 4):
        x = torch.randn(length, 3)
        torch.testing.assert_close(compiled(x), loop(decayed, torch.zeros(3), x))


def test_a_carry_that_changes_its_structure() -> None:
    def grows(carry: Any, x: torch.Tensor) -> Any:
        return (carry, x), x + 1

    with pytest.raises(RuntimeError):  # eager's own
        magneto.compile(lambda x: scan(grows, torch.zeros(3), x))(torch.randn(4, 3))


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
def test_map(gradients: bool, backend: str) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    check(
        lambda x, w: torch_map(layer, x, w),
        lambda x, w: torch.stack([layer(x[i], w) for i in range(x.shape[0])]),
        torch.randn(3, 4, 5, requires_grad=gradients),
        torch.randn(5, 2, requires_grad=gradients),
        backend=backend,
    )


def test_map_of_trees() -> None:
    def both(pair: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": pair[0] + pair[1], "product": pair[0] * pair[1]}

    check(
        lambda x, y: torch_map(both, [x, y]),
        lambda x, y: {"sum": x + y, "product": x * y},
        torch.randn(6, 2),
        torch.randn(6, 2),
    )
