"""Sizes beyond 31 bits, and products of sizes beyond 63 bits: as eager, values and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto


def large(rows: int, columns: int) -> torch.Tensor:
    """Takes no memory: each element is the same one."""
    return torch.empty(1, dtype=torch.uint8).expand(rows, columns)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a product": lambda x: (x.shape[0] * x.shape[1], x[:2, :2].shape),
    "half of a product": lambda x: (x.shape[0] * x.shape[1] // 2, x.numel()),
    "twice as large": lambda x: x[:1].expand(x.shape[0] * 2, x.shape[1]),
    "one dimension more": lambda x: x.unsqueeze(0).expand(x.shape[0], -1, -1),
    "a new one without strides": lambda x: torch.empty_strided((x.shape[0], 2), (0, 1)).shape,
    "arithmetic": lambda x: (x.shape[0] ** 2, x.shape[0] << 2, -x.shape[0], x.shape[0] % 7, x.shape[0] / 3),
    "a comparison of products": lambda x: 1 if x.shape[0] * x.shape[1] > 2**62 else 2,
}
SIZES = [(2**33, 4), (2**40, 5), (2**33 + 1, 7), (2**31, 3), (3, 2**62), (2**35, 2**28), (2**35, 2**35), (4, 5)]


def outcome(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    def described(value: Any) -> Any:
        return (value.shape, value.stride()) if isinstance(value, torch.Tensor) else value

    try:
        result = function(x)
    except Exception as error:
        return type(error), str(error)
    return [described(each) for each in result] if isinstance(result, tuple) else described(result)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str) -> None:
    compiled = magneto.compile(PROGRAMS[name], backend="aot_eager", dynamic=True)
    for rows, columns in SIZES:
        try:
            x = large(rows, columns)
        except RuntimeError:
            continue  # larger than a tensor can be
        assert outcome(compiled, x) == outcome(PROGRAMS[name], x)
