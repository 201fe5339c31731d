"""What PyTorch's compiler calls things: read from its source text, of the PyTorch installed. Nothing of it is run.

So that names that it has can be told from those that nobody has before anything of it is loaded, and settings without a
counterpart keep their defaults.
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


def has(module: str, name: str) -> bool:
    """Whether PyTorch's own `module` may have that name: its source says so, or can't know."""
    there = names(module)
    return name in there or "*" in there or "__getattr__" in there


def public(module: str) -> list[str]:
    """The names of PyTorch's own `module` that are no secret, its submodules among them."""
    below = [file.stem for file in Path(file_of(module)).parent.glob("*.py")] if is_package(module) else []
    return [name for name in (*names(module), *below) if not name.startswith("_") and name.isidentifier()]


def is_module(name: str) -> bool:
    """Whether PyTorch has a module of that name."""
    return _file(name) is not None


def file_of(module: str) -> str:
    """PyTorch's source of the module."""
    return str(_file(module))


def is_package(name: str) -> bool:
    """Whether it is one with modules below it."""
    file = _file(name)
    return file is not None and file.name == "__init__.py"


@functools.cache
def names(module: str) -> Mapping[str, Any]:
    """The names at the top of a module's source, with their values where these are constants.

    Those inside of a class are there as `class.name`: configuration modules group settings so.
    """
    file = _file(module)
    return _names_in(ast.parse(file.read_text()).body, "") if file else {}


@functools.cache
def _file(module: str) -> Path | None:
    package, _, rest = module.partition(".")
    if package not in ("torch", "functorch"):
        return None
    base = Path(torch.__path__[0]).parent.joinpath(package, *rest.split("."))
    return next((file for file in (base / "__init__.py", base.with_suffix(".py")) if file.is_file()), None)


def _names_in(body: list[ast.stmt], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner):
                found |= {prefix + name: UNKNOWN, **_names_in(inner, f"{prefix}{name}.")}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[prefix + name] = UNKNOWN
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {prefix + (alias.asname or alias.name): UNKNOWN for alias in aliases}
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                found[prefix + name] = _constant(value)
            case ast.Assign(targets=targets):  # of several, or into parts
                stored = [node for target in targets for node in ast.walk(target)]
                found |= {prefix + node.id: UNKNOWN for node in stored if isinstance(node, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.setdefault(prefix + name, UNKNOWN)
            case ast.If(body=inner, orelse=other) | ast.For(body=inner, orelse=other):
                found |= {**_names_in(other, prefix), **_names_in(inner, prefix)}
            case ast.Try(body=inner, orelse=other, handlers=handlers, finalbody=last):
                parts = [*(handler.body for handler in handlers), last, other, inner]
                found |= {name: value for part in parts for name, value in _names_in(part, prefix).items()}
            case ast.With(body=inner):
                found |= _names_in(inner, prefix)
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
