"""Programs for the operators of which the mode "eager-numerics" generates code, and what tells bits apart.

python -m pytest tests/ops/test_exact_rows.py       each row that claims to be exact
python tests/ops/sweep.py --exact [name...]         PyTorch's operator database in that mode, bit for bit
python tests/ops/exact.py --write                   the table of docs/modes.md
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from magneto import _testing

# Whole vectors of all widths, and what is left over.
SIZE = 1031
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    3.0,
    -3.0,
    1e-45,
    1e-39,
    6e4,
    3e38,
    float("inf"),
    -float("inf"),
    float("nan"),
]
NUMBERS = {"alpha": 1, "other": 0.3, "exponent": 2, "value": 0.3, "negative_slope": 0.1, "threshold": 0.5}
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)

Program = Callable[..., Any]

PAGE = Path(__file__).parents[2] / "docs" / "modes.md"
BEGIN, END = "<!-- exact operators -->\n", "<!-- end of exact operators -->"
WHEN = {
    "exact": "always",
    "exact_on_integers": "integers and bools",
    "exact_without_factor": "integers and bools, and without `alpha`",
    "exact_square": "the exponent 2",
}


def table() -> str:
    """The operators that are generated, by when, as the rows of src/ops have it."""
    lines = ["| generated | operators |", "|---|---|"]
    for condition, words in WHEN.items():
        names = [row[0] for row in _testing.operator_rows() if row[4].endswith(f", {condition})")]
        lines.append(f"| {words} | " + ", ".join(f"`{name.removeprefix('aten::')}`" for name in sorted(names)) + " |")
    return "\n".join(lines) + "\n"


def page_with(text: str) -> str:
    """docs/modes.md with that table."""
    page = PAGE.read_text()
    return page[: page.index(BEGIN) + len(BEGIN)] + text + page[page.index(END) :]


def same_bits(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """The same numbers with the same signs of zero, and NaN in the same places."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if ours.layout != torch.strided or theirs.numel() == 0 or ours.is_quantized:
        return True
    if theirs.is_complex():
        return same_bits(torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj()))
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    nan = theirs.isnan()
    zeros = (theirs == 0) & (torch.signbit(ours) != torch.signbit(theirs))
    return torch.equal(ours.isnan(), nan) and bool(((ours == theirs) | nan).all()) and not bool(zeros.any())


