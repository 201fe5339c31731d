"""Python functions that stand in front of callables which are none, and in front of disabled ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from magneto import _C


def forward(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What is captured when a C function, a partial or another callable object is compiled."""
    return callable(*args, **kwargs)


def custom_function(cls: Any) -> Callable[..., Any]:
    """`cls.apply` of an autograd function, as a function that graphs print by the name of the class."""

    def apply(*args: Any) -> Any:
        return cls.apply(*args)

    apply.__name__ = apply.__qualname__ = cls.__name__
    return apply


def disabled(fn: Callable[..., Any], recursive: bool) -> Callable[..., Any]:
    """`fn` as captures see it when it is disabled: a side exit. Run by CPython, compiled code off if `recursive`."""
    if not recursive:

        @functools.wraps(fn)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return plain

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        previous = _C.set_disabled(True)
        try:
            return fn(*args, **kwargs)
        finally:
            _C.set_disabled(previous)

    return wrapper
