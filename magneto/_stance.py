"""Stances: what compiled callables do where no capture serves a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from magneto import _C, _backends, exc

F = TypeVar("F", bound=Callable[..., Any])

# In the order of the core's enumeration.
STANCES: Mapping[str, str] = {
    "default": "it is captured",
    "force_eager": "all calls run under CPython",
    "eager_on_recompile": "it runs under CPython",
    "fail_on_recompile": "it is a magneto.exc.RecompileError that names the guards that failed",
}

_current = "default"


def _take(stance: str, backend: Any) -> tuple[str, Any]:
    """Changes the process's stance and the backend that is forced; gives those before."""
    global _current
    _C.set_stance(list(STANCES).index(stance))
    previous, _current = _current, stance
    return previous, _C.force_backend(backend)


class set_stance:
    """Sets what compiled callables of this process do where no capture serves a call: one of `STANCES`.

    Holds from the call on; as a context manager for the block, as a decorator for the calls of the function. Captures
    that exist are used in all stances but "force_eager". With `force_backend`, in the stance "default", all compiled
    callables use that backend, each with captures of its own for it.

        magneto.set_stance("fail_on_recompile")  # after warming up
        with magneto.set_stance("force_eager"): ...
        with magneto.set_stance(force_backend="eager"): ...
    """

    def __init__(self, stance: str = "default", *, force_backend: Any = None) -> None:
        if not isinstance(stance, str) or stance not in STANCES:
            raise exc.InvalidName("stance", stance, STANCES)
        if force_backend is not None and stance != "default":
            raise exc.InvalidValue(f'the stance {stance!r} compiles nothing: force_backend goes with "default"')
        self._new = (stance, None if force_backend is None else _backends.resolve(force_backend))
        self._previous = _take(*self._new)

    def __call__(self, function: F) -> F:
        _take(*self._previous)  # a decorator changes nothing before the function is called

        @functools.wraps(function)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            previous = _take(*self._new)
            try:
                return function(*args, **kwargs)
            finally:
                _take(*previous)

        return with_stance  # type: ignore[return-value]

    def __enter__(self) -> None:
        _take(*self._new)

    def __exit__(self, *exception: object) -> None:
        _take(*self._previous)
