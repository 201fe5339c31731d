"""The function that is captured for an export: of the tensors among the arguments alone."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from magneto import exc
from magneto._export import arguments


def not_yet(what: str) -> exc.NotYet:
    """For what PyTorch's export takes, and this one does not."""
    return exc.NotYet(f"torch.export.export: {what} is not supported yet.")


class State:
    """The attributes of the modules: exporting leaves them as they are."""

    def __init__(self, target: Any) -> None:
        modules = target.named_modules() if isinstance(target, torch.nn.Module) else []
        self._kept = [(name, module, _dicts(module)) for name, module in modules]

    def put_back(self) -> str:
        """The first one that has changed, for messages."""
        changed = ""
        for name, module, before in self._kept:
            for kept, now in zip(before, (vars(module), module._parameters, module._buffers), strict=True):
                different = [key for key in {*kept, *now} if kept.get(key, self) is not now.get(key, self)]
                if not different:
                    continue
                changed = changed or ".".join(filter(None, ("self", name, different[0])))
                now.clear()
                now.update(kept)
        return changed


def _dicts(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    return dict(vars(module)), dict(module._parameters), dict(module._buffers)


def function_of(
    target: Any, leaves: Sequence[arguments.Leaf], in_spec: Any, held: tuple[int, Sequence[int]] | None = None
) -> Callable[..., Any]:
    """A function of the tensors alone: constants and the way they are put together are in its text.

    Args:
        target, leaves, in_spec: What is called, and with what.
        held: So many leaves are the results, and these of them are numbers, that sizes say: they are given as tensors.
            One more tensor is given last: so there is a graph, and what it asks of sizes is known, in any case.
    """
    tensors = [leaf.name for leaf in leaves if isinstance(leaf.value, torch.Tensor)]
    constants: list[Any] = []
    texts = []
    for leaf in leaves:
        if isinstance(leaf.value, torch.Tensor):
            texts.append(f"{leaf.name}.shape[0]" if leaf.is_size else leaf.name)
        else:
            texts.append(f"constants[{len(constants)}]")
            constants.append(leaf.value)
    specs: list[Any] = []
    args, kwargs = in_spec.children()
    rest = iter(texts)
    given = [_text(child, rest, specs) for child in args.children()]
    named = [
        f"**{{{key!r}: {_text(child, rest, specs)}}}"
        for key, child in zip(kwargs.context, kwargs.children(), strict=True)
    ]
    text = f"def forward({', '.join(tensors)}):\n    return target({', '.join([*given, *named])})\n"
    if held is not None:
        results = [f"hold(leaves[{i}])" if i in held[1] else f"leaves[{i}]" for i in range(held[0])]
        text = text.replace("return target(", "leaves = flatten(target(")
        text = f"{text.rstrip()})\n    return [{', '.join([*results, 'hold(0)'])}]\n"
    filename = f"<torch.export {len(linecache.cache)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {"target": target, "constants": tuple(constants), "unflatten": pytree.tree_unflatten, "specs": specs}
    scope |= {"flatten": pytree.tree_leaves, "hold": _hold}
    exec(compile(text, filename, "exec"), scope)
    return scope["forward"]  # type: ignore[no-any-return]


def _text(spec: Any, leaves: Any, specs: list[Any]) -> str:
    """The expression that makes an argument of its leaves."""
    if spec.is_leaf():
        return str(next(leaves))
    if spec.type in (list, tuple, dict):
        items = [_text(child, leaves, specs) for child in spec.children()]
        if spec.type is list:
            return f"[{', '.join(items)}]"
        if spec.type is tuple:
            return f"({''.join(f'{item}, ' for item in items)})"
        if all(isinstance(key, (str, int)) for key in spec.context):
            return f"{{{', '.join(f'{key!r}: {item}' for key, item in zip(spec.context, items, strict=True))}}}"
        raise not_yet(f"a dict with the keys {spec.context!r} among the arguments")
    items = [str(next(leaves)) for _ in range(spec.num_leaves)]
    specs.append(spec)
    return f"unflatten([{', '.join(items)}], specs[{len(specs) - 1}])"


def _hold(number: float) -> torch.Tensor:
    return torch.scalar_tensor(number, dtype=torch.int64 if type(number) is int else torch.float64)
