"""What the workers measure with: times in turn, memory, and the check without which there is no figure."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


def timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def per_call(function: Function, arguments: tuple[Any, ...], budget: float = 0.5) -> float:
    """Median over batches of the mean time of a call in a batch."""
    loops, spent = 1, 0.0
    while spent < budget / 25:  # a batch takes about a 20th of the budget
        start = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        spent = time.perf_counter() - start
        loops = loops * 2 if spent < budget / 25 else loops
    batches = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(loops):
            function(*arguments)
        batches.append((time.perf_counter() - start) / loops)
    return statistics.median(batches)


def interleaved(ours: Function, eager: Function, budget: float) -> tuple[float, float]:
    """Seconds of a call of each: the least of batches that take turns, so that a busy machine is so for both."""

    def batch(function: Function, loops: int) -> float:
        return timed(lambda: [function() for _ in range(loops)]) / loops

    loops = [max(1, round(budget / 40 / max(batch(function, 1), 1e-7))) for function in (ours, eager)]
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(times[0]) < 5 or time.perf_counter() - start < budget:
        for function, number, found in zip((ours, eager), loops, times, strict=True):
            found.append(batch(function, number))
    return min(times[0]), min(times[1])


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, (list, tuple)) else []


def check(
    name: str,
    compiled: Function,
    function: Function,
    arguments: Any,
    named: Any,
    exact: list[torch.Tensor] | None = None,
    share: float = 0,
) -> None:
    """Results and changed arguments are eager's, or there is no figure.

    A result may differ from eager's where `exact`, the results of the same program on float64, says that it is no
    further off than twice eager's own, or than a millionth of the largest: some gradients are zero but for rounding (of
    a bias that a softmax takes away again). Or by no more than this `share` of it as a whole: where a ReLU is at zero
    but for rounding, a unit has a gradient or none.
    """
    found = []
    for call in (function, compiled):
        given = copy.deepcopy((arguments, named))
        torch.manual_seed(0)
        result = call(*given[0], **given[1])
        found.append(tensors_of([result, *given]))
    compare(name, found[0], found[1], exact, share)


def compare(
    name: str,
    wanted: list[torch.Tensor],
    found: list[torch.Tensor],
    exact: list[torch.Tensor] | None = None,
    share: float = 0,
) -> None:
    """The same of tensors that are there."""
    assert len(wanted) == len(found), f"{name}: {len(found)} results, eager {len(wanted)}"
    for number, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name}: another dtype or shape"
        scale = want.abs().max().item() if want.is_floating_point() and want.numel() else 0.0
        if torch.allclose(got, want, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            continue
        assert exact is not None, f"{name}: other results"
        ours, eager = ((result - exact[number]).norm().item() for result in (got, want))
        largest = max(result.norm().item() for result in exact)
        assert ours <= max(2 * eager, 1e-6 * largest, share * exact[number].norm().item()), (
            f"{name}: result {number} is off by {ours:.3g}, eager's by {eager:.3g}"
        )


def resident() -> int:
    """Bytes of memory that the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_during(call: Callable[[], Any]) -> int:
    """The most memory, in bytes, that the process holds while `call` runs twice."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    call()
    call()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
