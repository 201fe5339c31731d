"""Data-dependent sizes and numbers, in an exported graph: `item()`, rows of `nonzero`, what is checked of them.

The core has operators of its own for them, whose operands are tensors. In an exported graph they are Python's numbers,
as PyTorch's export has them: `aten.item`, `aten.sym_size.int`, arithmetic, `aten._assert_scalar`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from magneto._export import called, origins, program

Node = torch.fx.Node

# As src/guards/number.h has them, and src/shapes/relation.h.
_ARITHMETIC: list[Callable[[Any, Any], Any]] = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow)
]
_OF_NUMBERS = {*_ARITHMETIC, min, max, torch.ops.aten.sym_size.int, torch.ops.aten.item.default}
_RELATIONS: list[Callable[[Any, Any], Any]] = [operator.eq, operator.ne, operator.ge]
_SIGNS = {operator.eq: "==", operator.ne: "!=", operator.ge: ">=", operator.le: "<="}

_COMPARISONS = {
    getattr(getattr(torch.ops.aten, relation.__name__), overload): relation
    for relation in (operator.eq, operator.ne, operator.ge, operator.le, operator.gt, operator.lt)
    for overload in ("Scalar", "Tensor")
}

_TURNED = {
    torch.ops.aten.lt.Tensor: torch.ops.aten.gt.Scalar,
    torch.ops.aten.le.Tensor: torch.ops.aten.ge.Scalar,
    torch.ops.aten.gt.Tensor: torch.ops.aten.lt.Scalar,
    torch.ops.aten.ge.Tensor: torch.ops.aten.le.Scalar,
    torch.ops.aten.eq.Tensor: torch.ops.aten.eq.Scalar,
    torch.ops.aten.ne.Tensor: torch.ops.aten.ne.Scalar,
}

# What they copy of a number becomes a tensor first: for items, of their dtype.
_COPIES = {"_to_copy", "copy", "index_put", "select_scatter", "slice_scatter", "as_strided_scatter"}

# What is checked of one number: "0 <= u0", "u0 <= 10".
_LEAST = re.compile(r"(-?\d+) <= (u\d+)")
_MOST = re.compile(r"(u\d+) <= (-?\d+)")

# A number among the results is known again by what stands for it, one that no program computes.
_FIRST_SIGN = 0x5A17_C0DE_D00D_0000


def _own(node: Node) -> str:
    """Which operator of the core's a node calls."""
    target = node.target
    return target._opname if isinstance(target, torch._ops.OpOverload) and target.namespace == "magneto" else ""


def name_of(function: Any) -> str:
    """What a node that calls it is named after: `mul`, of sizes `sym_size_int`."""
    if function is torch.ops.aten.sym_size.int:
        return "sym_size_int"
    return str(getattr(function, "_opname", None) or getattr(function, "__name__", "call"))


def is_number(node: Any) -> bool:
    """A result of the core's graph that is one for the program."""
    return isinstance(node, Node) and _own(node) in ("size", "float")


def _is_numeric(node: Any) -> bool:
    """In the graph that is made: a number, no tensor."""
    if not isinstance(node, Node) or node.op == "placeholder":
        return isinstance(node, Node) and isinstance(node.meta.get("val"), int)
    return node.target in _OF_NUMBERS


def sign_of(node: Node, index: int) -> torch.Tensor:
    """What stands for the result while the program is captured."""
    if _own(node) == "float":
        return torch.tensor(float(_FIRST_SIGN + (index << 12)), dtype=torch.float64)
    return torch.tensor(_FIRST_SIGN + index)


def _with_number(target: Any, place: int) -> Any:
    """The overload that differs in nothing but that it takes a number there."""
    wanted = [str(argument.type) for argument in target._schema.arguments]
    wanted[place] = "number"
    for name in target.overloadpacket.overloads():
        overload = getattr(target.overloadpacket, name)
        if [str(argument.type) for argument in overload._schema.arguments] == wanted:
            return overload
    raise called.not_yet(f"a number that data says among the tensors of {target}")


