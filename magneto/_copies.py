"""Copies of tensors, as captures see them (functions.def, Instead)."""

from __future__ import annotations

import collections
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


def reduced_tensor(self: torch.Tensor, protocol: int) -> Any:
    """Tensor.__reduce_ex__, for copy.copy: a tensor in the same memory, without a history."""
    if not _C.copied_plainly(self):
        return reduced_as_written(self, protocol)
    return data_of, (self,)


def reduced_parameter(self: torch.nn.Parameter, protocol: int) -> Any:
    """Parameter.__reduce_ex__, likewise."""
    if not _C.copied_plainly(self):
        return reduced_as_written(self, protocol)
    return torch._utils._rebuild_parameter, (self.data, self.requires_grad, collections.OrderedDict())


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.data
    return data.requires_grad_() if tensor.requires_grad else data


def reduced_as_written(self: torch.Tensor, protocol: int) -> Any:
    """A side exit: CPython copies it."""
    return self.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
