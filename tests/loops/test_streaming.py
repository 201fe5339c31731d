"""Large results, which are written around the cache, and short rows, which stay in registers."""

from __future__ import annotations

import pytest
import torch
from kernel_support import TARGETS, interpret, run
from test_kernels import softmax, transposed

from magneto import _C

LARGE = 16 << 20  # elements: more than sixteen times any second cache


def doubled(count: int) -> str:
    return f"""kernel "doubled" {{
      b0 in f32[{count}]
      b1 out f32[{count}]
      parallel i0 < {count}
      row {{
        %0:f32 = load b0[i0]
        %1:f32 = add %0, %0
        store b1[i0], %1
      }}
    }}"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_any_alignment(offset, target):
    x, out = torch.randn(LARGE + 7), torch.zeros(LARGE + 7 + offset)[offset:]
    assert "around the cache: b1" in _C.kernel_texts(doubled(LARGE + 7))[0]
    run(doubled(LARGE + 7), [x, out], target=target)
    assert torch.equal(out, x + x)


def test_over_its_operand():
    x = torch.randn(LARGE)
    expected = x + x
    _C.kernel_run(_C.kernel_compile(doubled(LARGE)), (x, x))
    assert torch.equal(x, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [64, 100, 4096, 4097])
def test_softmax_reads_no_result_back(columns, target):
    rows = LARGE // columns + 1
    text = softmax(rows, columns)
    assert "around the cache: b1" in _C.kernel_texts(text)[0]
    x, out = torch.randn(rows, columns), torch.zeros(rows, columns)
    run(text, [x, out], target=target)
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 3, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 128])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_short_rows(columns, dtype, target):
    torch_dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}[dtype]
    text = softmax(5, columns).replace("f32[", f"{dtype}[")
    if dtype == "f64":
        text = text.replace(":f32", ":f64")
    x = torch.randn(5, columns).to(torch_dtype)
    out, expected = torch.zeros_like(x), torch.zeros_like(x)
    run(text, [x, out], target=target)
    interpret(text, [x, expected])
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_masked_rows_in_registers(target):
    """The scratch row was never stored, and its loads did not find it among the known elements."""
    text = """kernel "scaled" {
      b0 in f32[42]
      b1 out f32[42]
      b2 scratch f32[6]
      parallel i0 < 7
      stage i1 < 6 {
        %0:f32 = load b0[6*i0 + i1]
        %1:f32 = exp %0
        %2:f32 = reduce.sum %1
        store b2[i1], %1
      }
      stage i2 < 6 {
        %3:f32 = load b2[i2]
        %4:f32 = div %3, %2
        store b1[6*i0 + i2], %4
      }
    }"""
    x, out = torch.randn(7, 6), torch.zeros(7, 6)
    run(text, [x, out], target=target)
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "m"), [(2048, 2048), (2065, 1500), (1500, 2065)])
def test_transposes_of_many_pages(n, m, target):
    text = transposed(n, m, "f32").replace("symbols s0, s1\n", "").replace("s0", str(n)).replace("s1", str(m))
    assert "256 by 64" in _C.kernel_texts(text)[0]
    x, y, out = torch.randn(n, m), torch.randn(m, n), torch.zeros(n, m)
    run(text, [x, y, out], target=target)
    assert torch.equal(out, x + y.t())
