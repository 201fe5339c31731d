"""Machine code against the interpreter on random kernels. More with MAGNETO_RANDOM_KERNELS=<count>."""

from __future__ import annotations

import os

import pytest
import torch
from kernel_support import interpret, run
from random_kernels import Generator

COUNT = int(os.environ.get("MAGNETO_RANDOM_KERNELS", "150"))
FIRST = int(os.environ.get("MAGNETO_RANDOM_FIRST", "0"))

# f64 may have been f32 on the way.
TOLERANCES = {torch.float64: 3e-4, torch.float32: 3e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def check(seed: int) -> None:
    case = Generator(seed).case()
    exact = [tensor.clone() for tensor in case.tensors]
    interpret(case.text, exact, case.symbols)
    for target in ("host", "avx2") if seed % 3 == 0 else ("host",):
        actual = [tensor.clone() for tensor in case.tensors]
        run(case.text, actual, case.symbols, target)
        for i in case.outputs:
            # Sums are in another order, functions within two units; an error may be amplified by what follows.
            tolerance = TOLERANCES.get(exact[i].dtype, 0)
            try:
                torch.testing.assert_close(actual[i], exact[i], rtol=tolerance, atol=tolerance, equal_nan=True)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, {target}, b{i}: {error}\n{case.text}") from None


@pytest.mark.parametrize("block", range((COUNT + 24) // 25))
def test_random_kernels(block):
    for seed in range(FIRST + 25 * block, FIRST + min(25 * block + 25, COUNT)):
        check(seed)
