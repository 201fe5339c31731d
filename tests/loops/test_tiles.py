"""Accesses that are turned, scratch rows for each lane, and elements apart: whatever way operands and results lie."""

from __future__ import annotations

import itertools

import pytest
import torch
from kernel_support import DTYPES, TARGETS, interpret, run

from magneto import _C


def offset(order: tuple[int, ...], sizes: tuple[int, ...]) -> str:
    """The element of i0, i1, ... in memory with these dimensions from the outermost to the innermost."""
    terms, stride = [], 1
    for dim in reversed(order):
        terms.append(f"{stride}*i{dim}")
        stride *= sizes[dim]
    return " + ".join(terms)


def tensors_of(size: int, dtype: str, count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [(100 * torch.randn(size)).to(DTYPES[dtype]) for _ in range(count)]


def agree(text: str, inputs: list[torch.Tensor], size: int, dtype: str, target: str, **close: float) -> None:
    out, expected = (torch.zeros(size, dtype=DTYPES[dtype]) for _ in range(2))
    run(text, [*inputs, out], target=target)
    interpret(text, [*inputs, expected])
    torch.testing.assert_close(out, expected, equal_nan=True, **close)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(16, 64, 64), (17, 70, 33)])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "bool"])
@pytest.mark.parametrize("orders", list(itertools.product(list(itertools.permutations(range(3)))[1:4:2], repeat=3)))
def test_three_orders(orders, dtype, sizes, target):
    size = sizes[0] * sizes[1] * sizes[2]
    value = "f32" if dtype == "bf16" else dtype
    loops = ", ".join(f"i{dim} < {extent}" for dim, extent in enumerate(sizes))
    text = f"""kernel "sum" {{
b0 in {dtype}[{size}]
b1 in {dtype}[{size}]
b2 out {dtype}[{size}]
parallel {loops}
row {{
%0:{value} = load b0[{offset(orders[0], sizes)}]
%1:{value} = load b1[{offset(orders[1], sizes)}]
%2:{value} = {"xor" if dtype == "bool" else "add"} %0, %1
store b2[{offset(orders[2], sizes)}], %2
}}
}}
"""
    agree(text, tensors_of(size, dtype, 2), size, dtype, target, rtol=0, atol=0)


def softmax_of(rows: int, columns: int, source: str, result: str, dtype: str = "f32") -> str:
    return f"""kernel "softmax" {{
b0 in {dtype}[{rows * columns}]
b1 out {dtype}[{rows * columns}]
b2 scratch f32[{columns}]
parallel i0 < {rows}
stage i1 < {columns} {{
%0:f32 = load b0[{source.replace("j", "i1")}]
%1:f32 = reduce.max %0
}}
stage i2 < {columns} {{
%2:f32 = load b0[{source.replace("j", "i2")}]
%3:f32 = sub %2, %1
%4:f32 = exp %3
%5:f32 = reduce.sum %4
store b2[i2], %4
}}
row {{
%6:f32 = reciprocal %5
}}
stage i3 < {columns} {{
%7:f32 = load b2[i3]
%8:f32 = mul %7, %6
store b1[{result.replace("j", "i3")}], %8
}}
}}
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "columns"), [(64, 128), (67, 50), (16, 1000), (130, 2049), (5, 16)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("source", "result"), list(itertools.product(("rows", "columns"), repeat=2)))
def test_softmax_in_any_order(source, result, rows, columns, dtype, target):
    places = {"rows": f"{columns}*i0 + j", "columns": f"i0 + {rows}*j"}
    text = softmax_of(rows, columns, places[source], places[result], dtype)
    size = rows * columns
    close = {"rtol": 1e-5, "atol": 1e-7} if dtype == "f32" else {"rtol": 1e-2, "atol": 1e-4}
    agree(text, tensors_of(size, dtype, 1), size, dtype, target, **close)


def test_what_is_turned():
    """What the schedule says: stores of a block or of a strip; and none where the lanes lie well already."""
    size = 512 * 256
    turned_sum = f"""kernel "sum" {{
b0 in f32[{size}]
b1 in f32[{size}]
b2 out f32[{size}]
parallel i0 < 512, i1 < 256
row {{
%0:f32 = load b0[256*i0 + i1]
%1:f32 = load b1[256*i0 + i1]
%2:f32 = add %0, %1
store b2[i0 + 512*i1], %2
}}
}}
"""
    assert "turned: b2[" in _C.kernel_texts(turned_sum, "avx512")[0]
    assert "turned: b1[" in _C.kernel_texts(softmax_of(512, 256, "i0 + 512*j", "256*i0 + j"), "avx512")[0]
    over_columns = _C.kernel_texts(softmax_of(512, 256, "i0 + 512*j", "i0 + 512*j"), "avx512")[0]
    assert "lanes across rows" in over_columns
    assert "turned" not in over_columns


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stride", [-3, -2, -1, 2, 3, 5])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "i64"])
@pytest.mark.parametrize("store", [False, True])
def test_elements_apart(store, dtype, stride, target):
    n = 203
    size = abs(stride) * (n - 1) + 1  # ends with the last element
    at = f"{stride}*i0" + (f" + {size - 1}" if stride < 0 else "")
    value = "f32" if dtype == "bf16" else dtype
    text = f"""kernel "apart" {{
b0 in {dtype}[{size}]
b1 out {dtype}[{size}]
parallel i0 < {n}
row {{
%0:{value} = load b0[{"i0" if store else at}]
%1:{value} = add %0, %0
store b1[{at if store else "i0"}], %1
}}
}}
"""
    agree(text, tensors_of(size, dtype, 1), size, dtype, target, rtol=0, atol=0)


def test_copies_keep_the_bits():
    """A bf16 number that is only moved isn't rounded: a NaN keeps its payload."""
    text = 'kernel "copy" {\nb0 in bf16[64]\nb1 out bf16[64]\nparallel i0 < 64\nrow {\n'
    text += "%0:f32 = load b0[i0]\nstore b1[i0], %0\n}\n}\n"
    x = torch.arange(64, dtype=torch.int16) + 0x7F90
    out = torch.zeros(64, dtype=torch.bfloat16)
    run(text, [x.view(torch.bfloat16), out])
    assert torch.equal(out.view(torch.int16), x)
