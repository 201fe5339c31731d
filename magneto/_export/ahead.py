"""magneto.aot_compile: a call of a module as one file, from which it runs without capture and without compiling."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

import magneto
from magneto import _C, _files, exc
from magneto._export import arguments, capture, container, program, values

_MAGIC, _VERSION = b"magneto aot".ljust(16, b"\0"), 1
_PAGE = 4096

# Numbers of c10::ScalarType, in which 8 is complex of halves and 12 to 14 are quantised.
_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.And: "and",
    ast.Or: "or",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


def aot_compile(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    path: str | os.PathLike[str],
) -> str:
    """See magneto.aot_compile."""
    capture.check_arguments(model, args, kwargs, ())
    with torch.no_grad():
        assembly = capture.assemble(model, args, dict(kwargs or {}), dynamic_shapes, ahead=True)
        manifest = _Manifest(assembly, assembly.build())
    content = [part.encode() if isinstance(part, str) else part for part in manifest.parts()]
    try:
        _files.write_whole(Path(path), lambda out: _write(out, content, manifest.tensors))
    except OSError as error:
        raise container.unwritable(path, error) from None
    return os.fspath(path)


def compile_exported(exported: program.ExportedProgram, path: Any) -> str:
    """The program of torch.export.export, for the sizes that it is for."""
    checks, module = exported._parts.checks, exported.module(check_guards=False)
    if path is None:
        path = os.path.join(tempfile.mkdtemp(prefix="magneto"), "model.pt2")
    symbols = {
        name: torch.export.Dim(name, min=each.lower, max=each.upper)  # type: ignore[arg-type]
        for name, each in checks.ranges.items()
    }
    dimensions = [
        None if leaf.sizes is None else {i: symbols[size] for i, size in enumerate(leaf.sizes) if size in symbols}
        for leaf in checks.leaves
    ]
    shapes, keywords = pytree.tree_unflatten(dimensions, checks.in_spec)
    args, kwargs = exported.example_inputs  # type: ignore[misc]
    dynamic = [*shapes, *keywords.values()] if symbols else None
    return aot_compile(module, args, kwargs, dynamic, path=path)


def _write(out: Any, parts: list[bytes], tensors: container.Data) -> None:
    head = len(_MAGIC) + 8 * (1 + 2 * (len(parts) + 1)) + 32
    numbers, place = [_VERSION], head
    for part in parts:
        numbers += [place, len(part)]
        place += len(part)
    data = -(-place // _PAGE) * _PAGE
    numbers += [data, tensors.end()]
    begin = _MAGIC + struct.pack(f"<{len(numbers)}Q", *numbers)
    checksum = hashlib.blake2b(b"".join([begin, *parts]), digest_size=32).digest()
    out.write(b"".join([begin, checksum, *parts, bytes(data - place)]))
    tensors.write(out)


def _refuse(why: str) -> exc.NotYet:
    return exc.NotYet(f"magneto.aot_compile: {why}")


class _Manifest:
    """The lines of src/aot/manifest.h."""

    def __init__(self, assembly: capture.Assembly, exported: program.ExportedProgram) -> None:
        self.tensors = container.Data()
        self._captured, self._assembly = assembly.captured, assembly
        self._parts = exported._parts
        if self._captured.ahead is None:
            raise _refuse("the program computes nothing")
        self._program, self._kernels, operators = self._captured.ahead
        _refuse_python(operators)
        leaves = self._parts.checks.leaves
        self._arguments = {leaf.name: i for i, leaf in enumerate([leaf for leaf in leaves if leaf.sizes is not None])}
        specs = [spec for spec in self._parts.signature.input_specs if spec.kind is InputKind.USER_INPUT]
        tensors = [spec.arg.name for spec, leaf in zip(specs, leaves, strict=True) if leaf.sizes is not None]
        self._nodes = {name: i for i, name in enumerate(tensors)}
        self._states: dict[int, int] = {}
        self._state_lines: list[str] = []

    def parts(self) -> tuple[str, bytes, bytes, str]:
        """Manifest, program, kernels, and what Python keeps."""
        return "\n".join([*self._lines(), ""]), self._program, self._kernels, json.dumps(self._text())

    def _lines(self) -> Iterator[str]:
        yield f"made_by torch {torch.__version__}, Magneto {magneto.__version__}"
        layout, machine = _C.aot_layout()
        yield f"layout {layout}"
        yield f"machine {machine}"
        yield f"torch {_C.torch_version}"
        checks = self._parts.checks
        symbols = {name: i for i, name in enumerate(checks.ranges)}
        for each in checks.ranges.values():
            yield f"symbol {each.lower} {-1 if each.upper is None else each.upper}"
        for leaf in checks.leaves:
            if leaf.sizes is not None:
                sizes = [size if isinstance(size, int) else f"s{symbols[size]}" for size in leaf.sizes]
                yield " ".join(map(str, ["argument", _dtype(leaf.dtype), len(sizes), *sizes, leaf.where]))
        for condition in [part for whole in checks.conditions for part in whole.split(" and ")]:
            if ".stride()" not in condition:  # the program copies what has others
                yield f"condition {' '.join(self._postfix(ast.parse(condition, mode='eval').body))} # {condition}"
        inputs = [
            self._place(value, f"the number {name} beside a tensor, where sizes vary")
            for value, name in zip(self._captured.inputs, self._captured.names, strict=True)
        ]
        results = list(self._results())
        place = 0
        for size in self.tensors.sizes():
            yield f"storage {place} {size}"
            place += container.aligned(size)
        yield from self._state_lines
        yield from (f"input {each}" for each in inputs)
        yield from (f"written {position}" for position in self._captured.writes)
        yield from (f"result {each}" for each in results)

    def _place(self, value: Any, what: str) -> str:
        """Where an input, or a result that is one, is found."""
        home = self._assembly.home_of(value)
        if home is None:
            raise _refuse(f"{what} is not supported yet")
        node, spec = home
        if spec.kind is InputKind.USER_INPUT:
            return f"argument {self._nodes[node.name]}"
        if id(value) not in self._states:
            self._states[id(value)] = len(self._states)
            row = self.tensors.place(value, str(spec.target))
            geometry = [row["offset"], len(row["shape"]), *row["shape"], *row["stride"]]
            grad = int(value.requires_grad)
            line = ["tensor", _dtype(value.dtype), grad, row["storage"], *geometry, values.check_path(spec.target)]
            self._state_lines.append(" ".join(map(str, line)))
        return f"tensor {self._states[id(value)]}"

    def _results(self) -> Iterator[str]:
        outputs = {id(sign): i for i, sign in enumerate(self._captured.outputs)}
        for leaf in pytree.tree_leaves(self._captured.result):
            if id(leaf) in outputs:
                yield f"output {outputs[id(leaf)]}"
            elif isinstance(leaf, torch.Tensor):
                yield self._place(leaf, "a result that the program does not compute")

    def _postfix(self, node: ast.expr) -> Iterator[str]:
        """A condition as words, operands first."""
        match node:
            case ast.Constant(value=bool() | int() as value):
                yield str(int(value))
            case ast.BoolOp(op=op, values=[first, *others]):
                yield from self._joined(op, first, others)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for i, (compares, right) in enumerate(zip(ops, comparators, strict=True)):
                    yield from self._joined(compares, left, [right])
                    if i:
                        yield "and"
                    left = right
            case ast.BinOp(left=left, op=op, right=right):
                yield from self._joined(op, left, [right])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._postfix(operand)
                yield "not"
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield "0"
                yield from self._postfix(operand)
                yield "-"
            case _:
                size = arguments.SIZE.fullmatch(ast.unparse(node))
                if size is None:
                    raise _refuse(f"the condition {ast.unparse(node)} on sizes is not supported yet")
                yield f"a{self._arguments[size[1]]}.{size[2]}"

    def _joined(self, op: ast.AST, first: ast.expr, others: list[ast.expr]) -> Iterator[str]:
        if type(op) not in _OPERATORS:
            raise _refuse(f"the condition {ast.unparse(first)} {op} on sizes is not supported yet")
        yield from self._postfix(first)
        for other in others:
            yield from self._postfix(other)
            yield _OPERATORS[type(op)]

    def _text(self) -> dict[str, Any]:
        signature = self._parts.module_call_graph[0].signature
        outputs = [spec for spec in self._parts.signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
        return {
            "in_spec": values.encode_tree(signature.in_spec),
            "out_spec": values.encode_tree(signature.out_spec),
            "arguments": [
                {"where": leaf.where, **({"value": values.encode(leaf.value)} if leaf.sizes is None else {})}
                for leaf in self._parts.checks.leaves
            ],
            "results": [
                {"value": values.encode(spec.arg.value)} if hasattr(spec.arg, "value") else {} for spec in outputs
            ],
        }


def _dtype(dtype: torch.dtype | None) -> int:
    if dtype not in _DTYPES:
        raise _refuse(f"a tensor of {dtype} is not supported yet")
    return _DTYPES[dtype]


def _refuse_python(operators: list[str]) -> None:
    """Kernels that are functions in Python have none in C++. Meta kernels only tell shapes: they are not called."""
    known: set[str] = getattr(torch.library, "_impls", set())
    written = [each for each in known if not each.endswith("/Meta")]
    for name in operators:
        namespace, _, own = name.partition("::")
        starts = (f"{namespace}/{own}/", f"{namespace}/{own}.")
        if namespace not in ("aten", "prims", "magneto") and any(each.startswith(starts) for each in written):
            raise _refuse(f"the operator {name} is written in Python, and a file runs without: write it in C++")
