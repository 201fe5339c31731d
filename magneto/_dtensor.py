"""What an operator on DTensors comes to: PyTorch's own dispatch, in the order in which its C++ goes through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._api import _ToTorchTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec

apply: Any = _ToTorchTensor.apply


def dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outside: Callable[..., Any]) -> Any:
    """NotImplemented: it draws random numbers, or looks at more than descriptions."""
    dispatcher: Any = DTensor._op_dispatcher
    if op in dispatcher._random_ops or op is torch.ops.aten.equal.default:
        return NotImplemented
    if op in dispatcher._custom_op_handlers:
        return dispatcher._custom_op_handlers[op](op, args, kwargs)
    info = dispatcher.unwrap_to_op_info(op, args, kwargs)
    if not info.compute_mesh._is_current_rank_part_of_mesh():
        return NotImplemented
    propagator = dispatcher.sharding_propagator
    sharding = info.output_sharding = outside(lambda: propagator.propagate_op_sharding(info.schema))
    local = dispatcher._dispatch_get_local_results_slow_path(op, args, info)
    in_place = op._schema.name.endswith("_")
    if in_place and sharding.output_spec is not None and args[0]._spec.placements != sharding.output_spec.placements:
        return NotImplemented
    if in_place or "out" in op._schema.overload_name or sharding.output_spec is None:
        return dispatcher._dispatch_fast_path_python_tail(
            op, args, kwargs, info.compute_mesh, sharding, local, True, in_place, not in_place
        )
    return dispatcher.wrap(local, sharding.output_spec)


def has_usual_order(spec: Any) -> bool:
    usual = getattr(DTensorSpec, "compute_default_shard_order", None)
    return usual is None or spec.shard_order == usual(spec.placements)


def make(local: torch.Tensor, spec: Any, requires_grad: bool) -> Any:
    maker: Any = DTensor
    return maker(local, spec, requires_grad=requires_grad)


def local_gradient(gradient: Any, leaf: Any) -> Any:
    """Of one that lies on the mesh as `_ToTorchTensor.backward` will say: `local_with_history`."""
    if gradient.device_mesh != leaf.device_mesh or gradient.shape != leaf.shape or gradient.stride() != leaf.stride():
        return None
    if gradient.placements != leaf.placements or any(each.is_partial() for each in leaf.placements):
        return None
    return gradient._local_tensor


def local_with_history(tensor: Any) -> Any:
    with torch.enable_grad():
        return apply(tensor, None)