def translated(region: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A function of torch.cond and its like, whose graph is the core's, likewise; numbers that it finds are its own."""
    graph = torch.fx.Graph()
    numbers = Numbers(graph, ())
    made: dict[Node, Any] = {}
    regions = {}
    for node in region.graph.nodes:
        if node.op == "get_attr" and isinstance(held := getattr(region, str(node.target)), torch.fx.GraphModule):
            regions[str(node.target)] = translated(held)
        elif node.op == "get_attr":
            regions[str(node.target)] = held
        number = numbers.made(node, made.__getitem__)
        made[node] = graph.node_copy(node, made.__getitem__) if number is None else number
        if number is None:
            numbers.take_operands(made[node])
    numbers.remove_unused()
    return torch.fx.GraphModule(regions, graph)


class Numbers:
    """Puts them into the graph that is made."""

    def __init__(self, graph: torch.fx.Graph, found: Sequence[tuple[str, int | None, int | None]]) -> None:
        self._graph = graph
        self._bounds = {name: [low, high] for name, low, high in found}
        self._nodes: dict[str, Any] = {}  # by symbol
        self._origin: dict[str, Any] = {}  # of the node that is made

    def made(self, node: Node, map_of: Callable[[Any], Any]) -> Any:
        """What a node of the core's graph is in this one, if it is about numbers; else None."""
        args = torch.fx.node.map_arg(node.args, map_of)
        self._origin = {key: node.meta[key] for key in (*origins.KEYS, "place") if key in node.meta}
        result: Any = None
        if node.op == "call_method" and node.target == "size":
            result = self._call(torch.ops.aten.sym_size.int, *args)
            self._bound(node.meta["symbol"], 0, None)
        elif kind := _own(node):
            result = self._of_own(kind, args)
        elif node.target in _COMPARISONS and all(_is_numeric(arg) or not isinstance(arg, Node) for arg in args):
            relation = _COMPARISONS[node.target]
            of_sizes = relation in _RELATIONS and _own(node.args[0]) == "size"  # type: ignore[arg-type]
            result = self._ask(relation, *args) if of_sizes else self._compare(node.target, *args)
        if result is not None and "symbol" in node.meta:
            self._name(result, node.meta["symbol"])
        return result

    def _of_own(self, kind: str, args: Any) -> Any:
        if kind == "item":
            return self._call(torch.ops.aten.item.default, args[0])
        if kind in ("number", "size", "float"):
            return args[0]
        if kind == "arithmetic" and args[2] < len(_ARITHMETIC):
            return self._call(_ARITHMETIC[args[2]], args[0], args[1])
        if kind == "assume":
            message = f"Not as in the example of draft_export: {args[1]}"
            return self._call(torch.ops.aten._assert_async.msg, args[0], message)
        if kind == "check":
            return self._check(args[0], _RELATIONS[args[1]], args[2])
        return None

    def take_operands(self, node: Node) -> None:
        """Some operators take numbers for tensors (`mul`); others have an overload that does (`gt.Scalar`)."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch._C._should_allow_numbers_as_tensors(target._opname):
            return
        if target in _TURNED and _is_numeric(node.args[0]):  # `2.0 < x`
            node.target, node.args = _TURNED[target], (node.args[1], node.args[0])
            return
        for i, (arg, declared) in enumerate(zip(node.args, target._schema.arguments, strict=False)):
            if not _is_numeric(arg) or str(declared.type) != "Tensor":
                continue
            if target._opname in _COPIES:
                dtype = torch.float64 if target._opname == "_to_copy" else torch.int64
                with self._graph.inserting_before(node):
                    node.update_arg(i, self._call(torch.ops.aten.scalar_tensor.default, arg, dtype=dtype))
            else:
                node.target = target = _with_number(target, i)

    def taken_out(self, held: Node) -> Any:
        """The number that a result holds (`scalar_tensor`), which is given itself."""
        number = held.args[0]
        if held.target is torch.ops.aten.full.default:
            number = held.args[1]
        if not held.users:
            self._graph.erase_node(held)
        return number

    def _ask(self, relation: Callable[..., Any], difference: Any, zero: Any) -> Node:
        """Of `s0 - 5 >= 0`: `s0 >= 5`."""
        left, right = difference, zero
        if left.target is operator.add and isinstance(left.args[1], int):
            left, right = left.args[0], zero - left.args[1]
        if isinstance(left, Node) and left.target is operator.mul and left.args[1] == -1 and relation is operator.ge:
            left, relation, right = left.args[0], operator.le, -right
        return self._call(relation, left, right)

    def _compare(self, comparison: Any, left: Any, right: Any) -> Node:
        """Floats, as a tensor."""
        held = self._call(torch.ops.aten.scalar_tensor.default, left, dtype=torch.float64)
        return self._call(comparison.overloadpacket.Scalar, held, right)

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        made = self._graph.create_node("call_function", function, args, kwargs, name_of(function))
        made.meta.update(self._origin)
        return made

    def _name(self, node: Node, symbol: str) -> None:
        node.meta["symbol"] = symbol
        self._nodes[symbol] = node

    def _check(self, difference: Any, relation: Callable[..., Any], question: str) -> Any:
        """A number against a bound where it is that, which is one of its range, too; else a difference against zero."""
        left, right = difference, 0
        if (least := _LEAST.fullmatch(question)) and least[2] in self._nodes:
            left, right = self._nodes[least[2]], int(least[1])
            self._bound(least[2], right, None)
        elif (most := _MOST.fullmatch(question)) and most[1] in self._nodes:
            left, relation, right = self._nodes[most[1]], operator.le, int(most[2])
            self._bound(most[1], None, right)
        holds = self._call(relation, left, right)
        text = f"{left.meta['symbol']} {_SIGNS[relation]} {right}" if "symbol" in left.meta else question
        message = f"Runtime assertion failed for expression {text} on node '{holds.name}'"
        return self._call(torch.ops.aten._assert_scalar.default, holds, message)

    def _bound(self, symbol: str, low: int | None, high: int | None) -> None:
        known = self._bounds.setdefault(symbol, [None, None])
        known[0] = low if known[0] is None else max(known[0], low if low is not None else known[0])
        known[1] = high if known[1] is None else min(known[1], high if high is not None else known[1])

    def ranges(self) -> dict[str, program.Range]:
        """What is known of each, for `range_constraints`."""
        return {name: program.Range(*bounds) for name, bounds in self._bounds.items() if name in self._nodes}

    def remove_unused(self, named: Collection[str] = ()) -> None:
        """Sizes that nothing reads, and that have none of these names."""
        for node in reversed(list(self._graph.nodes)):
            is_size = node.target is torch.ops.aten.sym_size.int or node.target in (operator.add, operator.mul)
            if is_size and not node.users and node.name not in named:
                self._graph.erase_node(node)
