"""A program asks its device for memory and code, and launches kernels through it: nothing goes past it."""

from __future__ import annotations

import torch

import magneto
from magneto import _testing

FUSED = """\
graph {
  %0: f32[8, 16] = input "x"
  %1: f32[16, 4] = input "w"
  %2: f32[8, 16] = aten.sin(%0)
  %3: f32[8, 4] = aten.mm(%2, %1)
  %4: f32[8, 4] = aten.exp(%3)
  return (%4)
}
"""


def test_what_a_program_asks_of_its_device() -> None:
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    (result,), asked = _testing.recorded_run(FUSED, [x, w])
    torch.testing.assert_close(result, (x.sin() @ w).exp())
    # Code for both kernels, memory for what stands between, the result's own, and the kernels in order.
    assert asked == [
        "compile 2",
        f"allocate {8 * 16 * 4 + 8 * 4 * 4}",
        f"empty {8 * 4}",
        "launch magneto::sin",
        "launch magneto::exp",
    ]


def test_the_interpreter_is_a_device() -> None:
    def f(x):
        return (x.sin() + 1).cos()

    x = torch.randn(7, 5)
    with magneto.config.patch(interpret_kernels=True):
        compiled = magneto.compile(f)
        torch.testing.assert_close(compiled(x), f(x))
