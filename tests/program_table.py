"""Tables of functions by their names: `TABLE = ProgramTable()`, then `@TABLE` above each function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Program = Callable[..., Any]
P = TypeVar("P", bound=Program)


class ProgramTable(dict[str, Program]):
    def __call__(self, program: P) -> P:
        self[program.__name__] = program
        return program
