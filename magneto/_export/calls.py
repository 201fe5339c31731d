"""The calls of modules in what is exported: which modules there are, and the signatures that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree

from magneto._export.called import not_yet


def paths_of(target: Any) -> dict[int, tuple[str, str]]:
    """The path and the class of each module, by its address."""
    if not isinstance(target, torch.nn.Module):
        return {}
    return {
        id(module): (path, f"{type(module).__module__}.{type(module).__qualname__}")
        for path, module in target.named_modules()
    }


class Note(NamedTuple):
    """A call of a module whose signature is asked for, with copies of what it got and gave: leaves."""

    path: str
    inputs: list[Any]
    in_spec: Any
    outputs: list[Any]
    out_spec: Any


def _copied(leaf: Any) -> Any:
    """What a tensor is now: it may be written later. Numbers may follow from sizes: a tensor knows from which."""
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if type(leaf) is int or type(leaf) is float:
        return torch.scalar_tensor(leaf, dtype=torch.int64 if type(leaf) is int else torch.float64)
    return leaf


class Notes:
    """Notes the calls of some modules while the program is captured."""

    def __init__(self, target: Any, wanted: Iterable[str]) -> None:
        self.wanted = list(wanted)
        self._target = target
        self._found: list[Any] = []
        self._hooks: list[Any] = []
        known = dict(target.named_modules(remove_duplicate=False)) if isinstance(target, torch.nn.Module) else {}
        for path in self.wanted:
            if path not in known:
                raise not_yet(f"preserve_module_call_signature={path!r}, which is no module of the program,")

    def __enter__(self) -> None:
        self._found.clear()
        for path in self.wanted:
            module = self._target.get_submodule(path)
            before, after = _hooks(path, self._found)
            self._hooks.append(module.register_forward_pre_hook(before, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(after, with_kwargs=True))

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def calls(self) -> list[tuple[str, Note]]:
        """In the order in which they began, with the keys of the calls: `linear`, then `linear@1`."""
        open_calls: list[int] = []
        begun: list[tuple[str, Any, Any]] = []
        given: dict[int, tuple[Any, Any]] = {}
        for path, leaves, spec, begins in self._found:
            if begins:
                open_calls.append(len(begun))
                begun.append((path, leaves, spec))
            else:
                given[open_calls.pop()] = (leaves, spec)
        times: dict[str, int] = {}
        made = []
        for number, (path, leaves, spec) in enumerate(begun):
            before = times[path] = times.get(path, -1) + 1
            made.append((f"{path}@{before}" if before else path, Note(path, leaves, spec, *given[number])))
        return made


def _hooks(path: str, found: list[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: Any, args: Any, kwargs: Any) -> None:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        found.append((path, [_copied(leaf) for leaf in leaves], spec, True))

    def after(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        leaves, spec = pytree.tree_flatten(result)
        found.append((path, [_copied(leaf) for leaf in leaves], spec, False))

    return before, after


def graph_of_calls(
    target: torch.nn.Module, root: ModuleCallSignature, signatures: Mapping[str, ModuleCallSignature]
) -> list[ModuleCallEntry]:
    """ExportedProgram.module_call_graph: the whole, the modules, and further calls of those that were asked for."""
    entries = [ModuleCallEntry(fqn="", signature=root)]
    entries += [ModuleCallEntry(path, signatures.get(path)) for path, _ in target.named_modules() if path]
    known = {entry.fqn for entry in entries}
    return entries + [ModuleCallEntry(path, each) for path, each in signatures.items() if path not in known]


def signature_of(note: Note, argument_of: Callable[[Any], Any]) -> ModuleCallSignature:
    """`argument_of`: what a copied leaf was, as signatures name it."""
    inputs, outputs = ([argument_of(leaf) for leaf in leaves] for leaves in (note.inputs, note.outputs))
    return ModuleCallSignature(inputs, outputs, note.in_spec, note.out_spec)


def named_nodes(signatures: Iterable[ModuleCallSignature]) -> list[str]:
    """The nodes that signatures of modules name."""
    arguments = [argument for each in signatures for argument in (*each.inputs, *each.outputs)]
    return list(dict.fromkeys(each.name for each in arguments if not isinstance(each, ConstantArgument)))
