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
    "eager_then_compile": "the first call runs under CPython, which shows what its sizes are; the next is captured",
    "aot_eager_then_compile": 'the first call uses the backend "aot_eager"; the next is captured',
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
    that exist are used in all stances but "force_eager".

        magneto.set_stance("fail_on_recompile")  # after warming up
        with magneto.set_stance("force_eager"): ...
        with magneto.set_stance(force_backend="eager"): ...

    Args:
        stance: What happens to a call that no capture serves. "default": it is captured. "force_eager": all calls run
            under CPython. "eager_on_recompile": it runs under CPython. "fail_on_recompile": it is an error.
            "eager_then_compile": a callable's first call runs under CPython, and sizes that differ in the second are
            dynamic at once. "aot_eager_then_compile": the same, and the first call runs its operators one by one.
        skip_guard_eval_unsafe: torch.compile then leaves guards out. Here it changes nothing, and says so: guards are
            always checked.
        force_backend: In the stance "default": the backend that all compiled callables use, each with captures of its
            own for it.

    Raises:
        magneto.exc.InvalidName: There is no such stance.
        magneto.exc.InvalidValue: A backend is forced in a stance other than "default".
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(stance, str) or stance not in STANCES:
            raise exc.InvalidName("stance", stance, STANCES)
        if not isinstance(skip_guard_eval_unsafe, bool):
            raise exc.InvalidValue(f"skip_guard_eval_unsafe must be True or False, not {skip_guard_eval_unsafe!r}")
        if skip_guard_eval_unsafe:
            from magneto._install import table

            table.note_once("set_stance(skip_guard_eval_unsafe=True) changes nothing: guards are always checked")
        if force_backend is not None and stance != "default":
            raise exc.InvalidValue(f"non-default stance cannot have force_backend set: {stance!r} compiles nothing")
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
