"""Generated code is as accurate as eager: both are measured against eager in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from compare import Closeness, assert_same

# How much farther from float64 than eager a result may be, and what any float32 result may be off, relative to the
# largest number of its tensor: eager's own error is 0 where it happens to round well.
FARTHER, FLOOR = 4.0, 16 * torch.finfo(torch.float32).eps


def widened(value: Any) -> Any:
    """The same with float64 for float32."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if isinstance(value, dict):
        return {key: widened(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(widened(item) for item in value)
    return value


def floats_of(value: Any, path: str = "result") -> list[tuple[str, torch.Tensor]]:
    """The float32 and float64 tensors of a result, with their places."""
    if isinstance(value, torch.Tensor):
        return [(path, value)] if value.dtype in (torch.float32, torch.float64) else []
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in floats_of(item, f"{path}[{key!r}]")]
    if isinstance(value, (list, tuple)):
        return [pair for index, item in enumerate(value) for pair in floats_of(item, f"{path}[{index}]")]
    return [pair for key, item in getattr(value, "__dict__", {}).items() for pair in floats_of(item, f"{path}.{key}")]


def in_float64(module: torch.nn.Module, call: Callable[[torch.nn.Module], Any]) -> Any:
    """What the module computes in float64; None where it can't."""
    previous = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        return call(copy.deepcopy(module).double())
    except Exception:
        return None  # float32 is written in the code, or a copy is not what the module was
    finally:
        torch.set_default_dtype(previous)


def assert_accurate(actual: Any, expected: Any, exact: Any) -> None:
    """`actual` has the structure of eager's result and its errors, `exact` is eager's in float64 or None."""
    wide = dict(floats_of(exact))
    measured = wide and all(
        path in wide and wide[path].shape == tensor.shape and wide[path].dtype == torch.float64
        for path, tensor in floats_of(expected)
    )
    if not measured:
        assert_same(actual, expected)
        return
    assert_same(actual, expected, closeness=Closeness(rtol=1e-2, atol=1e-2))  # all that is no float32 tensor, too
    theirs = dict(floats_of(expected))
    for path, tensor in floats_of(actual):
        if tensor.numel() == 0:
            continue
        reference = wide[path]
        assert torch.equal(tensor.isfinite(), theirs[path].isfinite()), path
        finite = reference.isfinite() & tensor.isfinite()
        scale = reference[finite].abs().max().item() if finite.any() else 0.0

        def error(one: torch.Tensor, reference: torch.Tensor = reference, finite: torch.Tensor = finite) -> float:
            return (one.double() - reference)[finite].abs().max().item() if finite.any() else 0.0

        ours, eager = error(tensor), error(theirs[path])
        assert ours <= FARTHER * eager + FLOOR * scale, (
            f"{path}: off by {ours:.2e}, eager by {eager:.2e}, of {scale:.2e}"
        )
