"""Copies of tensors, as captures see them (functions.def, Instead)."""

from __future__ import annotations

from typing import Any

import torch

from magneto import _C


def deepcopy_of_tensor(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Tensor.__deepcopy__ of a tensor that fills memory that nothing else that is copied lies in."""
    if not _C.copied_alone(self, memo) or self.grad is not None:
        return deepcopy_as_written(self, memo)
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        copied = self.clone()
    if self.requires_grad:
        copied.requires_grad_()
    memo[id(self)] = copied
    return copied


def deepcopy_as_written(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    """A side exit: CPython copies it."""
    return self.__deepcopy__(memo)  # type: ignore[no-untyped-call]
