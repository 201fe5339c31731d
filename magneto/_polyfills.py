"""Functions that captures see in place of PyTorch's, where those hide what they compute (functions.def, Instead)."""

from __future__ import annotations

import _random
import collections
import collections.abc
import copyreg
import inspect
import random
import sys
import types
import warnings
from typing import Any

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint as checkpoints
from torch._prims_common import is_expandable_to
from torch.distributions import constraints
from torch.fx import operator_schemas
from torch.nested._internal import nested_tensor
from torch.nested._internal import ops as jagged_operators
from torch.overrides import get_default_nowrap_functions, handle_torch_function, has_torch_function_unary

from magneto import _C

convert: Any = torch._tensor._convert
jagged_view: Any = nested_tensor.nested_view_from_values_offsets_lengths
signatures_of: Any = operator_schemas.get_signature_for_torch_op
normalized: Any = operator_schemas._args_kwargs_to_normalized_args_kwargs
math_is_enabled: Any = torch.backends.cuda.math_sdp_enabled

# Operators that no policy is asked of.
NEVER_KEPT = tuple(getattr(checkpoints, "SAC_IGNORED_OPS", ()))


def is_one_of(objects: list[Any]) -> Any:
    """A condition for BaseExceptionGroup.subgroup."""
    return lambda exception: any(each is exception for each in objects)


