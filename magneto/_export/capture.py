"""A call as an exported program: the function that is captured, and what the core's graph becomes."""

from __future__ import annotations

import ast
import functools
import itertools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportGraphSignature
from torch.export.exported_program import ModuleCallSignature
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

from magneto import _C, _aot, _api, _arguments, config, exc
from magneto._export import arguments, called, calls, conditions, layouts, numbers, program
from magneto._export.called import not_yet

Node = torch.fx.Node

_UNBOUNDED = 1 << 62
_SYMBOL = re.compile(r"[su]\d+")

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def check_arguments(mod: Any, args: Any, kwargs: Any, preserved: Any) -> None:
    """Raises for what can't be exported at all."""
    if not callable(mod) or isinstance(mod, type):
        raise exc.InvalidValue(f"torch.export.export takes a module or a function, not {mod!r}")
    if not isinstance(args, tuple):
        raise exc.InvalidValue(
            f"torch.export.export: the example arguments are a tuple, (x,), not a {type(args).__name__}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise exc.InvalidValue(f"torch.export.export: kwargs is a dict, not a {type(kwargs).__name__}")
    if isinstance(mod, torch.jit.ScriptModule):
        raise not_yet("a TorchScript module")
    calls.Notes(_api._original(mod), preserved)  # the modules are known


def export(
    mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any, preserved: Sequence[str] = ()
) -> program.ExportedProgram:
    """See magneto._export.export."""
    assembly = assemble(mod, args, kwargs, dynamic_shapes, preserved=preserved)
    if assembly.captured.violated:
        raise exc.ConstraintViolation(assembly.captured.violated)
    return assembly.build()


def assemble(
    mod: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    ahead: bool = False,
    decompositions: Mapping[Any, Any] | None = None,
    preserved: Sequence[str] = (),
    drafts: bool = False,
) -> Assembly:
    """Captures the call. `ahead`: and compiles it for a file. `drafts`: what it asks of data is as in this call."""
    target = _api._original(mod)
    function = target.forward if isinstance(target, torch.nn.Module) else target
    names = arguments.parameter_names(function, len(args))
    leaves = arguments.leaves_of(names, args, kwargs)
    for leaf in leaves:
        if not isinstance(leaf.value, (torch.Tensor, int, float, bool, str, type(None))):
            raise not_yet(f"{leaf.where}, an object of type {type(leaf.value).__name__}")
    if hasattr(dynamic_shapes, "dynamic_shapes"):  # ShapesCollection, AdditionalInputs
        dynamic_shapes = dynamic_shapes.dynamic_shapes(target, args, kwargs)
    sizes = arguments.sizes_of(arguments.by_names(function, dynamic_shapes, names), names, leaves, args, kwargs)
    in_spec = pytree.tree_flatten((args, kwargs))[1]
    backend = functools.partial(_Captured, ahead, decompositions, target, drafts)
    notes = calls.Notes(target, preserved)
    given, leaves = leaves, arguments.with_sizes(leaves, sizes)
    while True:
        try:
            captured = _capture(target, leaves, in_spec, sizes, backend(), notes)
            break
        except exc.ConstraintViolation as violation:  # of a size that is Dim.AUTO: it is the example's
            place = arguments.SIZE.match(str(violation))
            without = sizes.without((place[1], int(place[2]))) if place else None
            if without is None:
                raise arguments.of_constant(violation, sizes) from None
            sizes = without
            leaves = arguments.with_sizes(given, sizes)
    results, out_spec = pytree.tree_flatten(captured.result)
    numeric = [i for i, result in enumerate(results) if type(result) in (int, float)]
    held = (len(results), numeric)
    if (numeric or captured.empty) and sizes.by_dimension() and not ahead:  # sizes may have said them
        captured = _capture(target, leaves, in_spec, sizes, backend(), notes, held)
        results = captured.result
    noted = notes.calls()
    return Assembly(target, captured, leaves, sizes, in_spec, (args, kwargs), results, out_spec, set(numeric), noted)


# -- capture


class _Captured(_aot.Compilers):
    """The backend that takes the graph. The computation that it gives makes empty tensors, each a result's sign."""

    exports = True

    def __init__(
        self, wants_program: bool, decompositions: Mapping[Any, Any] | None, target: Any, drafts: bool
    ) -> None:
        super().__init__(_aot.nop, decompositions=decompositions)
        self.wants_program, self.drafts = wants_program, drafts
        self.drafted: list[Any] = []  # what a draft assumes: kind, question, answer, explanation, hint, file, line, ...
        self.modules = calls.paths_of(target)
        self.named_sizes: list[tuple[str, int, str, int | None, int | None]] = []
        self.violated = ""  # what the program asks of them beyond what was said
        self.ahead: tuple[bytes, bytes, list[str]] | None = None
        self.module: Any = None
        self.empty = False
        self.inputs: list[Any] = []
        self.names: list[str] = []
        self.writes: list[int] = []
        self.symbols: list[tuple[str, int, int, int, int | None, int]] = []
        self.found: list[tuple[str, int | None, int | None]] = []  # sizes and numbers of data: name, least, most
        self.conditions: list[str] = []  # on sizes
        self.assumed: list[str] = []  # of symbols, by decompositions
        self.outputs: list[torch.Tensor] = []
        self.result: Any = None

    def take_program(self, program: bytes, kernels: bytes, operators: list[str]) -> None:
        """Likewise, before that: the packed program, its kernels' code, the operators that it calls."""
        if self.ahead is not None:
            raise not_yet("a program with several graphs")
        self.ahead = program, kernels, operators

    def export(
        self,
        module: Any,
        inputs: list[Any],
        names: list[str],
        writes: list[int],
        symbols: list[Any],
        found: list[Any],
        assumed: list[str],
        guards: str,
        violated: str,
        drafted: list[Any],
    ) -> Callable[..., Any]:
        """src/compiler/export.cpp calls it."""
        if self.module is not None:
            raise not_yet("a program with several graphs")
        self.module, self.inputs, self.names, self.writes, self.symbols = module, inputs, names, writes, symbols
        self.found, self.drafted = found, drafted
        self.conditions = conditions.of_guards(guards)
        self.assumed, self.violated = assumed, violated
        results = next(iter(reversed(module.graph.nodes))).args[0][len(writes) :]
        self.outputs = [
            numbers.sign_of(node, index) if numbers.is_number(node) else _empty(node.meta["val"])
            for index, node in enumerate(results)
        ]
        return lambda *inputs: list(self.outputs)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)


