"""The ExportedProgram that Magneto's export gives: PyTorch's class, with its own `module()`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram as TorchProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputKind
from torch.utils import _pytree as pytree

from magneto import exc
from magneto._export import conditions, layouts

_BATCH_NORMS = (
    torch.ops.aten._native_batch_norm_legit_functional.default,
    torch.ops.aten._batch_norm_with_update_functional.default,
)


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a size, or a number that data says, may have."""

    lower: int | None  # None: any
    upper: int | None

    def __repr__(self) -> str:
        low, high = self.lower, self.upper
        return f"VR[{'-int_oo' if low is None else low}, {'int_oo' if high is None else high}]"


class Expected(NamedTuple):
    """What a leaf of the arguments must be: a tensor with these sizes (of each, a number or a symbol), an int that is
    a symbol, without a dtype, or a value."""

    name: str
    where: str
    sizes: tuple[int | str, ...] | None
    dtype: torch.dtype | None
    value: Any
    order: tuple[int, ...] | None = None  # in which its dimensions lie in memory; None: as they please


class Checks(NamedTuple):
    """What `module()` checks of its arguments."""

    in_spec: Any
    leaves: list[Expected]
    ranges: dict[str, Range]
    conditions: Sequence[str]  # on sizes, in Python: `L['x'].size()[0] % 2 == 0`
    asks_layout: bool = False  # the program itself: arguments lie as they must, and are not copied

    def questions(self) -> list[tuple[str, Callable[[Any], bool]]]:
        """See magneto._export.conditions."""
        return conditions.questions(self.conditions)

    def flat(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        questions: Sequence[tuple[str, Callable[[Any], bool]]] | None = None,
    ) -> list[Any]:
        """The leaves; raises where they are not what was exported for."""
        names = list(self.in_spec.children()[1].context)
        ordered = {name: kwargs[name] for name in names if name in kwargs}
        ordered.update(kwargs)
        leaves, spec = pytree.tree_flatten((args, ordered))
        if spec != self.in_spec:
            raise ValueError(
                "Trying to flatten user inputs with exported input tree spec: \n"
                f"{self.in_spec}\nbut actually got inputs with tree spec of: \n{spec}"
            )
        sizes: dict[str, tuple[int, str]] = {}
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            self._check(leaf, expected, sizes)
        tensors = {
            expected.name: _Int(leaf) if type(leaf) is int else leaf
            for leaf, expected in zip(leaves, self.leaves, strict=True)
        }
        for text, holds in self.questions() if questions is None else questions:
            if not holds(tensors):
                raise RuntimeError(f"Guard failed: {text}: the program was exported for such sizes")
        return leaves

    def laid_out(self, leaves: Sequence[Any], written: Collection[str]) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """The leaves, as the graph needs them in memory; and of copies of what it writes: (copy, leaf)."""
        given: list[Any] = []
        copies = []
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            given.append(leaf)
            if expected.order is None:
                continue
            given[-1] = layouts.as_example(leaf, expected.order, self.asks_layout, expected.where)
            if given[-1] is not leaf and expected.name in written:
                copies.append((given[-1], leaf))
        return given, copies

    def _check(self, leaf: Any, expected: Expected, sizes: dict[str, tuple[int, str]]) -> None:
        where = expected.where
        if expected.sizes is None:
            if type(leaf) is not type(expected.value) or leaf != expected.value:
                raise RuntimeError(f"Expected input at {where} to be equal to {expected.value!r}, but got {leaf!r}")
            return
        if expected.dtype is None:
            if type(leaf) is not int:
                raise RuntimeError(f"Expected input at {where} to be an int, but got {type(leaf).__name__}")
            self._check_size(leaf, expected.sizes[0], where, sizes)
            return
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"Expected input at {where} to be a tensor, but got {type(leaf).__name__}")
        if leaf.dtype != expected.dtype:
            raise RuntimeError(f"Expected input at {where} to have dtype {expected.dtype}, but got {leaf.dtype}")
        if leaf.dim() != len(expected.sizes):
            raise RuntimeError(f"Expected input at {where} to have {len(expected.sizes)} dimensions, got {leaf.dim()}")
        for dim, (size, wanted) in enumerate(zip(leaf.shape, expected.sizes, strict=True)):
            self._check_size(size, wanted, f"{where}.shape[{dim}]", sizes)

    def _check_size(self, size: int, wanted: int | str, place: str, sizes: dict[str, tuple[int, str]]) -> None:
        if isinstance(wanted, int):
            if size != wanted:
                raise RuntimeError(f"Expected input at {place} to be equal to {wanted}, but got {size}")
            return
        low, high = self.ranges[wanted].lower, self.ranges[wanted].upper
        if low is not None and size < low:
            raise RuntimeError(f"Expected input at {place} to be >= {low}, but got {size}")
        if high is not None and size > high:
            raise RuntimeError(f"Expected input at {place} to be <= {high}, but got {size}")
        first, there = sizes.setdefault(wanted, (size, place))
        if first != size:
            raise RuntimeError(f"Expected input at {place} to be equal to {there}, which is {first}, but got {size}")


