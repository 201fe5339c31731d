"""torch.export.save and load of programs that Magneto exported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import torch
from torch.export import ExportGraphSignature
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from magneto import exc
from magneto._export import conditions, container, program, values

File = str | os.PathLike[str] | IO[bytes]


def save(ep: program.ExportedProgram, f: File, *, extra_files: dict[str, Any] | None = None) -> None:
    """torch.export.save.

    Args:
        ep: What to save.
        f: A path, or a file that is open for writing bytes.
        extra_files: Texts or bytes by name, kept beside it.
    """
    parts, tensors = ep._parts, container.Data()
    state: dict[str, Any] = {}
    for where in (parts.module_state, parts.state_dict, parts.constants):
        for name, value in where.items():
            state.setdefault(values.check_path(name), _tensor(value, name, tensors))
    data = {
        "graph": values.encode_graph(parts.graph_module),
        "inputs": [_input(spec) for spec in parts.signature.input_specs],
        "outputs": [_output(spec) for spec in parts.signature.output_specs],
        "tensors": state,
        "state_dict": list(parts.state_dict),
        "constants": list(parts.constants),
        "module_state": list(parts.module_state),
        "call": _call(parts),
        "modules": [_module(entry) for entry in parts.module_call_graph if entry.fqn],
        "examples": _examples(parts.example_inputs, tensors),
        "checks": _checks(parts.checks),
    }
    container.write(f, data, tensors, extra_files)


def load(f: File, *, extra_files: dict[str, Any] | None = None) -> program.ExportedProgram:
    """torch.export.load of what `save` wrote. Nothing in the file runs, and no module is imported.

    Args:
        f: A path, or a file that is open for reading bytes.
        extra_files: Its values become what the file has under these names.

    Raises:
        magneto.exc.InvalidProgram: The file is damaged, or of another version, or calls an operator that is missing.
    """
    data, storages, extra = container.read(f)
    for name in extra_files if extra_files is not None else ():
        extra_files[name] = extra.get(name, b"").decode("utf-8", "replace")  # type: ignore[index]
    try:
        return _Loader(data, storages).made()
    except exc.InvalidProgram:
        raise
    except container.DAMAGED as error:
        raise container.damaged(os.fspath(f) if isinstance(f, (str, os.PathLike)) else "the file", error) from None


# -- what a program is made of, as JSON


def _tensor(value: Any, name: str, tensors: container.Data) -> dict[str, Any]:
    row = tensors.place(value, name)
    if isinstance(value, torch.nn.Parameter):
        row["parameter"] = True
    return {**row, "requires_grad": value.requires_grad, "same": id(value)}


_NUMBERS = {"int": SymIntArgument, "float": SymFloatArgument}


def _argument(spec: Any) -> dict[str, Any]:
    if isinstance(spec, ConstantArgument):
        return {"name": spec.name, "value": values.encode(spec.value)}
    number = next((kind for kind, of in _NUMBERS.items() if isinstance(spec, of)), None)
    return {"name": spec.name, "number": number} if number else {"name": spec.name}


def _input(spec: InputSpec) -> dict[str, Any]:
    return {"kind": spec.kind.name, **_argument(spec.arg), "target": spec.target, "persistent": spec.persistent}


def _output(spec: OutputSpec) -> dict[str, Any]:
    return {"kind": spec.kind.name, **_argument(spec.arg), "target": spec.target}


def _call(parts: program.Parts) -> dict[str, Any]:
    signature = parts.module_call_graph[0].signature
    return {**_specs(signature), "arguments": list(signature.forward_arg_names or ())}


def _specs(signature: ModuleCallSignature) -> dict[str, Any]:
    return {"in_spec": values.encode_tree(signature.in_spec), "out_spec": values.encode_tree(signature.out_spec)}


def _module(entry: ModuleCallEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"path": values.check_path(entry.fqn)}
    if entry.signature is not None:
        row |= _specs(entry.signature)
        row["inputs"] = [_argument(each) for each in entry.signature.inputs]
        row["outputs"] = [_argument(each) for each in entry.signature.outputs]
    return row


def _examples(examples: Any, tensors: container.Data) -> list[Any]:
    return [
        {"tensor": _tensor(leaf, "an example input", tensors)}
        if isinstance(leaf, torch.Tensor)
        else values.encode(leaf)
        for leaf in pytree.tree_leaves(examples)
    ]


def _checks(checks: program.Checks) -> dict[str, Any]:
    return {
        "arguments": [
            {
                "name": each.name,
                "where": each.where,
                "sizes": None if each.sizes is None else list(each.sizes),
                "dtype": values.encode(each.dtype),
                "value": values.encode(each.value),
                "order": each.order,
            }
            for each in checks.leaves
        ],
        "asks_layout": checks.asks_layout,
        "ranges": {name: [each.lower, each.upper] for name, each in checks.ranges.items()},
        "conditions": list(checks.conditions),
    }


# -- and back


class _Loader:
    def __init__(self, data: Mapping[str, Any], storages: list[torch.UntypedStorage]) -> None:
        self._data, self._storages = data, storages
        self._made: dict[int, torch.Tensor] = {}  # parameters that are one object
        self._nodes: set[str] = set()

    def made(self) -> program.ExportedProgram:
        data = self._data
        tensors = {values.check_path(name): self._tensor(row) for name, row in data["tensors"].items()}
        graph_module = values.decode_graph(data["graph"])
        inputs = [self._input(row) for row in data["inputs"]]
        outputs = [self._output(row) for row in data["outputs"]]
        self._nodes = {node.name for node in graph_module.graph.nodes}
        names = [node.name for node in graph_module.graph.nodes if node.op == "placeholder"]
        if names != [spec.arg.name for spec in inputs]:
            raise ValueError("the graph's inputs are not those of its signature")
        in_spec, out_spec = (values.decode_tree(data["call"][which]) for which in ("in_spec", "out_spec"))
        call = ModuleCallSignature(
            inputs=[spec.arg for spec in inputs if spec.kind is InputKind.USER_INPUT],
            outputs=[spec.arg for spec in outputs if spec.kind is OutputKind.USER_OUTPUT],
            in_spec=in_spec,
            out_spec=out_spec,
            forward_arg_names=list(map(values.check_name, data["call"]["arguments"])),
        )
        examples = [
            self._tensor(leaf["tensor"])
            if isinstance(leaf, Mapping) and "tensor" in leaf
            else values.decode(leaf, values._none)
            for leaf in data["examples"]
        ]
        parts = program.Parts(
            graph_module=graph_module,
            signature=ExportGraphSignature(input_specs=inputs, output_specs=outputs),
            state_dict={name: tensors[name] for name in data["state_dict"]},
            constants={name: tensors[name] for name in data["constants"]},
            module_call_graph=[ModuleCallEntry(fqn="", signature=call), *map(self._module, data.get("modules", ()))],
            example_inputs=pytree.tree_unflatten(examples, in_spec),
            checks=self._checks(in_spec),
            module_state={name: tensors[name] for name in data["module_state"]},
        )
        return program.ExportedProgram(parts)

    def _tensor(self, row: Mapping[str, Any]) -> torch.Tensor:
        if row["same"] not in self._made:
            made = container.tensor_at(row, self._storages)
            if row.get("parameter"):
                made = torch.nn.Parameter(made, requires_grad=bool(row["requires_grad"]))
            elif row["requires_grad"]:
                made.requires_grad_()
            self._made[row["same"]] = made
        return self._made[row["same"]]

    @staticmethod
    def _argument(row: Mapping[str, Any]) -> Any:
        if "value" in row:
            return ConstantArgument(name=row["name"], value=values.decode(row["value"], values._none))
        kind = _NUMBERS[row["number"]] if "number" in row else TensorArgument
        return kind(name=values.check_name(row["name"]))

    def _module(self, row: Mapping[str, Any]) -> ModuleCallEntry:
        signature = None
        if "in_spec" in row:
            signature = ModuleCallSignature(
                inputs=[self._named(each) for each in row["inputs"]],
                outputs=[self._named(each) for each in row["outputs"]],
                in_spec=values.decode_tree(row["in_spec"]),
                out_spec=values.decode_tree(row["out_spec"]),
            )
        return ModuleCallEntry(values.check_path(row["path"]), signature)

    def _named(self, row: Mapping[str, Any]) -> Any:
        argument = self._argument(row)
        if "value" not in row and argument.name not in self._nodes:
            raise ValueError(f"there is no node {argument.name!r}")
        return argument

    def _input(self, row: Mapping[str, Any]) -> InputSpec:
        target = None if row["target"] is None else values.check_path(row["target"])
        return InputSpec(InputKind[row["kind"]], self._argument(row), target, persistent=row["persistent"])

    def _output(self, row: Mapping[str, Any]) -> OutputSpec:
        target = None if row["target"] is None else values.check_path(row["target"])
        return OutputSpec(OutputKind[row["kind"]], self._argument(row), target)

    def _checks(self, in_spec: Any) -> program.Checks:
        checks = self._data["checks"]
        leaves = [
            program.Expected(
                values.check_name(row["name"]),
                str(row["where"]),
                None if row["sizes"] is None else tuple(row["sizes"]),
                values.decode(row["dtype"], values._none),
                values.decode(row["value"], values._none),
                None if row["order"] is None else _order(row["order"], row["sizes"]),
            )
            for row in checks["arguments"]
        ]
        ranges = {name: program.Range(low, high) for name, (low, high) in checks["ranges"].items()}
        texts = [conditions.check(text) for text in checks["conditions"]]
        return program.Checks(in_spec, leaves, ranges, texts, bool(checks["asks_layout"]))


def _order(dims: Any, sizes: Any) -> tuple[int, ...]:
    if sorted(dims) != list(range(len(sizes))):
        raise ValueError(f"the order of dimensions {dims!r}")
    return tuple(dims)
