"""warnings.warn in compiled code: no exit, and shown as often, and of the same line, as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import typing_extensions

import magneto

#: PEP 702: the standard library has it from 3.13 on.
DEPRECATED: list[Any] = [typing_extensions.deprecated, getattr(warnings, "deprecated", typing_extensions.deprecated)]


def warns(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    warnings.warn("careful", stacklevel=1)
    return y * 2


def deprecated(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("old", DeprecationWarning, stacklevel=2)
    return x + 1


def calls_what_warns(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = deprecated(x)
    return deprecated(x)


def warns_behind_a_write(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    warnings.warn("written", category=FutureWarning)
    return x.mul_(2)


def warns_of_a_size(x: torch.Tensor) -> torch.Tensor:
    warnings.warn(f"{x.shape[0]} rows", UserWarning)
    return x * 2


def warns_and_catches(x: torch.Tensor) -> torch.Tensor:
    try:
        warnings.warn("stop", stacklevel=1)
    except UserWarning as warning:
        return x - len(str(warning))
    return x + 1


def calls_what_is_marked(mark: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    @mark("use another function")
    def function(x: torch.Tensor, by: int = 2) -> torch.Tensor:
        return x * by

    @mark("use another class", category=FutureWarning)
    class Scale:
        def __init__(self, by: int) -> None:
            self.by = by

    def calls(x: torch.Tensor) -> torch.Tensor:
        return function(x, by=3) + Scale(4).by

    return calls


PROGRAMS = [
    *map(calls_what_is_marked, DEPRECATED),
    warns,
    calls_what_warns,
    warns_behind_a_write,
    warns_of_a_size,
    warns_and_catches,
]
ACTIONS: list[Any] = ["default", "always", "once", "module", "ignore", "error"]


def observe(function: Callable[..., Any], action: Any) -> list[Any]:
    found: list[Any] = []
    for action_now in (action, action, "error", "always", action):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action_now)
            for n in (3, 3, 4):
                x = torch.ones(n)
                try:
                    result = function(x).tolist()
                except Warning as warning:
                    result = repr(warning)
                found.append((result, x.tolist()))
        found.append([(str(w.message), w.category, w.filename, w.lineno) for w in caught])
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_shown_as_in_eager(program: Callable[..., Any], action: Any, backend: str) -> None:
    globals().pop("__warningregistry__", None)
    expected = observe(program, action)
    globals().pop("__warningregistry__", None)
    assert observe(magneto.compile(program, backend=backend), action) == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = magneto.compile(program, backend="aot_eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for _ in range(3):
            compiled(torch.ones(3))
    stats = magneto.stats()
    assert (stats["frames"], stats["breaks"]) == (1, 0), stats["break_reasons"]
