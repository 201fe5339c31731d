"""Kernels in text form, run on tensors by machine code and by the interpreter."""

from __future__ import annotations

import math
import pathlib

import torch

from magneto import _testing

DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
}

TARGETS = ["host", "avx2"]


def compiled(text: str, target: str = "host"):
    return _testing.kernel_compile(text, target)


def run(text: str, tensors, symbols=(), target: str = "host") -> None:
    _testing.kernel_run(compiled(text, target), tuple(tensors), tuple(symbols))


def interpret(text: str, tensors, symbols=()) -> None:
    _testing.kernel_interpret(text, tuple(tensors), tuple(symbols))


def pointwise(op: str, dtype: str, size: int, operands: int = 1) -> str:
    """A kernel that applies `op` to each element of its inputs."""
    lines = [f"b{i} in {dtype}[{size}]" for i in range(operands)] + [f"b{operands} out {dtype}[{size}]"]
    value = {"bf16": "f32", "f16": "f32"}.get(dtype, dtype)
    lines += [f"parallel i0 < {size}", "row {"]
    lines += [f"%{i}:{value} = load b{i}[i0]" for i in range(operands)]
    lines += [f"%{operands}:{value} = {op} " + ", ".join(f"%{i}" for i in range(operands))]
    lines += [f"store b{operands}[i0], %{operands}", "}"]
    return 'kernel "pointwise" {\n' + "\n".join(lines) + "\n}\n"


SOFTMAX = (pathlib.Path(__file__).parent / "golden" / "softmax.loops").read_text()


def softmax(rows: int, columns: int) -> str:
    return (
        SOFTMAX.replace("65536", str(rows * columns)).replace("i0 < 64", f"i0 < {rows}").replace("1024", str(columns))
    )


def softmax_in_scratch(rows: int, columns: int, dtype: str) -> str:
    """Its exponentials wait in scratch memory for their sum."""
    return f"""kernel "scratch" {{
      b0 in {dtype}[{rows * columns}]
      b1 out {dtype}[{rows * columns}]
      b2 scratch f32[{columns}]
      parallel i0 < {rows}
      stage i1 < {columns} {{
        %0:f32 = load b0[{columns}*i0 + i1]
        %1:f32 = exp %0
        %2:f32 = reduce.sum %1
        store b2[i1], %1
      }}
      stage i2 < {columns} {{
        %3:f32 = load b2[i2]
        %4:f32 = div %3, %2
        store b1[{columns}*i0 + i2], %4
      }}
    }}"""


def transposed(n: int, m: int, dtype: str, *, known: bool = False) -> str:
    """x + y.t() of n by m elements; `known`: with numbers for its symbols."""
    text = f"""kernel "transposed" {{
      symbols s0, s1
      b0 in {dtype}[s0*s1]
      b1 in {dtype}[s0*s1]
      b2 out {dtype}[s0*s1]
      parallel i0 < s0, i1 < s1
      row {{
        %0:{dtype} = load b0[s1*i0 + i1]
        %1:{dtype} = load b1[s0*i1 + i0]
        %2:{dtype} = add %0, %1
        store b2[s1*i0 + i1], %2
      }}
    }}"""
    return text.replace("symbols s0, s1\n", "").replace("s0", str(n)).replace("s1", str(m)) if known else text


def apply(op: str, dtype: str, *inputs: torch.Tensor, target: str = "host") -> torch.Tensor:
    out = torch.empty_like(inputs[0])
    run(pointwise(op, dtype, inputs[0].numel(), len(inputs)), [*inputs, out], target=target)
    return out


def units_in_last_place(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|actual - exact| in units of actual's dtype at exact (float64, or actual's own dtype); what is not finite must
    agree. Denormals count in the least unit."""
    exact = exact.double()
    rounded = exact.to(actual.dtype)
    info = torch.finfo(actual.dtype)
    digits = {torch.float32: 23, torch.float64: 52}[actual.dtype]
    exponent = torch.frexp(exact.abs().clamp(min=info.smallest_normal)).exponent - 1
    unit = torch.ldexp(torch.ones_like(exact), (exponent - digits).double())
    error = (actual.double() - exact).abs() / unit
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    error = torch.where(same, torch.zeros_like(error), error)
    # A result one step from overflow may round either way.
    edge = rounded.isinf() ^ actual.isinf()
    near = edge & (exact.abs() > info.max * 0.999999) & (actual.double().abs() > info.max * 0.999999)
    error = torch.where(near, torch.ones_like(error), error)
    return torch.where(error.isnan(), torch.full_like(error, math.inf), error)
