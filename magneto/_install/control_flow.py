"""torch.cond, while_loop, scan and map where a program calls them outside of what is compiled.

PyTorch compiles such a call, so that its operator is given graphs: with closures, pytrees and gradients they are more
than the operator itself takes. Here torch.cond is captured, so that gradients of what the other branch reads are zeros,
and branches that do not fit are an error; the functions of the others run as they stand, and autograd sees what they
compute.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode

from magneto import _api, exc
from magneto._control_flow import require_same_carry


def run_as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What PyTorch compiles in such a call, as a function that runs it."""
    run = _RUNS.get(function.__name__)
    if run is None or _get_current_dispatch_mode() is not None:  # the operator has rules for modes
        return function
    return lambda *args: run(function, *args)


def _nonlocal(function: Any, name: str) -> Any:
    """What one of PyTorch's functions has in its closure."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def _apart(results: Any, given: Any) -> Any:
    """Results that are no tensors of those that were given."""
    known = {id(leaf) for leaf in pytree.tree_leaves(given)}
    return pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.clone() if id(leaf) in known else leaf, results)


def _is_batched(tensor: Any) -> bool:
    """torch.vmap has it stand for several values."""
    functorch: Any = torch._C._functorch
    while isinstance(tensor, torch.Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


_captured: collections.OrderedDict[Any, Callable[..., Any]] = collections.OrderedDict()
_MOST_CAPTURED = 256


def _captured_for(true_fn: Any, false_fn: Any) -> Callable[..., Any]:
    """Captures torch.cond for functions with this code. Each pair has a capture of its own: what one of them can't be
    says nothing of others."""
    key = tuple(getattr(function, "__code__", None) or type(function) for function in (true_fn, false_fn))
    run = _captured.get(key)
    if run is None:
        run = _captured[key] = _api.compile(
            lambda *given: torch.cond(*given), fullgraph=True, backend="aot_eager", isolate_recompiles=True
        )
        if len(_captured) > _MOST_CAPTURED:
            _captured.popitem(last=False)
    return run


def _cond(_: Any, pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any) -> Any:
    if isinstance(pred, torch.Tensor) and torch._C._functorch.peek_interpreter_stack() is None:
        try:
            return _captured_for(true_fn, false_fn)(pred, true_fn, false_fn, operands)
        except exc.FailOnRecompileLimitHit:
            pass  # closures that are others in each call
        except exc.Unsupported as refusal:
            raise exc.UncapturedHigherOrderOpError(str(refusal)) from None
    if not _is_batched(pred):
        return _apart((true_fn if pred else false_fn)(*operands), operands)
    holds = pred.reshape(())
    return pytree.tree_map(lambda a, b: torch.where(holds, a, b), true_fn(*operands), false_fn(*operands))


def _while_loop(_: Any, condition: Callable[..., Any], body: Callable[..., Any], given: Any, further: Any) -> Any:
    carried, result = given, None
    while holds := condition(*carried, *further):
        result = body(*carried, *further)
        leaves = pytree.tree_leaves(result)
        if len(leaves) != len(given):
            raise RuntimeError(f"body_fn gives {len(leaves)} leaves, and is given {len(given)}")
        require_same_carry(*_tensors(leaves, given))
        carried = tuple(leaves)
    if not isinstance(holds, bool) and (holds.dtype != torch.bool or holds.dim() != 0):
        raise RuntimeError(f"cond_fn is to give a bool, or a tensor of one without dimensions, and gives {holds}")
    if carried is given:
        result = pytree.tree_unflatten(given, _nonlocal(body, "in_spec"))[0]
    return _apart(result, given)


def _tensors(new: list[Any], old: Any) -> tuple[list[Any], list[Any]]:
    """Both, without what is an int in each."""
    pairs = [pair for pair in zip(new, old, strict=True) if not (isinstance(pair[0], int) and isinstance(pair[1], int))]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _scan(_: Any, step: Callable[..., Any], init: list[torch.Tensor], xs: list[torch.Tensor]) -> Any:
    carry: Any = None
    carried, steps = init, []
    for i in range(xs[0].shape[0]):
        carry, out = step(*carried, *[x[i] for x in xs])
        carried = pytree.tree_leaves(carry)
        require_same_carry(carried, init)
        steps.append(out)
    return _apart(carry, (init, xs)), _stacked(steps)


def _map(function: Any, f: Callable[..., Any], xs: list[torch.Tensor], args: list[Any]) -> Any:
    slices, further = _nonlocal(function, "xs_spec"), _nonlocal(function, "args_spec")
    rest = pytree.tree_unflatten(args, further)
    return _stacked([f(pytree.tree_unflatten([x[i] for x in xs], slices), *rest) for i in range(xs[0].shape[0])])


def _stacked(steps: list[Any]) -> Any:
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *steps)


_RUNS: dict[str, Callable[..., Any]] = {
    "_cond_op_wrapper": _cond,
    "_while_loop_op_wrapper": _while_loop,
    "run_flattened_scan": _scan,
    "run_flattened_map": _map,
}
