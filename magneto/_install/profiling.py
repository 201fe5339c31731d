"""What torch._dynamo.utils and torch._dynamo.testing offer for looking on: profiler, counters, times, test backends."""

from __future__ import annotations

import collections
import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from magneto import _C, _log, config, exc

_RECOMPILE = re.compile(r"Recompiling function (?P<function>.*) in (?P<file>.*):(?P<line>\d+)")


def eager(gm: Any, example_inputs: Any = None, **options: Any) -> Callable[..., Any]:
    """A backend that runs the graph as it is."""
    return gm.forward  # type: ignore[no-any-return]


def make_eager_backend(*modes: Any) -> Callable[..., Any]:
    """A backend for torch's own higher-order operators."""
    return eager


class CompileProfiler:
    """A backend that runs graphs as they are and records why they break and why they are captured again.

        prof = torch._dynamo.utils.CompileProfiler()
        torch.compile(model, backend=prof)(x)
        print(prof.report())

    It records what happens in the process from its making on. Functions compiled with it have no limit of captures.
    """

    recompile_limit = 1 << 30

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.guard_failures: dict[str, list[str]] = collections.defaultdict(list)
        self.graph_breaks: collections.Counter[str] = collections.Counter()
        _log.listen("recompiles", self._recompiled)
        _log.listen("graph_breaks", self._broken)

    def _recompiled(self, text: str) -> None:
        head, *lines = text.splitlines()
        found = _RECOMPILE.match(head)
        if found:
            reasons = [line.strip().removeprefix("- ") for line in lines if line.strip().startswith("- ")]
            self.guard_failures[f"'{found['function']}' ({found['file']}:{found['line']})"].append(reasons[0])

    def _broken(self, text: str) -> None:
        cause, _, rest = text.removeprefix("Graph break: ").partition("\n")
        place = [line.strip() for line in rest.splitlines() if line.startswith('  File "')]
        self.graph_breaks[cause + (f"\n  {place[-1]}" if place else "")] += 1

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return gm.forward  # type: ignore[no-any-return]

    def __enter__(self) -> CompileProfiler:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def get_metrics(self) -> dict[str, Any]:
        """The reasons, by function."""
        return {"guard_failures": dict(self.guard_failures)}

    def report(self) -> str:
        """All that was recorded, as text."""
        lines = ["Torchdynamo Profiler Report", "===========================", "", "Graph Breaks", "------------"]
        if self.graph_breaks:
            lines += ["`fullgraph=True` makes the first of them an error with its stack.", ""]
            rows = [(cause, count) for cause, count in self.graph_breaks.most_common()]
            lines += _table(("Graph Break Reason", "Count"), rows)
        else:
            lines.append("No graph breaks detected.")
        lines += ["", "Recompilation", "-------------"]
        if self.guard_failures:
            lines += ["Each row is a function that was captured again, and the guard that failed each time.", ""]
            again = [(name, len(reasons), "\n".join(reasons)) for name, reasons in self.guard_failures.items()]
            lines += _table(("Function", "Recompiles", "Recompile Reasons"), again)
            most = max(map(len, self.guard_failures.values())) + 1
            lines += ["", f"Set torch._dynamo.config.cache_size_limit to {most} to avoid being cache limited."]
        else:
            lines.append("No recompilations detected.")
        return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Columns as wide as their longest line; cells may have several lines."""
    cells = [[str(cell).splitlines() or [""] for cell in row] for row in (head, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(head))]
    lines = []
    for row in cells:
        for index in range(max(map(len, row))):
            texts = [cell[index] if index < len(cell) else "" for cell in row]
            lines.append("  ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def compile_times(repr: str = "str", aggregate: bool = False) -> Any:
    """The seconds that each stage of each compile took: a table, or with "csv" a list of stages and one of their times.

    A stage's time holds those of the stages in it: "compile.backend" that of "compile.backend.lowering". `aggregate`
    gives sums.
    """
    times = {
        stage: [sum(all_of_them)] if aggregate else all_of_them for stage, all_of_them in _C.compile_times().items()
    }
    if repr == "csv":
        return list(times), [", ".join(f"{seconds:.6f}" for seconds in row) for row in times.values()]
    if repr != "str":
        raise exc.InvalidName("form of compile_times", repr, ("str", "csv"))
    rows = [(stage, ", ".join(f"{seconds:.4f}" for seconds in row)) for stage, row in times.items()]
    return "TorchDynamo compilation metrics:\n" + "\n".join(_table(("Function", "Runtimes (s)"), rows))


class _Counters(Mapping[str, "collections.Counter[str]"]):
    """magneto.stats() under the names of torch._dynamo.utils.counters; `clear()` starts them anew."""

    _SOURCES: Mapping[str, Callable[[Mapping[str, Any]], dict[str, int]]] = {
        "frames": lambda stats: {
            "total": stats["frames"] + sum(stats["fallbacks"].values()),
            "ok": stats["frames"],
        },
        "stats": lambda stats: {"unique_graphs": stats["graphs"], "calls_captured": stats["ops"]},
        "graph_break": lambda stats: stats["break_reasons"],
        "recompiles": lambda stats: {"total": stats["recompiles"]},
        "unimplemented": lambda stats: stats["fallbacks"],
        "inductor": lambda stats: {
            "kernels": stats["kernels"],
            "extern_calls": sum(stats["externs"].values()),
            "fxgraph_cache_hit": stats["cache_hits"],
            "fxgraph_cache_miss": stats["cache_misses"],
        },
    }

    def __init__(self) -> None:
        self._before: dict[str, collections.Counter[str]] = {}
        self._own: dict[str, collections.Counter[str]] = {}

    def __getitem__(self, name: str) -> collections.Counter[str]:
        if name not in self._SOURCES:  # a library's own
            return self._own.setdefault(name, collections.Counter())
        now = collections.Counter(self._SOURCES[name](_C.stats()))
        return now - self._before.get(name, collections.Counter())

    def __iter__(self) -> Iterator[str]:
        return (name for name in (*self._SOURCES, *self._own) if self[name])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """What was counted so far is left out from here on."""
        stats = _C.stats()
        self._before = {name: collections.Counter(source(stats)) for name, source in self._SOURCES.items()}
        self._own.clear()


counters = _Counters()


@contextlib.contextmanager
def disable_cache_limit() -> Iterator[None]:
    """No limit of captures in the block."""
    with config.patch(cache_size_limit=1 << 30, accumulated_cache_size_limit=1 << 30):
        yield


@contextlib.contextmanager
def fresh_cache(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Another, empty cache on disk in the block."""
    with tempfile.TemporaryDirectory() as folder, config.patch(disk_cache_dir=folder):
        yield