def data(dtype: torch.dtype, size: tuple[int, ...], seed: int) -> torch.Tensor:
    """Numbers of all sizes, and at different places for each `seed` the special ones."""
    numbers = torch.Generator().manual_seed(seed)
    count = torch.Size(size).numel()
    if dtype == torch.bool:
        return torch.randint(2, size, generator=numbers).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -100
        return torch.randint(low, 100, size, generator=numbers).to(dtype)
    values = torch.randn(count, generator=numbers, dtype=torch.float64)
    values *= torch.exp2(torch.randint(-6, 7, (count,), generator=numbers).double())
    places = torch.randperm(count, generator=numbers)[: count // 3]
    values[places] = torch.tensor(SPECIAL, dtype=torch.float64).repeat(count // len(SPECIAL) + 1)[: len(places)]
    return values.to(dtype).reshape(size)


def elementwise(op: Any, dtypes: tuple[torch.dtype, ...] = FLOATS + INTEGERS) -> Iterator[tuple[Program, list[Any]]]:
    """The operator on tensors of all dtypes, layouts and tails, as far as its schema takes tensors and numbers alone."""
    schema = op._schema
    kinds = [str(argument.type) for argument in schema.arguments if not argument.has_default_value()]
    if any(kind not in ("Tensor", "number", "Scalar", "Optional[Tensor]") for kind in kinds):
        return
    numbers = any(str(argument.type) in ("number", "Scalar") for argument in schema.arguments)
    several = sum(str(argument.type) in ("Tensor", "Optional[Tensor]") for argument in schema.arguments) > 1
    cases = [((SIZE,), (SIZE,), None), ((33, 65), (33, 65), None)]
    cases += [((SIZE,), (SIZE,), 3), ((SIZE,), (SIZE,), -0.7)] if numbers else []
    cases += [((9, 70), (70,), None), ((40, 17), (), None)] if several else []
    for dtype, (left, right, number) in itertools.product(dtypes, cases):
        args: list[Any] = []
        named: dict[str, Any] = {}
        for argument in schema.arguments:
            if str(argument.type) in ("Tensor", "Optional[Tensor]"):
                mask = argument.name in ("mask", "condition")
                x = data(torch.bool if mask else dtype, right if args else left, len(args) + 3)
                args.append(x.t().contiguous().t() if x.dim() == 2 and not args else x)
            elif str(argument.type) in ("number", "Scalar"):
                value = NUMBERS.get(argument.name, 0.7) if number is None else number
                if argument.kwarg_only:
                    named[argument.name] = value
                elif not argument.has_default_value():
                    args.append(value)
        yield (lambda *given, named=named: op(*given, **named)), args


def chains() -> dict[str, Program]:
    """What one kernel computes of several operators: each is rounded to its dtype, and no sum is contracted."""
    return {
        "a product and a sum": lambda a, b, c: a * b + c,
        "a long one": lambda a, b, c: ((a * b + c) * a - b) / (c * c + 1.5) - a * 0.1,
        "rounded between": lambda a, b, c: (a * 1.1 + b * 0.3) * c + a,
        "to another dtype": lambda a, b, c: (a.float() * b + c).to(a.dtype) * c,
        "by a mask": lambda a, b, c: torch.where(a > b, a * c, b - c).masked_fill(c > 1, 0.1) + a,
        "a square root": lambda a, b, c: (a.abs() + 0.5).sqrt() * b + c.neg(),
        "in place": lambda a, b, c: a.clone().mul_(b).add_(c).sub_(a * c),
        "shared": lambda a, b, c: ((a + b) * (a + b) - c * (a + b), a + b),
        "slices": lambda a, b, c: torch.cat([a[:500] * b[:500], c[500:] + a[500:]]) * b,
        "a sum of a chain": lambda a, b, c: (a * b + c).nan_to_num(0, 1, 1).sum() + a,
        "a softmax of a chain": lambda a, b, c: (a * b + c).softmax(-1) * c,
    }


def beside_numbers() -> dict[str, Program]:
    """Operands of other dtypes than the result's: eager rounds some of them first."""

    def all_of(x: torch.Tensor, t: Any) -> tuple[torch.Tensor, ...]:
        return x * t, x / t, t / x, x + t, x - t, t - x, t * x, t + x, x > t, t <= x, torch.where(x > 0, x, t)

    def bounded(x: torch.Tensor, n: float) -> tuple[torch.Tensor, ...]:
        bounds = x.clamp(n), x.clamp(max=n), x.clamp(n, 2), x.clamp(-2, n), x.clamp_min(n), x.clamp_max(n)
        return *bounds, F.threshold(x, n, n), F.hardtanh(x, n, 1.5), F.leaky_relu(x, n), x.masked_fill(x > 0.5, n)

    programs: dict[str, Program] = {"integers": lambda x: all_of(x, torch.arange(x.numel()) - 300)}
    for n in (0.0, -0.0, 1.0, 0.3):
        programs[f"{n}"] = lambda x, n=n: all_of(x, n)
        programs[f"bounded by {n}"] = lambda x, n=n: bounded(x, n)
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
            programs[f"{3.3 * n} as {dtype}"] = lambda x, n=n, d=dtype: all_of(x, torch.tensor(3.3 * n, dtype=d))
    return programs


def rare() -> dict[str, Program]:
    """What is generated in few cases: beside others, of numbers."""
    return {
        "joined": lambda a, b, c: (torch.stack([a * 2, b + c]), torch.cat([a * 2, b]) * 2, (a * 2).reshape(-1, 1) + 1),
        "whole quotients": lambda a, b, c: (a // 3 + b % 3, (a + 1).fmod(5), torch.div(a, 3, rounding_mode="floor")),
        "dropped": lambda a, b, c: F.dropout(a * 2.5, 0.4) if a.is_floating_point() else a,
    }


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    PAGE.write_text(page_with(table()))