def _capture(
    target: Any,
    leaves: Sequence[arguments.Leaf],
    in_spec: Any,
    sizes: arguments.Sizes,
    captured: _Captured,
    notes: calls.Notes,
    held: tuple[int, Sequence[int]] | None = None,
) -> _Captured:
    function = called.function_of(target, leaves, in_spec, held)
    options = _arguments.core_options(fullgraph=True, backend=captured)
    options["shapes"], options["dynamic"] = sizes.declared(leaves) or None, False
    compiled = _C.compile(function, options)
    captured.named_sizes = sizes.named()
    state = called.State(target)
    before = config.joint_graph
    config.joint_graph = False
    try:
        with notes:
            captured.result = compiled(*[leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)])
    finally:
        config.joint_graph = before
        changed = state.put_back()
    if captured.module is None:  # nothing is computed
        graph = torch.fx.Graph()
        graph.output(())
        captured.module, captured.empty = torch.fx.GraphModule({}, graph), True
    if changed:
        raise exc.Unsupported(
            f"torch.export.export: the program sets {changed}, which an exported program can't: keep it in a buffer, "
            "and write that in place (`self.steps.add_(1)`), or return it"
        )
    return captured


# -- the program


def _same(spec: InputSpec, _: Any) -> InputSpec:
    return spec


def _number_spec(number: Any, dtype: torch.dtype) -> OutputSpec:
    if not isinstance(number, Node):
        return OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument(name="", value=number), None)
    argument = SymIntArgument if dtype == torch.int64 else SymFloatArgument
    return OutputSpec(OutputKind.USER_OUTPUT, argument(name=number.name), None)


