"""Collectives that write what they are given, as captures see them (functions.def, Instead): functional and a copy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.overrides import TorchFunctionMode

_names: dict[Any, str] = {
    c10d.ReduceOp.SUM: "sum",
    c10d.ReduceOp.AVG: "avg",
    c10d.ReduceOp.PRODUCT: "product",
    c10d.ReduceOp.MIN: "min",
    c10d.ReduceOp.MAX: "max",
    c10d.ReduceOp.BAND: "band",
    c10d.ReduceOp.BOR: "bor",
    c10d.ReduceOp.BXOR: "bxor",
}


def all_reduce(tensor: Any, op: Any = c10d.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
    if async_op or not _of_members(group) or not _are_plain(tensor) or op not in _names:
        return as_written(c10d.all_reduce, tensor, op, group, async_op)
    made = torch.ops._c10d_functional.all_reduce(tensor.detach(), _names[op], _name(group))
    tensor.data.copy_(torch.ops._c10d_functional.wait_tensor(made))
    return None


def broadcast(tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None) -> Any:
    if async_op or not _BROADCAST_ASKS_MODES or not _of_members(group) or not _are_plain(tensor):
        return as_written(c10d.broadcast, tensor, src, group, async_op, group_src)
    rank = c10d._canonicalize_group_rank(_group(group), src, group_src, return_global=False)
    made = torch.ops._c10d_functional.broadcast(tensor.detach(), rank, _name(group))
    tensor.data.copy_(torch.ops._c10d_functional.wait_tensor(made))
    return None


def all_gather_single(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    if async_op or not _of_members(group) or not _are_alike(output_tensor, input_tensor):
        return as_written(_all_gather_single, output_tensor, input_tensor, group, async_op)
    size = _group(group).size()
    if not _are_pieces(output_tensor, input_tensor, size) or _coalesces(group):
        return as_written(_all_gather_single, output_tensor, input_tensor, group, async_op)
    made = torch.ops._c10d_functional.all_gather_into_tensor(input_tensor.detach(), size, _name(group))
    output_tensor.detach().copy_(torch.ops._c10d_functional.wait_tensor(made))
    return None


def reduce_scatter_single(
    output: Any, input: Any, op: Any = c10d.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    if async_op or not _of_members(group) or not _are_alike(output, input) or op not in _names:
        return as_written(_reduce_scatter_single, output, input, op, group, async_op)
    size = _group(group).size()
    if not _are_pieces(input, output, size) or _coalesces(group):
        return as_written(_reduce_scatter_single, output, input, op, group, async_op)
    made = torch.ops._c10d_functional.reduce_scatter_tensor(input.detach(), _names[op], size, _name(group))
    output.detach().copy_(torch.ops._c10d_functional.wait_tensor(made))
    return None


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    if async_op or not _of_members(group) or not _are_alike(output, input):
        return as_written(c10d.all_to_all_single, output, input, output_split_sizes, input_split_sizes, group, async_op)
    size = _group(group).size()
    taken, given = _lengths(output, output_split_sizes, size), _lengths(input, input_split_sizes, size)
    if sum(taken) != output.size(0) or sum(given) != input.size(0) or output.shape[1:] != input.shape[1:]:
        return as_written(c10d.all_to_all_single, output, input, output_split_sizes, input_split_sizes, group, async_op)
    made = torch.ops._c10d_functional.all_to_all_single(input.detach(), taken, given, _name(group))
    output.data.copy_(torch.ops._c10d_functional.wait_tensor(made))
    return None


def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    if async_op or not _of_members(group) or type(tensor_list) is not list or not _are_alike(tensor, *tensor_list):
        return as_written(c10d.all_gather, tensor_list, tensor, group, async_op)
    size = _group(group).size()
    if len(tensor_list) != size or any(each.shape != tensor.shape for each in tensor_list):
        return as_written(c10d.all_gather, tensor_list, tensor, group, async_op)
    made = torch.ops._c10d_functional.all_gather_into_tensor(tensor.detach(), size, _name(group))
    pieces = torch.ops._c10d_functional.wait_tensor(made).view(size, *tensor.shape)
    for index in range(size):
        tensor_list[index].detach().copy_(pieces[index])
    return None


def as_written(function: Callable[..., Any], *args: Any) -> Any:
    """A side exit: CPython calls it."""
    return function(*args)


# Before PyTorch 2.13 it is the only one that can't be kept from being issued again (FunctionalMode), so it is an exit.
_BROADCAST_ASKS_MODES = "has_torch_function" in inspect.unwrap(c10d.broadcast).__code__.co_names
# What 2.13 calls all_gather_into_tensor and reduce_scatter_tensor.
_all_gather_single = getattr(c10d, "all_gather_single", c10d.all_gather_into_tensor)
_reduce_scatter_single = getattr(c10d, "reduce_scatter_single", c10d.reduce_scatter_tensor)


def _of_members(group: Any) -> bool:
    """This process has a part in the group."""
    return c10d.is_initialized() and (group is None or isinstance(group, c10d.ProcessGroup))


def _group(group: Any) -> Any:
    return c10d._get_default_group() if group is None else group


def _name(group: Any) -> Any:
    return _group(group).group_name


def _coalesces(group: Any) -> bool:
    return _group(group) in c10d._world.pg_coalesce_state


def _are_plain(*tensors: Any) -> bool:
    return all(
        (type(each) is torch.Tensor or type(each) is torch.nn.Parameter)
        and each.layout == torch.strided
        and each.is_contiguous()
        and not each.is_complex()
        for each in tensors
    )


def _are_alike(first: Any, *others: Any) -> bool:
    """Rows of one dtype, on one device."""
    return _are_plain(first, *others) and all(
        each.dtype == first.dtype and each.device == first.device and each.dim() > 0 for each in (first, *others)
    )


def _are_pieces(whole: Any, piece: Any, group_size: int) -> bool:
    """One of each process, one after the other. (Which backends take a stack of them is their own business.)"""
    return bool(whole.size(0) == piece.size(0) * group_size and whole.shape[1:] == piece.shape[1:])


def _lengths(tensor: Any, lengths: Any, group_size: int) -> Any:
    if lengths is not None and len(lengths) > 0:
        return list(lengths)
    return [tensor.size(0) // group_size] * group_size


_functional: dict[Any, Callable[..., Any]] = {
    c10d.all_reduce: all_reduce,
    c10d.broadcast: broadcast,
    c10d.all_gather: all_gather,
    _all_gather_single: all_gather_single,
    _reduce_scatter_single: reduce_scatter_single,
    c10d.all_to_all_single: all_to_all_single,
}


class FunctionalMode(TorchFunctionMode):
    """While CPython runs a segment again (src/runtime/plan/issued_collectives.h)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _functional.get(func, func)(*args, **(kwargs or {}))
