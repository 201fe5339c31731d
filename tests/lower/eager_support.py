"""A function compiled and run beside eager: results, strides, versions, and what became of the arguments."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch

import magneto

HOSTILE = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    math.inf,
    -math.inf,
    math.nan,
    1e-45,
    -1e-38,
    3.4e38,
    -3.4e38,
    0.5,
    88.7,
    -104.0,
    1e-8,
    2.0,
]


def hostile(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = math.prod(shape)
    values = (HOSTILE * (count // len(HOSTILE) + 1))[:count]
    return torch.tensor(values).reshape(shape).to(dtype)


def tolerance(value: torch.Tensor) -> dict[str, float]:
    if value.dtype in (torch.bfloat16, torch.float16):
        return {"rtol": 1.6e-2, "atol": 1e-3}
    return {"rtol": 1e-5, "atol": 1e-6}


def describe(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in describe(item)] if isinstance(value, (list, tuple)) else []


def check(function: Callable[..., Any], *args: Any, calls: int = 2, compiled_only: bool = True) -> Any:
    """Results, strides, versions, and what became of the arguments."""
    compiled = magneto.compile(function, fullgraph=True)
    with torch.no_grad():
        for _ in range(calls):
            ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
            actual, expected = compiled(*ours), function(*theirs)
            for left, right in zip(describe([actual, ours]), describe([expected, theirs]), strict=True):
                assert left.dtype == right.dtype and left.shape == right.shape
                if left.numel():
                    meaning = [
                        (size, a, b) for size, a, b in zip(left.shape, left.stride(), right.stride(), strict=True)
                    ]
                    assert all(a == b for size, a, b in meaning if size > 1), (left.stride(), right.stride())
                assert left._version == right._version
                assert left._is_view() == right._is_view()
                torch.testing.assert_close(left, right, equal_nan=True, **tolerance(right))
    stats = magneto.stats()
    if compiled_only:
        assert not stats["uncompiled"] or list(stats["uncompiled"]) == ["this build has no code generator"]
    return actual
