"""What an operator on DTensors comes to: PyTorch's own dispatch, in the order in which its C++ goes through it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._api import _FromTorchTensor, _ToTorchTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils import _pytree

apply: Any = _ToTorchTensor.apply
apply_from_local: Any = _FromTorchTensor.apply
Call = Callable[[Callable[[], Any]], Any]


def dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outside: Call, aside: Call) -> Any:
    """NotImplemented: it draws random numbers, or looks at more than descriptions."""
    dispatcher: Any = DTensor._op_dispatcher
    if op in dispatcher._random_ops or op is torch.ops.aten.equal.default:
        return NotImplemented
    if op in dispatcher._custom_op_handlers:
        handler = dispatcher._custom_op_handlers[op]
        if handler.__module__ == "torch.distributed.tensor.parallel.loss":  # a block has put it there for a while
            return NotImplemented
        return handler(op, args, kwargs)
    info = dispatcher.unwrap_to_op_info(op, args, kwargs)
    if not info.compute_mesh._is_current_rank_part_of_mesh():
        return NotImplemented
    propagator = dispatcher.sharding_propagator
    sharding: Any = None
    if has_sizes(info.schema.args_schema, info.schema.kwargs_schema):
        try:
            sharding = SizedPropagator(propagator, aside).propagate_op_sharding_non_cached(info.schema)
        except Exception:  # it asks for plain numbers
            args, kwargs = with_numbers((args, kwargs))
            info = dispatcher.unwrap_to_op_info(op, args, kwargs)
    if sharding is None:
        sharding = outside(lambda: propagated(propagator, info.schema))
    info.output_sharding = sharding
    local = dispatcher._dispatch_get_local_results_slow_path(op, args, info)
    in_place = op._schema.name.endswith("_")
    if in_place and sharding.output_spec is not None and args[0]._spec.placements != sharding.output_spec.placements:
        return NotImplemented
    if in_place or "out" in op._schema.overload_name or sharding.output_spec is None:
        return dispatcher._dispatch_fast_path_python_tail(
            op, args, kwargs, info.compute_mesh, sharding, local, True, in_place, not in_place
        )
    return dispatcher.wrap(local, sharding.output_spec)


def propagated(propagator: Any, schema: Any) -> Any:
    known = propagator.propagate_op_sharding(schema)
    if not any(keeps_mask(each) for each in _pytree.tree_leaves(known.output_spec)):
        return known
    # The mask will be a stand-in, which eager's calls must not find.
    return propagator.propagate_op_sharding_non_cached(schema)


def keeps_mask(spec: Any) -> bool:
    """What is added up over the mesh has been masked before, and will be again."""
    return isinstance(spec, DTensorSpec) and any(hasattr(each, "mask_buffer") for each in spec.placements)


class SizedPropagator(ShardingPropagator):
    """With dynamic sizes: how large results are, the capture's own stand-ins say."""

    def __init__(self, propagator: Any, aside: Call) -> None:
        self.__dict__.update(propagator.__dict__, aside=aside)

    def _propagate_tensor_meta_non_cached(self, op_schema: Any) -> Any:
        def found() -> Any:
            given = op_schema.op(*op_schema.gen_fake_args(), **op_schema.gen_fake_kwargs())
            if isinstance(given, (tuple, list)):
                return type(given)(map(description, given))
            return description(given)

        return self.__dict__["aside"](found)


def description(made: Any) -> Any:
    return TensorMeta(made.shape, made.stride(), made.dtype) if isinstance(made, torch.Tensor) else None


def has_sizes(*values: Any) -> bool:
    """Some are dynamic."""
    leaves = _pytree.tree_leaves(values, is_leaf=lambda each: isinstance(each, DTensorSpec))
    return any(isinstance(size, torch.SymInt) for each in leaves for size in sizes_of(each))


def sizes_of(value: Any) -> tuple[Any, ...]:
    if isinstance(value, DTensorSpec):
        meta = value.tensor_meta
        return () if meta is None else (*meta.shape, *meta.stride)
    return (value,)


def with_numbers(values: Any) -> Any:
    """Sizes are those of this run from here on."""

    def known(value: Any) -> Any:
        if isinstance(value, DTensor):
            value._spec = of_size(value._spec, value._spec.shape, value._spec.stride)
        return int(value) if isinstance(value, torch.SymInt) else value

    return _pytree.tree_map(known, values)


def of_size(spec: Any, shape: Any, stride: Any) -> Any:
    meta = TensorMeta(torch.Size(map(int, shape)), tuple(map(int, stride)), spec.tensor_meta.dtype)
    return spec.shallow_copy_with_tensor_meta(meta)


def has_usual_order(spec: Any) -> bool:
    usual = getattr(DTensorSpec, "compute_default_shard_order", None)
    return usual is None or spec.shard_order == usual(spec.placements)


def make(local: torch.Tensor, spec: Any, requires_grad: bool | None) -> Any:
    """None: it has the local tensor's history."""
    maker: Any = DTensor
    if requires_grad is not None:
        return maker(local, spec, requires_grad=requires_grad)
    with torch.enable_grad():
        return apply_from_local(local, spec.mesh, spec.placements, False, spec.shape, spec.stride)


def make_of_size(local: torch.Tensor, spec: Any, shape: Any, stride: Any, requires_grad: bool | None) -> Any:
    return make(local, of_size(spec, shape, stride), requires_grad)


def without_sizes(spec: Any) -> Any:
    """What is the same in each run; None: all of it."""
    if not has_sizes(spec):
        return None
    bare = copy.copy(spec)
    meta = spec.tensor_meta
    bare.tensor_meta = TensorMeta(torch.Size(()), (), meta.dtype)
    return bare


class OfOtherPlacements(torch.autograd.Function):
    """Takes the local tensor of a gradient that lies otherwise than the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, placements: Any) -> Any:
        ctx.spec, ctx.placements = tensor._spec, placements
        ctx.set_materialize_grads(False)
        shape, _ = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
        return tensor._local_tensor.new_empty(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if gradients[0] is None:
            return None, None
        spec = DTensorSpec(ctx.spec.mesh, ctx.placements, tensor_meta=ctx.spec.tensor_meta)
        return make(gradients[0], spec, False), None


def local_with_history(tensor: Any, placements: Any) -> Any:
    with torch.enable_grad():
        return apply(tensor, None) if placements is None else apply_otherwise(tensor, placements)


apply_otherwise: Any = OfOtherPlacements.apply
