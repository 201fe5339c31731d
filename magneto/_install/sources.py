"""What PyTorch's compiler calls things: read from its source text, of the PyTorch installed. Nothing of it is run.

So that an error can tell a name that Magneto lacks from one that nobody has, and settings without a counterpart keep
their defaults.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

UNKNOWN = object()
"""The value of a name whose text is no constant."""


def known_there(module: str, name: str) -> str:
    """A sentence for an error, if PyTorch's own `module` has that name; else nothing."""
    there = name in names(module) or _file(f"{module}.{name}") is not None
    return "PyTorch's compiler has it; Magneto has nothing for it." if there else ""


@functools.cache
def names(module: str) -> Mapping[str, Any]:
    """The names at the top of a module's source, with their values where these are constants.

    Those inside of a class are there as `class.name`: configuration modules group settings so.
    """
    file = _file(module)
    return _names_in(ast.parse(file.read_text()).body, "") if file else {}


def _file(module: str) -> Path | None:
    package, _, rest = module.partition(".")
    if package != "torch":
        return None
    base = Path(torch.__path__[0], *rest.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def _names_in(body: list[ast.stmt], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner):
                found |= {prefix + name: UNKNOWN, **_names_in(inner, f"{prefix}{name}.")}
            case ast.FunctionDef(name=name):
                found[prefix + name] = UNKNOWN
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {prefix + (alias.asname or alias.name): UNKNOWN for alias in aliases}
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[prefix + name] = _constant(value)
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                found |= {**_names_in(other, prefix), **_names_in(inner, prefix)}
    return found


def _constant(value: ast.expr) -> Any:
    match value:
        case ast.Call(keywords=keywords) if any(
            keyword.arg == "default" for keyword in keywords
        ):  # Config(default=...)
            value = next(keyword.value for keyword in keywords if keyword.arg == "default")
    try:
        return ast.literal_eval(value)
    except ValueError:
        return UNKNOWN
