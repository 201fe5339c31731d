"""Random programs: machine code and the loop interpreter against eager. What fails is shrunk and printed as source.

MAGNETO_RANDOM_PROGRAMS=5000 runs more of them.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from random_graphs import Program, programs

import magneto
from magneto import _test_settings

COUNT = int(os.environ.get("MAGNETO_RANDOM_PROGRAMS", "40"))


def describe(value: object) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [item for items in value for item in describe(items)]  # type: ignore[attr-defined]


def agree_once(program: Program, compiled: Any, inputs: list[torch.Tensor]) -> None:
    function = program.function()
    ours, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = function(*theirs)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(*ours)
            expected = actual = ()
        else:
            actual = compiled(*ours)
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


def agree(program: Program) -> None:
    note_program(program)
    magneto.reset()
    compiled = magneto.compile(program.function(), fullgraph=True)
    for call in range(3):
        if call == 2:
            magneto.reset()  # captured again; the program comes from the cache on disk
        for more in program.more:
            agree_once(program, compiled, [*program.inputs, *more])


def note_program(program: Program) -> None:
    note(program.source)
    note(str([(item.dtype, tuple(item.shape), item.stride()) for item in program.inputs]))


def resized(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """The tensor with more elements in each dimension that has several, laid out as it is."""
    shape = [size + by if size > 1 else size for size in tensor.shape]
    spread = [size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    stored = [1 if is_spread else size for size, is_spread in zip(shape, spread, strict=True)]
    step = min((stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1), default=1)
    strides = [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda dim: tensor.stride(dim)):
        strides[dim] = max(step, 1)
        step = max(step, 1) * max(stored[dim], 1)
    result = torch.empty_strided(stored, strides, dtype=tensor.dtype)
    values = tensor.reshape(-1)
    if result.numel():
        values = values.repeat(result.numel() // values.numel() + 1)[: result.numel()]
        result.copy_(values.view(stored))
    return result.expand(shape)


def agree_for_all_sizes(program: Program) -> None:
    note_program(program)
    magneto.reset()
    compiled = magneto.compile(program.function(), dynamic=True)
    for by in (0, 3, 1, 11):
        note(f"sizes by {by} larger")
        for more in program.more:
            agree_once(program, compiled, [*(resized(item, by) if by else item for item in program.inputs), *more])


@pytest.mark.parametrize("raising", [False, True], ids=["", "that_raise"])
@pytest.mark.parametrize("check", [agree, agree_for_all_sizes], ids=["sizes of the capture", "all sizes"])
@pytest.mark.parametrize("interpreted", [False, True], ids=["machine", "interpreted"])
def test_random_programs(interpreted: bool, check: Callable[[Program], None], raising: bool) -> None:
    @settings(max_examples=COUNT, deadline=None, derandomize=COUNT < 1000, suppress_health_check=list(HealthCheck))
    @given(program=programs(raising=raising))
    def run(program: Program) -> None:
        with _test_settings.patch(interpret_kernels=interpreted):
            check(program)

    run()
