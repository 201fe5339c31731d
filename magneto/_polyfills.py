"""Functions that captures see in place of PyTorch's, where those hide what they compute (functions.def, Instead)."""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint as checkpoints
from torch.distributions import constraints
from torch.overrides import get_default_nowrap_functions

from magneto import _C

convert: Any = torch._tensor._convert

# Operators that no policy is asked of.
NEVER_KEPT = tuple(getattr(checkpoints, "SAC_IGNORED_OPS", ()))

# Scans of fewer steps are a part of the graph, step by step, as longer ones are, up to so many, that can't be regions.
LEAST_STEPS = 16
MOST_STEPS = 256


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


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...] | list[Any] = ()
) -> Any:
    """torch.cond: both branches become graphs, and each run chooses. Where one can't be a graph, it is what its
    documentation says it is equivalent to: the branch that is taken is captured."""
    known = (
        (type(pred) is bool or (isinstance(pred, torch.Tensor) and pred.numel() == 1))
        and type(operands) in (tuple, list)
        and all(isinstance(leaf, (torch.Tensor, int)) for leaf in pytree.tree_leaves(operands))
        and callable(true_fn)
        and callable(false_fn)
    )
    if not known:
        return as_written("torch._higher_order_ops.cond.cond", pred, true_fn, false_fn, operands)
    if type(pred) is bool:
        return true_fn(*operands) if pred else false_fn(*operands)
    found = _C.conditional(pred, true_fn, false_fn, operands)
    if found is None:
        return true_fn(*operands) if _C.branch_taken(pred) else false_fn(*operands)
    leaves, structure = found
    return pytree.tree_unflatten(leaves, structure)


def results_of_branch(function: Callable[..., Any], operands: tuple[Any, ...] | list[Any]) -> tuple[list[Any], Any]:
    """What a branch gives: leaves and structure."""
    return pytree.tree_flatten(function(*operands))


def are_same(structure: Any, other: Any) -> bool:
    """Two structures."""
    return bool(structure == other)


def run_cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """torch.ops.higher_order.cond where autograd is to see the operators of the branch that is taken."""
    return true_fn(*operands) if pred else false_fn(*operands)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any, additional_inputs: Any = None
) -> Any:
    """torch.while_loop: condition and body become graphs, and each run repeats them. Where they can't be graphs, it is
    the loop in Python."""
    rest = () if additional_inputs is None else tuple(additional_inputs)
    leaves, structure = pytree.tree_flatten(carried_inputs)

    def condition(*carried: Any) -> Any:
        return cond_fn(*pytree.tree_unflatten(carried, structure), *rest)

    def body(*carried: Any) -> Any:
        given, own = pytree.tree_flatten(body_fn(*pytree.tree_unflatten(carried, structure), *rest))
        if own.num_leaves != structure.num_leaves:
            raise ValueError(f"body_fn gives {own.num_leaves} tensors and is given {structure.num_leaves}")
        return given

    if leaves and all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        found = _C.repeated(condition, body, [leaf.clone(memory_format=torch.contiguous_format) for leaf in leaves])
        if found is not None:
            return pytree.tree_unflatten(found, structure)
    while _C.branch_taken(condition(*leaves)):
        leaves = body(*leaves)
    return pytree.tree_unflatten(leaves, structure)


def run_while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: tuple[Any, ...], operands: tuple[Any, ...]
) -> Any:
    """torch.ops.higher_order.while_loop of graphs, which give tuples. Sizes, which they take first, stand before the
    other operands."""
    count = sum(not isinstance(operand, torch.Tensor) for operand in operands)
    sizes, tensors = operands[:count], operands[count:]
    ran = False
    while cond_fn(*sizes, *carried, *tensors)[0]:
        carried, ran = body_fn(*sizes, *carried, *tensors), True
    return carried if ran else tuple(tensor.clone() for tensor in carried)


def run_while_loop_backward(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    step: Callable[..., Any],
    read: list[int],
    carried: tuple[Any, ...],
    state: tuple[Any, ...],
    operands: tuple[Any, ...],
) -> Any:
    """magneto.while_loop_backward of graphs: the loop, and then its turns from the last one on."""
    count = sum(not isinstance(operand, torch.Tensor) for operand in operands)
    sizes, tensors = operands[:count], operands[count:]
    turns = []
    while cond_fn(*sizes, *carried, *tensors)[0]:
        turns.append([carried[i] for i in read])
        carried = body_fn(*sizes, *carried, *tensors)
    if not turns:
        return tuple(tensor.clone() for tensor in state)
    for kept in reversed(turns):
        state = step(*sizes, *state, *kept, *tensors)
    return state