def as_written(name: str, *args: Any, **kwargs: Any) -> Any:
    """A side exit: CPython calls the function itself."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules[module], attribute)(*args, **kwargs)


def assign_selected(target: Any, mask: Any, source: Any) -> None:
    """What the graph shows of a masked assignment, which is captured whole."""
    target[mask] = source[mask]


def symmetric_check(self: Any, value: Any) -> Any:
    """constraints._Symmetric.check, whose branch is known from the shape."""
    square = super(constraints._Symmetric, self).check(value)
    if value.shape[-2] != value.shape[-1] and square.numel() > 0:
        return square
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def positive_definite_check(self: Any, value: Any) -> Any:
    """constraints._PositiveDefinite.check, with a choice in place of its branch on the data."""
    symmetric = super(constraints._PositiveDefinite, self).check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)


def positive_semidefinite_check(self: Any, value: Any) -> Any:
    """constraints._PositiveSemidefinite.check, likewise."""
    symmetric = super(constraints._PositiveSemidefinite, self).check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    return torch.where(symmetric.all(), torch.linalg.eigvalsh(value).ge(0).all(-1), symmetric)


def sym_int(a: Any) -> Any:
    """torch.sym_int: a float that follows from sizes stays one."""
    if not isinstance(a, (int, float)) and has_torch_function_unary(a):
        return handle_torch_function(torch.sym_int, (a,), a)
    return int(a)


def student_variance(self: Any) -> Any:
    """StudentT.variance, with choices in place of its masks. Their gradients would have NaN where 0 meets infinity."""
    if torch.is_grad_enabled() and (self.df.requires_grad or self.scale.requires_grad):
        return as_written("magneto._polyfills.student_variance_as_written", self)
    result = self.df.clone(memory_format=torch.contiguous_format)
    result.copy_(torch.where(self.df > 2, self.scale.pow(2) * self.df / (self.df - 2), result))
    result[(self.df <= 2) & (self.df > 1)] = torch.inf
    result[self.df <= 1] = torch.nan
    return result


def student_variance_as_written(self: Any) -> Any:
    """What CPython calls."""
    return self.variance


def kept_by_policy(contexts: Any, operators: Any) -> Any:
    """For each operator whether the policy in the contexts of a selective checkpoint saves its results; None: they are
    other contexts."""
    made = contexts()
    if type(made) is not tuple or len(made) != 2 or type(made[0]) is not checkpoints._CachingTorchDispatchMode:
        return None
    policy = made[0].policy_fn
    kept = []
    for op in operators:
        verdict = op not in NEVER_KEPT and policy(checkpoints.SelectiveCheckpointContext(is_recompute=False), op)
        kept.append(
            verdict is True
            or verdict is checkpoints.CheckpointPolicy.MUST_SAVE
            or verdict is checkpoints.CheckpointPolicy.PREFER_SAVE
        )
    return kept


def checkpoint_without_gradients(function: Any, *args: Any) -> Any:
    """torch.utils.checkpoint of the reentrant kind, where gradients are off."""
    with torch.no_grad():
        outputs = function(*args)

    def given(value: Any) -> Any:  # what autograd makes of an argument
        if not isinstance(value, torch.Tensor) or not any(value is arg for arg in args):
            return value
        return value.detach() if value.requires_grad else value.view_as(value)

    return tuple(map(given, outputs)) if isinstance(outputs, tuple) else given(outputs)


def reduce_instance(instance: Any) -> tuple[Any, ...]:
    """object.__reduce_ex__ from protocol 2 on, of an instance of a class in Python: how it is made anew."""
    cls = type(instance)
    keywords: Any = {}
    given: Any = ()
    if hasattr(cls, "__getnewargs_ex__"):
        given, keywords = instance.__getnewargs_ex__()
    elif hasattr(cls, "__getnewargs__"):
        given = instance.__getnewargs__()
    usual: Any = object.__getstate__
    if cls.__getstate__ is not usual:
        state = instance.__getstate__()
    else:
        state = getattr(instance, "__dict__", None)
        names: list[str] = copyreg._slotnames(cls)  # type: ignore[attr-defined]
        slots = {name: getattr(instance, name) for name in names if hasattr(instance, name)}
        if slots:
            state = state, slots
    items = iter(instance) if isinstance(instance, list) else None
    pairs = iter(instance.items()) if isinstance(instance, dict) else None
    if keywords:
        return copyreg.__newobj_ex__, (cls, given, keywords), state, items, pairs  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls, *given), state, items, pairs  # type: ignore[attr-defined]


def warning_action(text: str, category: type[Warning], module: str, line: int) -> str:
    """What the first filter of warnings that fits says."""
    for action, message, kind, name, at in warnings.filters:
        if (
            (message is None or message.match(text))
            and issubclass(category, kind)
            and (name is None or name.match(module))
            and at in (0, line)
        ):
            return action
    return warnings.defaultaction  # type: ignore[attr-defined,no-any-return]


def foreach_of_numbers(name: str, tensors: Any, *lists: Any) -> Any:
    """torch._foreach_* with lists of numbers, one tensor after the other, as PyTorch's own kernel for the CPU."""
    if not all(tensor.is_cpu for tensor in tensors) or any(len(each) != len(tensors) for each in lists):
        return as_written(f"torch.{name}", tensors, *lists)
    single = name.removeprefix("_foreach_")
    results = []
    for index, tensor in enumerate(tensors):
        operands = [each[index] for each in lists]
        named = {"value": operands.pop()} if single.startswith(("addcdiv", "addcmul")) else {}
        results.append(getattr(tensor, single)(*operands, **named))
    return None if name.endswith("_") else tuple(results)


def is_plain_jagged(tensor: Any) -> bool:
    """Of heads, as attention in PyTorch's own way takes it on a CPU."""
    if not isinstance(tensor, nested_tensor.NestedTensor) or tensor.dim() != 4 or tensor._ragged_idx != 2:
        return False
    plain = tensor.is_cpu and tensor._lengths is None and tensor.dtype == torch.float32
    return plain and tensor.transpose(1, 2).is_contiguous()


def may_draws_decide(random: Any, *ranges: int) -> bool:
    """Captures for each outcome of such draws would be few. (As it is run by CPython, where a capture has ended.)"""
    return False


def random_choice(self: Any, seq: Any) -> Any:
    """random.Random.choice of a few things, each of which is a capture, or of a range, which is a number."""
    size = len(seq)
    if type(seq) is range and size:
        return seq.start + seq.step * self._randbelow(size)
    if not size or not may_draws_decide(self, size):
        return choice_as_written(self, seq)
    return seq[self._randbelow(size)]


