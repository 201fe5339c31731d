"""Control flow as captures see it in place of PyTorch's: branches, loops and scans, whose functions become graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from magneto import _C
from magneto._polyfills import as_written

# Scans of fewer steps are a part of the graph, step by step, as longer ones are, up to so many, that can't be regions.
LEAST_STEPS = 16
MOST_STEPS = 256

# Results of a scan over a dimension are stacked along it; up to PyTorch 2.12 along the first one.
SCAN_STACKS_ALONG_DIM = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


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
    found = _C.conditional(pred, true_fn, false_fn, operands)
    if found is None:
        return true_fn(*operands) if _C.branch_taken(pred) else false_fn(*operands)
    leaves, structure = found
    return pytree.tree_unflatten(leaves, structure)


def call_cond(_: Any, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """torch.ops.higher_order.cond, as exported programs call it."""
    return cond(pred, true_fn, false_fn, operands)


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


def _sizes_and_tensors(operands: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a region closes over has its sizes first."""
    count = sum(not isinstance(operand, torch.Tensor) for operand in operands)
    return operands[:count], operands[count:]


def call_while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: tuple[Any, ...], operands: tuple[Any, ...]
) -> Any:
    """run_while_loop, as exported programs call it."""
    sizes, tensors = _sizes_and_tensors(operands)

    def condition(*given: Any) -> Any:
        return cond_fn(*sizes, *given, *tensors)[0]

    def body(*given: Any) -> Any:
        return body_fn(*sizes, *given, *tensors)

    return while_loop(condition, body, carried)


def run_while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: tuple[Any, ...], operands: tuple[Any, ...]
) -> Any:
    """torch.ops.higher_order.while_loop of graphs, which give tuples. Sizes, which they take first, stand before the
    other operands."""
    sizes, tensors = _sizes_and_tensors(operands)
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
    sizes, tensors = _sizes_and_tensors(operands)
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
        and leaves[0].shape[dim] >= 1
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

    results = in_steps(combine, first) if first[0].shape[0] > 1 else first
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
    if dim != 0 and SCAN_STACKS_ALONG_DIM:
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
    return run_steps(combine_fn, carried, xs, reverse, operands)


def call_scan(
    combine_fn: Callable[..., Any],
    carried: tuple[Any, ...],
    xs: tuple[torch.Tensor, ...],
    kept: list[int],
    reverse: bool,
    operands: tuple[Any, ...],
) -> Any:
    """run_scan, as exported programs call it."""
    sizes, tensors = _sizes_and_tensors(operands)

    def combine(*given: Any) -> Any:
        results = combine_fn(*sizes, *given, *tensors)
        return results[: len(carried)], results[len(carried) :]

    found = scanned(combine, list(carried), list(xs), reverse) if has_slices(list(xs)) and carried else None
    if found is None:
        return run_steps(combine_fn, carried, xs, reverse, operands)
    return (*found[0], *found[1])


def run_steps(
    combine_fn: Callable[..., Any],
    carried: tuple[Any, ...],
    xs: tuple[torch.Tensor, ...],
    reverse: bool,
    operands: tuple[Any, ...],
) -> Any:
    """The steps of run_scan, one after the other."""
    sizes, tensors = _sizes_and_tensors(operands)
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
