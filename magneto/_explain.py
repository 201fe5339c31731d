"""What `magneto.explain` gives: what a call is compiled to, and why not more."""

from __future__ import annotations

import collections
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from magneto import _C, _text_table


@dataclass(frozen=True)
class UserFrame:
    """A line of the user's program."""

    filename: str
    lineno: int
    name: str

    def __str__(self) -> str:
        return f'File "{self.filename}", line {self.lineno}, in {self.name}'


@dataclass(frozen=True)
class BreakReason:
    """One graph break: why, and where, outermost frame first."""

    reason: str
    user_stack: list[UserFrame]


@dataclass(frozen=True, repr=False)
class ExplainOutput:
    """What `explain` found. `print` it, or read the fields; at the prompt of a terminal it is shown as tables, which
    `tables()` gives as text.

    Unpacking gives the four values of torch.compile's first form: explanation (a text), out_guards (a list for each
    capture), graphs, ops_per_graph.
    """

    graphs: list[Any]
    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[BreakReason]
    ops_per_graph: list[list[Any]]
    out_guards: list[str]
    compile_times: dict[str, float] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        return iter((self._explanation(), self._guards_per_capture(), self.graphs, self.ops_per_graph))

    def _guards_per_capture(self) -> list[list[str]]:
        captures: list[list[str]] = []
        for guard in self.out_guards:
            if guard.startswith("GLOBAL_STATE") or not captures:  # the first guard of each capture
                captures.append([])
            captures[-1].append(guard)
        return captures

    def _folded(self) -> list[tuple[BreakReason, int]]:
        """The same break at the same place once, with a count."""
        counts = collections.Counter((reason.reason, tuple(reason.user_stack)) for reason in self.break_reasons)
        return [(BreakReason(reason, list(stack)), count) for (reason, stack), count in counts.items()]

    def _explanation(self) -> str:
        breaks = f"{self.graph_break_count} graph break" + ("s" if self.graph_break_count > 1 else "")
        lines = [
            f"Dynamo produced {self.graph_count} graphs, with {breaks} and {self.op_count} ops.",
            " Break reasons: ",
        ]
        for number, (reason, count) in enumerate(self._folded(), 1):
            lines += ["", f"{number}. {reason.reason}{_times(count)}"]
            for frame in reason.user_stack:
                lines += [f"  {frame}", f"    {linecache.getline(frame.filename, frame.lineno).strip()}"]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, (reason, count) in enumerate(self._folded(), 1):
            lines += [
                f"  Break Reason {number}:{_times(count)}",
                *_indented(f"Reason: {reason.reason}", 4),
                "    User Stack:",
            ]
            lines += [f"      {frame}" for frame in reason.user_stack]
        lines.append("Ops per Graph:")
        for number, operators in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {number}:", *(f"    {operator}" for operator in operators)]
        lines.append("Out Guards:")
        for number, guard in enumerate(self.out_guards, 1):
            lines += [f"  Guard {number}:", *_indented(guard, 4)]
        lines.append("Compile Times:")
        lines += [f"  {stage}: {seconds * 1e3:.2f} ms" for stage, seconds in self.compile_times.items()]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        if sys.stdout is not None and sys.stdout.isatty():
            return self.tables(color=_text_table.in_color())
        return f"<{type(self).__name__}: {self.graph_count} graphs, {self.graph_break_count} graph breaks>"

    def tables(self, color: bool = False, width: int | None = None) -> str:
        """The report as boxes: counts and times, graph breaks, operators by graph, guards."""
        times = [(f"{stage} (ms)", f"{seconds * 1e3:.2f}") for stage, seconds in self.compile_times.items()]
        counts = [("graphs", str(self.graph_count)), ("graph breaks", str(self.graph_break_count))]
        counts.append(("operators", str(self.op_count)))
        counts.append(("guards", str(len(self.out_guards))))
        lines = _text_table.boxed("Captured", ("What", "How much"), [*counts, *times], color, width)
        breaks = [
            (
                str(count),
                reason.reason,
                "\n".join(f"{frame.name}, {frame.filename}:{frame.lineno}" for frame in reason.user_stack),
                linecache.getline(*_innermost(reason)).strip(),
            )
            for reason, count in self._folded()
        ]
        if breaks:
            lines += _text_table.boxed("Graph breaks", ("Count", "Reason", "At", "Line"), breaks, color, width)
        operators = [
            (str(number), str(len(graph)), ", ".join(_counted(map(_name_of, graph))))
            for number, graph in enumerate(self.ops_per_graph, 1)
        ]
        if operators:
            lines += _text_table.boxed("Operators", ("Graph", "Count", "Operators"), operators, color, width)
        guards = [(kind, str(count)) for kind, count in collections.Counter(map(_kind_of, self.out_guards)).items()]
        if guards:
            lines += _text_table.boxed("Guards", ("Kind", "Count"), guards, color, width)
        return "\n".join(lines)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _innermost(reason: BreakReason) -> tuple[str, int]:
    return (reason.user_stack[-1].filename, reason.user_stack[-1].lineno) if reason.user_stack else ("", 0)


def _name_of(operator: Any) -> str:
    return operator if isinstance(operator, str) else getattr(operator, "__name__", str(operator))


def _kind_of(guard: str) -> str:
    return guard.partition(":")[0]


def _counted(names: Iterable[str]) -> Iterator[str]:
    return (f"{name} x{count}" if count > 1 else name for name, count in collections.Counter(names).items())


def _indented(text: str, width: int) -> list[str]:
    return [" " * width + line for line in text.splitlines()]


def run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExplainOutput:
    """Captures one call of `fn` and presents the core's report."""
    report: dict[str, Any] = {**_C.explain(fn, args, kwargs)}
    reasons = [BreakReason(reason, [UserFrame(*frame) for frame in stack]) for reason, stack in report["break_reasons"]]
    return ExplainOutput(**{**report, "break_reasons": reasons})