_warned: set[str] = set()


def warn_once(text: str, stacklevel: int = 1) -> None:
    """A warning, the first time."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=stacklevel + 1)


class CompileCounter:
    """A backend that counts graphs (`frame_count`) and their calls (`op_count`), and runs them as they are."""

    def __init__(self) -> None:
        self.frame_count: int | str = 0
        self.op_count: int | str = 0

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1  # type: ignore[operator]
        self.op_count += sum("call" in node.op for node in gm.graph.nodes)  # type: ignore[operator]
        return gm.forward  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Counts from nought again."""
        self.frame_count = self.op_count = 0


class CompileCounterWithBackend(CompileCounter):
    """Counts, and keeps the graphs; `backend` runs them: a name or a callable."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self.backend = backend
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        from magneto import _api

        self.graphs.append(gm)
        run = super().__call__(gm, example_inputs)
        if callable(self.backend):
            return self.backend(gm, example_inputs)  # type: ignore[no-any-return]
        return run if self.backend == "eager" else _api.compile(run, backend=self.backend, fullgraph=True)

    def clear(self) -> None:
        super().clear()
        self.graphs = []


class EagerAndRecordGraphs:
    """A backend that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.graphs.append(gm)
        return gm.forward  # type: ignore[no-any-return]


def rand_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: Any = "cpu",
    extra_size: int = 0,
) -> torch.Tensor:
    """Random values in a tensor with that size and these strides."""
    length = 1 + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + extra_size
    if dtype.is_floating_point or dtype.is_complex:
        memory = torch.randn(max(length, 0), device=device).to(dtype)
    else:
        memory = torch.randint(0, 2, (max(length, 0),), device=device).to(dtype)
    return torch.as_strided(memory, tuple(size), tuple(stride))


def clone_input(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy with the same strides that is a leaf."""
    copy = torch.empty_strided(x.size(), x.stride(), dtype=dtype or x.dtype, device=x.device)
    with torch.no_grad():
        copy.copy_(x)
    return copy.requires_grad_(x.requires_grad)


def run_fwd_maybe_bwd(gm: Callable[..., Any], args: Any, only_fwd: bool = False, disable_clone: bool = False) -> Any:
    """Calls on copies of the arguments; then backward from the sum of what needs gradients."""
    copies = args if disable_clone else [clone_input(x) if isinstance(x, torch.Tensor) else x for x in args]
    out = gm(*copies)
    outputs = out if isinstance(out, (tuple, list)) else [out]
    losses = [x.sum() for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if losses and not only_fwd:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    return out
