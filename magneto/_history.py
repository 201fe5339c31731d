"""What has happened since the start or the last reset: why functions run under CPython, what keeps changing.

    print(magneto.why(fn))          # why was this called eagerly?
    print(magneto.recompiles())     # what keeps changing, and the line that would stop it
    print(magneto.summary())        # all captures, breaks, recompiles and fallbacks by place

The core counts events by place (src/observe/history.h); this presents them.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from magneto import _C, config, exc
from magneto._advice import Advice, advice, place_parts
from magneto._messages import TORCH_FOLDER
from magneto._text_table import Table, Tables


class Row(NamedTuple):
    """An event at a place: one of those of MAGNETO_EVENTS."""

    event: str
    file: str
    first_line: int
    line: int
    function: str
    cause: str
    example: str  # of the last time; of recompiles a line for each
    total: int  # times
    needed_at: str = ""  # of recompiles: the user's line that needed the guard that failed, "file:line in function"

    @property
    def last(self) -> str:
        """The text of the last time."""
        return self.example.rpartition("\n")[2]

    @property
    def place(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def rows(*events: str) -> list[Row]:
    """The events of these kinds, in order of the first time."""
    return [row for row in (Row(*one) for one in _C.history()) if row.event in events]


def times(count: int) -> str:
    """ "twice", "3 times"."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


@dataclass(frozen=True)
class Change:
    """Something that differed from an earlier capture: `count` captures were made because of it."""

    what: str
    remedy: str
    function: str
    count: int
    example: str
    file: str = ""  # where the program needs it to be as it was
    line: int = 0

    @property
    def source(self) -> str:
        """The line of the program that needs it."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def needed_at(self) -> str:
        """ "playground.py:6: return x + 1"."""
        place = f"{self.file}:{self.line}" if self.file else self.function
        return f"{place}\n{self.source}" if self.source else place


@dataclass(frozen=True, repr=False)
class Recompiles(Tables):
    """What `recompiles` gives: the changes, most frequent first."""

    changes: list[Change]
    _nothing = "Nothing was captured again."

    def _tables(self) -> Iterable[Table]:
        head = ("Count", "What keeps changing", "Needed at", "What would stop it")
        rows = [(str(one.count), f"{one.what}\n({one.example})", one.needed_at, one.remedy) for one in self.changes]
        yield Table("Recompiles", head, rows)


def changes(found: Iterable[Row]) -> list[Change]:
    """Recompiles by what had changed, most frequent first: one for a cause, wherever it made a capture anew."""
    groups: dict[tuple[str, str, str], list[tuple[Row, Advice]]] = {}
    for row in found:
        said = advice(row.cause, row.needed_at)
        groups.setdefault((said.what, row.file, row.function), []).append((row, said))
    ranked = []
    for (what, _, _), same in groups.items():
        row, said = next(((row, said) for row, said in same if row.needed_at), same[0])
        file, line = place_parts(row.needed_at)
        total = sum(one.total for one, _ in same)
        ranked.append(Change(what, said.remedy, row.place, total, same[-1][0].last, file, line))
    return sorted(_without_echoes(ranked), key=lambda change: -change.count)


def _without_echoes(found: list[Change]) -> list[Change]:
    """A tensor that differs goes up, behind a graph break, through frames of PyTorch's (`Module._call_impl`), which are
    captured anew as well: these count with the change at the program's own line."""
    kept: dict[str, Change] = {}  # by what differs of a tensor, without its name
    changes: list[Change] = []
    for change in sorted(found, key=lambda change: change.file.startswith(TORCH_FOLDER)):
        what = re.fullmatch(r"tensor '.+?' (.+)", change.example, re.DOTALL)
        is_argument = change.example.startswith("tensor 'L[")
        first = kept.get(what[1]) if what and change.file.startswith(TORCH_FOLDER) and not is_argument else None
        if what and first is not None:
            changes[changes.index(first)] = kept[what[1]] = replace(first, count=first.count + change.count)
            continue
        changes.append(change)
        if what:
            kept.setdefault(what[1], change)
    return changes


def recompiles() -> Recompiles:
    """What keeps changing from call to call, most frequent first, each with the one line that would stop it."""
    return Recompiles(changes(rows("recompile")))


