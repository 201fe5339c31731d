"""Ints that change from call to call, beside dtypes that hold some of them: eager raises, wraps or promotes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import magneto

NUMBERS = [3, 7, 2, 300, -1, 0, 70000, -200, 2**31, 5, 2**40, -(2**33)]
DTYPES = [torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
PROGRAMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "add": lambda x, k: x + k,
    "subtract from": lambda x, k: k - x,
    "multiply": lambda x, k: x * k,
    "divide": lambda x, k: x / k,
    "less": lambda x, k: x < k,
    "equal": lambda x, k: x == k,
    "and": lambda x, k: x & k,
    "fill where": lambda x, k: x.masked_fill(x > 1, k),
    "like": lambda x, k: torch.full_like(x, k),
    "full": lambda x, k: torch.full((3,), k, dtype=x.dtype),
    "new": lambda x, k: x.new_full((2,), k),
    "at least": lambda x, k: x.clamp(min=k),
    "at most": lambda x, k: x.clamp(max=k),
    "between": lambda x, k: F.hardtanh(x, -k, k),
    "pad": lambda x, k: F.pad(x, (1, 1), value=k),
    "fill": lambda x, k: x.fill_(k),
    "add in place": lambda x, k: x.add_(k),
    "add so often": lambda x, k: torch.add(x, x, alpha=k),
    "where": lambda x, k: torch.where(x > 1, x, k),
    "where not": lambda x, k: torch.where(x > 1, k, x),
    "tensor": lambda x, k: torch.tensor([k], dtype=x.dtype),
    "set": lambda x, k: x.__setitem__(0, k) or x,  # type: ignore[func-returns-value]
    "index": lambda x, k: x.index_fill(0, torch.tensor([0]), k),
    "scatter": lambda x, k: x.scatter(0, torch.tensor([1]), k),
    "count": lambda x, k: torch.arange(k, k + 3, dtype=x.dtype),
    "threshold": lambda x, k: F.threshold(x, 0, k),
    "products": lambda x, k: torch.addcmul(x, x, x, value=k),
}


def outcome(function: Callable[[Tensor, int], Tensor], dtype: torch.dtype, k: int) -> tuple[object, Tensor]:
    x = torch.tensor([1.0, 0.0, 2.0, 3.0]).to(dtype)
    try:
        return function(x, k), x
    except Exception as error:
        return (type(error), str(error)), x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    compiled: Callable[[Tensor, int], Tensor] = program
    for index, k in enumerate(NUMBERS):
        if index % 6 == 0:  # some are captured for each number: not too often for one program
            magneto.reset()
            compiled = magneto.compile(lambda x, k: program(x, k), backend=backend, dynamic=True)
        # PyTorch converts a symbolic int in a list by way of C's int, and so do we: what does not fit that is wrapped.
        if name == "tensor" and abs(k) > 2**31:
            continue
        (expected, theirs), (actual, ours) = outcome(program, dtype, k), outcome(compiled, dtype, k)
        assert torch.equal(ours, theirs), k
        if isinstance(expected, Tensor):
            assert isinstance(actual, Tensor), (k, actual)
            torch.testing.assert_close(actual, expected, equal_nan=True)
        else:
            assert actual == expected, k
