"""A program asks its device for memory and code, and launches kernels through it: nothing goes past it."""

from __future__ import annotations

import torch

from magneto import _testing

FUSED = """\
graph {
  %0: f32[64, 128] = input "x"
  %1: f32[128, 64] = input "w"
  %2: f32[64, 128] = aten.sin.default(%0)
  %3: f32[64, 64] = aten.mm.default(%2, %1)
  %4: f32[64, 64] = aten.tanh.default(%3)
  return (%4)
}
"""


def test_what_a_program_asks_of_its_device() -> None:
    x, w = torch.randn(64, 128), torch.randn(128, 64)
    (result,), asked = _testing.recorded_run(FUSED, [x, w])
    torch.testing.assert_close(result, (x.sin() @ w).tanh())
    # Code for both kernels, memory for what stands between, and the kernels in order, the result's own memory in front
    # of the one that writes it.
    assert asked == [
        "compile 2",
        f"allocate {4 * (64 * 128 + 64 * 64)}",
        "launch magneto::sin",
        f"empty {64 * 64}",
        "launch magneto::tanh",
    ]