class Assembly:
    """The core's graph with placeholders in PyTorch's order: parameters, buffers, constants, arguments."""

    def __init__(
        self,
        target: Any,
        captured: _Captured,
        leaves: Sequence[arguments.Leaf],
        sizes: arguments.Sizes,
        in_spec: Any,
        examples: Any,
        results: Sequence[Any],
        out_spec: Any,
        held: set[int],
        noted: Sequence[tuple[str, calls.Note]] = (),
    ) -> None:
        self.captured, self._leaves, self._in_spec, self._examples = captured, leaves, in_spec, examples
        self.sizes = sizes
        self._results, self._out_spec, self._held = results[: out_spec.num_leaves], out_spec, held
        self._further = results[-1] if len(results) > out_spec.num_leaves else None
        self._module = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
        self._graph = torch.fx.Graph()
        self._input_specs: list[InputSpec] = []
        self._constants: dict[str, Any] = {}
        self._homes: dict[int, tuple[Node, InputSpec]] = {}  # by id of the tensor
        self._used: set[str] = set()
        self._made: dict[Node, Node] = {}
        self._symbols: dict[str, Node] = {}  # by name: inputs of the core's graph
        self._numbers = numbers.Numbers(self._graph, captured.found)
        self._noted = noted
        self._signatures: dict[str, ModuleCallSignature] = {}
        self.places: dict[Node, tuple[str, int]] = {}  # file and line

    def home_of(self, value: Any) -> tuple[Node, InputSpec] | None:
        """The input of the graph that a tensor is."""
        return self._homes.get(id(value))

    def build(self) -> program.ExportedProgram:
        """Everything together."""
        self._add_state()
        old = list(self.captured.module.graph.nodes)
        symbols = {name for name, *_ in self.captured.symbols}
        inputs = [node for node in old if node.op == "placeholder" and node.target not in symbols]
        lifted = [node for node in old if node.op == "get_attr"]
        self._add_constants(lifted)
        self._add_arguments()
        self._add_sizes(old)
        for node, value in zip(inputs, self.captured.inputs, strict=True):
            if id(value) in self._homes and "sizes" in node.meta:
                self._homes[id(value)][0].meta["sizes"] = node.meta["sizes"]
        for node, value, name in zip(inputs, self.captured.inputs, self.captured.names, strict=True):
            self._made[node] = self._homes[id(value)][0] if id(value) in self._homes else self._number(name)
        for node in old:
            if node in self._made or node.op == "placeholder":
                continue
            if node.op == "output":
                break
            if node.op == "call_method" and node.target == "item":  # of an input that is a number
                self._made[node] = self._made[node.args[0]]  # type: ignore[index]
                continue
            number = self._numbers.made(node, self._made.__getitem__)
            if number is not None:
                self._made[node] = number
                if "symbol" in node.meta:
                    self._symbols[node.meta["symbol"]] = node
                continue
            name = node.name if node.op != "call_function" else numbers.name_of(node.target)
            if self._regions_of(node):
                self._give_sizes(node)
            made = self._graph.create_node(
                node.op,
                node.target,
                torch.fx.node.map_arg(node.args, self._made.__getitem__),
                torch.fx.node.map_arg(node.kwargs, self._made.__getitem__),
                "getitem" if node.name.startswith("getitem") else arguments.identifier(name),
            )
            made.meta = dict(node.meta)
            self._numbers.take_operands(made)
            self._made[node] = made
        output_specs = self._add_outputs(old[-1], self._results)
        self._take_notes()
        self._numbers.remove_unused(calls.named_nodes(self._signatures.values()))
        self.places = {node: node.meta.pop("place") for node in self._graph.nodes if "place" in node.meta}
        graph_module = torch.fx.GraphModule(self._root(lifted), self._graph)
        signature = ExportGraphSignature(input_specs=self._input_specs, output_specs=output_specs)
        return program.ExportedProgram(self._parts(graph_module, signature))

    def _parts(self, graph_module: Any, signature: ExportGraphSignature) -> program.Parts:
        call = ModuleCallSignature(
            inputs=[spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT],
            outputs=[spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT],
            in_spec=self._in_spec,
            out_spec=self._out_spec,
            forward_arg_names=list(dict.fromkeys(str(leaf.path[0]) for leaf in self._leaves)),
        )
        state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return program.Parts(
            graph_module=graph_module,
            signature=signature,
            state_dict=dict(self._module.state_dict(keep_vars=True)),
            constants=self._constants,
            module_call_graph=calls.graph_of_calls(self._module, call, self._signatures),
            example_inputs=self._examples,
            checks=layouts.checked(self._checks(), self._leaves, graph_module.graph, self.captured.drafted),
            module_state=state,
        )

    def _root(self, lifted: Sequence[Node]) -> dict[str, Any]:
        return {
            str(node.target): numbers.translated(getattr(self.captured.module, str(node.target)))
            for node in lifted
            if node.op == "get_attr" and self._made[node].op == "get_attr"
        }

    def _regions_of(self, call: Node) -> list[torch.fx.GraphModule]:
        names = [str(item.target) for item in call.args if isinstance(item, Node) and item.op == "get_attr"]
        held = [getattr(self.captured.module, name) for name in names]
        return [each for each in held if isinstance(each, torch.fx.GraphModule)]

    def _give_sizes(self, call: Node) -> None:
        """Regions have their sizes as inputs of their own, before those that the operator gives them: it gives those
        that some region reads, too."""
        regions = self._regions_of(call)
        at = next(i for i, item in enumerate(call.args) if isinstance(item, (tuple, list)))
        given = tuple(call.args[at])  # type: ignore[arg-type]
        sizes = [[node for node in region.graph.nodes if _SYMBOL.fullmatch(str(node.target))] for region in regions]
        read = {size.target for of_region in sizes for size in of_region if size.users}
        if read and (len(regions) != 2 or any(size.target not in self._symbols for size in sizes[0])):
            raise not_yet(f"a size that varies in a function of {call.target}")
        for region, of_region in zip(regions, sizes, strict=True):
            for size in of_region:
                if size.target not in read:
                    region.graph.erase_node(size)
            region.recompile()
        names = [size.target for size in sizes[0] if size.target in read] if read else []
        args = list(call.args)
        args[at] = (*[self._symbols[str(name)] for name in names], *given)
        call.args = tuple(args)

    # -- placeholders

    def _place(self, name: str, value: Any, spec: Callable[[Any], InputSpec]) -> Node:
        while name in self._used:
            name += "_1"
        self._used.add(name)
        node = self._graph.placeholder(name)
        if isinstance(value, torch.Tensor):
            node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        made = spec(TensorArgument(name=node.name))
        self._input_specs.append(made)
        self._homes.setdefault(id(value), (node, made))
        return node

    def _add_state(self) -> None:
        for name, parameter in self._module.named_parameters():
            self._place(
                f"p_{arguments.identifier(name)}",
                parameter,
                lambda arg, name=name: InputSpec(InputKind.PARAMETER, arg, name),  # type: ignore[misc]
            )
        kept = self._module.state_dict(keep_vars=True)
        for name, buffer in self._module.named_buffers():
            if name not in kept:
                self._constants[name] = buffer
            self._place(
                f"b_{arguments.identifier(name)}",
                buffer,
                lambda arg, name=name: InputSpec(InputKind.BUFFER, arg, name, persistent=name in kept),  # type: ignore[misc]
            )

    def _add_constants(self, lifted: Sequence[Node]) -> None:
        """Tensors from outside that are neither arguments nor state, and those that the code says."""
        own = {id(leaf.value) for leaf in self._leaves}
        attributes = {
            id(value): f"{prefix}.{name}" if prefix else name
            for prefix, module in self._module.named_modules()
            for name, value in vars(module).items()
        }
        for name, value in zip(self.captured.names, self.captured.inputs, strict=True):
            if id(value) not in self._homes and id(value) not in own and not arguments.SIZE.search(name):
                self._add_constant(attributes.get(id(value)) or arguments.last_name(name), value)
        for node in lifted:
            value = getattr(self.captured.module, str(node.target))
            if isinstance(value, torch.Tensor):
                self._made[node] = self._add_constant(f"lifted_tensor_{len(self._constants)}", value)

    def _add_constant(self, name: str, value: torch.Tensor) -> Node:
        taken = {*self._constants, *(str(spec.target) for spec in self._input_specs)}
        name = next(free for n in itertools.count() if (free := f"{name}_{n}" if n else name) not in taken)
        self._constants[name] = value.detach() if not isinstance(value, torch.nn.Parameter) else value
        spec = functools.partial(InputSpec, InputKind.CONSTANT_TENSOR, target=name)
        return self._place(f"c_{arguments.identifier(name)}", value, spec)

    def _add_arguments(self) -> None:
        for leaf in self._leaves:
            if leaf.is_size:
                number = SymIntArgument(name=leaf.name)
                spec = InputSpec(InputKind.USER_INPUT, number, None)
                node = self._place(leaf.name, leaf.value, functools.partial(_same, spec))
                node.meta["val"] = leaf.value.shape[0]
            elif isinstance(leaf.value, torch.Tensor):
                self._place(leaf.name, leaf.value, lambda arg: InputSpec(InputKind.USER_INPUT, arg, None))
            else:
                constant = ConstantArgument(name=leaf.name, value=leaf.value)
                self._place(leaf.name, leaf, lambda arg, spec=constant: InputSpec(InputKind.USER_INPUT, spec, None))  # type: ignore[misc]

    # -- sizes

    def _add_sizes(self, old: Sequence[Node]) -> None:
        """What the core has as inputs, numbers, is read from the tensors."""
        placeholders = {node.target: node for node in old if node.op == "placeholder"}
        regions = any(self._regions_of(node) for node in old)
        for name, position, dim, *_ in self.captured.symbols:
            node = self._symbols[name] = placeholders[name]
            if not node.users and not regions:
                continue
            holder, spec = self._homes[id(self.captured.inputs[position])]
            if isinstance(spec.arg, SymIntArgument):
                self._made[node] = holder
                continue
            size = self._graph.create_node(
                "call_function", torch.ops.aten.sym_size.int, (holder, dim), {}, f"sym_size_int_{name}"
            )
            size.meta["symbol"] = name
            self._made[node] = size

    def _number(self, source: str) -> Any:
        """What the program computed from sizes and put beside a tensor: `(L['x'].size()[0] + 1)`."""
        by_name = {node.name: node for node in self._graph.nodes}

        def made(expression: ast.expr) -> Any:
            match expression:
                case ast.Constant(value=value):
                    return value
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                    return self._graph.call_function(_OPERATORS[type(op)], (made(left), made(right)))
                case ast.UnaryOp(op=ast.USub(), operand=operand):
                    return self._graph.call_function(operator.neg, (made(operand),))
            tensor, dim = arguments.SIZE.fullmatch(ast.unparse(expression)).groups()  # type: ignore[union-attr]
            if isinstance(by_name[tensor].meta.get("val"), int):
                return by_name[tensor]  # an int that varies
            size = self._graph.call_function(torch.ops.aten.sym_size.int, (by_name[tensor], int(dim)))
            if sizes := by_name[tensor].meta.get("sizes"):
                size.meta["symbol"] = sizes[int(dim)]
            return size

        try:
            return made(ast.parse(source, mode="eval").body)
        except (AttributeError, KeyError, SyntaxError):
            raise not_yet(f"the number {source} beside a tensor, where sizes vary") from None

    def _checks(self) -> program.Checks:
        ranges: dict[str, program.Range] = {}
        bound: dict[tuple[str, int], str] = {}  # by argument and dimension
        names = {id(leaf.value): leaf.name for leaf in self._leaves}
        for symbol, position, dim, low, high, _ in self.captured.symbols:
            bound[names[id(self.captured.inputs[position])], dim] = symbol
            ranges[symbol] = program.Range(max(low, 0), high if high is not None and high < _UNBOUNDED else None)
        declared = self.sizes.by_dimension()
        symbols = {declared[place][0]: symbol for place, symbol in bound.items() if place in declared}
        for place, (name, least, most) in declared.items():  # of the rest no operator depends
            if place not in bound and name not in symbols:
                symbols[name] = next(free for n in itertools.count(len(ranges)) if (free := f"s{n}") not in ranges)
                ranges[symbols[name]] = program.Range(least or 0, most)
            bound.setdefault(place, symbols[name])
        expected = []
        for leaf in self._leaves:
            if isinstance(leaf.value, torch.Tensor):
                sizes = tuple(bound.get((leaf.name, dim), size) for dim, size in enumerate(leaf.value.shape))
                dtype = None if leaf.is_size else leaf.value.dtype
                expected.append(program.Expected(leaf.name, leaf.where, sizes, dtype, None))
            else:
                expected.append(program.Expected(leaf.name, leaf.where, None, None, leaf.value))
        ranges.update(self._numbers.ranges())
        conditions = [*self.sizes.relations(), *self.captured.conditions]
        places = {symbol: f"L[{leaf!r}].size()[{dim}]" for (leaf, dim), symbol in reversed(bound.items())}
        conditions += [re.sub(r"s\d+", lambda found: places[found[0]], text) for text in self.captured.assumed]
        return program.Checks(self._in_spec, expected, ranges, conditions)

    # -- outputs

    def _add_outputs(self, output: Node, results: Sequence[Any]) -> list[OutputSpec]:
        returned: list[Any] = list(output.args[0])  # type: ignore[arg-type]
        nodes: list[Any] = []
        specs = []
        new_value: dict[int, Node] = {}
        for position, node in zip(self.captured.writes, returned, strict=False):
            value = self.captured.inputs[position]
            home, spec = self._homes[id(value)]
            kinds = {
                InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
                InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
                InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
            }
            if spec.kind not in kinds:
                raise not_yet(f"writing to a tensor from outside, {self.captured.names[position]}")
            new_value[id(value)] = self._made[node]
            nodes.append(self._made[node])
            target = spec.target if spec.target is not None else home.name
            specs.append(OutputSpec(kinds[spec.kind], TensorArgument(name=nodes[-1].name), target))
        signs = {id(sign): node for sign, node in self._signs(returned)}
        found = {sign.item(): self._made[node] for sign, node in self._signs(returned) if numbers.is_number(node)}
        if self._further is not None:  # called.function_of
            self._numbers.taken_out(self._made[signs.pop(id(self._further))])
        noted = [leaf for _, note in self._noted for leaf in (*note.inputs, *note.outputs)]
        computed = {id(result) for result in (*results, *noted) if isinstance(result, torch.Tensor)}
        for sign, _ in self._signs(returned):  # what the program sets among attributes of tensors is not looked for
            if sign.dtype is torch.bool and sign.dim() == 0 and id(sign) not in computed:
                raise not_yet("a bool among the results that data says: return a tensor")
        for index, result in enumerate(results):
            if index in self._held and isinstance(result, torch.Tensor):
                nodes.append(self._numbers.taken_out(self._made[signs[id(result)]]))
                specs.append(_number_spec(nodes[-1], result.dtype))
                continue
            if isinstance(result, torch.Tensor):
                nodes.append(self._node_of(result, signs, new_value, index))
                specs.append(OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=nodes[-1].name), None))
                continue
            if type(result) in (int, float) and result in found:
                nodes.append(found[result])
                specs.append(_number_spec(nodes[-1], torch.int64 if type(result) is int else torch.float64))
                continue
            if not isinstance(result, (int, float, bool, str, type(None))):
                raise not_yet(f"an object of type {type(result).__name__} among the results")
            nodes.append(result)
            specs.append(OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument(name="", value=result), None))
        self._graph.output(tuple(nodes))
        return specs

    def _take_notes(self) -> None:
        """The signatures of modules, in nodes of this graph; without the copies that were made for them."""
        returned: Any = next(iter(reversed(self.captured.module.graph.nodes))).args[0]
        signs = {id(sign): self._made[node] for sign, node in self._signs(returned)}
        copies: dict[Node, None] = {}

        def argument_of(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return ConstantArgument(name="", value=leaf)
            node = signs[id(leaf)]
            copies[node] = None
            if node.target is torch.ops.aten.clone.default:
                return TensorArgument(name=str(node.args[0]))
            number = node.args[1] if node.target is torch.ops.aten.full.default else node.args[0]
            return _number_spec(number, leaf.dtype).arg

        for key, note in self._noted:
            self._signatures[key] = calls.signature_of(note, argument_of)
        for node in copies:
            if not node.users:
                self._graph.erase_node(node)

    def _signs(self, returned: Sequence[Any]) -> list[tuple[torch.Tensor, Node]]:
        """What the capture's call gave for the graph's results, which come behind what is written."""
        return list(zip(self.captured.outputs, returned[len(self.captured.writes) :], strict=True))

    def _node_of(
        self, result: torch.Tensor, signs: Mapping[int, Node], written: Mapping[int, Node], index: int
    ) -> Node:
        if id(result) in signs:
            return self._made[signs[id(result)]]
        if id(result) in written:
            return written[id(result)]
        if id(result) in self._homes:
            return self._homes[id(result)][0]
        raise not_yet(f"result {index}, a tensor that the program does not compute")