def random_shuffle(self: Any, x: Any, *further: Any) -> None:
    """random.Random.shuffle, likewise."""
    size = len(x)
    if further or size > 4 or not may_draws_decide(self, *range(2, size + 1)):
        return shuffle_as_written(self, x, *further)
    for i in reversed(range(1, size)):
        j = self._randbelow(i + 1)
        x[i], x[j] = x[j], x[i]
    return None


def random_sample(self: Any, population: Any, k: Any, **counts: Any) -> Any:
    """random.Random.sample, likewise."""
    size = len(population) if isinstance(population, collections.abc.Sequence) and not counts else 0
    if not 0 < size <= 8 or type(k) is not int or not 0 <= k <= size:
        return sample_as_written(self, population, k, **counts)
    if not may_draws_decide(self, *range(size - k + 1, size + 1)):
        return sample_as_written(self, population, k, **counts)
    pool = list(population)
    result = [None] * k
    for i in range(k):
        j = self._randbelow(size - i)
        result[i] = pool[j]
        pool[j] = pool[size - i - 1]
    return result


def random_in_state(state: tuple[int, ...]) -> random.Random:
    """One that a program has made with a seed, as a segment leaves it."""
    made = random.Random.__new__(random.Random)
    _random.Random.setstate(made, state)
    return made


def choice_as_written(self: Any, seq: Any) -> Any:
    """What CPython calls; so are the next two."""
    return self.choice(seq)


def shuffle_as_written(self: Any, x: Any, *further: Any) -> None:
    self.shuffle(x, *further)


def sample_as_written(self: Any, population: Any, k: Any, **counts: Any) -> Any:
    return self.sample(population, k, **counts)


def make_named_tuple(name: str, fields: tuple[str, ...], defaults: dict[str, Any], module: str) -> type:
    """The class that a program has made with namedtuple(), once more."""
    return collections.namedtuple(name, fields, rename=True, defaults=defaults.values() or None, module=module)


def trunc_normal_(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
) -> torch.Tensor:
    """What is drawn again until it fits, only PyTorch's own function can say: an operator calls it."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_floating_point() and not tensor.is_meta
    warns = mean < a - 2 * std or mean > b + 2 * std
    if not plain or warns or generator is not None or not tensor.is_contiguous():
        drawn: torch.Tensor = as_written(
            "torch.nn.init._no_grad_trunc_normal_", tensor, mean, std, a, b, generator=generator
        )
        return drawn
    with torch.no_grad():
        tensor.copy_(torch.ops.magneto.truncated_normal(tensor.detach(), mean, std, a, b))
    return tensor


def jagged_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    """Of jagged tensors, an item after the other, which is what PyTorch does on a CPU by tensors of another layout."""
    other = attn_mask is not None or dropout_p != 0.0 or is_causal or enable_gqa
    other = other or torch.is_autocast_enabled("cpu") or not math_is_enabled()
    if other or not (is_plain_jagged(query) and is_plain_jagged(key) and is_plain_jagged(value)):
        name = "torch.nested._internal.sdpa.jagged_scaled_dot_product_attention"
        return as_written(name, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    lengths = query._offsets.diff().tolist()
    key_lengths = lengths if key._offsets is query._offsets else key._offsets.diff().tolist()
    value_lengths = key_lengths if value._offsets is key._offsets else value._offsets.diff().tolist()
    items = zip(
        query.transpose(1, 2).values().split(lengths),
        key.transpose(1, 2).values().split(key_lengths),
        value.transpose(1, 2).values().split(value_lengths),
        strict=True,
    )
    results = []
    for item in items:
        q, k, v = (each.transpose(0, 1) for each in item)
        result = torch._scaled_dot_product_attention_math(q, k, v, scale=scale)[0]
        results.append(result.transpose(0, 1))
    return jagged_view(
        torch.cat(results),
        query._offsets,
        None,
        min_seqlen=query._maybe_min_seqlen,
        max_seqlen=query._maybe_max_seqlen,
    ).transpose(1, 2)


def jagged_to_copy(func: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.nested._internal.ops.to_copy_default: by its offsets, which stay, the result's sizes are known already."""
    _, given = operator_schemas.normalize_function(func, args=args, kwargs=kwargs, normalize_to_only_use_kwargs=True)  # type: ignore[misc]
    tensor = given.pop("input")
    given.pop("layout")
    values = func(tensor._values, **given)
    if values.device != tensor._offsets.device:
        return as_written("torch.nested._internal.ops.to_copy_default", func, *args, **kwargs)
    return nested_tensor.NestedTensor(values, **jagged_operators.extract_kwargs(tensor))  # type: ignore[no-untyped-call]


