"""Stances: what compiled callables do where no capture serves a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from magneto import _C, exc

F = TypeVar("F", bound=Callable[..., Any])

# In the order of the core's enumeration.
STANCES: Mapping[str, str] = {
    "default": "it is captured",
    "force_eager": "all calls run under CPython",
    "eager_on_recompile": "it runs under CPython",
    "fail_on_recompile": "it is a magneto.exc.RecompileError that names the guards that failed",
}

_current = "default"


def _take(stance: str) -> str:
    """Changes the process's stance; gives the one before."""
    global _current
    _C.set_config("stance", list(STANCES).index(stance))
    previous, _current = _current, stance
    return previous


class set_stance:
    """Sets what compiled callables of this process do where no capture serves a call: one of `STANCES`.

    Holds from the call on; as a context manager for the block, as a decorator for the calls of the function. Captures
    that exist are used in all stances but "force_eager".

        magneto.set_stance("fail_on_recompile")  # after warming up
        with magneto.set_stance("force_eager"): ...
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise exc.InvalidName("stance", stance, STANCES)
        self._stance = stance
        self._previous = _take(stance)

    def __call__(self, function: F) -> F:
        _take(self._previous)  # a decorator changes nothing before the function is called

        @functools.wraps(function)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self._stance):
                return function(*args, **kwargs)

        return with_stance  # type: ignore[return-value]

    def __enter__(self) -> None:
        _take(self._stance)

    def __exit__(self, *exception: object) -> None:
        _take(self._previous)
