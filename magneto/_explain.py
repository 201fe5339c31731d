"""What `magneto.explain` gives: what a call is compiled to, and why not more."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from magneto import _C


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


@dataclass(frozen=True)
class ExplainOutput:
    """What `explain` found. `print` it, or read the fields.

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

    def _explanation(self) -> str:
        breaks = f"{self.graph_break_count} graph break" + ("s" if self.graph_break_count > 1 else "")
        lines = [
            f"Dynamo produced {self.graph_count} graphs, with {breaks} and {self.op_count} ops.",
            " Break reasons: ",
        ]
        for number, reason in enumerate(self.break_reasons, 1):
            lines += ["", f"{number}. {reason.reason}"]
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
        for number, reason in enumerate(self.break_reasons, 1):
            lines += [f"  Break Reason {number}:", *_indented(f"Reason: {reason.reason}", 4), "    User Stack:"]
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


def _indented(text: str, width: int) -> list[str]:
    return [" " * width + line for line in text.splitlines()]


def run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExplainOutput:
    """Captures one call of `fn` and presents the core's report."""
    report: dict[str, Any] = {**_C.explain(fn, args, kwargs)}
    reasons = [BreakReason(reason, [UserFrame(*frame) for frame in stack]) for reason, stack in report["break_reasons"]]
    return ExplainOutput(**{**report, "break_reasons": reasons})
