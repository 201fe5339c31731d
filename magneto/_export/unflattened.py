"""torch.export.unflatten: an exported program as modules again, each with the graph of its own call.

Which nodes belong to which call the core says (`_C.nest_calls`); here they become graphs of torch.fx.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportGraphSignature
from torch.export.exported_program import ModuleCallSignature
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.export.unflatten import UnflattenedModule as TorchUnflattened
from torch.utils import _pytree as pytree

from magneto import _C, exc
from magneto._export import program

Node = torch.fx.Node

_ROOT = "L__self__"


class Unflattened(TorchUnflattened):
    """What torch.export.unflatten gives: the program, as a module with the modules that were exported."""

    def __init__(self, parts: program.Parts, run: torch.fx.GraphModule, adapter: Any) -> None:
        torch.nn.Module.__init__(self)
        for name, value in [*run._modules.items(), *run._parameters.items()]:
            setattr(self, name, value)
        self.__dict__ |= {name: value for name, value in vars(run).items() if "@" in name}
        for name, buffer in run._buffers.items():
            self.register_buffer(name, buffer, persistent=name not in run._non_persistent_buffers_set)
        self.graph = run.graph
        self.graph_signature = parts.signature
        self.module_call_graph = list(parts.module_call_graph)
        self.flat_args_adapter = adapter
        self._checks, self._questions = parts.checks, parts.checks.questions()
        self._written = program.written_arguments(parts.signature)
        self._run = type(run).forward
        self._out_spec = parts.module_call_graph[0].signature.out_spec

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises as what `ExportedProgram.module()` gives."""
        if self.flat_args_adapter is not None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            if spec != self._checks.in_spec:
                leaves = self.flat_args_adapter.adapt(
                    target_spec=self._checks.in_spec, input_spec=spec, input_args=leaves
                )
                args, kwargs = pytree.tree_unflatten(leaves, self._checks.in_spec)
        leaves = self._checks.flat(args, kwargs, self._questions)
        run = functools.partial(self._run, self)
        return pytree.tree_unflatten(program.call(run, leaves, self._checks, self._written), self._out_spec)

    def print_readable(self, *_: Any, **__: Any) -> str:  # type: ignore[override]
        """The code of the program's own graph."""
        text = str(self.graph.python_code("self").src)
        print(text)
        return text

    def finalize(self) -> None:
        """Everything is in place from the beginning."""


class _Called(torch.fx.GraphModule):
    """A module that is called as the one that was exported (preserve_module_call_signature)."""

    _signature: ModuleCallSignature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = list(self._signature.in_spec.children()[1].context)
        ordered = {name: kwargs[name] for name in names if name in kwargs}
        leaves, spec = pytree.tree_flatten((args, {**ordered, **kwargs}))
        if spec != self._signature.in_spec:
            raise ValueError(f"The module takes arguments of the form\n{self._signature.in_spec}\nbut got\n{spec}")
        return pytree.tree_unflatten(super().__call__(*leaves), self._signature.out_spec)

    def __deepcopy__(self, memo: Any) -> Any:
        made = super().__deepcopy__(memo)
        made._signature = self._signature  # type: ignore[assignment]
        return made


class _Part(NamedTuple):
    key: str
    parent: int
    items: list[tuple[int, int]]
    inputs: list[int]
    outputs: list[int]

    @property
    def path(self) -> str:
        """Of the module."""
        return self.key.removeprefix(_ROOT).split("@")[0]


class _Write(NamedTuple):
    """A module whose signature is kept writes a buffer of its own."""

    node: Node
    name: str

    @property
    def op(self) -> str:
        """As torch.fx's nodes have it."""
        return "write"

    @property
    def all_input_nodes(self) -> list[Node]:
        """Likewise."""
        return [self.node]


class _Made(NamedTuple):
    module: torch.fx.GraphModule
    text: tuple[Any, ...]  # equal if the graphs are


def unflatten(ep: program.ExportedProgram, flat_args_adapter: Any = None) -> Unflattened:
    """torch.export.unflatten.

    Args:
        ep: What was exported. Its parameters and buffers are those of the modules.
        flat_args_adapter: Its `adapt` makes the program's arguments of those that have another form.

    Raises:
        magneto.exc.NotYet: A module whose signature was to be kept reads or changes what its arguments don't say.
    """
    return _Builder(ep._parts).built(flat_args_adapter)


