"""What `magneto.explain` gives: what a call is compiled to, and why not more."""

from __future__ import annotations

import collections
import linecache
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
class ExplainOutput(_text_table.Tables):
    """What `explain` found. `print` it, or read the fields; at a prompt and in a notebook it is shown as tables, which
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
    planned_peaks: list[int] = field(default_factory=list)  # bytes: of each graph, or of its forward and backwards

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
            lines += [f"  Ops {number}:", *(f"    {_name_of(operator)}" for operator in operators)]
        lines.append("Out Guards:")
        for number, guard in enumerate(self.out_guards, 1):
            lines += [f"  Guard {number}:", *_indented(guard, 4)]
        lines.append("Compile Times:")
        lines += [f"  {stage}: {seconds * 1e3:.2f} ms" for stage, seconds in self.compile_times.items()]
        lines.append("Planned Memory:")
        lines += [f"  Program {number}: {bytes_:,} bytes" for number, bytes_ in enumerate(self.planned_peaks, 1)]
        return "\n".join(lines) + "\n"

    def tables(self, color: bool = False, width: int | None = None) -> str:
        """The report as boxes: counts and times, graph breaks, operators by graph, guards."""
        return "\n".join(self.lines(color, width)).rstrip("\n")

    def _tables(self) -> Iterator[_text_table.Table]:
        times = [(f"{stage} (ms)", f"{seconds * 1e3:.2f}") for stage, seconds in self.compile_times.items()]
        counts = [("graphs", str(self.graph_count)), ("graph breaks", str(self.graph_break_count))]
        counts.append(("operators", str(self.op_count)))
        counts.append(("guards", str(len(self.out_guards))))
        peaks = [(f"planned memory {n} (bytes)", f"{bytes_:,}") for n, bytes_ in enumerate(self.planned_peaks, 1)]
        yield _text_table.Table("Captured", ("What", "How much"), [*counts, *times, *peaks])
        breaks = [
            (
                str(count),
                reason.reason,
                "\n".join(f"{frame.name}, {frame.filename}:{frame.lineno}" for frame in reason.user_stack),
                linecache.getline(*_innermost(reason)).strip(),
            )
            for reason, count in self._folded()
        ]
        yield _text_table.Table("Graph breaks", ("Count", "Reason", "At", "Line"), breaks)
        operators = [
            (str(number), str(len(graph)), ", ".join(_counted(map(_name_of, graph))))
            for number, graph in enumerate(self.ops_per_graph, 1)
        ]
        yield _text_table.Table("Operators", ("Graph", "Count", "Operators"), operators)
        guards = [(kind, str(count)) for kind, count in collections.Counter(map(_kind_of, self.out_guards)).items()]
        yield _text_table.Table("Guards", ("Kind", "Count"), guards)


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _innermost(reason: BreakReason) -> tuple[str, int]:
    return (reason.user_stack[-1].filename, reason.user_stack[-1].lineno) if reason.user_stack else ("", 0)


_PAIRS = """
add + sub - mul * truediv / floordiv // mod % pow ** matmul @ neg - invert ~ and_ & or_ | xor ^ lshift << rshift >>
eq == ne != lt < le <= gt > ge >= getitem [] setitem []= iadd += isub -= imul *= itruediv /= imatmul @= ipow **=
"""
_SPELT = _PAIRS.split()
_SIGNS = dict(zip(_SPELT[::2], _SPELT[1::2], strict=True))  # of functions of the module operator

# Where C functions are found by programs.
_HOMES = {
    "torch._C._nn": "torch.nn.functional",
    "torch._C._special": "torch.special",
    "torch._C._linalg": "torch.linalg",
    "torch._C._fft": "torch.fft",
    "torch": "torch",
}


def _name_of(operator: Any) -> str:
    """As programs write it: "torch.sin", "Tensor.add_", "+", "mylib.norm"."""
    if isinstance(operator, str):  # a method's name
        return operator if "." in operator else f"Tensor.{operator}"
    if hasattr(operator, "_qualified_op_name") or hasattr(operator, "_overloadpacket"):
        packet = getattr(operator, "_overloadpacket", operator)
        return f"torch.ops.{packet._qualified_op_name.replace('::', '.')}"
    name = getattr(operator, "__name__", None)
    if name is None:
        return str(operator)
    module = getattr(operator, "__module__", None) or ""
    if module in ("_operator", "operator"):
        return _SIGNS.get(name, f"operator.{name}")
    owner = getattr(operator, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{name}" if owner.__name__ in ("TensorBase", "_TensorBase") else f"{owner.__name__}.{name}"
    itself = getattr(operator, "__self__", None)
    if module in ("", "builtins") and isinstance(itself, type):  # of torch._C._VariableFunctionsClass
        return f"torch.{name}"
    home = getattr(itself, "__name__", None) if module in ("", "builtins") else module
    qualified = getattr(operator, "__qualname__", name).removeprefix("_VariableFunctionsClass.")
    home = _HOMES.get(home or "", home)
    return f"{home}.{qualified}" if home and home != "builtins" else name


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
