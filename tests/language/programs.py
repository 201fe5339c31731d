"""Small programs, one behaviour each: all of them are run compiled, and again under forced exits, against eager.

A file of programs has a table `programs = Programs()` and functions under `@programs(...)`; its makers give the
arguments of one call each. `@programs.made(...)` is for programs with a state of their own: the function makes the
program anew for each observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from scenario import Scenario

Makers = tuple[Callable[[], tuple[Any, ...]], ...]


def vector(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(1.0, 7.0) * scale


@dataclasses.dataclass
class Programs:
    scenarios: dict[str, tuple[Scenario, bool]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Callable[..., Any]], makers: Makers, breaks: bool) -> None:
        assert name not in self.scenarios, name

        def scenario(start: Callable[..., Any]) -> None:
            program = make()
            call = start(program, getattr(program, "watched", ()))
            for maker in makers or (lambda: (vector(),),) * 2:
                call(*maker())

        scenario.__name__ = name
        self.scenarios[name] = (scenario, breaks)

    def __call__(self, *makers: Callable[[], tuple[Any, ...]], breaks: bool = False) -> Any:
        """`breaks`: the program can't be one graph."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.add(function.__name__, lambda: function, makers, breaks)
            return function

        return register

    def made(self, *makers: Callable[[], tuple[Any, ...]], breaks: bool = False) -> Any:
        def register(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
            self.add(make.__name__, make, makers, breaks)
            return make

        return register