@dataclass(frozen=True, repr=False)
class Why(Tables):
    """What `why` gives: `print` it, or read the fields."""

    function: str
    verdict: str
    reasons: list[str] = field(default_factory=list)

    def _tables(self) -> Iterable[Table]:
        yield Table(f"{self.function}: {self.verdict}", ("Because",), [(reason,) for reason in self.reasons])

    @property
    def _nothing(self) -> str:  # type: ignore[override]
        return f"{self.function}: {self.verdict}"


_EAGER_CALLS = {
    "disabled": "compiling was off on the thread (magneto.disable)",
    "stance": 'the stance was "force_eager"',
    "tracing": "a tracer or profiler was active (a debugger, coverage, cProfile)",
    "dispatch mode": "a __torch_dispatch__ mode, a transform of torch.func or forward-mode AD was active",
}


def why(fn: Callable[..., Any]) -> Why:
    """How calls of a function, method or module have run, and where under CPython, why: whatever it is, compiled
    itself, called by what is compiled, or never seen."""
    compiled, function = _parts(fn)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    reasons: list[str] = []
    captures, eager = 0, 0
    if compiled is not None:
        calls, segments = _C.runs_of(compiled)
        captures = sum(count for _, _, count, _, _ in segments)
        eager = sum(runs for *_, runs in segments) + sum(calls.values())
        reasons += [f"{times(count)} under CPython: {_EAGER_CALLS[cause]}" for cause, count in calls.items() if count]
        reasons += [
            f"{times(runs)} under CPython from line {line} of {part.co_qualname} on: "
            + ("it is left to CPython, as below" if given_up else "no capture served, and none was made")
            for part, line, _, given_up, runs in segments
            if runs
        ]
    here: list[Row] = []
    if isinstance(code, types.CodeType):
        here = [row for row in rows(*_EVENTS) if (row.file, row.first_line) == (code.co_filename, code.co_firstlineno)]
        captured = _C.captured_in(code)
        if captured:
            captures += captured[0]
            reasons.append(f"captured {times(captured[0])}, the last time from {captured[1]}")
    reasons += [_EVENTS[row.event](row) for row in here]
    named = config.debug_function
    if named and not captures and isinstance(code, types.CodeType) and code.co_name != named:
        eager += 1
        reasons.append(f"config.debug_function is {named!r}: functions with other names run under CPython")
    called = [row for row in rows("graph_break") if _is_call_of(row.cause, fn, function)]
    reasons += [f"{times(row.total)} called for real, by CPython: {row.cause}, at {row.place}" for row in called]
    eager += len(called) + sum(row.event in _LEFT for row in here)
    trains_eagerly = any(row.event == "no_joint" for row in here)
    return Why(name, _verdict(fn, compiled is not None, captures, eager, trains_eagerly), reasons)


def why_named(name: str, names: Mapping[str, Any]) -> Why:
    """The same for a name of a program: `f`, `Model.forward`, `package.module.f`; else for all functions so called."""
    first, *others = name.split(".")
    found = names.get(first)
    if found is None:
        for length in range(len(others), 0, -1):
            found = sys.modules.get(".".join([first, *others][:length]))
            if found is not None:
                others = [first, *others][length:]
                break
    for other in others:
        found = getattr(found, other, None)
    if callable(found):
        return why(found)
    here = [row for row in rows("capture", *_EVENTS) if row.function == name or row.function.endswith("." + name)]
    reasons = [f"{row.place}: {_EVENTS[row.event](row)}" for row in here if row.event in _EVENTS]
    captures = sum(row.total for row in here if row.event == "capture")
    eager, trains_eagerly = (sum(row.event in kinds for row in here) for kinds in (_LEFT, ("no_joint",)))
    return Why(name, _verdict(None, False, captures, eager, bool(trains_eagerly)), reasons)


def _verdict(fn: Any, is_compiled: bool, captures: int, eager: int, trains_eagerly: bool) -> str:
    if _is_disabled(fn):
        return "runs under CPython: it is marked with magneto.disable"
    if captures and eager:
        return "runs compiled, but some of it runs under CPython"
    if captures and trains_eagerly:
        return "is captured, but its gradients are not compiled: it trains at eager's speed"
    if captures:
        return "runs compiled"
    if eager:
        return "runs under CPython"
    if is_compiled:
        return "has not been called since it was compiled, or since the last reset"
    if inspect.isroutine(fn) and not hasattr(fn, "__code__"):
        return "is no Python function: captures record what it does, or end in front of it; none has ended there"
    return (
        "no capture has met it: it is not compiled, and what calls it is not, or ran under CPython "
        "(magneto.summary() lists what did, and why)"
    )


