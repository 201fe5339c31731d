"""torch._inductor.metrics: how many kernels were made since `reset()`. Its other numbers are PyTorch's and stay 0."""

from __future__ import annotations

from typing import Any

from magneto import _C

_before = 0


def reset() -> None:
    """Counts from nought again."""
    global _before
    _before = _C.stats()["kernels"]


def __getattr__(name: str) -> Any:
    if name != "generated_kernel_count":
        raise AttributeError(name)
    made = _C.stats()["kernels"]
    return made - _before if made >= _before else made