def jagged_extreme(func: Any, tensor: Any) -> Any:
    """nested_tensor._get_sdpa_extreme_seqlen, by a list: its numbers are in the graph while nobody asks for them."""
    return func(tensor).reshape(1).tolist()[0]


def jagged_narrowed(tensor: Any, starts: Any, lengths: Any) -> Any:
    """nested_tensor.jagged_from_tensor_and_lengths, which asks the data once here: whether the parts are all of it."""
    name = "torch.nested._internal.nested_tensor.jagged_from_tensor_and_lengths"
    batch = tensor.shape[:1]
    if tensor.dim() < 2 or not (is_expandable_to(starts.shape, batch) and is_expandable_to(lengths.shape, batch)):
        return as_written(name, tensor, starts, lengths)
    size = tensor.shape[1]
    begins, given = starts.expand(batch), lengths.expand(batch)
    rows = size * torch.arange(0, batch[0], dtype=torch.int64, device=tensor.device)
    offsets = torch.cat([begins + rows, (begins[-1] + rows[-1] + given[-1]).unsqueeze(0)])
    apart = given[1:-1].ne(size).any() | offsets[1:-2].diff().ne(size).any() | (offsets[0] + given[0]).ne(size)
    if not apart.item():
        return as_written(name, tensor, starts, lengths)
    shortest, longest = torch.stack([lengths.min(), lengths.max()]).tolist()
    values = tensor.view(-1, *tensor.shape[2:])
    return jagged_view(values, offsets, given, min_seqlen=shortest, max_seqlen=longest), offsets, given


def normalize_function(
    target: Any,
    args: Any,
    kwargs: Any = None,
    arg_types: Any = None,
    kwarg_types: Any = None,
    normalize_to_only_use_kwargs: bool = False,
) -> Any:
    """torch.fx's, without a look into a weak dictionary for a function that can't be there."""
    given = {} if kwargs is None else kwargs
    if isinstance(target, torch._ops.OpOverload):
        signature = signatures_of(target)[0]
    elif isinstance(target, types.FunctionType) and target.__qualname__ != "boolean_dispatch.<locals>.fn":
        signature = inspect.signature(target)
    else:
        name = "torch.fx.operator_schemas.normalize_function"
        return as_written(name, target, args, kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs)
    return normalized(signature, args, given, normalize_to_only_use_kwargs)


def enter_inference_mode(self: Any) -> None:
    """torch.inference_mode.__enter__. Where the mode stays as it is, what it does is to switch gradients."""
    if self.mode == torch.is_inference_mode_enabled():
        self._inference_mode_context = torch.set_grad_enabled(not self.mode)
    elif self.mode:
        self._inference_mode_context = InferenceRegion()
    else:
        self._inference_mode_context = torch._C._InferenceMode(False)
    self._inference_mode_context.__enter__()


class InferenceRegion:
    """torch._C._InferenceMode(True), as a graph has it."""

    def __enter__(self) -> None:
        _C.set_inference_mode(True)

    def __exit__(self, *exception: Any) -> None:
        _C.set_inference_mode(False)


def enter_dispatch_mode(self: Any) -> Any:
    """TorchDispatchMode.__enter__"""
    self._lazy_init_old_dispatch_mode_flags()
    _C.enter_dispatch_mode(self)
    return self


