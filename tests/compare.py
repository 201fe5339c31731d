"""Compares what compiled code gave with what eager gave: structure, types, metadata and values."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any

import numpy as np
import torch

_SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_IDENTICAL = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


@dataclasses.dataclass(frozen=True)
class Closeness:
    """How far tensors may be apart. `floats`: so may Python's floats, which are otherwise equal."""

    rtol: float = 2e-5
    atol: float = 2e-6
    floats: bool = False
    strides: bool = False


CLOSE = Closeness()
EXACT = Closeness(rtol=0, atol=0, strides=True)


def assert_same(
    actual: Any, expected: Any, *, exact: bool = False, closeness: Closeness = CLOSE, path: str = "result"
) -> None:
    """Fails with the path of the first difference. `exact`: tensors are equal bit for bit and have equal strides."""
    seen: set[tuple[int, int]] = set()
    _compare(actual, expected, EXACT if exact else closeness, path, seen)


def difference(actual: Any, expected: Any) -> str:
    """The first one, also of strides; empty: there is none."""
    try:
        assert_same(actual, expected, closeness=Closeness(rtol=1e-5, atol=1e-6, strides=True))
    except AssertionError as error:
        return str(error)
    return ""


def _compare(actual: Any, expected: Any, closeness: Closeness, path: str, seen: set[tuple[int, int]]) -> None:
    assert type(actual) is type(expected), f"{path}: {type(actual)} instead of {type(expected)}"
    if (id(actual), id(expected)) in seen:
        return
    seen.add((id(actual), id(expected)))
    if isinstance(expected, torch.Tensor):
        _compare_tensors(actual, expected, closeness, path)
    elif isinstance(expected, float):
        if closeness.floats:
            same = math.isclose(actual, expected, rel_tol=closeness.rtol, abs_tol=closeness.atol)
        else:
            same = actual == expected
        assert same or (actual != actual and expected != expected), f"{path}: {actual!r} != {expected!r}"
    elif isinstance(expected, _SCALARS):
        assert actual == expected, f"{path}: {actual!r} != {expected!r}"
    elif isinstance(expected, _IDENTICAL):
        assert actual is expected, f"{path}: {actual!r} is not {expected!r}"
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{path}: {len(actual)} items instead of {len(expected)}"
        for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
            _compare(left, right, closeness, f"{path}[{index}]", seen)
        _compare_state(actual, expected, closeness, path, seen)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), f"{path}: keys {list(actual)} instead of {list(expected)}"
        for key in expected:
            _compare(actual[key], expected[key], closeness, f"{path}[{key!r}]", seen)
        _compare_state(actual, expected, closeness, path, seen)
    elif isinstance(expected, (set, frozenset)):
        assert actual == expected, f"{path}: {actual!r} != {expected!r}"
    elif isinstance(expected, torch.nn.Module):
        _compare(dict(actual.state_dict()), dict(expected.state_dict()), closeness, f"{path}.state_dict()", seen)
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            name = field.name
            _compare(getattr(actual, name), getattr(expected, name), closeness, f"{path}.{name}", seen)
    elif isinstance(expected, np.ndarray):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), f"{path}: {actual!r} != {expected!r}"
        assert actual.tobytes() == expected.tobytes(), f"{path}: {actual!r} != {expected!r}"
    elif hasattr(expected, "__dict__"):
        _compare_state(actual, expected, closeness, path, seen)
    else:
        assert actual == expected, f"{path}: {actual!r} != {expected!r}"


def _compare_state(actual: Any, expected: Any, closeness: Closeness, path: str, seen: set[tuple[int, int]]) -> None:
    state = getattr(expected, "__dict__", None)
    if state is not None:
        _compare(vars(actual), state, closeness, f"{path}.__dict__", seen)


def _compare_tensors(actual: torch.Tensor, expected: torch.Tensor, closeness: Closeness, path: str) -> None:
    for fact in ("dtype", "shape", "device", "layout", "requires_grad", "is_leaf"):
        left, right = getattr(actual, fact), getattr(expected, fact)
        assert left == right, f"{path}.{fact}: {left} instead of {right}"
    if closeness.strides:
        assert actual.stride() == expected.stride(), f"{path}.stride(): {actual.stride()}, eager {expected.stride()}"
    torch.testing.assert_close(
        actual,
        expected,
        rtol=closeness.rtol,
        atol=closeness.atol,
        equal_nan=True,
        check_stride=False,
        msg=lambda text: f"{path}: {text}",
    )
