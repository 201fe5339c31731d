"""`substitute_in_graph`: a function of the program's in the place of one that captures can't look into."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from magneto import _C

P = ParamSpec("P")
R = TypeVar("R")

_substituted: set[int] = set()


def substitute_in_graph(
    original_fn: Callable[P, R],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Captures interpret the decorated function where `original_fn`, a function of C most often, is called.

    It must do what `original_fn` does: nothing checks that. Called by the program itself, the decorated function is
    `original_fn`.

    Args:
        original_fn: What is called. One substitute each.
        can_constant_fold_through: A promise that it is pure. What follows from constants is a constant in any case,
            because the substitute is run on them in the capture.
        skip_signature_check: Whether both may take different parameters.

    Raises:
        TypeError: One of them is no function, or their parameters differ.
        ValueError: `original_fn` has a substitute already.
    """
    if not callable(original_fn):
        raise TypeError(f"substitute_in_graph expects a callable but got {original_fn!r}")

    def wrapper(substitute: Callable[P, R]) -> Callable[P, R]:
        if not inspect.isfunction(substitute):
            raise TypeError(f"@substitute_in_graph(...) expects a function but got {type(substitute)!r}")
        if not skip_signature_check:
            _check_signatures(original_fn, substitute)
        if id(original_fn) in _substituted:
            raise ValueError(f"Duplicate substitute for {original_fn}")
        _C.substitute(original_fn, substitute)
        _substituted.add(id(original_fn))  # the mark holds it for good

        @functools.wraps(substitute)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            return original_fn(*args, **kwargs)

        wrapped.__torch_dynamo_original__ = original_fn  # type: ignore[attr-defined]
        wrapped.__torch_dynamo_polyfill__ = substitute  # type: ignore[attr-defined]
        return wrapped

    return wrapper


def _check_signatures(original: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    """Both take the same, where the original says what it takes."""
    try:
        wanted = inspect.signature(original).parameters.values()
    except (TypeError, ValueError):
        return
    given = inspect.signature(substitute).parameters.values()
    if [(each.name, each.kind) for each in wanted] != [(each.name, each.kind) for each in given]:
        raise TypeError(
            f"Signature mismatch between {original} and {substitute}: {inspect.signature(original)} "
            f"!= {inspect.signature(substitute)}"
        )
