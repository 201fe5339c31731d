"""torch.func.linearize as captures see it: the map is forward-mode AD of the function, once more for each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from magneto import _C
from magneto._polyfills import as_written

# Not forward_ad's own functions, which write down the level in their module.
make_dual: Any = torch._VF._make_dual  # type: ignore[attr-defined]
unpack_dual: Any = torch._VF._unpack_dual  # type: ignore[attr-defined]


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """torch.func.linearize, where the function has no effects (linear_maps.h)."""
    mark = _C.linear_mark(func, primals)
    flat, structure = pytree.tree_flatten(primals)
    if mark is None or not all(isinstance(primal, torch.Tensor) for primal in flat):
        return as_written("torch._functorch.eager_transforms.linearize", func, *primals)  # type: ignore[no-any-return]
    output = func(*primals)
    _C.linear_check(mark, [], [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)])
    push(func, flat, structure, [primal.new_empty(()).expand_as(primal) for primal in flat], mark)

    def jvp_fn(*tangents: Any) -> Any:
        given, own = pytree.tree_flatten(tangents)
        if own != structure:
            raise RuntimeError(f"Expected the tangents {own} to have the same argspec as the primals {structure}")
        for index, (tangent, primal) in enumerate(zip(given, flat, strict=True)):
            check(index, tangent, primal)
        return push(func, flat, structure, given, mark)

    return output, jvp_fn


def check(index: int, tangent: Any, primal: Any) -> None:
    """With PyTorch's messages."""
    for name in ("shape", "device", "dtype"):
        if getattr(tangent, name) != getattr(primal, name):
            where = "in flattened pytree doesn't match the"
            raise RuntimeError(
                f"tangent:{index} with {name} {getattr(tangent, name)} {where} {name} {getattr(primal, name)} "
                "of the corresponding primal."
            )


def push(func: Callable[..., Any], primals: list[Any], structure: Any, tangents: list[Any], mark: Any) -> Any:
    """The tangents of what the function gives. PyTorch's graph begins with copies of those that it is given."""
    _C.linear_check(mark, [], [])  # no transform takes what follows
    level = torch._C._enter_dual_level()  # type: ignore[attr-defined]
    try:
        pairs = zip(primals, tangents, strict=True)
        copies = [(primal, torch.empty_like(primal).copy_(tangent)) for primal, tangent in pairs]
        duals = [make_dual(primal, tangent, level=level) for primal, tangent in copies]
        leaves, given = pytree.tree_flatten(func(*pytree.tree_unflatten(duals, structure)))
        found = [unpack_dual(leaf, level=level)[1] if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    finally:
        torch._C._exit_dual_level(level=level)  # type: ignore[attr-defined]
    tensors = [own for leaf, own in zip(leaves, found, strict=True) if isinstance(leaf, torch.Tensor)]
    _C.linear_check(mark, tangents, tensors)
    return pytree.tree_unflatten(found, given)