class _Int(NamedTuple):
    """An argument that is an int, where conditions read it as a size."""

    value: int

    def size(self) -> tuple[int]:
        return (self.value,)

    def stride(self) -> tuple[int]:
        return (0,)


class Parts(NamedTuple):
    """What a program is made of."""

    graph_module: torch.fx.GraphModule
    signature: ExportGraphSignature
    state_dict: dict[str, Any]
    constants: dict[str, Any]
    module_call_graph: list[Any]
    example_inputs: Any
    checks: Checks
    module_state: dict[str, Any]  # parameters and buffers by name, also those that share memory


class ExportedProgram(TorchProgram):
    """PyTorch's ExportedProgram, made by Magneto's capture. What PyTorch's own methods would trace anew is here."""

    def __init__(self, parts: Parts) -> None:
        self._graph_module = parts.graph_module
        self._graph_signature = parts.signature
        self._state_dict = parts.state_dict
        self._range_constraints: Any = dict(parts.checks.ranges)
        self._module_call_graph = parts.module_call_graph
        self._example_inputs = parts.example_inputs
        self._constants = parts.constants
        self._verifiers = [_Dialect]  # type: ignore[list-item]
        self._guards_code = []
        self._parts = parts
        self._report: Any = None  # of draft_export

    def __str__(self) -> str:
        code = self.graph_module.code.strip().replace("\n", "\n        ")
        signature = str(self.graph_signature).replace("\n", "\n    ")
        text = (
            f"ExportedProgram:\n    class GraphModule(torch.nn.Module):\n        {code}\n"
            f"Graph signature: {signature}\nRange constraints: {self.range_constraints}\n"
        )
        return "\n".join(line.rstrip() for line in text.split("\n"))

    def validate(self) -> None:
        """The graph is sound: torch.fx's check."""
        self.graph.lint()

    _validate = validate  # type: ignore[assignment, misc]

    def _check_input_constraints(self, flat_args_with_path: Any) -> None:
        args, kwargs = pytree.tree_unflatten([leaf for _, leaf in flat_args_with_path], self._parts.checks.in_spec)
        self._parts.checks.flat(args, kwargs)

    def checked(self) -> set[str]:
        """What `module()` checks of tensors among its arguments."""
        checks = self._parts.checks
        sizes = {
            f"L[{each.name!r}].size()[{dim}] == {size}"
            for each in checks.leaves
            for dim, size in enumerate(each.sizes or ())
            if isinstance(size, int)
        }
        return sizes | {part for condition in checks.conditions for part in condition.split(" and ")}

    def module(self, check_guards: bool = True) -> torch.fx.GraphModule:
        """A module that runs the graph, with the program's parameters and buffers.

        Args:
            check_guards: Whether arguments are checked against what was exported for.
        """
        return _unlifted(self._parts, check_guards)

    def run_decompositions(self, decomp_table: Any = None, decompose_custom_triton_ops: bool = False) -> Any:
        """The operators of the table replaced by what its functions make of them, until none is left.

        Args:
            decomp_table: From operators to functions of their arguments. With {} the graph stays as it is: it has no
                composite operators and no writes. None: torch.export.default_decompositions().
            decompose_custom_triton_ops: Must be False.
        """
        from magneto._export import decomposed

        if decomp_table is None:
            decomp_table = torch.export.default_decompositions()
        if decompose_custom_triton_ops:
            raise exc.NotYet("ExportedProgram.run_decompositions(decompose_custom_triton_ops=True)")
        if not len(decomp_table):
            return ExportedProgram(self._parts)
        return decomposed.decomposed(copy.copy(self._parts), dict(decomp_table.items()))

    def _transform_do_not_use(self, *passes: Any) -> Any:
        raise exc.NotYet("ExportedProgram._transform_do_not_use: change `graph_module` by torch.fx")

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        raise exc.NotYet("ExportedProgram._update: change `graph_module` by torch.fx")

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
        return ExportedProgram(copy.deepcopy(self._parts, memo))

    def __reduce__(self) -> Any:
        raise exc.NotYet("pickling an exported program: torch.export.save(program, path) writes it without pickle")


class _Dialect:
    dialect = "ATEN"


# -- the program as a module


