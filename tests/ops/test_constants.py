"""Numbers that an operator is given and that its dtype does not hold: eager's result, or eager's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto

Operator = Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]

#: Of a tensor, a mask and a number.
OPERATORS: dict[str, Operator] = {
    "masked_fill": lambda x, m, v: x.masked_fill(m, v),
    "masked_fill_": lambda x, m, v: x.clone().masked_fill_(m, v),
    "masked_fill_tensor": lambda x, m, v: x.masked_fill(m, torch.tensor(v)),
    "full": lambda x, m, v: torch.full((3,), v, dtype=x.dtype),
    "full_like": lambda x, m, v: torch.full_like(x, v),
    "new_full": lambda x, m, v: x.new_full((2,), v),
    "fill_": lambda x, m, v: x.clone().fill_(v),
    "setitem_mask": lambda x, m, v: _set(x.clone(), m, v),
    "setitem_slice": lambda x, m, v: _set(x.clone(), slice(1, 3), v),
    "setitem_int": lambda x, m, v: _set(x.clone(), 0, v),
    "pad": lambda x, m, v: F.pad(x, (1, 2), value=v),
    "clamp_min": lambda x, m, v: x.clamp(min=v),
    "clamp_max": lambda x, m, v: x.clamp(max=v),
    "clamp_both": lambda x, m, v: x.clamp(v, v),
    "clamp_min_function": lambda x, m, v: torch.clamp_min(x, v),
    "clamp_": lambda x, m, v: x.clone().clamp_(max=v),
    "hardtanh": lambda x, m, v: F.hardtanh(x, -1, v) if not isinstance(v, bool) and v > -1 else x + 0,
    "threshold": lambda x, m, v: F.threshold(x, v, 1),
    "threshold_value": lambda x, m, v: F.threshold(x, 1, v),
    "leaky_relu": lambda x, m, v: F.leaky_relu(x, v),
    "elu": lambda x, m, v: F.elu(x, v),
    "softplus": lambda x, m, v: F.softplus(x, 1, v),
    "add": lambda x, m, v: x + v,
    "add_": lambda x, m, v: x.clone().add_(v),
    "add_alpha": lambda x, m, v: torch.add(x, x, alpha=v),
    "add_alpha_number": lambda x, m, v: torch.add(x, 1, alpha=v),
    "sub": lambda x, m, v: x - v,
    "sub_alpha": lambda x, m, v: torch.sub(x, x, alpha=v),
    "rsub": lambda x, m, v: v - x,
    "mul": lambda x, m, v: x * v,
    "mul_": lambda x, m, v: x.clone().mul_(v),
    "div": lambda x, m, v: x / v,
    "floor_divide": lambda x, m, v: x // v,
    "remainder": lambda x, m, v: x % v,
    "fmod": lambda x, m, v: torch.fmod(x, v),
    "pow": lambda x, m, v: x**v,
    "rpow": lambda x, m, v: v**x,
    "eq": lambda x, m, v: x == v,
    "lt": lambda x, m, v: x < v,
    "ge": lambda x, m, v: x >= v,
    "and": lambda x, m, v: x & v,
    "xor": lambda x, m, v: x ^ v,
    "where": lambda x, m, v: torch.where(m, x, v),
    "where_first": lambda x, m, v: torch.where(m, v, x),
    "addcmul": lambda x, m, v: torch.addcmul(x, x, x, value=v),
    "addcdiv": lambda x, m, v: torch.addcdiv(x, x, x, value=v),
    "lerp": lambda x, m, v: torch.lerp(x, x + 1, v),
    "index_fill": lambda x, m, v: x.index_fill(0, torch.tensor([1]), v),
    "scatter": lambda x, m, v: x.scatter(0, torch.tensor([1]), v),
    "arange": lambda x, m, v: torch.arange(0, v, max(1, abs(v) / 3), dtype=x.dtype) if abs(v) < 1e5 else x + 0,
    "maximum": lambda x, m, v: torch.maximum(x, torch.tensor(v)),
    "scalar_tensor": lambda x, m, v: torch.scalar_tensor(v, dtype=x.dtype),
    "tensor": lambda x, m, v: torch.tensor([v, 1], dtype=x.dtype),
    "nan_to_num": lambda x, m, v: torch.nan_to_num(x, nan=v),
    "heaviside": lambda x, m, v: torch.heaviside(x, torch.tensor(v, dtype=x.dtype)),
}

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NAN, INFINITY = float("nan"), float("inf")
NUMBERS: list[Any] = [0, 1, -1, 2, 300, -129, 70000, -40000, 2**31, -(2**40), 2**62, 0.5, -0.5, 1.5, -1.5, 3.0, 300.5]
NUMBERS += [-0.0, 1e5, 1e10, 1e20, 1e39, -1e300, NAN, INFINITY, -INFINITY, True, False]


def _set(x: torch.Tensor, at: Any, value: Any) -> torch.Tensor:
    x[at] = value
    return x


def outcome(operator: Operator, x: torch.Tensor, mask: torch.Tensor, number: Any) -> Any:
    try:
        return operator(x, mask, number)
    except Exception as error:
        return type(error)


def alike(got: Any, want: Any) -> bool:
    if not isinstance(want, torch.Tensor):
        return got is want
    if not isinstance(got, torch.Tensor) or got.dtype != want.dtype or got.shape != want.shape:
        return False
    if want.dtype.is_floating_point:
        # Of narrow floats eager rounds numbers and products on the way, ours the result alone.
        units = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(want.dtype, 2e-6)
        close = torch.allclose(got.double(), want.double(), rtol=units, atol=0, equal_nan=True)
        signs = torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())
        return close and signs
    return torch.equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES + FLOATS, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_that_the_dtype_may_not_hold(name: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    x = torch.tensor([0, 1, 2, 3, 5]).to(dtype)
    mask = torch.tensor([True, False, True, False, False])
    wanted = [outcome(operator, x, mask, number) for number in NUMBERS]
    fine = [i for i, want in enumerate(wanted) if isinstance(want, torch.Tensor)]
    numbers = [NUMBERS[i] for i in fine]
    compiled = magneto.compile(lambda x, m: [operator(x, m, number) for number in numbers], dynamic=False)
    wrong = []
    for i, got in zip(fine, compiled(x, mask), strict=True):
        if not alike(got, wanted[i]):
            wrong.append((NUMBERS[i], got, wanted[i]))
    for i, want in enumerate(wanted):
        if i in fine:
            continue
        number = NUMBERS[i]
        alone = magneto.compile(lambda x, m: operator(x, m, number), dynamic=False)  # noqa: B023
        try:
            got = alone(x, mask)
        except Exception as error:
            got = type(error)
        if not alike(got, want):
            wrong.append((number, got, want))
    assert not wrong, wrong
