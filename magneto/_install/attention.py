"""What torch.nn.attention.flex_attention takes from PyTorch's compiler when it runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class TransformGetItemToIndex(TorchFunctionMode):
    """While active, indexing by zero-dimensional tensors gathers, instead of reading the indices' values.

    Reading them (`int(i)`) is what `x[i]` does otherwise, and no value exists under vmap.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, index = args
            indices = list(index) if isinstance(index, tuple) else [index]
            if all(isinstance(item, torch.Tensor) for item in indices):
                return torch.ops.aten.index(tensor, indices)
        return func(*args, **(kwargs or {}))


def fill_order(strides: Sequence[int], shape_env: Any = None) -> list[int]:
    """The dimensions from the innermost one out; of equal strides the last comes first."""
    return sorted(range(len(strides)), key=lambda dimension: (strides[dimension], -dimension))


def stride_order(strides: Sequence[int], shape_env: Any = None) -> list[int]:
    """The place of each dimension in `fill_order`."""
    order = fill_order(strides)
    return [order.index(dimension) for dimension in range(len(order))]
