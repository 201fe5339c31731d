"""Operators that take functions and call them: what they are given is a part of the caller's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.strict_mode import strict_mode

import magneto

WRAP: Any = torch.ops.higher_order.wrap
WITH_GRAD: Any = torch.ops.higher_order.wrap_with_set_grad_enabled
WITH_AUTOCAST: Any = torch.ops.higher_order.wrap_with_autocast


def tree(x: torch.Tensor) -> dict[str, Any]:
    return {"sine": x.sin(), "others": [x * 2, (x + 1,)]}


def outer(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, 1) @ x.view(1, -1)


def in_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return outer(x)


def without_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.sin()


region = mark_compile_region(tree)

# What is compiled, and what it does: some of these call PyTorch's own compiler where there is none around them.
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "strict_mode": (lambda x: strict_mode(tree, (x,)), tree),
    "nested_compile_region": (lambda x: region(x), tree),
    "foreach_map of an operator": (
        lambda x: foreach_map(torch.add, [x, x * 2], [x, x]),
        lambda x: [x + x, x * 2 + x],
    ),
    "foreach_map of a function": (
        lambda x: foreach_map(lambda a, b: (a * b).relu(), [x, x * 2], 3.0),
        lambda x: [(x * 3.0).relu(), (x * 2 * 3.0).relu()],
    ),
    "wrap": (lambda x: WRAP(tree, x), tree),
    "wrap_with_set_grad_enabled": (lambda x: WITH_GRAD(False, torch.sin, x), without_grad),
    "wrap_with_autocast": (lambda x: WITH_AUTOCAST("cpu", torch.bfloat16, True, True, outer, x), in_autocast),
}


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: str, gradients: bool, backend: str) -> None:
    function, reference = PROGRAMS[program]
    magneto.reset()
    compiled = magneto.compile(function, fullgraph=True, backend=backend)
    for _ in range(2):
        x = torch.linspace(-1, 2, 5).requires_grad_(gradients)
        y = x.detach().clone().requires_grad_(gradients)
        got, structure = pytree.tree_flatten(compiled(x))
        want, expected = pytree.tree_flatten(reference(y))
        assert structure == expected
        assert [leaf.requires_grad for leaf in got] == [leaf.requires_grad for leaf in want]
        torch.testing.assert_close(got, want)
        if any(leaf.requires_grad for leaf in got):
            torch.stack([leaf.sum() for leaf in got]).sum().backward()
            torch.stack([leaf.sum() for leaf in want]).sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"]) == (1, 0)
