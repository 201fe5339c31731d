"""How the arguments of an exported program lie in memory: as the example's, or they are copied so.

The graph is the one that the example has led to: a `reshape` that was a view there is one in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Node = torch.fx.Node

# Operators that raise, or give something else, where their operand lies otherwise.
_OF_LAYOUT = {
    torch.ops.aten.view.default,
    torch.ops.aten.view.dtype,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten._reshape_alias.default,
    torch.ops.aten.as_strided.default,
    torch.ops.aten.view_as_complex.default,
}


def _strides(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Of a tensor without gaps."""
    strides, next_stride = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = next_stride
        next_stride *= max(sizes[dim], 1)
    return strides


def _lies_so(x: torch.Tensor, order: Sequence[int]) -> bool:
    wanted = _strides(x.shape, order)
    return x.numel() == 0 or all(size == 1 or x.stride(dim) == wanted[dim] for dim, size in enumerate(x.shape))


def order_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """Its dimensions, the outermost in memory first; None: there are gaps, or elements that are one."""
    order = tuple(sorted(range(x.dim()), key=lambda dim: -x.stride()[dim]))
    return order if x.layout == torch.strided and _lies_so(x, order) else None


def read_by_layout(graph: torch.fx.Graph) -> set[str]:
    """The inputs whose layout some operator behind them depends on."""
    depends: set[Node] = set()
    for node in reversed(graph.nodes):
        if (
            node.target in _OF_LAYOUT
            or isinstance(node.target, torch._ops.HigherOrderOperator)
            or depends & {*node.users}
        ):
            depends.add(node)
    return {node.name for node in depends if node.op == "placeholder"}


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf.value, torch.Tensor) and not leaf.is_size


def checked(checks: Any, leaves: Sequence[Any], graph: torch.fx.Graph, assumed: Sequence[Any]) -> Any:
    """The checks of a program, with what it needs of the layout of its arguments, its leaves.

    Args:
        assumed: What the capture assumes, rows that begin with a kind: "layout", of what the program asks.
    """
    asks = any(kind == "layout" for kind, *_ in assumed)
    read = read_by_layout(graph)
    orders = {leaf.name: order_of(leaf.value) for leaf in leaves if _is_tensor(leaf)}
    dense = tuple(f"L[{name!r}].stride()" for name, order in orders.items() if order is not None)
    parts = [part for condition in checks.conditions for part in condition.split(" and ")]
    expected = [
        each._replace(order=orders.get(each.name) if asks or each.name in read else None) for each in checks.leaves
    ]
    conditions = [part for part in parts if not part.startswith(dense)]
    return checks._replace(leaves=expected, conditions=conditions, asks_layout=asks)


def as_example(x: torch.Tensor, order: Sequence[int] | None, strict: bool, where: str) -> torch.Tensor:
    """The argument, or a copy of it that lies as the example. `strict`: it must lie so."""
    if order is None or x.layout != torch.strided or _lies_so(x, order):
        return x
    if strict:
        raise RuntimeError(
            f"Expected input at {where} to have the strides {tuple(_strides(x.shape, order))}, but got {x.stride()}: "
            "the program asks how its tensors lie in memory"
        )
    return torch.empty_strided(x.shape, _strides(x.shape, order), dtype=x.dtype, device=x.device).copy_(x)