def _calls_of(node: Node) -> list[str]:
    """The keys of the calls that a node is in, as far as each module is inside the one before."""
    kept: list[str] = []
    inside = ""
    for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
        if path and path.startswith(inside):
            kept.append(key)
            inside = f"{path}."
    return kept


def _hoisted(nodes: Sequence[Node]) -> tuple[list[Node], list[list[str]]]:
    """The nodes, first those that are made of the arguments' sizes alone; and the calls that each is in. One that does
    not say is in those of the node before."""
    first: list[Node] = []
    rest: list[Node] = []
    calls: list[list[str]] = []
    known: set[Node] = set()
    for node in nodes:
        is_argument = node.op == "placeholder"
        if is_argument or ("nn_module_stack" not in node.meta and known.issuperset(node.all_input_nodes)):
            first.append(node)
            known.add(node)
        else:
            rest.append(node)
            calls.append(_calls_of(node) if "nn_module_stack" in node.meta or not calls else calls[-1])
    return [*first, *rest], [*([] for _ in first), *calls]


class _Builder:
    def __init__(self, parts: program.Parts) -> None:
        self._parts = parts
        self._state = {**parts.constants, **parts.state_dict, **parts.module_state}
        self._lifted: dict[Node, str] = {}  # parameters, buffers, constants: their names
        self._flat: list[Any] = []  # what calls read and give to one another
        self._by_path: dict[str, list[_Made]] = {}
        specs = iter(parts.signature.input_specs)
        for node in parts.graph_module.graph.nodes:
            spec = next(specs) if node.op == "placeholder" else None
            if spec is not None and spec.kind is not InputKind.USER_INPUT:
                self._lifted[node] = str(spec.target)
            elif node.op in ("placeholder", "call_function"):
                self._flat.append(node)
        self._by_name = {node.name: node for node in parts.graph_module.graph.nodes}
        self._signatures = {
            f"{_ROOT}{each.fqn}": each.signature
            for each in parts.module_call_graph
            if each.fqn and each.signature is not None
        }
        self._index = {node: i for i, node in enumerate(self._flat)}
        self._results = next(iter(reversed(parts.graph_module.graph.nodes)))
        self._written = self._writes()
        self._nested = self._nest()

    def _writes(self) -> dict[Node, tuple[_Write, str]]:
        """Buffers that a module writes whose signature is kept: by what is written; the call."""
        found = {}
        for node, spec in zip(self._results.args[0], self._parts.signature.output_specs, strict=True):  # type: ignore[arg-type]
            if spec.kind is not OutputKind.BUFFER_MUTATION or set(node.users) != {self._results}:
                continue
            for key in reversed(_calls_of(node)):
                local = self._local(str(spec.target), key.removeprefix(_ROOT).split("@")[0])
                if key in self._signatures and local is not None:
                    found[node] = _Write(node, local), key
                    break
        return found

    def _nest(self) -> list[_Part]:
        """With what only the whole program has, and others read, as nodes in front."""
        self._flat, calls = _hoisted(self._flat)
        self._index = {node: i for i, node in enumerate(self._flat)}
        paths = [each[-1].removeprefix(_ROOT).split("@")[0] if each else "" for each in calls]
        foreign = [
            node
            for node, name in self._lifted.items()
            if any(user in self._index and not self._local(name, paths[self._index[user]]) for user in node.users)
        ]
        self._flat = [*foreign, *self._flat]
        calls = [*([] for _ in foreign), *calls]
        paths = [*("" for _ in foreign), *paths]
        self._index = {node: i for i, node in enumerate(self._flat)}
        for write, key in self._written.values():  # at the end of the call
            end = max(i for i, own in enumerate(calls) if key in own) + 1
            own = calls[end - 1]
            calls.insert(end, own[: own.index(key) + 1])
            paths.insert(end, "")
            self._flat.insert(end, write)
        self._index = {node: i for i, node in enumerate(self._flat)}
        rows = []
        for node, own, path in zip(self._flat, calls, paths, strict=True):
            uses = [
                self._index[used]
                for used in (() if node.op == "placeholder" else node.all_input_nodes)
                if used in self._index and not (used in self._lifted and self._local(self._lifted[used], path))
            ]
            rows.append((own, uses))
        # The results are read by the whole program.
        results = [node for node in self._results.all_input_nodes if node not in self._written]
        rows.append(([], [self._index[node] for node in results if node in self._index]))
        nested = [_Part(*row) for row in _C.nest_calls(rows)]
        nested[0].items.pop()
        return nested

    def _local(self, name: str, path: str) -> str | None:
        """The name of a parameter in the module, if it has it."""
        if not path:
            return name
        value = self._state.get(name)
        for each in (name, *(other for other, known in self._state.items() if known is value)):
            if each.startswith(f"{path}."):
                return each[len(path) + 1 :]
        return None

    def built(self, adapter: Any) -> Unflattened:
        run = self._module_of(0).module
        for name, value in self._parts.module_state.items():
            self._add_unread(run, name, value)
        for name, value in self._parts.state_dict.items():
            self._add_unread(run, name, value)
        for entry in self._parts.module_call_graph:
            if entry.fqn and "@" not in entry.fqn:
                _owner(run, f"{entry.fqn}.")
        _hide_variants(run)
        return Unflattened(self._parts, run, adapter)

    def _add_unread(self, run: torch.nn.Module, name: str, value: Any) -> None:
        """A parameter or buffer, also one that no graph reads in its own module."""
        owner, last = _owner(run, name), name.rpartition(".")[2]
        for held in (owner._parameters, owner._buffers):
            if last in held:
                held[last] = held.pop(last)  # type: ignore[assignment]
                return
        _hold(owner, last, value, name in self._parts.state_dict)

    def _module_of(self, number: int) -> _Made:
        part = self._nested[number]
        made = _PartBuilder(self, part).made()
        known = self._by_path.setdefault(part.path, [])
        for other in known:
            if other.text == made.text:
                return other
        known.append(made)
        return made


