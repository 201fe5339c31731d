"""Compiled programs against eager and the machine's copy bandwidth, 64 MB of data each way at most:

.venv/bin/python -P bench/bandwidth.py [threads]

A program writes into a tensor that it is given, as a copy does: how memory for results is found is another subject.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import magneto

ROWS, COLUMNS = 4096, 4096  # 64 MB of f32
Program = Callable[..., torch.Tensor]


def programs() -> dict[str, tuple[Program, tuple[torch.Tensor, ...], int]]:
    """What is computed of what, and how often 64 MB are read or written for it."""
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    weight, bias = torch.randn(COLUMNS), torch.randn(COLUMNS)
    return {
        "copy": (lambda x: x, (x,), 2),
        "gelu": (F.gelu, (x,), 2),
        "x*y + x": (lambda x, y: x * y + x, (x, y), 3),
        "softmax": (lambda x: F.softmax(x, -1), (x,), 2),
        "softmax, rows of 64": (lambda x: F.softmax(x, -1), (x.view(-1, 64),), 2),
        "layer norm": (lambda x, weight, bias: F.layer_norm(x, (COLUMNS,), weight, bias), (x, weight, bias), 2),
        "sum of rows": (lambda x: x.sum(1), (x,), 1),
        "sum of columns": (lambda x: x.sum(0), (x,), 1),
        "transposed add": (lambda x, y: x + y.t(), (x, y), 3),
    }


def seconds(*calls: Callable[[], Any], least: float = 1.0) -> list[float]:
    """The least of each, measured in turn, so that a machine that is busy for a while is so for all."""
    times: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while len(times[0]) < 6 or time.perf_counter() - begin < least:
        for call, found in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return [min(found) for found in times]


def measure() -> tuple[float, dict[str, dict[str, float]]]:
    """Bytes a second of a copy; for each program the times of a call, of a copy beside it, of eager, of compiling."""
    source, target = torch.randn(ROWS, COLUMNS), torch.empty(ROWS, COLUMNS)
    found: dict[str, dict[str, float]] = {}
    with torch.no_grad(), magneto.config.patch(disk_cache=False):
        for name, (program, tensors, passes) in programs().items():
            want = program(*tensors)
            out = torch.empty_like(want)

            def into(out: torch.Tensor, *tensors: torch.Tensor, program: Program = program) -> None:
                out.copy_(program(*tensors))

            compiled = magneto.compile(into, fullgraph=True)
            start = time.perf_counter()
            compiled(out, *tensors)
            first = time.perf_counter() - start
            assert torch.allclose(out, want, rtol=1e-4, atol=1e-3), f"{name}: other results"
            call, eager, copied = seconds(
                lambda compiled=compiled, out=out, tensors=tensors: compiled(out, *tensors),
                lambda program=program, tensors=tensors: program(*tensors),
                lambda: target.copy_(source),
            )
            found[name] = {"call": call, "copy": copied, "eager": eager, "passes": passes, "compile": first - call}
    return 2 * source.numel() * 4 / min(row["copy"] for row in found.values()), found


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    bandwidth, found = measure()
    print(f"{torch.get_num_threads()} thread(s); copy bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(f"{'program':22}{'ms':>8}{'copy ms':>9}{'of copy':>9}{'eager ms':>10}{'faster':>8}{'compile ms':>12}")
    for name, row in found.items():
        ours, copied, theirs = row["call"] * 1e3, row["copy"] * 1e3, row["eager"] * 1e3
        print(
            f"{name:22}{ours:8.2f}{copied:9.2f}{row['passes'] * copied / 2 / ours:9.0%}{theirs:10.2f}"
            f"{theirs / ours:8.2f}{row['compile'] * 1e3:12.1f}"
        )


if __name__ == "__main__":
    main()
