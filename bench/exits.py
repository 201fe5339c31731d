"""Calls that leave compiled code, and what their guards cost: the worker's part of the rows in exit_rows.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
TURNS = 1000


def least(function: Function, rounds: int = 7) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def per_call(functions: list[Function], loops: int = 2000, rounds: int = 15) -> list[float]:
    """Seconds of a call of each: the least of batches that take turns."""
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, found, strict=True):
            start = time.perf_counter()
            for _ in range(loops):
                function()
            times.append((time.perf_counter() - start) / loops)
    return [min(times) for times in found]


# -- another entry -----------------------------------------------------------------------------------------------------


def another_entry(framework: Any, backend: str) -> dict[str, Any]:
    """Calls of a function with two captures: always the one, always the other, and in turn."""
    layers = [layer for _ in range(10) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    programs: dict[str, tuple[Function, torch.Tensor, torch.Tensor]] = {
        "x + 1": (lambda x: x + 1, torch.ones(4), torch.ones(5)),
        "20 layers": (torch.nn.Sequential(*layers).eval(), torch.ones(1, 8), torch.ones(2, 8)),
    }
    result: dict[str, Any] = {}
    with torch.no_grad():
        for name, (function, a, b) in programs.items():
            compiled = framework.compile(function, backend=backend, dynamic=False)
            for _ in range(50):
                compiled(a), compiled(b)
            first, second, both = per_call(
                [lambda: compiled(a), lambda: compiled(b), lambda: (compiled(a), compiled(b))]  # noqa: B023
            )
            # An entry that is called goes to the front: in turn, each of the two calls meets the other's guards first.
            result[name] = {"hit": first, "added": (both - first - second) / 2}
    return result


# -- a side exit in a loop ---------------------------------------------------------------------------------------------


def opaque_call(x: torch.Tensor) -> torch.Tensor:
    for _ in range(TURNS):
        x = x * 0.999
        time.monotonic()
    return x


def item(x: torch.Tensor) -> Any:
    total = 0.0
    for _ in range(TURNS):
        x = x * 0.999
        total += x.sum().item()
    return x, total


def branch(x: torch.Tensor) -> torch.Tensor:
    for _ in range(TURNS):
        x = x * 0.999
        if x.sum() > 100:
            x = x - 1
    return x


LOOPS: dict[str, Function] = {"opaque call": opaque_call, ".item()": item, "branch": branch}


def loop(framework: Any, backend: str) -> dict[str, Any]:
    """Seconds of a turn, compiled and eager, and how many segments were compiled."""
    result: dict[str, Any] = {}
    x = torch.ones(4)
    with torch.no_grad():
        for name, function in LOOPS.items():
            framework.reset()
            compiled = framework.compile(function, backend=backend, dynamic=False)
            compiled(x), compiled(x)
            times = per_call([lambda: compiled(x), lambda: function(x)], loops=1)  # noqa: B023
            result[name] = {"call": times[0] / TURNS, "eager": times[1] / TURNS, "segments": framework.captures()}
    return result


# -- breaks in called functions ----------------------------------------------------------------------------------------


def nested(depth: int) -> Function:
    """A function whose break is `depth` calls deep; the functions are new ones at each call."""
    scope: dict[str, Any] = {"monotonic": time.monotonic}
    source = "def f0(x):\n    x = x.sin()\n    monotonic()\n    return x.cos()\n"
    for level in range(1, depth + 1):
        work = "".join(f"    x = x * {k}.5\n" for k in range(5))
        source += f"def f{level}(x):\n{work}    x = f{level - 1}(x)\n{work}    return x\n"
    exec(source, scope)
    return scope[f"f{depth}"]


def depth(framework: Any, rounds: int = 5) -> dict[str, Any]:
    """By depth: the first call, with everything to be captured, and what an eager call takes of it."""
    x = torch.ones(4)
    result = {}
    with torch.no_grad():
        for deep in range(1, 13):
            times = []
            for _ in range(rounds):
                framework.reset()
                function = nested(deep)
                eager = least(lambda: function(x), 2)  # noqa: B023
                compiled = framework.compile(function, backend="eager", dynamic=False)
                times.append(least(lambda: compiled(x), 1) - eager)  # noqa: B023
            result[str(deep)] = min(times)
    return result


# -- guards of a large module ------------------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.linears = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for linear in self.linears:
            x = linear(x)
        return x


def module_guards(framework: Any, backend: str) -> dict[str, Any]:
    """Seconds of one check of all guards of 48 layers with 2,016 parameters, hot and with the caches full of others."""
    module = torch.nn.Sequential(*[Layer() for _ in range(48)]).eval()
    x = torch.ones(1, 8)

    def program(x: torch.Tensor) -> torch.Tensor:
        return module(x)

    with torch.no_grad():
        compiled = framework.compile(program, backend=backend, dynamic=False)
        for _ in range(5):
            compiled(x)
        check = framework.guard_check(compiled, program, {"x": x, "module": module})
        hot = statistics.median(check(0) for _ in range(5))
        cold = statistics.median(check(64 << 20) for _ in range(5))
    return {"parameters": len(list(module.parameters())), "hot": hot, "cold": cold}