def _break(row: Row) -> str:
    source = linecache.getline(row.file, row.line).strip()
    return f"line {row.line} runs under CPython, {times(row.total)} captured: {row.cause}" + (
        f"\n      {source}" if source else ""
    )


_EVENTS: dict[str, Callable[[Row], str]] = {
    "graph_break": _break,
    "recompile": lambda row: f"captured again {times(row.total)}: {row.last}",
    "fallback": lambda row: f"left to CPython from line {row.line} on: {row.cause}: {row.example}",
    "limit": lambda row: f"new cases are left to CPython: config.{row.cause} is reached; {row.example}",
    "undone": lambda row: f"an operator raised {row.cause} {times(row.total)}: CPython ran it again",
    "skipped": lambda row: f"its frames are not captured by themselves: {row.cause}",
    "no_joint": lambda row: (
        f"trains at eager's speed from line {row.line} on, its torch calls one by one under autograd: {row.cause}"
    ),
}


_LEFT = ("graph_break", "fallback", "limit", "undone", "skipped")


def _parts(fn: Any) -> tuple[Any, Any]:
    """The compiled function, if it is one, and the function itself."""
    if isinstance(fn, torch.nn.Module):
        compiled = vars(fn).get("_compiled") or vars(fn).get("_compiled_call_impl")
        module = getattr(fn, "_orig_mod", fn)
        return (compiled if isinstance(compiled, _C.CompiledFunction) else None), inspect.unwrap(module.forward)
    if isinstance(fn, _C.CompiledFunction):
        return fn, fn._torchdynamo_orig_callable
    if not callable(fn):
        raise exc.InvalidValue(f"magneto.why takes a callable, not an object of type {type(fn).__name__}")
    is_object = not (inspect.isroutine(fn) or inspect.isclass(fn) or hasattr(fn, "__code__"))
    return None, type(fn).__call__ if is_object else fn


def _is_disabled(fn: Any) -> bool:
    code = getattr(fn, "__code__", None)
    return code is not None and code.co_filename.endswith("_forward.py") and "disabled" in code.co_qualname


def _is_call_of(cause: str, *functions: Any) -> bool:
    """Whether a break is a call of one of the functions: "InputOutput: call of builtins.print"."""
    called = cause.partition("call of ")[2].removeprefix("the C function ")
    return bool(called) and any(
        called == f"{getattr(one, '__module__', None)}.{getattr(one, '__qualname__', None)}"
        or called == getattr(one, "__qualname__", None)
        for one in functions
    )


@dataclass(frozen=True, repr=False)
class Summary(Tables):
    """What `summary` gives."""

    rows: list[Row]
    _nothing = "Nothing was captured."

    def _tables(self) -> Iterable[Table]:
        of = {event: [row for row in self.rows if row.event == event] for event in ("capture", *_EVENTS)}
        yield Table("Captured", ("Segment", "Captures"), [(row.place, str(row.total)) for row in of["capture"]])
        yield Table(
            "Graph breaks",
            ("Count", "Reason", "At", "Line"),
            [
                (str(row.total), row.cause, row.place, linecache.getline(row.file, row.line).strip())
                for row in sorted(of["graph_break"], key=lambda row: -row.total)
            ],
        )
        yield Table(
            "Recompiles",
            ("Count", "What keeps changing", "Needed at", "What would stop it"),
            [(str(one.count), one.what, one.needed_at, one.remedy) for one in changes(of["recompile"])],
        )
        left = [*of["fallback"], *of["limit"], *of["undone"], *of["skipped"]]
        yield Table(
            "Left to CPython",
            ("Count", "Cause", "At"),
            [(str(row.total), f"{row.cause}: {row.example}" if row.example else row.cause, row.place) for row in left],
        )
        yield Table(
            "Trained at eager's speed",
            ("Count", "Why gradients are not compiled", "At"),
            [(str(row.total), row.cause, row.place) for row in of["no_joint"]],
        )


def summary() -> Summary:
    """All that was captured, broke, was captured again or was left to CPython, by place, with counts."""
    return Summary(rows("capture", *_EVENTS))
