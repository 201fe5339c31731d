"""Numbers that change from call to call beside tensors without dimensions: they promote as Python's numbers do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
PROGRAMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "less": lambda a, x: a < x,
    "at most": lambda a, x: a <= x,
    "greater": lambda a, x: x > a,
    "equal": lambda a, x: a == x,
    "unequal": lambda a, x: x != a,
    "where": lambda a, x: torch.where(a > 0, a, x),
    "where not": lambda a, x: torch.where(a > 0, x, a),
    "add": lambda a, x: a + x,
    "add in place": lambda a, x: a.add_(x),
    "multiply": lambda a, x: x * a,
    "divide": lambda a, x: x / a,
    "power": lambda a, x: a**x,
    "power of": lambda a, x: x**a,
    "at least": lambda a, x: torch.clamp(a, min=x),
    "floor": lambda a, x: a // x,
    "sums": lambda a, x: (a + x) < (x * 2),
    "reduced": lambda a, x: (a * x).sum() == x,
    "fill": lambda a, x: a.masked_fill(a < 1, x),
}


def outcome(function: Callable[[Tensor, float], Tensor], a: Tensor, x: float) -> tuple[object, Tensor]:
    a = a.clone()
    try:
        return function(a, x), a
    except (RuntimeError, NotImplementedError) as error:
        return (type(error), str(error)), a


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    for numbers in ((0.1, 0.3, 0.7, 1.1), (1, 2, 3, 5)):
        for shape in ((), (3,)):
            compiled = magneto.compile(lambda a, x: program(a, x), backend=backend, dynamic=True)
            for x in numbers:
                for value in (x, 2.0):
                    a = torch.full(shape, value).to(dtype)
                    (expected, theirs), (actual, ours) = outcome(program, a, x), outcome(compiled, a, x)
                    torch.testing.assert_close(ours, theirs)
                    if isinstance(expected, Tensor):
                        assert isinstance(actual, Tensor), (x, actual)
                        torch.testing.assert_close(actual, expected, equal_nan=True)
                    else:
                        assert actual == expected, x
