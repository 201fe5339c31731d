"""Sums of columns beside what they are sums of: in strips of columns, the sums in scratch memory."""

from __future__ import annotations

import pytest
import torch
from kernel_support import DTYPES, TARGETS, interpret, run

from magneto import _C


def text(rows: str | int, columns: int, dtype: str, *, wide: bool, outer: int = 1) -> str:
    """Products and their sums over rows, plain and scaled by what stands for a column."""
    value = "f64" if dtype == "f64" else "f32"
    total = "f64" if wide else value
    place = f"{rows}*{columns}*i0 + {columns}*i2 + i1"
    size = f"{outer}*{rows}*{columns}"
    return f"""kernel "sums" {{
      {"symbols s0" if rows == "s0" else ""}
      b0 in {dtype}[{size}]
      b1 in {dtype}[{columns}]
      b2 out {dtype}[{size}]
      b3 out {dtype}[{outer * columns}]
      b4 out {value}[{outer * columns}]
      parallel i0 < {outer}, i1 < {columns}
      stage i2 < {rows} {{
        %0:{value} = load b0[{place}]
        %1:{value} = load b1[i1]
        %2:{value} = mul %0, %1
        store b2[{place}], %2
        %3:{total} = reduce.sum{".wide" if wide else ""} %2
        %4:{value} = reduce.sum %0
      }}
      row {{
        %5:{value} = {"cast %3" if total != value else "neg %3"}
        store b3[{columns}*i0 + i1], %5
      }}
      row {{
        %6:{value} = load b1[i1]
        %7:{value} = mul %4, %6
        %8:{value} = add %7, %6
        store b4[{columns}*i0 + i1], %8
      }}
    }}"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [127, 128, 129, 200, 1000, 1024, 3071])
@pytest.mark.parametrize(("dtype", "wide"), [("f32", True), ("f32", False), ("f64", False), ("bf16", True)])
@pytest.mark.parametrize(("rows", "outer"), [(1, 1), (0, 2), (70, 3), ("s0", 2)])
def test_sums_of_columns(rows, outer, columns, dtype, wide, target):
    torch.manual_seed(0)
    number = 33 if rows == "s0" else int(rows)
    kernel = text(rows, columns, dtype, wide=wide, outer=outer)
    x, w = torch.rand(outer * number * columns).to(DTYPES[dtype]), torch.randn(columns).to(DTYPES[dtype])
    value = torch.float64 if dtype == "f64" else torch.float32
    shapes = [(len(x), x.dtype), (outer * columns, x.dtype), (outer * columns, value)]
    found, expected = ([torch.full((n,), 7, dtype=t) for n, t in shapes] for _ in range(2))
    symbols = (number,) if rows == "s0" else ()
    run(kernel, [x, w, *found], symbols, target=target)
    interpret(kernel, [x, w, *expected], symbols)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_not_finite_stays():
    kernel = text(40, 128, "f32", wide=True)
    x = torch.randn(40, 128)
    x[3, 0], x[5, 1], x[7, 2], x[8, 2] = torch.inf, torch.nan, torch.inf, -torch.inf
    out = [torch.zeros(n) for n in (40 * 128, 128, 128)]
    run(kernel, [x.flatten(), torch.ones(128), *out])
    torch.testing.assert_close(out[1], x.sum(0), equal_nan=True)


@pytest.mark.parametrize(("columns", "strips"), [(127, False), (128, True), (768, True)])
def test_schedule(columns, strips):
    schedule = _C.kernel_texts(text(40, columns, "f32", wide=True), "avx2")[0]
    assert ("within rows" in schedule) == strips
    assert ("ahead: b0" in schedule) == strips


# What is computed once a column is there for all of its elements, and behind them: a batch norm's scale.
SCALED = """kernel "scaled" {{
  b0 in f32[60*{n}]
  b1 in f32[{n}]
  b2 out f32[60*{n}]
  b3 out f32[{n}]
  b4 out f32[{n}]
  parallel i0 < {n}
  row {{
    %0:f32 = constant 2
    %1:f32 = load b1[i0]
    %2:f32 = add %1, %0
    %3:bool = lt %1, %0
    store b4[i0], %2
  }}
  stage i1 < 60 {{
    %4:f32 = load b0[{n}*i1 + i0]
    %5:f32 = mul %4, %2
    %6:f32 = select %3, %5, %0
    store b2[{n}*i1 + i0], %6
    %7:f32 = reduce.sum %4
  }}
  row {{
    %8:f32 = mul %7, %2
    %9:f32 = add %8, %0
    store b3[i0], %9
  }}
}}"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [127, 128, 200, 1024])
def test_values_of_columns(columns, target):
    torch.manual_seed(0)
    kernel = SCALED.format(n=columns)
    given = [torch.randn(60 * columns), torch.randn(columns) + 1.5]
    found, expected = ([torch.zeros(n) for n in (60 * columns, columns, columns)] for _ in range(2))
    run(kernel, [*given, *found], target=target)
    interpret(kernel, [*given, *expected])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert ("within rows" in _C.kernel_texts(kernel, "avx2")[0]) == (columns >= 128)
