"""What is said of runs that are checked while the program runs: config.verify, config.nan_watch.

The core runs, compares and counts (src/runtime/reference.h). It asks here only where results are not within rounding of
eager's: what float64 says, and how to tell it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from magneto import _C, _log, config, exc
from magneto._debug import findings, same

# How much further than what eager's own rounding explains results may be off here: nobody looks for a fault, and some
# results are a few values of noise alone.
SLACK = 8.0


def compare_runs(
    graph: Any,
    given: list[Any],
    names: list[str],
    want: Sequence[Any],
    got: Sequence[Any],
    written: list[int],
    draws: bool,
) -> list[str]:
    """What of `got` is further from float64's results than `want`, eager's, explains: outputs and, behind them, the
    inputs that are `written`. `draws`: the graph takes random numbers: the generators are as they were before it."""
    reference = {name: x for name, x in zip(names, want, strict=True) if x is not None}
    found = {name: x for name, x in zip(names, got, strict=True) if x is not None}
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        exact = _in_float64(graph, given, names, written, draws)
        differences = same.compare(reference, found, exact, tolerance=config.repro_tolerance, slack=SLACK)
    _found.clear()
    _found.update((str(difference), difference) for difference in differences)
    return [str(difference) for difference in differences]


_found: dict[str, same.Difference] = {}  # of the last run that was compared, by their texts


def _in_float64(
    graph: Any, given: list[Any], names: list[str], written: list[int], draws: bool
) -> dict[str, torch.Tensor] | None:
    """The results of the same operators in float64; None, where they don't take it: then eager's dtype decides."""
    try:
        module = _C.operator_calls(_C.with_numbers(graph, given) if _C.is_sized(graph) else graph)
        module.real_recompile()
        double, inputs = same.cast_to_fp64(module, given)
        results = _run_beside(module, double, given, inputs) if draws else list(double(*inputs))
    except Exception:
        return None
    results += [inputs[place] for place in written]
    return dict(zip(names, results, strict=True)) if len(results) == len(names) else None


def _run_beside(module: Any, double: Any, given: list[Any], inputs: list[Any]) -> list[Any]:
    """Operator by operator, beside eager, which draws: random numbers are other ones in float64."""
    values: dict[Any, Any] = {}
    doubles: dict[Any, Any] = {}
    own = iter(zip(same.clone_inputs(given), inputs, strict=True))

    def arguments(node: Any, known: dict[Any, Any]) -> tuple[Any, Any]:
        return (
            torch.fx.node.map_arg(node.args, known.__getitem__),
            torch.fx.node.map_arg(node.kwargs, known.__getitem__),
        )

    for node, other in zip(module.graph.nodes, double.graph.nodes, strict=True):
        if node.op == "placeholder":
            values[node], doubles[other] = next(own)
        elif node.op == "get_attr":
            values[node] = getattr(module, node.target)
            doubles[other] = _as_double(values[node])
        elif node.op == "output":
            return list(arguments(other, doubles)[0][0])
        else:
            args, kwargs = arguments(node, values)
            values[node] = node.target(*args, **kwargs)
            args, kwargs = arguments(other, doubles)
            drawn = _drawn(node.target, values[node], args)
            doubles[other] = node.target(*args, **kwargs) if drawn is None else drawn
    raise AssertionError("a graph without an output")


def _drawn(op: Any, result: Any, args: tuple[Any, ...]) -> Any:
    """What float64 has in the place of the numbers that an operator drew; None: it draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(op, "tags", ()):
        return None
    if op is torch.ops.aten.native_dropout.default:
        return (args[0] * result[1] / (1 - args[1]) if args[1] < 1 else args[0] * 0, result[1])
    if op._schema.is_mutable:
        return args[0].copy_(result)
    return tuple(map(_as_double, result)) if isinstance(result, tuple) else _as_double(result)


def _as_double(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


_said: set[tuple[str, str]] = set()


def differs(place: str, found: list[str]) -> None:
    """Compiled results are not eager's: said once a place and result; in strict mode an error."""
    others = f" ({len(found) - 1} more results differ)" if len(found) > 1 else ""
    text = f"The compiled code of {place} does not give what eager gives: {found[0]}{others}."
    if config.strict:
        raise exc.AccuracyError(text)
    where = found[0].partition(":")[0]
    if (place, where) in _said:
        return
    _said.add((place, where))
    if (first := _found.get(found[0])) is not None:
        findings.tell({**findings.wrong(place, [first]), "others": len(found) - 1})
    _warn(
        text + " The program goes on with eager's values. magneto.stats()['checked_runs'] counts such runs; this is "
        "said once. python -m magneto doctor script.py finds what is at fault."
    )


def left_out(place: str, operator: str) -> None:
    """A graph is never verified, because an operator would be called twice."""
    if (place, operator) in _said:
        return
    _said.add((place, operator))
    _warn(
        f"config.verify leaves out the compiled code of {place}: it calls {operator}, an operator of a library, which "
        "might do more than compute, and would be called twice. magneto.stats()['checked_runs'] counts such runs; this "
        "is said once."
    )


def nonfinite(place: str, where: str, is_nan: bool) -> None:
    """NaN or infinity is in the results of a graph for the first time."""
    _warn(
        f"A result of the compiled code of {place} has {'NaN' if is_nan else 'infinity'}: {where}. "
        "magneto.stats()['checked_runs'] counts such runs; this is said once for each graph."
    )


def _warn(text: str) -> None:
    """A warning; a line of the log where the program makes errors of warnings, which a check must not raise."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        _log.announce(text)