def leave_dispatch_mode(self: Any, *exception: Any) -> None:
    """TorchDispatchMode.__exit__"""
    _C.leave_dispatch_mode()


def gives_plain_result(function: Any) -> bool:
    """What it gives is of no class of tensors, whatever it is called with."""
    return function in get_default_nowrap_functions()


def torch_function(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """torch.Tensor.__torch_function__. What PyTorch looks a function up in can't be guarded, and does not change."""
    for given in types:
        if not issubclass(cls, given):
            return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*args, **(kwargs or {}))
        return result if gives_plain_result(func) else convert(result, cls)


def tensor_of_sizes(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """torch.tensor of numbers that follow from sizes: what it holds is no constant."""
    if isinstance(data, (list, tuple)):
        return torch.stack([tensor_of_sizes(item, dtype, device) for item in data])
    if dtype == torch.int32 and not -(2**31) <= data < 2**31:
        written: torch.Tensor = as_written("torch.tensor", data, dtype=dtype, device=device)
        return written
    exact = torch.float64 if dtype.is_floating_point else torch.int64
    return torch.full((), data, dtype=exact, device=device).to(dtype)


def item_as_index(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """TransformGetItemToIndex: score and mask functions index tensors by positions, which are tensors of one number.
    PyTorch's has an autograd.Function for it; here it is the operator, which has the same derivative."""
    if func is torch.Tensor.__getitem__:
        tensor, indices = args[0], pytree.tree_leaves(args[1])
        if all(isinstance(index, (torch.Tensor, int)) for index in indices):
            numbers = [
                torch.tensor(index, dtype=torch.int64, device=tensor.device) if isinstance(index, int) else index
                for index in indices
            ]
            return torch.ops.aten.index(tensor, numbers)
    return func(*args, **(kwargs or {}))


def flex_attention(
    operator: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """The operator of flex_attention, as PyTorch computes it where there is no kernel for it: its score and mask
    functions are mapped over all scores. The result has the order of the query's strides, its last dimension innermost.
    """
    written = sys.modules[type(operator).__module__]
    device = query.device.type
    if torch.is_autocast_enabled(device) and hasattr(written, "_flex_attention_autocast_impl"):
        dtype = torch.get_autocast_dtype(device)
        narrow = [each if each.dtype == torch.float64 else each.to(dtype) for each in (query, key, value)]
        with torch.autocast(device, enabled=False):
            return flex_attention(operator, *narrow, *args, **kwargs)
    out, logsumexp, largest = written.math_attention(query, key, value, *args, **kwargs)
    strides = query.stride()
    order = [3, *sorted(range(3), key=lambda dim: (strides[dim], -dim))][::-1]
    dense = out.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(dim) for dim in range(4)]), logsumexp, largest


def vmap_for_bhqkv(
    fn: Any, prefix: tuple[Any, ...], suffix: tuple[Any, ...] = (), out_dims: Any = 0, group_dim: bool = False
) -> Any:
    """flex_attention._vmap_for_bhqkv: vmap over batch, head, query, key. Dimensions that the result does not depend on
    are spread at the end, where their sizes need not be known: PyTorch's rules for tensors in a vmap ask for numbers.
    """

    def nested(*args: Any) -> Any:
        mapped = fn
        for at in (3, 2, 1, 0):
            dims = tuple(0 if place == at else None for place in range(4))
            mapped = torch.vmap(mapped, in_dims=prefix + dims + suffix, out_dims=out_dims)
            if group_dim and at == 1:
                mapped = torch.vmap(mapped, in_dims=prefix + dims + suffix, out_dims=out_dims)
        return mapped(*args)

    def spread(*args: Any) -> Any:
        functorch = torch._C._functorch
        first = len(prefix)
        values, sizes, levels = list(args), [args[first + place].shape[0] for place in range(4)], []
        try:
            for place in range(4):
                levels.append(functorch._vmap_increment_nesting(sizes[place], "error"))
                for i in range(first):
                    values[i] = functorch._add_batch_dim(values[i], 0, levels[-1])
                values[first + place] = functorch._add_batch_dim(values[first + place], 0, levels[-1])
            made = fn(*values)
            if not isinstance(made, torch.Tensor):
                return nested
            with torch._C.DisableTorchFunction():
                for place in (3, 2, 1, 0):
                    if functorch.maybe_get_level(made) == levels[place]:
                        made = functorch._remove_batch_dim(made, levels[place], sizes[place], 0)
                    else:
                        made = made.unsqueeze(0)
                    levels.pop()
                    functorch._vmap_decrement_nesting()
                made = made.expand(*sizes, *made.shape[4:])
        finally:
            for _ in levels:
                functorch._vmap_decrement_nesting()
        return made

    simple = out_dims == 0 and not group_dim and all(dim == 0 for dim in prefix) and all(dim is None for dim in suffix)

    def mapped(*args: Any) -> Any:
        made = spread(*args) if simple else nested
        return nested(*args) if made is nested else made

    return mapped


def autograd_grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool = False, create_graph: bool = True
) -> tuple[torch.Tensor, ...]:
    """eager_transforms._autograd_grad, which also turns compiled autograd off."""
    if grad_outputs is None:
        kept = tuple(output for output in outputs if output.requires_grad)
    else:
        pairs = tuple((o, g) for o, g in zip(outputs, grad_outputs, strict=False) if o.requires_grad)
        kept = tuple(pair[0] for pair in pairs)
        grad_outputs = tuple(pair[1] for pair in pairs)
    if not kept:
        return tuple(torch.zeros_like(given) for given in inputs)
    grads = torch.autograd.grad(
        kept, inputs, grad_outputs, retain_graph=retain_graph, create_graph=create_graph, allow_unused=True
    )
    return tuple(torch.zeros_like(given) if grad is None else grad for grad, given in zip(grads, inputs, strict=False))


