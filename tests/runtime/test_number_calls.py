"""Data-dependent floats, and what Python computes of them: made in planned memory, with Python's own results."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e308, -1e308, 5e-324, 1e-200, math.inf, -math.inf, math.nan]
OPERATIONS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "floor divide": operator.floordiv,
    "remainder": operator.mod,
}


def outcome(function: Callable[..., Any], *args: Any) -> str:
    try:
        return repr([x.tolist() for x in function(*args)])
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_two_numbers(name: str, dtype: torch.dtype) -> None:
    """Zero divisors, overflow, complex results: what Python raises is raised; else the same bits."""
    operation = OPERATIONS[name]

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a, b = x.item(), y.item()
        c = operation(a, b)
        return x + c, torch.full((1,), c, dtype=torch.float64), torch.full((1,), operation(0.75, b))

    with magneto.config.patch(capture_scalar_outputs=True, strict=False):
        compiled = magneto.compile(program)
        for a in VALUES:
            for b in VALUES:
                x, y = torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)
                assert outcome(compiled, x, y) == outcome(program, x, y), (a, b)


def test_a_number_is_still_one_beside_tensors() -> None:
    """As an operand of a library's operator it promotes as a number does."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x.item() * 0.5
        return torch.linalg.cross(y * a, y), torch.cumsum(y, 0) * a, torch.add(torch.tensor(1.0), a)

    x, y = torch.tensor(3.0), torch.randn(4, 3, dtype=torch.bfloat16).float()
    with magneto.config.patch(capture_scalar_outputs=True):
        got, want = magneto.compile(program)(x, y), program(x, y)
    assert [(r.dtype, r.tolist()) for r in got] == [(r.dtype, r.tolist()) for r in want]


def plan_of_adamw(count: int, **options: Any) -> str:
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(count)]
    for x in weights:
        x.grad = torch.randn_like(x)
    optimizer = torch.optim.AdamW(weights, **options)
    optimizer.step()
    (stages,) = magneto.debug_dump(optimizer.step)()
    return stages["plan"]


def test_an_optimizer_has_one_kernel_for_a_weight() -> None:
    """What its step's number gives is computed in front of it, without boxing a call."""
    plan = plan_of_adamw(3)
    assert plan.count("lerp+addcmul+addcdiv") == 3, plan
    assert "out magneto.arithmetic.default" in plan and "dispatched" not in plan, plan


def test_under_a_profiler() -> None:
    """There operators are called as they are elsewhere, and the results lie where they were planned."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = 2.0 ** x.item()
        return y * a, y.cumsum(0) + a / 3

    x, y = torch.tensor(3.0), torch.randn(5)
    with magneto.config.patch(capture_scalar_outputs=True):
        compiled = magneto.compile(program)
        compiled(x, y)
        with torch.profiler.profile():
            got = compiled(x, y)
    for a, b in zip(got, program(x, y), strict=True):
        torch.testing.assert_close(a, b)
