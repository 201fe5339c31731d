"""What an exported program asks of the sizes of its arguments: conditions, as Python's expressions."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from magneto._export import called

_SHAPES, _NUMBERS = "SHAPE_ENV: ", "EQUALS_MATCH: "
_NODES = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.Eq, ast.NotEq),
    *(ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Constant),
    *(ast.Div, ast.Pow, ast.Call, ast.Name, ast.Attribute, ast.Load),
)
_SIZE = re.compile(r"L\['\w+'\]\.(size|stride)\(\)\[\d+\]")
# Functions of numbers, by the names that they have in guards.
_FUNCTIONS: dict[str, Any] = {"int": int, "float": float, "round": round, "min": min, "max": max, "abs": abs}
_OF_MATH = {"sqrt", "floor", "ceil", "trunc", "log", "log2", "log10", "exp", "pow"}


def of_guards(guards: str) -> list[str]:
    """Those among the guards of a capture: relations of sizes, and values of what is computed of them as floats."""
    found = []
    for line in guards.splitlines():
        if line.startswith(_SHAPES):
            found.append(line.removeprefix(_SHAPES))
        elif line.startswith(_NUMBERS) and _SIZE.search(line.split(" == ")[0]):
            found.append(_supported(line.removeprefix(_NUMBERS)))
    return found


def _supported(text: str) -> str:
    try:
        return check(text)
    except ValueError:
        raise called.not_yet(f"what the program asks of sizes, {text},") from None


def questions(conditions: Any) -> list[tuple[str, Callable[[Any], bool]]]:
    """The conditions, each part by itself, as functions of the tensors by name: code that captures can follow."""
    parts = [part for condition in conditions for part in condition.split(" and ")]
    scope = {"math": math, **_FUNCTIONS}
    return [(part, eval(f"lambda L: {part}", scope)) for part in parts]  # texts that we wrote, or have checked


def _is_allowed(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, bool, float)
        case ast.Name(id=name):
            return name in _FUNCTIONS or name == "math"
        case ast.Attribute(value=ast.Name(id="math"), attr=name):
            return name in _OF_MATH
        case ast.BinOp(op=ast.Pow(), right=power):  # of floats: a power of ints may be of any length
            return isinstance(power, ast.Constant) and type(power.value) is float
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in _FUNCTIONS
        case ast.Call(func=ast.Attribute(), keywords=[]):
            return True  # of math, else the attribute is refused
    return isinstance(node, _NODES) and not isinstance(node, (ast.Call, ast.Attribute))


def check(text: str) -> str:
    """A condition, which `module()` evaluates: sizes, numbers and functions of them, compared. Raises ValueError."""
    try:
        tree = ast.parse(_SIZE.sub("0", text), mode="eval")
        for part in text.split(" and "):  # each is asked by itself
            ast.parse(_SIZE.sub("0", part), mode="eval")
    except (SyntaxError, RecursionError):
        raise ValueError(f"the condition {text!r}") from None
    if not all(_is_allowed(node) for node in ast.walk(tree)):
        raise ValueError(f"the condition {text!r}")
    return text
