"""Which results may lie where an operand lay."""

from __future__ import annotations

import pytest
from kernel_support import softmax

from magneto import _testing

STAGES = softmax(8, 64)
LATE = STAGES.replace("%7:f32 = load b1", "%7:f32 = load b0")


def pointwise(load: str, store: str, loops: str = "i0 < 8, i1 < 8", out: str = "f32") -> str:
    return f"""kernel "k" {{
  b0 in f32[64]
  b1 out {out}[64]
  parallel {loops}
  row {{
    %0:f32 = load b0[{load}]
    %1:{out} = cast %0
    store b1[{store}], {"%0" if out == "f32" else "%1"}
  }}
}}""".replace("    %1:f32 = cast %0\n", "")


@pytest.mark.parametrize(
    ("kernel", "may"),
    [
        (pointwise("8*i0 + i1", "8*i0 + i1"), True),
        (pointwise("8*i1 + i0", "8*i0 + i1"), False),  # transposed
        (pointwise("i0", "i0 + 1", "i0 < 63"), False),  # a neighbour's
        (pointwise("i0", "8*i0 + i1"), False),  # everybody's
        (pointwise("i0", "i0"), False),  # written by several iterations
        (pointwise("8*i0 + i1", "8*i0 + i1", out="i32"), True),
        (pointwise("8*i0 + i1", "8*i0 + i1", out="f64"), False),  # other places
        (STAGES, True),
        (LATE, False),  # read after it was overwritten
        (STAGES.replace("load b0[64*i0 + i1]", "load b0[64*i0 - i1 + 63]"), False),
    ],
)
def test_results_over_operands(kernel: str, may: bool) -> None:
    assert _testing.loops_verify(kernel) == []
    assert _testing.loops_may_write_over(kernel, 0, 1) == may
