"""What PyTorch's own eager code asks its symbolic shapes engine for, answered for sizes that are numbers.

torch.distributed and the kernels of the meta device import these names when they run. Where the engine itself is
loaded (after `uninstall`, by a program that kept our function), it answers.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_ENGINE = "torch.fx.experimental.symbolic_shapes"


def _or_the_engine(function: F) -> F:
    """Asks the engine if it is there."""

    @functools.wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        engine = sys.modules.get(_ENGINE)
        real = vars(engine).get(function.__name__) if engine else None
        return (function if real is None or real is answer else real)(*args, **kwargs)

    return answer  # type: ignore[return-value]


def _constant(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def _is_number(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _equal(left: Any, right: Any) -> Any:
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(_equal(*pair) for pair in zip(left, right, strict=True))
    return left == right


def _constrain(value: Any, *, min: int | None = None, max: int | None = None) -> None:
    if (min is not None and value < min) or (max is not None and value > max):
        raise ValueError(f"Invalid value {value} for range [{min}:{max}]")


def _expect(condition: Any, skip: int = 0) -> bool:
    if not condition:
        raise RuntimeError("Expected cond to be True, but got False")
    return True


_ANSWERS: dict[str, Callable[..., Any]] = {
    "is_concrete_bool": _is_number(bool),
    "is_concrete_int": _is_number(int),
    "is_concrete_float": _is_number(float),
    "is_symbolic": lambda value: isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)),
    "is_nested_int": lambda value: isinstance(value, torch.SymInt) and value.node.is_nested_int(),
    "has_free_symbols": _constant(False),
    "has_free_unbacked_symbols": _constant(False),
    "free_symbols": lambda value: set(),
    "free_unbacked_symbols": lambda value: set(),
    "has_hint": _constant(True),
    "has_guarding_hint": _constant(True),
    "guarding_hint_or_throw": lambda value: value,
    "optimization_hint": lambda value, fallback=None: int(value),
    "has_static_value": _constant(True),
    "hint_int": lambda value, fallback=None: int(value),
    "size_hint": lambda value, fallback=None: int(value),
    "guard_bool": bool,
    "guard_int": int,
    "guard_float": float,
    "guard_scalar": lambda value: value,
    "guard_or_false": bool,
    "guard_or_true": bool,
    "guard_size_oblivious": bool,
    "definitely_true": bool,
    "definitely_false": operator.not_,
    "statically_known_true": bool,
    "statically_known_false": operator.not_,
    "expect_true": _expect,
    "sym_eq": _equal,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "constrain_range": _constrain,
    "_constrain_range_for_size": lambda value, min=None, max=None: _constrain(value, min=min, max=max),
    "_advise_is_size": _constant(None),
    "_advise_is_bounded": _constant(None),
}


def __getattr__(name: str) -> Any:
    if name not in _ANSWERS:
        raise AttributeError(name)

    def function(*args: Any, **kwargs: Any) -> Any:
        return _ANSWERS[name](*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    globals()[name] = _or_the_engine(function)
    return globals()[name]
