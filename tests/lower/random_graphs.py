"""Random programs over tensors, as Python source: operators, shapes, strides, dtypes, writes, views.

The choices come from hypothesis, so that what fails is made smaller. Every step is run in eager while the program is
drawn: a step that eager refuses is not taken.

Some functions jump (floor, comparisons, argmax) or blow up small differences. They are applied to *exact* values only:
those on which eager and compiled code agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from eager_support import hostile
from hypothesis import strategies as st

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
SIZES = [0, 1, 2, 3, 5, 17, 33]
LAYOUTS = ["contiguous", "transposed", "strided", "expanded", "offset", "channels last"]


@dataclass(frozen=True)
class Step:
    """A row: how a step reads as source, what it is applied to."""

    text: str  # {0}, {1}: operands; {dim}, {number}, {odd}: drawn
    operands: int = 1
    only: str = "any"  # any, float, integer, bool, number (no bool)
    exact: bool = True  # gives exact results from exact ones
    wants_exact: bool = False
    writes: bool = False


class Whole(int):
    """A subclass whose reflected methods a tensor, which takes any int, never asks."""

    def __radd__(self, other: object) -> int:
        return 1000

    __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __radd__


class Real(float):
    def __radd__(self, other: object) -> float:
        return 1000.0

    __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __radd__


SCOPE: dict[str, Any] = {"torch": torch, "TWO": Whole(2), "HALF": Real(0.5)}

STEPS = [
    *(Step(f"torch.{name}({{0}})", only="number") for name in ("neg", "abs", "relu", "square")),
    *(Step(f"torch.{name}({{0}})", only="float", wants_exact=True) for name in ("floor", "ceil", "round", "trunc")),
    *(Step(f"torch.{name}({{0}})", wants_exact=True) for name in ("sign", "isnan", "logical_not")),
    *(Step(f"torch.{name}({{0}})", only="float", exact=False) for name in ("sigmoid", "tanh", "sin", "erf")),
    Step("torch.exp({0}.clamp(-8, 8))", only="float", exact=False),
    Step("torch.nn.functional.gelu({0})", only="float", exact=False),
    Step("torch.nn.functional.silu({0})", only="float", exact=False),
    Step("torch.sqrt({0}.abs())", only="float", exact=False, wants_exact=True),
    Step("torch.log1p({0}.abs())", only="float", exact=False),
    *(Step(f"{{0}} {op} {{1}}", 2, "number") for op in ("+", "-", "*")),
    *(Step(f"{{0}} {op} {{number}}", only="number") for op in ("+", "-", "*")),
    *(Step(f"torch.{name}({{0}}, {{1}})", 2) for name in ("maximum", "minimum")),
    *(Step(f"{{0}} {op} {{1}}", 2, wants_exact=True) for op in ("<", "<=", "==", "!=")),
    *(Step(f"{{0}} {op} {{1}}", 2, "integer") for op in ("&", "|", "^")),
    Step("{0} / ({1}.abs() + 1)", 2, "number", exact=False),
    Step("torch.where({0} > 0, {0}, {1})", 2, "number", wants_exact=True),
    Step("{0}.clamp(-1, {number})", only="number"),
    Step("{0}.masked_fill({0} < 0, {number})", only="number", wants_exact=True),
    # Numbers that the dtype may not hold.
    Step("{0}.masked_fill({0} < 1, {odd})", wants_exact=True),
    Step("torch.full_like({0}, {odd})"),
    Step("torch.nn.functional.pad({0}, (1, 0), value={odd})"),
    Step("{0}.clamp(max={odd})", only="number"),
    Step("{0} * {odd}"),
    Step("{0} == {odd}", wants_exact=True),
    *(Step(f"{{0}} {op} {made}", only="number") for op in ("+", "-", "*") for made in ("TWO", "HALF")),
    Step("{0} / TWO", only="number", exact=False),
    # Operands of other dtypes and layouts beside each other.
    Step("{0} * {1}.transpose(-1, -2)", 2, "number"),
    Step("{0} + {1}[..., :1].expand_as({1})", 2, "number"),
    Step("torch.where({0} > 0, {1}, {0}.transpose(-1, -2))", 2, "number", wants_exact=True),
    # Results that nobody uses.
    Step("({0}, {0}.reshape(-1)[:1].sum(), {0} * 2)[0] * 1", only="number"),
    *(Step(f"{{0}}.to(torch.{str(dtype)[6:]})", wants_exact=True) for dtype in DTYPES[:4]),
    Step("{0}.to(torch.int32)", only="integer"),
    Step("{0}.to(torch.bool)", wants_exact=True),
    # Reductions; sums of integers are exact.
    Step("{0}.sum({dim})", only="integer"),
    Step("{0}.sum({dim})", only="float", exact=False),
    Step("{0}.mean({dim}, keepdim=True)", only="float", exact=False),
    Step("{0}.var({dim})", only="float", exact=False),
    Step("{0}.amax({dim})", wants_exact=False),
    Step("{0}.amin({dim}, keepdim=True)"),
    Step("{0}.argmax({dim})", only="number", wants_exact=True),
    Step("{0}.any({dim})", wants_exact=True),
    Step("{0}.cumsum({dim})", only="integer"),
    Step("{0}.cumsum({dim})", only="float", exact=False),
    Step("torch.softmax({0}, {dim})", only="float", exact=False),
    Step("torch.log_softmax({0}, {dim})", only="float", exact=False),
    Step("torch.nn.functional.layer_norm({0}, {0}.shape[-1:])", only="float", exact=False, wants_exact=True),
    Step("{0}.sort({dim})[0]"),
    # Index maps.
    Step("{0}.transpose({dim}, -1)"),
    Step("{0}.flatten()"),
    Step("{0}.unsqueeze({dim})"),
    Step("{0}.flip({dim})"),
    Step("{0}.roll(1, {dim})"),
    Step("{0}.narrow({dim}, 0, min(2, {0}.size({dim})))"),
    Step("{0}[..., ::2]"),
    Step("{0}.expand(2, *{0}.shape)"),
    Step("{0}.contiguous()"),
    Step("{0}.repeat_interleave(2, {dim})"),
    Step("torch.cat([{0}, {1}], {dim})", 2),
    Step("torch.stack([{0}, {1}], {dim})", 2),
    Step("torch.nn.functional.pad({0}, (1, 2))"),
    Step("torch.tril({0})"),
    Step("{0}.index_select({dim}, torch.arange(0, {0}.size({dim}), 2))"),
    Step("{0} @ {1}", 2, "float", exact=False),
    # Writes.
    Step("{0}.add_({number})", only="number", writes=True),
    Step("{0}.mul_({1})", 2, "number", writes=True),
    Step("{0}[..., :1].copy_({1})", 2, writes=True),
    Step("{0}.select({dim}, 0).fill_(1)", writes=True),
    Step("{0}.select({dim}, 0).fill_({odd})", writes=True),
    Step("{0}.reshape(-1)[::2].add_(1)", only="number", writes=True),
    Step("{0}.flatten().mul_(2)", only="number", writes=True),
    Step("{0}.transpose({dim}, -1).add_(1)", only="number", writes=True),
]

# Steps that raise by what `places` or `divisors` hold, which are inputs.
RAISING = [
    Step("{0}[places]"),
    Step("{0}[..., places]"),
    Step("{0}.index_select({dim}, places)"),
    Step("torch.take({0}, places)"),
    Step("torch.nn.functional.embedding(places, {0})"),
    Step("{0}.gather({dim}, places.reshape(-1, *[1] * ({0}.dim() - 1)))"),
    Step("{0}.index_fill({dim}, places, 1)"),
    Step("{0}.index_add({dim}, places, {0}.narrow({dim}, 0, 1).repeat_interleave(2, {dim}))", only="integer"),
    Step("{0}.scatter_add({dim}, places.reshape(-1, *[1] * ({0}.dim() - 1)), {0} + 1)", only="integer"),
    Step("{0}.index_put((places,), {0}[:1] + 1, accumulate=True)", only="integer"),
    Step("{0}.index_put_((places,), {0}[:1] + 1, accumulate=True)", only="integer", writes=True),
    # (Eager counts the writes inside as writes to the result.)
    Step("torch.nn.functional.one_hot(places, 5) * 1", operands=0),
    *(Step(f"{{0}} {op} divisors", only="integer", wants_exact=True) for op in ("//", "%")),
    Step("torch.fmod({0}, divisors)", only="integer", wants_exact=True),
    Step("{0}.index_fill_({dim}, places, 2)", writes=True),
    Step("{0}.index_put_((places,), {0}[:1].clone())", writes=True),
    Step("{0}.remainder_(divisors)", only="integer", writes=True),
    # What becomes of lookups.
    Step("{0}[places][:1]"),
    Step("{0}[..., places][..., :1]"),
    Step("({0}[places], {0})[1]"),
    Step("torch.where({0} > 0, {0}, {0}.index_select({dim}, places).sum())", only="integer"),
]
GOOD, BAD = torch.tensor([0, 0]), torch.tensor([0, 41])


@dataclass
class Program:
    source: str = ""
    inputs: list[torch.Tensor] = field(default_factory=list)
    # What the inputs behind these are one after the other: with the last ones the program may raise.
    more: list[tuple[torch.Tensor, ...]] = field(default_factory=lambda: [()])
    # How far results may differ: the largest number on the way, times the dtype's precision.
    magnitude: float = 1.0
    least_precise: float = 0.0

    def function(self) -> Callable[..., Any]:
        scope = dict(SCOPE)
        exec(compile(self.source, "<random program>", "exec"), scope)
        function: Callable[..., Any] = scope["program"]
        return function


def fits(only: str, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point
    return {
        "any": True,
        "float": floating,
        "integer": not floating,
        "bool": dtype == torch.bool,
        "number": dtype != torch.bool,
    }[only]


def tensor(draw: Callable[[Any], Any], shape: tuple[int, ...]) -> torch.Tensor:
    """An input: any dtype and layout, now and then with hostile values."""
    dtype, layout = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))
    wild = draw(st.integers(0, 5)) == 0
    seed = draw(st.integers(0, 3))

    def values(*sizes: int) -> torch.Tensor:
        if dtype.is_floating_point and wild:
            return hostile(*sizes, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(sizes, generator=generator) * 3
        return numbers.abs().to(dtype) if dtype == torch.uint8 else numbers.to(dtype)

    if layout == "transposed" and len(shape) > 1:
        return values(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    if layout == "strided" and shape:
        return values(*shape[:-1], shape[-1] * 2)[..., ::2]
    if layout == "expanded" and shape:
        return values(*shape[:-1], 1).expand(shape)
    if layout == "offset":
        return values(math.prod(shape) + 3)[3:].view(shape)
    if layout == "channels last" and len(shape) == 3:
        return values(shape[1], shape[2], shape[0]).permute(2, 0, 1)
    return values(*shape)


@st.composite
def programs(draw: Callable[[Any], Any], most_steps: int = 8, raising: bool = False) -> Program:
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=0, max_size=3)))
    program = Program()
    for _ in range(draw(st.integers(1, 3))):
        # Equal sizes, or ones that spread.
        own = tuple(1 if draw(st.integers(0, 4)) == 0 else size for size in shape)
        program.inputs.append(tensor(draw, own[draw(st.integers(0, 1)) and len(own) > 1 :]))
    values = [input.clone() if input.is_contiguous() else clone(input) for input in program.inputs]
    exact = [True] * len(values)
    names = [f"a{i}" for i in range(len(values))]
    known: dict[str, torch.Tensor] = {}
    if raising:
        known = {"places": GOOD, "divisors": torch.tensor(1)}
        program.more = [(i, d) for i in (GOOD, BAD) for d in (torch.tensor(1), torch.tensor(0))]
    lines = [f"def program({', '.join([*names, *known])}):"]
    for number in range(draw(st.integers(1, most_steps))):
        step = draw(st.sampled_from(RAISING if raising and draw(st.integers(0, 2)) == 0 else STEPS))
        operands = [draw(st.integers(0, len(values) - 1)) for _ in range(step.operands)]
        chosen = [values[i] for i in operands]
        all_exact = all(exact[i] for i in operands)
        rank = max((value.dim() for value in chosen), default=0)
        text = step.text.format(
            *(names[i] for i in operands),
            dim=draw(st.integers(-rank, rank - 1)) if rank else 0,
            number=draw(st.sampled_from([0, 1, -1, 2, 0.5, 3.0])),
            odd=draw(st.sampled_from([0.5, -1.5, 300, -1, 70000, 1e10, -0.0, True])),
        )
        if not all(fits(step.only, value.dtype) for value in chosen) or (step.wants_exact and not all_exact):
            continue
        if step.writes and (not exact[operands[0]] or not all_exact):
            continue
        try:
            made = eval(text, SCOPE, dict(zip(names, values, strict=True)) | known)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        if made.numel() > 50_000 or made.is_complex():
            continue
        names.append(f"v{number}")
        lines.append(f"    {names[-1]} = {text}")
        values.append(made)
        exact.append(all_exact and (step.exact or not made.dtype.is_floating_point))
        finite = made.double()[made.isfinite()] if made.dtype.is_floating_point else made.double().flatten()
        if finite.numel():
            program.magnitude = max(program.magnitude, finite.abs().max().item())
    kept = sorted({draw(st.integers(0, len(names) - 1)) for _ in range(3)} | {len(names) - 1})
    lines.append(f"    return ({', '.join(names[i] for i in kept)},)")
    program.source = "\n".join(lines)
    program.least_precise = max(
        (torch.finfo(value.dtype).eps for value in values if value.dtype.is_floating_point), default=0.0
    )
    return program


def clone(value: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the original, gaps included."""
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    if value.numel() and 0 in value.stride():
        return value.new_tensor(value[..., :1].tolist()).to(value.dtype).expand(value.shape) if value.dim() else value
    return copy.copy_(value)