def compile_region(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch.compiler.nested_compile_region: equal regions share their kernels in any case."""
    return function(*args, **kwargs)


def associative_scan(
    combine_fn: Callable[..., Any], xs: Any, dim: int, reverse: bool = False, combine_mode: str = "pointwise"
) -> Any:
    """The scan one step after the other, which is what associativity allows and what fuses into one kernel; a long one
    in pairs, through `vmap`, as PyTorch's own. Each step here sees what one lane of that sees. Where the number of
    steps is a symbol, a step is a graph of its own."""
    leaves, structure = pytree.tree_flatten(xs)
    known = (
        combine_mode == "generic"
        and callable(combine_fn)
        and type(dim) is int
        and type(reverse) is bool
        and len(leaves) > 0
        and all(isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided for leaf in leaves)
        and -leaves[0].dim() <= dim < leaves[0].dim()
        and all(leaf.shape == leaves[0].shape for leaf in leaves)
        and leaves[0].shape[dim] >= 2
    )
    if not known:
        name = "torch._higher_order_ops.associative_scan.associative_scan"
        return as_written(name, combine_fn, xs, dim, reverse, combine_mode)
    first = [torch.movedim(leaf, dim, 0) for leaf in leaves]
    if reverse:
        first = [leaf.flip(0) for leaf in first]

    def combine(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
        return pytree.tree_leaves(
            combine_fn(pytree.tree_unflatten(left, structure), pytree.tree_unflatten(right, structure))
        )

    results = in_steps(combine, first)
    if reverse:
        results = [leaf.flip(0) for leaf in results]
    return pytree.tree_unflatten([torch.movedim(leaf, 0, dim) for leaf in results], structure)


def in_steps(combine: Callable[..., Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """An associative scan of the first dimensions."""
    count = len(leaves)

    def step(*given: Any) -> Any:
        state = combine(list(given[:count]), list(given[count:]))
        return state, state

    found = _C.scanned(
        step, as_stacked([leaf[0] for leaf in leaves]), as_stacked([leaf[1:] for leaf in leaves]), False, 1 << 62
    )
    if found is not None:
        stacked = found[0][count:]
        return [torch.cat([leaf[:1], rest]) for leaf, rest in zip(leaves, stacked, strict=True)]
    if leaves[0].shape[0] > MOST_STEPS:
        return in_pairs(torch.vmap(combine), leaves)
    state = [leaf[0] for leaf in leaves]
    steps = [[value] for value in state]
    for i in range(1, leaves[0].shape[0]):
        state = combine(state, [leaf[i] for leaf in leaves])
        for values, value in zip(steps, state, strict=True):
            values.append(value)
    return [torch.stack(values) for values in steps]


def in_pairs(combine: Callable[..., Any], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same, with a `combine` of many steps at once: neighbours first, then what lies between."""
    count = leaves[0].shape[0]
    if count < 2:
        return leaves
    odd = in_pairs(combine, combine([leaf[: count - 1 : 2] for leaf in leaves], [leaf[1::2] for leaf in leaves]))
    before = [leaf[:-1] for leaf in odd] if count % 2 == 0 else odd
    even = [leaf[:1] for leaf in leaves]
    if count > 2:
        between = combine(before, [leaf[2::2] for leaf in leaves])
        even = [torch.cat(pair) for pair in zip(even, between, strict=True)]
    half = count // 2
    results = []
    for left, right in zip(even, odd, strict=True):
        woven = torch.stack([left[:half], right], 1).flatten(0, 1)
        results.append(woven if count % 2 == 0 else torch.cat([woven, left[half:]]))
    return results


def strict_mode(callable: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """torch.strict_mode: the call, of which a graph is made in any case."""
    return callable(*operands)


def foreach_map(op: Callable[..., Any], *operands: Any, **kwargs: Any) -> Any:
    """The operator on the first items of all lists, on the second ones...; what is no list is given each time."""
    lists = [operand for operand in operands if isinstance(operand, (list, tuple))]
    if kwargs:
        return as_written("torch._higher_order_ops.foreach_map.foreach_map", op, *operands, **kwargs)
    if not lists:
        return op(*operands)
    count = min(len(items) for items in lists)
    return [op(*[one[i] if isinstance(one, (list, tuple)) else one for one in operands]) for i in range(count)]


def wrap(operator: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch.ops.higher_order.wrap: the call."""
    return func(*args, **kwargs)


def wrap_with_set_grad_enabled(
    operator: Any, enable_grad: bool, wrapped_func: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """torch.ops.higher_order.wrap_with_set_grad_enabled: the call, in that mode."""
    with torch.set_grad_enabled(enable_grad):
        return wrapped_func(*args, **kwargs)


def wrap_with_autocast(
    operator: Any,
    device_type: str,
    dtype: Any,
    enabled: bool,
    cache_enabled: Any,
    wrapped_func: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """torch.ops.higher_order.wrap_with_autocast: the call, in that mode."""
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        return wrapped_func(*args, **kwargs)


def has_slices(leaves: list[Any]) -> bool:
    """Tensors of as many slices in their first dimensions, of which a program may take one after the other."""
    return (
        len(leaves) > 0
        and all(isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.dim() > 0 for leaf in leaves)
        and all(leaf.shape[0] == leaves[0].shape[0] for leaf in leaves)
        and leaves[0].shape[0] >= 1
    )


def scanned(combine: Callable[..., Any], carried: list[torch.Tensor], xs: list[torch.Tensor], reverse: bool) -> Any:
    """What is carried behind the last step, and what the steps give, stacked; None: they are too many. `combine` takes
    tensors, and gives the two."""
    found = _C.scanned(combine, as_stacked(carried), as_stacked(xs), reverse, LEAST_STEPS)
    if found is not None:
        return pytree.tree_unflatten(*found)
    if xs[0].shape[0] > MOST_STEPS:
        return None
    order = range(xs[0].shape[0])
    carry: Any = None
    given: Any = None
    results = []
    for i in reversed(order) if reverse else order:
        carry, out = combine(*carried, *[leaf[i] for leaf in xs])
        carried = pytree.tree_leaves(carry)
        out, given = pytree.tree_flatten(out)
        results.append(out)
    if reverse:
        results.reverse()
    stacked = [None if step is None else torch.stack([out[i] for out in results]) for i, step in enumerate(results[0])]
    return carry, pytree.tree_unflatten(stacked, given)


def as_stacked(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Contiguous."""
    return [tensor.contiguous() for tensor in tensors]


def require_same_carry(given: list[Any], carried: list[Any]) -> None:
    """What eager asks of what is carried from step to step."""
    if len(given) != len(carried):
        raise RuntimeError(f"combine_fn gives a carry of {len(given)} leaves, and is given {len(carried)}")
    for index, (new, old) in enumerate(zip(given, carried, strict=True)):
        if not isinstance(new, torch.Tensor):
            raise RuntimeError(f"leaf {index} of the carry is to be a tensor, and combine_fn gives {type(new)}")
        for name in ("shape", "dtype", "device"):
            if getattr(new, name) != getattr(old, name):
                raise RuntimeError(
                    f"Expected init and carry to have same metadata: leaf {index} differs in {name}, "
                    f"{getattr(old, name)} and {getattr(new, name)}"
                )


def scan(combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """The step becomes a graph of its own, which each run repeats, whatever the number of steps. A short scan is one
    step after the other in the caller's graph."""
    leaves, structure = pytree.tree_flatten(xs)
    carried, carries = pytree.tree_flatten(init)
    known = (
        callable(combine_fn)
        and type(dim) is int
        and type(reverse) is bool
        and all(isinstance(leaf, torch.Tensor) and -leaf.dim() <= dim < leaf.dim() for leaf in leaves)
        and all(isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided for leaf in carried)
    )
    moved = [leaf if dim == 0 else torch.movedim(leaf, dim, 0) for leaf in leaves] if known else []
    count = len(carried)
    found = None

    def combine(*given: Any) -> Any:
        carry, out = combine_fn(
            pytree.tree_unflatten(given[:count], carries), pytree.tree_unflatten(given[count:], structure)
        )
        new, own = pytree.tree_flatten(carry)
        require_same_carry(new, carried)
        if own != carries:
            raise RuntimeError(f"combine_fn gives a carry of {own}, and is given {carries}")
        return carry, out

    if has_slices(moved) and count > 0:
        found = scanned(combine, carried, moved, reverse)
    if found is None:
        return as_written("torch._higher_order_ops.scan.scan", combine_fn, init, xs, dim=dim, reverse=reverse)
    carry, out = found
    if dim != 0:
        out = pytree.tree_map(lambda leaf: torch.movedim(leaf, 0, dim) if dim < leaf.dim() else leaf, out)
    return carry, out


def run_scan(
    combine_fn: Callable[..., Any],
    carried: tuple[Any, ...],
    xs: tuple[torch.Tensor, ...],
    kept: list[int],
    reverse: bool,
    operands: tuple[Any, ...],
) -> Any:
    """magneto.scan, as a loop that autograd sees: what its backward would keep is left out."""
    count = sum(not isinstance(operand, torch.Tensor) for operand in operands)
    sizes, tensors = operands[:count], operands[count:]
    order = range(xs[0].shape[0])
    steps = []
    for i in reversed(order) if reverse else order:
        results = combine_fn(*sizes, *carried, *[x[i] for x in xs], *tensors)
        steps.append(results[len(carried) :])
        carried = results[: len(carried)]
    if reverse:
        steps.reverse()
    return (*carried, *[torch.stack(column) for column in zip(*steps, strict=True)])


def map_slices(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """torch._higher_order_ops.map: a scan that carries nothing."""
    leaves, structure = pytree.tree_flatten(xs)
    found = None
    if has_slices(leaves):
        found = scanned(lambda *given: ((), f(pytree.tree_unflatten(given, structure), *args)), [], leaves, False)
    return as_written("torch._higher_order_ops.map.map", f, xs, *args) if found is None else found[1]


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


def flex_attention(operator: Any, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """The operator of flex_attention, as PyTorch computes it where there is no kernel for it: its score and mask
    functions are mapped over all scores. The result has the order of the query's strides, its last dimension innermost.
    """
    written = sys.modules[type(operator).__module__]
    out, logsumexp, largest = written.math_attention(query, *args, **kwargs)
    strides = query.stride()
    order = [3, *sorted(range(3), key=lambda dim: strides[dim])][::-1]
    dense = out.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute([order.index(dim) for dim in range(4)]), logsumexp, largest


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
