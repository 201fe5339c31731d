"""Operators between a tensor and an instance of a subclass of int, float or complex with methods of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split()
OPERATORS = ARITHMETIC + ["i" + name.rstrip("_") for name in ARITHMETIC] + "lt le eq ne gt ge divmod".split()


def class_with(base: type, name: str, methods: str) -> type:
    """A subclass whose methods for that operator say their names."""
    plain = name.rstrip("_")
    stem = plain[1:] if name.startswith("i") else plain
    names = {"l": f"__{stem}__", "r": f"__r{stem}__"}
    if stem in ("lt", "le", "eq", "ne", "gt", "ge"):
        names = {"l": f"__{stem}__", "r": "__hash__"}
    members: dict[str, Any] = {names[kind]: lambda self, other, kind=kind: (kind, name) for kind in methods}
    members["__hash__"] = base.__hash__
    return type("Number", (base,), members)


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        return function(x)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("backend", ["eager", "magneto"])
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("number", [2, 2.5, 2j], ids=["int", "float", "complex"])
def test_who_decides(number: Any, name: str, backend: str) -> None:
    apply = divmod if name == "divmod" else getattr(operator, name)
    for methods in ("", "l", "r", "lr"):
        value = class_with(type(number), name, methods)(number)
        for program in (lambda x: apply(x.clone(), value), lambda x: apply(value, x.clone())):  # noqa: B023
            for dtype in (torch.float32, torch.int64):
                x = torch.arange(1, 4).to(dtype)
                magneto.reset()
                want, got = outcome(program, x), outcome(magneto.compile(program, backend=backend), x)
                if isinstance(want, torch.Tensor):
                    assert isinstance(got, torch.Tensor), (methods, got, want)
                    assert got.dtype == want.dtype, methods
                    torch.testing.assert_close(got, want)
                else:
                    assert got == want, (methods, got, want)
