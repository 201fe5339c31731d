"""ExportedProgram.run_decompositions: a program, captured again with other operators."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportGraphSignature
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from magneto._export import calls, capture, origins, program


def decomposed(parts: program.Parts, table: Mapping[Any, Any]) -> program.ExportedProgram:
    """The program, captured again with the operators of the table replaced. Its inputs are as they were."""
    kept = _computed(parts)
    run = program._unlifted(parts, check=False, further=kept)
    flat = torch.fx.GraphModule(run, run.graph)  # of the leaves
    _check_as_written(flat)
    leaves = tuple(pytree.tree_leaves(parts.example_inputs))
    assembly = capture.assemble(flat, leaves, {}, _dims(parts.checks), decompositions=table)
    made = assembly.build()._parts
    origins.copy(parts.graph_module, flat, assembly.places)
    renamed = _without_further(made, kept)
    _without_copies(made)
    graph_module, named = _with_inputs(made, parts.signature.input_specs)
    for result in made.signature.output_specs:
        result.arg.name = named.get(result.arg.name, result.arg.name)
        if result.kind is OutputKind.USER_INPUT_MUTATION:
            result.target = named.get(str(result.target), result.target)
    signature = ExportGraphSignature(list(parts.signature.input_specs), list(made.signature.output_specs))
    expected = [
        old._replace(sizes=new.sizes, order=new.order if old.order is None else old.order)
        for old, new in zip(parts.checks.leaves, made.checks.leaves, strict=True)
    ]
    conditions = [*dict.fromkeys([*parts.checks.conditions, *made.checks.conditions])]
    checks = program.Checks(parts.checks.in_spec, expected, made.checks.ranges, conditions, parts.checks.asks_layout)
    called_modules = copy.deepcopy(parts.module_call_graph)
    for entry in called_modules:
        for argument in (*entry.signature.inputs, *entry.signature.outputs) if entry.fqn and entry.signature else ():
            name = renamed.get(argument.name, argument.name)
            argument.name = named.get(name, name)
    called_modules[0].signature.outputs = [
        spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
    ]
    return program.ExportedProgram(
        parts._replace(graph_module=graph_module, signature=signature, checks=checks, module_call_graph=called_modules)
    )


def _check_as_written(flat: torch.fx.GraphModule) -> None:
    """What is checked of data-dependent numbers, as a program says it: so it is known from there on."""
    for node in flat.graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            node.target, node.args = torch._check, node.args[:1]
    flat.recompile()


def _computed(parts: program.Parts) -> list[str]:
    """What signatures of modules name among the nodes that are captured again."""
    again = {node.name for node in parts.graph_module.graph.nodes if node.op == "call_function"}
    signatures = [each.signature for each in parts.module_call_graph if each.fqn and each.signature is not None]
    return [name for name in calls.named_nodes(signatures) if name in again]


def _without_further(made: program.Parts, names: Sequence[str]) -> dict[str, str]:
    """The program without results that were asked for by name; the names that they have now."""
    if not names:
        return {}
    (output,) = (node for node in made.graph_module.graph.nodes if node.op == "output")
    results = output.args[0]
    output.args = (results[: -len(names)],)
    del made.signature.output_specs[-len(names) :]
    return {name: node.name for name, node in zip(names, results[-len(names) :], strict=True)}


def _with_inputs(made: program.Parts, specs: Sequence[Any]) -> tuple[torch.fx.GraphModule, dict[str, str]]:
    """The graph with the inputs that the specs say, in order and by name; and how its nodes are called, by old name."""
    old = made.graph_module.graph
    nodes = {node.name: node for node in old.nodes if node.op == "placeholder"}
    own = {str(spec.target): nodes[spec.arg.name] for spec in made.signature.input_specs if spec.target is not None}
    given = [nodes[spec.arg.name] for spec in made.signature.input_specs if spec.target is None]
    graph = torch.fx.Graph()
    placed: dict[torch.fx.Node, torch.fx.Node] = {}
    for spec in specs:
        node = given.pop(0) if spec.kind is InputKind.USER_INPUT else own.get(str(spec.target))
        placeholder = graph.placeholder(spec.arg.name)
        if node is not None:
            placeholder.meta = node.meta
            placed[node] = placeholder
    for node in old.nodes:
        if node not in placed:
            placed[node] = graph.node_copy(node, placed.__getitem__)
    return torch.fx.GraphModule(made.graph_module, graph), {before.name: now.name for before, now in placed.items()}


def _without_copies(made: program.Parts) -> None:
    """What the program writes at its end are no copies of it: who runs it writes."""
    for spec in made.signature.output_specs:
        node = next(each for each in made.graph_module.graph.nodes if each.name == spec.arg.name or each.op == "output")
        if spec.kind is OutputKind.USER_OUTPUT or node.target is not torch.ops.aten.copy.default:
            continue
        to, source = node.args[:2]
        if _form(to) != _form(source):
            continue
        node.replace_all_uses_with(source)
        made.graph_module.graph.erase_node(node)
        for each in made.signature.output_specs:
            if each.arg.name == spec.arg.name and each is not spec:
                each.arg.name = source.name
        spec.arg.name = source.name


def _form(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    return (value.dtype, value.shape) if isinstance(value, torch.Tensor) else node


def _dims(checks: program.Checks) -> tuple[Any, ...]:
    """dynamic_shapes of the program's leaves."""
    known = {name: torch.export.Dim(name, min=each.lower, max=each.upper) for name, each in checks.ranges.items()}
    dims = [
        {dim: known[size] for dim, size in enumerate(leaf.sizes or ()) if isinstance(size, str)}
        for leaf in checks.leaves
    ]
    return tuple(of[0] if of and leaf.dtype is None else of for of, leaf in zip(dims, checks.leaves, strict=True))
