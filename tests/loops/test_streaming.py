"""Large results, which are written around the cache, and short rows, which stay in registers."""

from __future__ import annotations

import pytest
import torch
from kernel_support import TARGETS, interpret, pointwise, run, softmax, softmax_in_scratch, transposed

from magneto import _C

LARGE = 26 << 20  # elements: more than twenty-four times any second cache


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_any_alignment(offset, target):
    x, out = torch.randn(LARGE + 7), torch.zeros(LARGE + 7 + offset)[offset:]
    text = pointwise("neg", "f32", LARGE + 7)
    assert "around the cache: b1" in _C.kernel_texts(text)[0]
    run(text, [x, out], target=target)
    assert torch.equal(out, -x)


def test_over_its_operand():
    x = torch.randn(LARGE)
    expected = -x
    run(pointwise("neg", "f32", LARGE), [x, x])
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
    x, out = torch.randn(7, 6), torch.zeros(7, 6)
    run(softmax_in_scratch(7, 6, "f32"), [x, out], target=target)
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("n", "m"), [(2048, 2048), (2065, 1500), (1500, 2065)])
def test_transposes_of_many_pages(n, m, target):
    text = transposed(n, m, "f32", known=True)
    assert "256 by 64" in _C.kernel_texts(text, "avx512")[0]
    x, y, out = torch.randn(n, m), torch.randn(m, n), torch.zeros(n, m)
    run(text, [x, y, out], target=target)
    assert torch.equal(out, x + y.t())
