"""Marks on tensors: which sizes may differ from call to call. They hang on the tensor, under torch.compile's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from magneto import exc


def mark_dynamic(
    t: torch.Tensor,
    index: int | Iterable[int] | None = None,
    *,
    dim: int | Iterable[int] | None = None,
    min: int | None = None,
    max: int | None = None,
    hint_override: int | None = None,
    specialize_on: Any = None,
) -> None:
    """The size of `t` in dimension `index` may be any from `min` to `max`: the first capture already holds for all.

    Sizes 0 and 1 are captures of their own. Where the program is valid for one size alone, the call that captures it
    raises `magneto.exc.ConstraintViolation`, which names the line that says so.

    Args:
        t: An argument of the compiled callable, or a tensor that it reads.
        index: The dimension, or several; negative ones count from the end.
        dim: Another name for it.
        min: The least size; None: 2.
        max: The largest; None: there is no limit.
        hint_override: Changes nothing, and says so.
        specialize_on: Changes nothing, and says so.

    Raises:
        magneto.exc.InvalidValue: `t` is no tensor, or has no such dimension.
    """
    _say_unused("mark_dynamic", hint_override=hint_override, specialize_on=specialize_on)
    for each in _dimensions(t, dim if index is None else index):
        _dims(t, "_dynamo_dynamic_indices").add(each)
        if min is not None or max is not None:
            ranges = t.__dict__.setdefault("_dynamo_dynamic_range", {})
            ranges[each] = (min, max)


def maybe_mark_dynamic(t: torch.Tensor, index: int | Iterable[int]) -> None:
    """The same, but a program that is valid for one size alone is captured for that size."""
    for dim in _dimensions(t, index):
        _dims(t, "_dynamo_weak_dynamic_indices").add(dim)


def mark_static(t: torch.Tensor, index: int | Iterable[int] | None = None) -> None:
    """The size of `t` in dimension `index` (None: in all) is part of the program: another one is another capture."""
    for dim in _dimensions(t, range(t.dim()) if index is None else index):
        _dims(t, "_dynamo_static_indices").add(dim)


def mark_unbacked(
    t: torch.Tensor, index: int | Iterable[int], hint_override: int | None = None, strict: bool = False
) -> None:
    """Nothing may be assumed of the size of `t` in dimension `index`: 0 and 1 are of the same capture.

    It is as a data-dependent size: where the program asks what nothing decides, the capture ends.
    """
    _say_unused("mark_unbacked", hint_override=hint_override, strict=strict or None)
    for dim in _dimensions(t, index):
        _dims(t, "_dynamo_unbacked_indices").add(dim)


# What arguments that change nothing would do with torch.compile, and what holds here.
_UNUSED = {
    "hint_override": "kernels are made for all sizes, or for those that are met",
    "specialize_on": "one capture serves all sizes of the range",
    "strict": "a program that needs the size's value ends the capture there",
}


def _say_unused(function: str, **arguments: Any) -> None:
    """A line for each argument that was given and changes nothing."""
    for name, value in arguments.items():
        if value is not None:
            from magneto._install import table

            table.note_once(f"{function}({name}={value!r}) changes nothing: {_UNUSED[name]}")


def _dims(t: torch.Tensor, name: str) -> set[int]:
    dims: set[int] = t.__dict__.setdefault(name, set())
    return dims


def _dimensions(t: torch.Tensor, index: int | Iterable[int] | None) -> Iterable[int]:
    if not isinstance(t, torch.Tensor):
        raise exc.InvalidValue(f"only a tensor's sizes can be marked, not those of a {type(t).__name__}")
    if index is None:
        raise exc.InvalidValue("which dimension? mark_dynamic(t, 0) marks the first one")
    dims = [index] if isinstance(index, int) else list(index)
    for dim in dims:
        if not isinstance(dim, int) or not -t.dim() <= dim < t.dim():
            raise exc.InvalidValue(f"dimension {dim!r} is not one of a tensor with {t.dim()} dimensions")
    return [dim % t.dim() for dim in dims]