def vmap_increment_nesting(batch_size: int, randomness: str) -> int:
    """predispatch._vmap_increment_nesting; like the next ones, without the question about torch.export."""
    return torch._C._functorch._vmap_increment_nesting(batch_size, randomness)


def vmap_decrement_nesting() -> int:
    """predispatch._vmap_decrement_nesting"""
    return torch._C._functorch._vmap_decrement_nesting()


def add_batch_dim(self: torch.Tensor, batch_dim: int, level: int) -> torch.Tensor:
    """predispatch._add_batch_dim"""
    return torch._C._functorch._add_batch_dim(self, self.ndim + batch_dim if batch_dim < 0 else batch_dim, level)


def remove_batch_dim(self: torch.Tensor, level: int, batch_size: int, out_dim: int) -> torch.Tensor:
    """predispatch._remove_batch_dim"""
    return torch._C._functorch._remove_batch_dim(self, level, batch_size, out_dim)


def unwrap_for_grad(tensor: torch.Tensor, level: int) -> torch.Tensor:
    """predispatch._unwrap_for_grad"""
    return torch._C._functorch._unwrap_for_grad(tensor, level)


def jvp_increment_nesting() -> int:
    """predispatch._jvp_increment_nesting"""
    return torch._C._functorch._jvp_increment_nesting()


def jvp_decrement_nesting() -> int:
    """predispatch._jvp_decrement_nesting"""
    return torch._C._functorch._jvp_decrement_nesting()


def enter_dual_level() -> int:
    """predispatch._enter_dual_level"""
    return torch._C._enter_dual_level()


def exit_dual_level(*, level: int) -> None:
    """predispatch._exit_dual_level"""
    return torch._C._exit_dual_level(level=level)


def make_dual(tensor: torch.Tensor, tangent: torch.Tensor, *, level: int = 0) -> Any:
    """predispatch._make_dual"""
    return torch._VF._make_dual(tensor, tangent, level=level)  # type: ignore[attr-defined]


def unpack_dual(tensor: torch.Tensor, *, level: int = 0) -> Any:
    """predispatch._unpack_dual"""
    return torch._VF._unpack_dual(tensor, level=level)  # type: ignore[attr-defined]