def _owner(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """The module that has what is called so. It becomes the last one there, so that all get the program's order."""
    for part in name.split(".")[:-1]:
        module._modules[part] = module._modules.pop(part, None) or torch.nn.Module()
        module = module._modules[part]  # type: ignore[assignment]
    return module


def _hide_variants(module: torch.nn.Module) -> None:
    """Other graphs of modules that are there (`first@1`) are no modules of their own: they have the same parameters."""
    for name, child in [*module._modules.items()]:
        if child is None:
            continue
        first = module._modules.get(name.split("@")[0])
        if "@" in name and first is not None:
            del module._modules[name]
            module.__dict__[name] = child
            _share(child, first)
        _hide_variants(child)


def _share(variant: torch.nn.Module, first: torch.nn.Module) -> None:
    for held in ("_parameters", "_buffers"):
        getattr(first, held).update(getattr(variant, held))
        variant.__dict__[held] = first.__dict__[held]
    for name, child in variant._modules.items():
        if child is not None and (other := first._modules.get(name)) is not None and other is not child:
            _share(child, other)


def _hold(owner: torch.nn.Module, name: str, value: Any, persistent: bool) -> None:
    if isinstance(value, torch.nn.Parameter):
        owner.register_parameter(name, value)
    elif isinstance(value, torch.Tensor):
        owner._buffers.pop(name, None)
        owner.register_buffer(name, value, persistent=persistent)


class _PartBuilder:
    """The graph of one call."""

    def __init__(self, whole: _Builder, part: _Part) -> None:
        self._whole, self._part = whole, part
        self._graph = torch.fx.Graph()
        self._values: dict[Node, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._read: dict[str, Node] = {}
        self._signature: ModuleCallSignature | None = whole._signatures.get(part.key) if part.key else None

    def made(self) -> _Made:
        flat, whole_state = self._whole._flat, self._whole._state
        if self._part.parent < 0:
            self._take(node for node in flat if node.op == "placeholder" and node not in self._whole._lifted)
        elif self._signature is not None:
            self._take_signature(self._signature)
        else:
            self._take(flat[i] for i in self._part.inputs)
        for node, part in self._part.items:
            if part >= 0:
                self._call(part)
            elif isinstance(written := flat[node], _Write):
                target = self._attribute(written.name, whole_state[f"{self._part.path}.{written.name}"])
                self._graph.call_function(torch.ops.aten.copy_.default, (target, self._value(written.node)))
            elif written.op == "call_function":
                self._copy(written)
        self._give()
        kind = _Called if self._signature is not None else torch.fx.GraphModule
        module = kind(self._attributes, self._graph)
        if self._signature is not None:
            module._signature = self._signature  # type: ignore[assignment]
        for name, value in self._attributes.items():
            if isinstance(value, torch.Tensor):
                owner, _, last = name.rpartition(".")
                full = f"{self._part.path}.{name}".removeprefix(".")
                _hold(module.get_submodule(owner), last, value, full in self._whole._parts.state_dict)
        return _Made(module, self._text())

    # -- what it takes

    def _take(self, nodes: Any) -> None:
        for node in nodes:
            self._values[node] = self._graph.placeholder(node.name)
            self._values[node].meta = dict(node.meta)

    def _take_signature(self, signature: ModuleCallSignature) -> None:
        for i, argument in enumerate(signature.inputs):
            node = None if isinstance(argument, ConstantArgument) else self._whole._by_name[argument.name]
            name = f"arg_{i}" if node is None or node in self._values else node.name
            placeholder = self._graph.placeholder(name)
            if node is not None:
                placeholder.meta = dict(node.meta)
                self._values.setdefault(node, placeholder)
        for i in self._part.inputs:
            if self._whole._flat[i] not in self._values:
                self._values[self._whole._flat[i]] = self._recomputed(self._whole._flat[i])

    def _recomputed(self, node: Node) -> Any:
        """A parameter of its own that a module inside is given, or a number that follows from sizes, of the arguments
        that have these."""
        if node in self._values:
            return self._values[node]
        if node in self._whole._lifted and self._whole._local(self._whole._lifted[node], self._part.path):
            return self._value(node)
        if node.op == "call_function" and node.target is torch.ops.aten.sym_size.int:
            wanted = node.meta.get("symbol", node)
            for known, value in list(self._values.items()):
                for dim, size in enumerate(known.meta.get("sizes", ())):
                    if size == wanted:
                        return self._graph.call_function(torch.ops.aten.sym_size.int, (value, dim))
        elif node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
            return self._graph.node_copy(node, self._recomputed)
        raise exc.NotYet(
            f"torch.export.unflatten: {self._part.path}, whose signature is kept, reads {node.name}, which is none of "
            "its arguments: export it without preserve_module_call_signature"
        )

    # -- what it does

    def _copy(self, node: Node) -> None:
        self._values[node] = self._graph.node_copy(node, self._value)
        program._keep_statistics(self._graph, self._values[node])

    def _value(self, node: Node) -> Any:
        if node in self._values:
            return self._values[node]
        if node.op == "get_attr":  # the graph of a region: of torch.cond
            name = str(node.target)
            return self._attribute(name, getattr(self._whole._parts.graph_module, name))
        name = self._whole._lifted[node]
        local = self._whole._local(name, self._part.path)
        if local is None:
            raise AssertionError(f"{name} is read in {self._part.path}")
        return self._attribute(local, self._whole._state[name])

    def _attribute(self, name: str, value: Any) -> Node:
        if name not in self._read:
            self._attributes[name] = value
            self._read[name] = self._graph.get_attr(name)
        return self._read[name]

    def _call(self, number: int) -> None:
        whole, part = self._whole, self._whole._nested[number]
        made = whole._module_of(number)
        name = part.path.removeprefix(f"{self._part.path}.") if self._part.path else part.path
        base, times = name, 0
        while self._attributes.get(name, made.module) is not made.module:
            times += 1
            name = f"{base}@{times}"
        self._attributes[name] = made.module
        outputs = [whole._flat[i] for i in part.outputs]
        signature = whole._signatures.get(part.key)
        if signature is not None:
            self._call_as_written(name, signature, outputs, part.path)
            return
        call = self._graph.call_module(name, tuple(self._value(whole._flat[i]) for i in part.inputs))
        for i, node in enumerate(outputs):
            self._values[node] = call if len(outputs) == 1 else self._graph.call_function(operator.getitem, (call, i))

    def _call_as_written(self, name: str, signature: ModuleCallSignature, outputs: Sequence[Node], path: str) -> None:
        leaves = iter([self._argument(argument) for argument in signature.inputs])
        args, kwargs = signature.in_spec.children()
        given = tuple(self._structure(child, leaves) for child in args.children())
        named = {
            key: self._structure(child, leaves) for key, child in zip(kwargs.context, kwargs.children(), strict=True)
        }
        call = self._graph.call_module(name, given, named)
        names = [getattr(argument, "name", "") for argument in signature.outputs]
        found = call
        if not signature.out_spec.is_leaf():
            found = self._graph.call_function(pytree.tree_leaves, (call,))
        for node in outputs:
            if node.name not in names:
                raise exc.NotYet(
                    f"torch.export.unflatten: {path}, whose signature is kept, changes or gives {node.name}, which is "
                    "none of its results: export it without preserve_module_call_signature"
                )
            self._values[node] = (
                found
                if signature.out_spec.is_leaf()
                else self._graph.call_function(operator.getitem, (found, names.index(node.name)))
            )

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, ConstantArgument):
            return argument.value
        return self._value(self._whole._by_name[argument.name])

    def _structure(self, spec: Any, leaves: Any) -> Any:
        """An argument of its leaves."""
        if spec.is_leaf():
            return next(leaves)
        if spec.type in (list, tuple, dict):
            return pytree.tree_unflatten([next(leaves) for _ in range(spec.num_leaves)], spec)
        given = [next(leaves) for _ in range(spec.num_leaves)]
        name = f"_spec_{len(self._attributes)}"
        return self._graph.call_function(pytree.tree_unflatten, (given, self._attribute(name, spec)))

    # -- what it gives

    def _give(self) -> None:
        whole = self._whole
        if self._part.parent < 0:
            results = [
                self._value(node) if isinstance(node, Node) and node not in whole._written else node
                for node in whole._results.args[0]  # type: ignore[union-attr]
            ]
            self._return(results)
        elif self._signature is not None:
            self._graph.output(tuple(self._argument(argument) for argument in self._signature.outputs))
        else:
            given = [self._value(whole._flat[i]) for i in self._part.outputs]
            self._graph.output(given[0] if len(given) == 1 else tuple(given))

    def _return(self, results: Any) -> None:
        """Without what modules write themselves."""
        whole = self._whole
        specs = whole._parts.signature.output_specs
        kept = [i for i, node in enumerate(whole._results.args[0]) if node not in whole._written]  # type: ignore[arg-type]
        signature = ExportGraphSignature(whole._parts.signature.input_specs, [specs[i] for i in kept])
        parts = whole._parts._replace(signature=signature)
        program._return(self._graph, parts, _Targets(self), [results[i] for i in kept])

    def _text(self) -> tuple[Any, ...]:
        """The graph without its names; modules that it calls, by identity."""
        numbers = {node: i for i, node in enumerate(self._graph.nodes)}
        rows: list[Any] = [self._signature is None]
        for node in self._graph.nodes:
            target = node.target if node.op in ("get_attr", "call_module", "call_function") else None
            held = id(self._attributes[str(target)]) if node.op in ("get_attr", "call_module") else 0
            operands = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: f"%{numbers[each]}")
            rows.append((node.op, str(target), held, repr(operands)))
        return tuple(rows)


class _Targets(Mapping[str, Any]):
    """The tensors that the program writes, by name."""

    def __init__(self, builder: _PartBuilder) -> None:
        self._builder = builder
        whole = builder._whole
        self._nodes = {name: node for node, name in whole._lifted.items()}
        self._nodes |= {
            node.name: node for node in whole._flat if node.op == "placeholder" and node not in whole._lifted
        }

    def __getitem__(self, name: str) -> Any:
        return self._builder._value(self._nodes[name])

    def __iter__(self) -> Any:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)
