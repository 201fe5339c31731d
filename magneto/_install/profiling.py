"""What torch._dynamo.utils and torch._dynamo.testing offer for looking on: profiler, counters, times, test backends."""

from __future__ import annotations

import collections
import contextlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from magneto import _C, _history, _text_table, config, exc


def eager(gm: Any, example_inputs: Any = None, **options: Any) -> Callable[..., Any]:
    """A backend that runs the graph as it is."""
    return gm.forward  # type: ignore[no-any-return]


def make_eager_backend_with_mode(mode: Any) -> Callable[..., Any]:
    """A backend that runs the graph as it is, under a mode of torch functions."""
    return make_eager_backend_with_modes([mode])


def make_eager_backend_with_modes(modes: Sequence[Any]) -> Callable[..., Any]:
    """The same for several, the first outermost."""

    def backend(gm: Any, example_inputs: Any = None, **options: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode)
                return gm.forward(*args)

        return run

    return backend


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
        self._before = _counts()

    def _since(self, event: str) -> list[_history.Row]:
        """What has happened since the profiler was made, or since a reset."""
        found = []
        for row in _history.rows(event):
            before = self._before.get(row[:6], 0)
            before = before if before <= row.total else 0
            if row.total > before:
                example = "\n".join(row.example.splitlines()[before:])
                found.append(row._replace(total=row.total - before, example=example))
        return found

    @property
    def guard_failures(self) -> dict[str, list[str]]:
        """Function -> the guard that failed, for each time that it was captured again."""
        failures: dict[str, list[str]] = {}
        for row in self._since("recompile"):
            failures.setdefault(f"'{row.function}' ({row.file}:{row.line})", []).extend(row.example.splitlines())
        return failures

    @property
    def graph_breaks(self) -> collections.Counter[str]:
        """Reason and place -> how often."""
        return collections.Counter(
            {
                f'{row.cause}\n  File "{row.file}", line {row.line}, in {row.function}': row.total
                for row in self._since("graph_break")
            }
        )

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call_") for node in gm.graph.nodes)
        return gm.forward  # type: ignore[no-any-return]

    def __enter__(self) -> CompileProfiler:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def get_metrics(self) -> dict[str, Any]:
        """The reasons, by function."""
        return {"guard_failures": self.guard_failures}

    def report(self) -> str:
        """All that was recorded, as text."""
        lines = ["Torchdynamo Profiler Report", "===========================", "", "Graph Breaks", "------------"]
        if self.graph_breaks:
            lines += ["`fullgraph=True` makes the first of them an error with its stack.", ""]
            rows = [(cause, str(count)) for cause, count in self.graph_breaks.most_common()]
            lines += _text_table.plain(("Graph Break Reason", "Count"), rows)
        else:
            lines.append("No graph breaks detected.")
        lines += ["", "Recompilation", "-------------"]
        if failures := self.guard_failures:
            lines += ["Each row is a function that was captured again, and the guard that failed each time.", ""]
            again = [(name, str(len(reasons)), "\n".join(reasons)) for name, reasons in failures.items()]
            lines += _text_table.plain(("Function", "Recompiles", "Recompile Reasons"), again)
            lines += ["", "What keeps changing, and the one line that would stop it", ""]
            lines += str(_history.Recompiles(_history.changes(self._since("recompile")))).splitlines()
            most = max(map(len, failures.values())) + 1
            lines += ["", f"Set torch._dynamo.config.cache_size_limit to {most} to avoid being cache limited."]
        else:
            lines.append("No recompilations detected.")
        return "\n".join(lines) + "\n"


def _counts() -> dict[tuple[Any, ...], int]:
    return {row[:6]: row.total for row in _history.rows("graph_break", "recompile")}


def compile_times(repr: str = "str", aggregate: bool = False) -> Any:
    """The seconds that each stage of each compile took: a table, or with "csv" a list of stages and one of their times.

    A stage's time holds those of the stages in it: "compile.backend" that of "compile.backend.lowering". `aggregate`
    gives sums. With `magneto.config.stage_memory` the table has the process's peak of memory in each stage.
    """
    times = {
        stage: ([sum(seconds)] if aggregate else seconds, peaks)
        for stage, (seconds, peaks) in _C.compile_times().items()
    }
    if repr == "csv":
        return list(times), [", ".join(f"{each:.6f}" for each in seconds) for seconds, _ in times.values()]
    if repr != "str":
        raise exc.InvalidName("form of compile_times", repr, ("str", "csv"))
    head, rows = ["Function", "Runtimes (s)"], []
    measured = any(peaks for _, peaks in times.values())
    if measured:
        head.append("Peak memory (MB)")
    for stage, (seconds, peaks) in times.items():
        row = [stage, ", ".join(f"{each:.4f}" for each in seconds)]
        rows.append([*row, f"{max(peaks) / 2**20:.1f}" if peaks else ""] if measured else row)
    return "TorchDynamo compilation metrics:\n" + "\n".join(_text_table.plain(head, rows))


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

    def __repr__(self) -> str:
        return repr(dict(self))

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
    """Calls on copies of the arguments; then backward from the sum of what needs gradients.

    Gives the result alone with `only_fwd`, else a list: the result, None, gradients, parameters and buffers of a module
    as dicts by name, and the gradient of each tensor in `args`.
    """
    copies = args if disable_clone else [clone_input(x) if isinstance(x, torch.Tensor) else x for x in args]
    if isinstance(gm, torch.nn.Module):
        gm.zero_grad(True)
    out = gm(*copies)
    if only_fwd:
        return out
    losses = [
        (torch.view_as_real(x) if x.is_complex() else x).double().sum()
        for x in pytree.tree_leaves(out)
        if _needs_gradient(x)
    ]
    if losses:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    parameters = dict(gm.named_parameters()) if isinstance(gm, torch.nn.Module) else {}
    return [
        out,
        None,
        {f"{name}.grad": torch.zeros_like(x) if x.grad is None else x.grad for name, x in parameters.items()},
        parameters,
        dict(gm.named_buffers()) if isinstance(gm, torch.nn.Module) else {},
        *(x.grad for x in copies if isinstance(x, torch.Tensor)),
    ]


def _needs_gradient(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad
