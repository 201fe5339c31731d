"""The minifier below autograd: graphs of ATen operators, forward or backward, that the code generator fails on.

They are reduced as the core has them (src/debug/graph_part.h) and compiled as they are, without a capture: a candidate
costs milliseconds. The script has the operators as `torch.ops.aten` calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from magneto import _C, _log, config
from magneto._debug import children, fx_graphs, minify, same, scripts
from magneto._debug.minify import Case


class OperatorCase(Case):
    """Whether compiling a graph of operators, and running it, fails as it did on the whole."""

    def __init__(self, accuracy: bool) -> None:
        super().__init__("inductor", accuracy)

    def _attempt(self, module: Any, inputs: Sequence[Any]) -> Any:
        if isinstance(module, torch.fx.GraphModule):
            module, inputs = _graph_of(module, inputs)
        with config.patch(self.settings()), torch.no_grad():
            return self._compute(module, inputs)

    def _compute(self, graph: Any, inputs: Sequence[Any]) -> Any:
        state = torch.get_rng_state()
        if not self.accuracy:
            try:
                _C.compute_operators(graph, same.clone_inputs(inputs), True, None)
            except Exception as error:
                torch.set_rng_state(state)
                try:
                    _C.compute_operators(graph, same.clone_inputs(inputs), False, None)
                except Exception as own:
                    if children.of_exception(own).is_like(children.of_exception(error)):
                        return None
                raise
            return None
        module = _C.operator_calls(graph)
        module.real_recompile()

        def compiled(*given: torch.Tensor) -> Any:
            return _C.compute_operators(graph, list(given), True, None)

        found = same.differences(
            module,
            compiled,
            inputs,
            only_forward=True,
            ignore_integers=config.repro_ignore_non_fp,
            use_fp64=config.same_two_models_use_fp64,
            tolerance=config.repro_tolerance,
        )
        return minify.described(found)

    def _quick(self, module: Any, inputs: Sequence[Any]) -> None:
        if isinstance(module, torch.fx.GraphModule):
            super()._quick(module, inputs)
        else:
            _C.compute_operators(module, same.clone_inputs(inputs), False, None)


class _Found(Exception):
    """Carries a graph out of the compile that it was about to be given to."""


_looking = False


def _graph_of(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[Any, list[torch.Tensor]]:
    """The graph of operators that a module's calls become, and its inputs. For a child: it changes the process."""
    global _looking
    _looking = True
    try:
        with config.patch(repro_after="aot", disk_cache=False), torch.no_grad():
            minify.compile_graph(module, inputs, "inductor")(*same.clone_inputs(inputs))
    except _Found as found:
        return found.args
    finally:
        _looking = False
    raise AssertionError("nothing was compiled")


class _Inputs:
    """The inputs of parts of a graph: the whole's, and values of its middle as eager computes them, or random ones."""

    def __init__(self, graph: Any, given: Sequence[torch.Tensor]) -> None:
        self._graph = graph
        self._given = list(given)
        self._known: dict[int, torch.Tensor] = dict(zip(_C.input_values(graph), given, strict=True))

    def of(self, part: Any, numbers: list[int]) -> list[torch.Tensor]:
        missing = [number for number in numbers if number not in self._known]
        if missing:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                try:
                    values: list[Any] = _C.compute_operators(
                        self._graph, same.clone_inputs(self._given), False, missing
                    )
                except Exception:
                    values = [None] * len(missing)
            metas = dict(zip(numbers, (meta for _, meta in _C.graph_inputs(part)), strict=True))
            for number, value in zip(missing, values, strict=True):
                meta = metas[number]
                fits = value is not None and (value.shape, value.stride()) == (meta.shape, meta.stride())
                self._known[number] = value.detach() if fits else random_like(meta)
        return [self._known[number] for number in numbers]


def random_like(meta: torch.Tensor) -> torch.Tensor:
    """Random values of that dtype and geometry."""
    from magneto._install.profiling import rand_strided

    return rand_strided(tuple(meta.shape), meta.stride(), meta.dtype, "cpu")


def random_inputs(graph: Any) -> list[torch.Tensor]:
    """For a graph whose real inputs are not there yet, as a backward's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [random_like(meta) for _, meta in _C.graph_inputs(graph)]


def reduce(case: OperatorCase, graph: Any, inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The smallest graph that fails as `case.begin` saw it fail, and inputs for it."""
    if _C.is_sized(graph):
        static = _C.with_numbers(graph, list(inputs))
        if case.fails(static, inputs):
            graph = static
    values = _Inputs(graph, inputs)

    def question(part: Any, given: list[int]) -> bool | None:
        try:
            return case.fails(part, values.of(part, given))
        except fx_graphs.Stop:
            return None

    part, given = _C.reduce_operators(graph, question)
    return part, values.of(part, given)


def inputs_of_backward(graph: Any, forward: Any, inputs: list[Any], places: list[tuple[bool, int]]) -> list[Any]:
    """What the forward's operators, none of which draws, save for a backward, and random tangents. `places`: of what is
    saved: whether it is an input, and its position among the inputs or the results."""
    try:
        results = _C.compute_operators(forward, [x.detach().clone() for x in inputs], False, None)
    except Exception:  # the program's own: it meets it in a moment
        return random_inputs(graph)
    saved = [(inputs[at].detach() if is_input else results[at]) for is_input, at in places]
    return [*saved, *random_inputs(graph)[len(saved) :]]


def after_aot(graph: Any, inputs: list[Any] | None, place: str, saved: tuple[Any, ...] | None) -> None:
    """A graph of operators is about to be compiled: tries it in a child, and writes what the level asks for.
    `saved`: of a backward, whose inputs are not there yet: the forward, its inputs, and the places of what it saves."""
    if _looking:
        raise _Found(graph, inputs)
    case = OperatorCase(accuracy=config.repro_level == 4)
    if saved is not None and saved[1] is not None:
        given = inputs_of_backward(graph, *saved)
    else:
        given = [x.detach() for x in inputs] if inputs is not None else random_inputs(graph)
    minify.examine(
        case,
        graph,
        given,
        lambda: _write_launcher(case, graph, given),
        lambda folder: minify.publish(case, _calls(graph), given, folder, "aot"),
        lambda folder: minify_operators(case, graph, given, folder, place),
    )


def _calls(graph: Any) -> torch.fx.GraphModule:
    module = _C.operator_calls(graph)
    module.real_recompile()
    return module  # type: ignore[no-any-return]


def minify_operators(case: OperatorCase, graph: Any, inputs: Sequence[Any], folder: Path, place: str) -> Path | None:
    """Reduces, and writes `repro.py`: the operators as calls; if the fault needs the graph as it is, its text."""
    start = time.perf_counter()
    before = minify.calls_in(_calls(graph))
    smaller, left = reduce(case, graph, inputs)
    module = _calls(smaller)
    as_calls = case.fails(module, left)
    given = left
    if as_calls:
        module, left = fx_graphs.shrink(module, left, case.fails)
    seconds = time.perf_counter() - start
    _log.announce(
        f"minified {before} operators of {place} to {minify.calls_in(module)} in {seconds:.1f} s, {case.asked} "
        f"attempts: {minify.case_text(case)}"
    )
    texts = [_C.graph_text(graph), _C.graph_text(smaller)]
    minify.tell(case, smaller, given, "operators", texts, (before, minify.calls_in(module)), seconds)
    if as_calls:
        return minify.publish(case, module, left, folder, "aot")
    return _publish_text(case, smaller, left, folder)


_TEXT = """\
# {what}
import os

import torch

import magneto
from magneto import _C
from magneto._debug.scripts import load_inputs

{settings}{environment}
GRAPH = '''\\
{graph}
'''

args = load_inputs(os.path.join(os.path.dirname(os.path.abspath(__file__)), {file!r}))

if __name__ == "__main__":
    graph = _C.graph_from_text(GRAPH)
    want = _C.compute_operators(graph, args, False, None)
    got = _C.compute_operators(graph, args, True, None)
    for a, b in zip(want, got, strict=True):
        print("largest difference:", (a.double() - b.double()).abs().max().item())
"""


def _publish_text(case: OperatorCase, graph: Any, inputs: Sequence[Any], folder: Path) -> Path | None:
    path = folder / "repro.py"
    try:
        file = scripts.save_inputs(folder, inputs)
    except OSError as error:
        scripts.say_unwritten(path, error, f" The graph:\n{_C.graph_text(graph)}")
        return None
    text = _TEXT.format(
        what=minify.case_text(case).splitlines()[0],
        settings=scripts.settings(),
        environment=scripts.environment(),
        graph=_C.graph_text(graph).rstrip(),
        file=file,
    )
    if not scripts.write(path, text):
        return None
    _log.announce(f"Writing checkpoint with the graph's text to {path}")
    return path


def _write_launcher(case: OperatorCase, graph: Any, inputs: list[Any]) -> Path | None:
    return minify.write_launcher(case, _calls(graph), inputs, "aot")
