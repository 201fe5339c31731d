"""Random programs: machine code and the loop interpreter against eager. What fails is shrunk and printed as source.

MAGNETO_RANDOM_PROGRAMS=5000 runs more of them.
"""

from __future__ import annotations

import copy
import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from random_graphs import Program, programs

import magneto

COUNT = int(os.environ.get("MAGNETO_RANDOM_PROGRAMS", "40"))


def describe(value: object) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [item for items in value for item in describe(items)]  # type: ignore[attr-defined]


def agree(program: Program) -> None:
    note(program.source)
    note(str([(item.dtype, tuple(item.shape), item.stride()) for item in program.inputs]))
    function = program.function()
    magneto.reset()
    compiled = magneto.compile(function, fullgraph=True)
    for call in range(3):
        if call == 2:
            magneto.reset()  # captured again; the program comes from the cache on disk
        ours, theirs = copy.deepcopy(program.inputs), copy.deepcopy(program.inputs)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, actual = function(*theirs), compiled(*ours)
        for left, right in zip(describe([actual, ours]), describe([expected, theirs]), strict=True):
            assert (left.dtype, left.shape, left._version) == (right.dtype, right.shape, right._version)
            if left.numel():
                pairs = zip(right.shape, left.stride(), right.stride(), strict=True)
                assert all(size < 2 or one == other for size, one, other in pairs), (left.stride(), right.stride())
            if not right.dtype.is_floating_point:
                assert torch.equal(left, right)
                continue
            unit = max(torch.finfo(right.dtype).eps, program.least_precise, 2.0**-23)
            rounding = 64 * unit
            torch.testing.assert_close(
                left, right, rtol=rounding, atol=rounding * min(program.magnitude, 1e30), equal_nan=True
            )


@pytest.mark.parametrize("interpreted", [False, True], ids=["machine", "interpreted"])
def test_random_programs(interpreted: bool) -> None:
    @settings(max_examples=COUNT, deadline=None, derandomize=COUNT < 1000, suppress_health_check=list(HealthCheck))
    @given(program=programs())
    def run(program: Program) -> None:
        with magneto.config.patch(interpret_kernels=interpreted):
            agree(program)

    run()
