"""The lines of the program that take the most time, of a report's runs: for who does not want to open the page."""

from __future__ import annotations

import collections
import linecache
import os
from collections.abc import Iterator
from typing import Any

Line = tuple[str, int]


def lines(runs: list[dict[str, Any]], most: int = 3) -> list[str]:
    """`slow.py:6  1.2 ms a call (83%)  z = torch.linalg.solve(w, y)`; nothing where nothing was timed."""
    taken: dict[Line, float] = collections.defaultdict(float)
    for run in runs:
        for compile_ in run["compiles"]:
            for line, seconds in _steps(compile_):
                taken[line] += seconds
    total = sum(taken.values())
    ranked = sorted(taken.items(), key=lambda one: -one[1])
    return [
        f"{os.path.basename(file)}:{line}  {_seconds(seconds)} a call ({seconds / total:.0%})  "
        f"{linecache.getline(file, line).strip()}".rstrip()
        for (file, line), seconds in ranked[:most]
        if seconds and file
    ]


def _steps(compile_: dict[str, Any]) -> Iterator[tuple[Line, float]]:
    """Of each step the line that most of its operators are of, and its best time."""
    calls = compile_.get("torch") or []
    for program, timed in zip(compile_.get("programs", []), compile_.get("all_runs", []), strict=False):
        for step, (count, best, _) in zip(program["steps"], timed["steps"], strict=False):
            operators = program["kernels"][step["kernel"]]["operators"] if "kernel" in step else [step["node"]]
            places = collections.Counter(
                (calls[torch][1], calls[torch][2])
                for torch in (program["aten"][at][1] for at in operators if 0 <= at < len(program["aten"]))
                if 0 <= torch < len(calls)
            )
            if count and places:
                yield places.most_common(1)[0][0], best * 1e-9


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.0f} ns"