def _unlifted(parts: Parts, check: bool, further: Sequence[str] = ()) -> torch.fx.GraphModule:
    """Parameters, buffers and constants become attributes; writes are made at the end. `further`: names of nodes that
    are results, too."""
    graph = torch.fx.Graph()
    attributes: dict[str, Any] = {}
    made: dict[Any, Any] = {}
    by_target: dict[str, Any] = {}
    specs = iter(parts.signature.input_specs)
    held: dict[int, str] = {}
    lifted: list[tuple[Any, Any]] = []
    for node in parts.graph_module.graph.nodes:
        if node.op == "placeholder":
            spec = next(specs)
            if spec.kind is InputKind.USER_INPUT:
                made[node] = graph.node_copy(node)
                by_target[node.name] = made[node]
            else:
                lifted.append((node, spec))
            continue
        for placeholder, spec in lifted:
            where = str(spec.target)
            value = parts.module_state.get(where, parts.constants.get(where))
            where = held.setdefault(id(value), where)
            attributes[where] = value
            made[placeholder] = graph.get_attr(where)
            by_target[str(spec.target)] = made[placeholder]
        lifted = []
        if node.op == "get_attr":  # the graph of a region: of torch.cond
            attributes[str(node.target)] = getattr(parts.graph_module, str(node.target))
        if node.op == "output":
            named = {old.name: new for old, new in made.items()}
            results = torch.fx.node.map_arg(node.args[0], made.__getitem__)
            _return(graph, parts, by_target, results, [named[name] for name in further])
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            _keep_statistics(graph, made[node])
    module = _Module(_root(attributes, parts), graph)
    module._checks = parts.checks if check else None  # type: ignore[assignment]
    module._questions = parts.checks.questions()  # type: ignore[assignment]
    module._written = written_arguments(parts.signature)  # type: ignore[assignment]
    module._out_spec = parts.module_call_graph[0].signature.out_spec
    return module


def call(run: Callable[..., Any], leaves: Sequence[Any], checks: Checks, written: Collection[str]) -> Any:
    """The results of the graph: of a copy that stands for an argument that is written, the argument."""
    given, copies = checks.laid_out(leaves, written)
    results = run(*given)
    for copied, leaf in copies:
        leaf.copy_(copied)
        results = tuple(leaf if each is copied else each for each in results)
    return results


def written_arguments(signature: ExportGraphSignature) -> frozenset[str]:
    """The names of those that the program writes."""
    return frozenset(str(spec.target) for spec in signature.output_specs if spec.kind is OutputKind.USER_INPUT_MUTATION)


def _keep_statistics(graph: torch.fx.Graph, node: Any) -> None:
    """A batch norm keeps the statistics that it is given for its backward, which are written before that runs."""
    if node.target not in _BATCH_NORMS:
        return
    with graph.inserting_before(node):
        for index in (3, 4):
            node.update_arg(index, graph.call_function(torch.ops.aten.clone.default, (node.args[index],)))


def _return(
    graph: torch.fx.Graph, parts: Parts, by_target: Mapping[str, Any], results: Any, further: Sequence[Any] = ()
) -> None:
    returned = []
    for result, spec in zip(results, parts.signature.output_specs, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            returned.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else result)
    written = [
        (result, spec)
        for result, spec in zip(results, parts.signature.output_specs, strict=True)
        if spec.kind is not OutputKind.USER_OUTPUT
    ]
    for result, spec in written:
        target = by_target[str(spec.target)]
        copied = graph.call_function(torch.ops.aten.copy_.default, (target, result))
        returned = [copied if each is result else each for each in returned]
    graph.output((*returned, *further))


def _root(attributes: dict[str, Any], parts: Parts) -> torch.nn.Module:
    root = torch.nn.Module()
    persistent = {spec.target: spec.persistent for spec in parts.signature.input_specs}
    for name, value in attributes.items():
        *path, last = name.split(".")
        owner = root
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        if isinstance(value, torch.nn.Module):
            owner.add_module(last, value)
        elif isinstance(value, torch.nn.Parameter):
            owner.register_parameter(last, value)
        else:
            owner.register_buffer(
                last, value, persistent=persistent.get(name) is not False and name in parts.state_dict
            )
    return root


class _Module(torch.fx.GraphModule):
    """What `ExportedProgram.module()` gives."""

    _checks: Checks | None = None
    _questions: Sequence[tuple[str, Callable[[Any], bool]]] = ()
    _written: Collection[str] = ()
    _out_spec: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = super().__call__
        if self._checks is None:
            return pytree.tree_unflatten(run(*pytree.tree_leaves((args, kwargs))), self._out_spec)
        leaves = self._checks.flat(args, kwargs, self._questions)
        return pytree.tree_unflatten(call(run, leaves, self._checks, self._written), self._out_spec)

    def train(self, mode: bool = True) -> Any:
        """The graph is that of one mode."""
        raise NotImplementedError("Calling train() is not supported yet.")

    def eval(self) -> Any:
        """Likewise."""
        raise NotImplementedError("Calling eval() is not supported yet.")
