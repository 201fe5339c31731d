"""torch.fx graphs for the core's reducer: their skeletons, and the graphs that parts of them are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

from magneto import _C
from magneto._debug import same

# So many bytes of values in the middle of a graph are kept, for graphs that begin there; others get random ones.
KEPT_BYTES = 1 << 30

Fails = Callable[[torch.fx.GraphModule, list[Any]], bool]


class Stop(Exception):
    """Raised by a question: the reduction ends with the best so far."""


def reduce(module: torch.fx.GraphModule, inputs: Sequence[Any], fails: Fails) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The smallest graph found, with inputs for it, for which `fails(graph, inputs)` is true as it is for `module`."""
    module, inputs = without_number_inputs(module, list(inputs), fails)
    parts = Parts(module, inputs)

    def question(kept: list[int], given: list[int], outputs: list[int], read_as: list[int]) -> bool | None:
        try:
            return fails(*parts.graph(kept, given, outputs, read_as))
        except Stop:
            return None

    return parts.graph(*_C.reduce_graph(parts.nodes, parts.classes, parts.inputs, parts.outputs, question))


def without_number_inputs(
    module: torch.fx.GraphModule, inputs: list[Any], fails: Fails
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Dynamic sizes are placeholders of numbers: constants in their place, if it still fails."""
    if all(isinstance(x, torch.Tensor) for x in inputs):
        return module, inputs
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, Any] = {}
    left, given = [], iter(inputs)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            x = next(given)
            if not isinstance(x, torch.Tensor):
                known[node] = x
                continue
            left.append(x)
        known[node] = graph.node_copy(node, lambda used: known[used])
        if node.op == "output":
            break
    smaller = torch.fx.GraphModule(module, graph)
    return (smaller, left) if fails(smaller, left) else (module, inputs)


class Parts:
    """A graph as numbers: values are its nodes in order, those of the graph's calls and attributes its nodes."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._module = module
        self._all = list(module.graph.nodes)
        self._index = {node: i for i, node in enumerate(self._all)}
        self._values = _values_of(module, inputs)
        self._calls = [node for node in self._all if node.op not in ("placeholder", "output")]
        self.inputs = [i for i, node in enumerate(self._all) if node.op == "placeholder"]
        self.nodes = [
            ([self._index[used] for used in node.all_input_nodes], [self._index[node]]) for node in self._calls
        ]
        kinds: dict[Any, int] = {}
        self.classes = [kinds.setdefault(_kind(x), len(kinds)) if _is_tensor(x) else -1 for x in self._values]
        out = next(node for node in self._all if node.op == "output")
        self.outputs = list(dict.fromkeys(self._index[used] for used in out.all_input_nodes))

    def graph(
        self, kept: list[int], given: list[int], outputs: list[int], read_as: list[int]
    ) -> tuple[torch.fx.GraphModule, list[Any]]:
        """A part as a graph, and its inputs."""
        graph = torch.fx.Graph()
        made: dict[int, torch.fx.Node] = {}
        for value in given:
            node = self._all[value]
            if node.op == "placeholder":
                made[value] = graph.node_copy(node)
            else:
                made[value] = graph.placeholder(node.name)
        for number in kept:
            node = self._calls[number]
            made[self._index[node]] = graph.node_copy(node, lambda used: made[read_as[self._index[used]]])
        graph.output(tuple(made[read_as[value]] for value in outputs))
        return torch.fx.GraphModule(self._module, graph), [self._input(value) for value in given]

    def _input(self, value: int) -> Any:
        x = self._values[value]
        return x() if isinstance(x, _Random) else x


class _Random:
    """A value too large to be kept: random ones of its dtype and geometry."""

    def __init__(self, x: torch.Tensor) -> None:
        self.of = (tuple(x.shape), tuple(x.stride()), x.dtype, x.device, x.requires_grad)

    def __call__(self) -> torch.Tensor:
        from magneto._install import profiling

        size, stride, dtype, device, requires_grad = self.of
        return profiling.rand_strided(size, stride, dtype, device).requires_grad_(requires_grad)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, (torch.Tensor, _Random))


def _kind(x: Any) -> Any:
    return x.of if isinstance(x, _Random) else _Random(x).of


def _values_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """What each node gives in eager, on copies; None behind a node that raises there."""
    module = same.copy_of(module)
    values: list[Any] = []
    env: dict[torch.fx.Node, Any] = {}
    kept, given, original = 0, iter(same.clone_inputs(inputs)), iter(inputs)
    with torch.random.fork_rng(devices=[]):
        for node in module.graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                env[node] = next(given)
                values.append(next(original))
                continue
            try:
                env[node] = x = _run(module, node, env)
            except Exception:
                break
            if isinstance(x, torch.Tensor):
                kept += x.numel() * x.element_size()
                with torch.no_grad():
                    x = (
                        _Random(x)
                        if kept > KEPT_BYTES
                        else same.clone_inputs([x.detach().requires_grad_(x.requires_grad)])[0]
                    )
            values.append(x if _is_tensor(x) else None)
    return values + [None] * (len(module.graph.nodes) - len(values))


def _run(module: torch.fx.GraphModule, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, env.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, env.__getitem__)
    if node.op == "get_attr":
        return _attribute(module, str(node.target))
    if node.op == "call_module":
        return module.get_submodule(str(node.target))(*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


# -- sizes


def shrink(module: torch.fx.GraphModule, inputs: list[Any], fails: Fails) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The same with smaller sizes, as small as it still fails: extents that are equal stay equal, in calls, too."""
    extents = sorted({n for x in inputs if isinstance(x, torch.Tensor) for n in x.shape if n > 1}, reverse=True)
    for extent in extents:
        for smaller in dict.fromkeys((1, 2, 3, 4, extent // 8, extent // 4, extent // 2)):
            if not 0 < smaller < extent:
                continue
            candidate = with_extent(module, inputs, extent, smaller)
            if candidate is None:
                continue
            try:
                if fails(*candidate):
                    module, inputs = candidate
                    break
            except Stop:
                return module, inputs
    return module, inputs


def with_extent(
    module: torch.fx.GraphModule, inputs: list[Any], extent: int, other: int
) -> tuple[torch.fx.GraphModule, list[Any]] | None:
    """Sizes of `extent` become `other`: the beginning of each tensor, and numbers of calls. None: eager refuses."""
    cut = [_narrowed(x, extent, other) if isinstance(x, torch.Tensor) else x for x in inputs]
    for numbers in (True, False):
        changed = module
        if numbers:
            changed = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
            for node in changed.graph.nodes:
                if node.op in ("call_function", "call_method"):
                    node.args = _renumbered(node.args, extent, other)
                    node.kwargs = _renumbered(node.kwargs, extent, other)
            changed.recompile()
        with torch.random.fork_rng(devices=[]):
            try:
                same.copy_of(changed)(*same.clone_inputs(cut))
            except Exception:
                continue
        return changed, cut
    return None


def _renumbered(value: Any, extent: int, other: int) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_renumbered(item, extent, other) for item in value)
    if isinstance(value, dict):
        return {key: _renumbered(item, extent, other) for key, item in value.items()}
    return other if type(value) is int and value == extent else value


def _narrowed(x: torch.Tensor, extent: int, other: int) -> torch.Tensor:
    """Dense where it was dense, in the same order of dimensions."""
    part = x.detach()
    for dim, size in enumerate(x.shape):
        if size == extent:
            part = part.narrow(dim, 0, other)
    if part.shape == x.shape:
        return x
    part = torch.empty_like(part, memory_format=torch.preserve_format).copy_(part)
    return part.requires_grad_(x.requires_grad)
