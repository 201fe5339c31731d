"""Where nodes come from: what PyTorch's export notes of it in their `meta`."""

from __future__ import annotations

import operator
import re
import types
from collections.abc import Mapping
from typing import Any

import torch

# src/graph/origins.h has what they are.
KEYS = ("nn_module_stack", "source_fn_stack", "torch_fn", "stack_trace")

_ASSIGNED = re.compile(r"\s+(\w+)(?: *:[^=]*)? = ")
_PREFIXES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "operator")


def copy(old: torch.fx.GraphModule, run: torch.fx.GraphModule, places: Mapping[torch.fx.Node, tuple[str, int]]) -> None:
    """Of a program that was captured again, as `run`: the nodes come from where those came from that they were made of.
    `places`: file and line of each, in the code of `run`."""
    by_name = {node.name: node for node in old.graph.nodes}
    lines = {
        number: by_name[found[1]]
        for number, line in enumerate(run.code.splitlines(), 1)
        if (found := _ASSIGNED.match(line)) and found[1] in by_name
    }
    for node, (file, line) in places.items():
        for key in KEYS:
            node.meta.pop(key, None)
        origin = lines.get(line) if file.startswith("<eval_with_key>") else None
        if origin is not None:
            node.meta.update({key: origin.meta[key] for key in KEYS if key in origin.meta})


def encode(meta: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON."""
    made: dict[str, Any] = {}
    if "nn_module_stack" in meta:
        made["modules"] = [[key, *map(str, entry)] for key, entry in meta["nn_module_stack"].items()]
    if "source_fn_stack" in meta:
        made["sources"] = [[str(name), _name_of(function)] for name, function in meta["source_fn_stack"]]
    if "torch_fn" in meta:
        made["called"] = list(map(str, meta["torch_fn"]))
    if "stack_trace" in meta:
        made["trace"] = str(meta["stack_trace"])
    return made


def decode(made: Mapping[str, Any]) -> dict[str, Any]:
    """Functions are looked up in modules of PyTorch that are there; of others the name is kept."""
    meta: dict[str, Any] = {}
    if "modules" in made:
        meta["nn_module_stack"] = {str(key): (str(path), str(kind)) for key, path, kind in made["modules"]}
    if "sources" in made:
        meta["source_fn_stack"] = [(str(name), _found(str(called)) or str(called)) for name, called in made["sources"]]
    if "called" in made:
        name, called = made["called"]
        meta["torch_fn"] = (str(name), str(called))
    if "trace" in made:
        meta["stack_trace"] = str(made["trace"])
    return meta


def _name_of(function: Any) -> str:
    """A method's name has no dot."""
    if isinstance(function, str):
        return function
    name = str(getattr(function, "__name__", "call"))
    return next((full for prefix in _PREFIXES if _found(full := f"{prefix}.{name}") is function), name)


def _found(name: str) -> Any:
    module, _, last = name.rpartition(".")
    if module not in _PREFIXES:
        return None
    holder: Any = operator if module == "operator" else torch
    for part in module.split(".")[1:]:
        holder = vars(holder).get(part)
        if not isinstance(holder, types.ModuleType):
            return None
    found = vars(holder).get(last)
    return found if callable(found) else None
