"""Values, graphs and trees of arguments as JSON and back.

Nothing that is read runs: names are looked up among PyTorch's operators, dtypes and the containers that pytree knows,
and whatever would get into generated code is checked.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from magneto import _control_flow, exc
from magneto._export import origins

Json = Any

# Functions of numbers in graphs, beside operators.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        *("getitem", "add", "sub", "mul", "floordiv", "mod", "truediv", "pow", "neg"),
        *("eq", "ne", "ge", "le", "gt", "lt"),
    )
} | {"min": min, "max": max}
# And those that run regions, beside torch.cond.
_LOOPS = {f"control_flow.{run.__name__}": run for run in (_control_flow.run_scan, _control_flow.run_while_loop)}
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}
# What a name in a path may have: it stands in generated code.
_PATH = re.compile(r"[^\s\"'\\{}();=,#.]+(\.[^\s\"'\\{}();=,#.]+)*")


def check_name(name: Any) -> str:
    """A name that generated code may have. Raises ValueError."""
    if not isinstance(name, str) or not name.isascii() or not name.isidentifier():
        raise ValueError(f"{name!r} is no name")
    return name


def check_path(path: Any) -> str:
    """The name of a parameter, buffer or module. Raises ValueError."""
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no name of a parameter or module")
    return path


# -- values


def encode(value: Any) -> Json:
    """An argument of a node, or a constant."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if type(value) in _NAMED:
        return {_NAMED[type(value)]: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if type(value) is slice:
        return {"slice": [encode(item) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    raise exc.NotYet(f"torch.export.save: {value!r}, an object of type {type(value).__name__}, in a graph")


def decode(made: Json, node: Callable[[str], Any]) -> Any:
    """Raises ValueError, KeyError, TypeError for what `encode` did not make."""
    if isinstance(made, list):
        return [decode(item, node) for item in made]
    if not isinstance(made, Mapping):
        return made
    ((kind, content),) = made.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(*map(float.fromhex, content))
    if kind == "node":
        return node(content)
    if kind == "device":
        return torch.device(content)
    if kind == "slice":
        return slice(*(decode(item, node) for item in content))
    if kind == "tuple":
        return tuple(decode(item, node) for item in content)
    if kind == "dict":
        return {decode(key, node): decode(item, node) for key, item in content}
    for named, word in _NAMED.items():
        value = getattr(torch, check_name(content)) if kind == word else None
        if isinstance(value, named):
            return value
    raise ValueError(f"a value of kind {kind!r}")


# -- trees of arguments


def encode_tree(spec: Any) -> Json:
    """A pytree's structure. Its classes are those that are registered with a name, and torch.return_types."""
    if spec.is_leaf():
        return None
    children = [encode_tree(child) for child in spec.children()]
    if spec.type.__module__ == "torch.return_types":
        return {"return_type": spec.type.__name__, "children": children}
    try:
        known = pytree.SUPPORTED_SERIALIZED_TYPES[spec.type]
        if known.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND:
            raise KeyError
        dump = known.to_dumpable_context
        context = spec.context if dump is None else dump(spec.context)
        json.dumps(context)
    except (KeyError, TypeError, NotImplementedError):
        raise exc.NotYet(
            f"torch.export.save: arguments or results in a {spec.type.__qualname__}, which pytree knows no text for: "
            "register it with serialized_type_name, or give a tuple or dict"
        ) from None
    return {"type": known.serialized_type_name, "context": context, "children": children}


def decode_tree(made: Json) -> Any:
    """Raises ValueError, or KeyError for a class that is not registered here."""
    if made is None:
        return pytree.tree_flatten(0)[1]
    children = [decode_tree(child) for child in made["children"]]
    if "return_type" in made:
        return pytree.TreeSpec(getattr(torch.return_types, check_name(made["return_type"])), None, children)
    if made["type"] == "collections.defaultdict":
        raise ValueError("a container whose content is imported")
    kind = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(made["type"])
    if kind is None:
        raise exc.InvalidProgram(
            f"The program's arguments or results are in a {made['type']}, which pytree does not know here: import the "
            "library that registers it first."
        )
    load = pytree.SUPPORTED_SERIALIZED_TYPES[kind].from_dumpable_context
    context = made["context"] if load is None else load(made["context"])
    return pytree.TreeSpec(kind, context, children)


# -- graphs


def encode_target(target: Any) -> str:
    """The name of what a node calls."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    name = getattr(target, "__name__", "")
    if _FUNCTIONS.get(name) is target:
        return f"operator.{name}"
    for path, run in _LOOPS.items():
        if run is target:
            return path
    raise exc.NotYet(f"torch.export.save: a call of {target!r}, which is no operator")


def decode_target(name: str) -> Any:
    """Raises InvalidProgram for an operator that is not registered, ValueError for what is none."""
    namespace, *rest = map(check_name, name.split("."))
    if namespace == "operator":
        return _FUNCTIONS[rest[0]]
    if name in _LOOPS:
        return _LOOPS[name]
    try:
        found: Any = getattr(torch.ops, namespace)
        for part in rest:
            found = getattr(found, part)
    except AttributeError:
        raise exc.InvalidProgram(
            f"The program calls {name}, which is not registered here: import the library that has this operator first, "
            "or load it where the PyTorch is that saved it."
        ) from None
    if not isinstance(found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        raise ValueError(f"{name} is no operator")
    return found


def encode_graph(module: torch.fx.GraphModule) -> Json:
    """The nodes, and the graphs of regions (of torch.cond)."""
    rows = []
    places: dict[str, int] = {}  # what is said of where nodes come from, each once
    for node in module.graph.nodes:
        row: dict[str, Json] = {"op": node.op, "name": node.name}
        if node.op == "call_function":
            row["target"] = encode_target(node.target)
        elif node.op != "output":
            row["target"] = str(node.target)
        if node.op not in ("placeholder", "get_attr"):
            row["args"] = [encode(item) for item in node.args]
            row["kwargs"] = {key: encode(item) for key, item in node.kwargs.items()}
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            row["val"] = [encode(value.dtype), list(value.shape), list(value.stride())]
        elif isinstance(value, int):
            row["val"] = value
        if "symbol" in node.meta:
            row["symbol"] = node.meta["symbol"]
        if "sizes" in node.meta:
            row["sizes"] = list(node.meta["sizes"])
        if origin := origins.encode(node.meta):
            row["origin"] = places.setdefault(json.dumps(origin), len(places))
        rows.append(row)
    regions = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    return {
        "nodes": rows,
        "origins": list(map(json.loads, places)),
        "regions": {name: encode_graph(getattr(module, name)) for name in sorted(regions)},
    }


def decode_graph(made: Json, depth: int = 0) -> torch.fx.GraphModule:
    """Raises as `decode`."""
    if depth > 50:
        raise ValueError("regions in regions without an end")
    regions = {check_name(name): decode_graph(region, depth + 1) for name, region in made["regions"].items()}
    graph, known = torch.fx.Graph(), dict[str, torch.fx.Node]()
    for row in made["nodes"]:
        op, name = row["op"], check_name(row["name"])
        args = tuple(decode(item, known.__getitem__) for item in row.get("args", ()))
        kwargs = {check_name(key): decode(item, known.__getitem__) for key, item in row.get("kwargs", {}).items()}
        if op == "output":
            node = graph.output(args[0])
        elif op == "placeholder":
            node = graph.placeholder(check_name(row["target"]))
        elif op == "get_attr":
            if row["target"] not in regions:
                raise ValueError(f"there is no region {row['target']!r}")
            node = graph.create_node("get_attr", row["target"], name=name)
        elif op == "call_function":
            node = graph.create_node("call_function", decode_target(row["target"]), args, kwargs, name)
        else:
            raise ValueError(f"a node of kind {op!r}")
        if op != "output" and node.name != name:
            raise ValueError(f"the name {name!r} stands twice")
        known[name] = node
        _set_meta(node, row)
        if "origin" in row:
            node.meta.update(origins.decode(made["origins"][row["origin"]]))
    graph.lint()
    return torch.fx.GraphModule(regions, graph)


def _set_meta(node: torch.fx.Node, row: Mapping[str, Json]) -> None:
    value = row.get("val")
    if isinstance(value, list):
        dtype, shape, stride = value
        node.meta["val"] = torch.empty_strided(shape, stride, dtype=decode(dtype, _none), device="meta")
    elif isinstance(value, int):
        node.meta["val"] = value
    if "symbol" in row:
        node.meta["symbol"] = check_name(row["symbol"])
    if "sizes" in row:
        node.meta["sizes"] = tuple(size if isinstance(size, int) else str(size) for size in row["sizes"])


def _none(name: str) -> Any:
    raise ValueError(f"a node {name!r} where none can be")
