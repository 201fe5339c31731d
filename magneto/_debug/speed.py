"""Which kernels are slower than eager's, and how much memory a graph takes: of the structured log of one run.

The log has each program's operators, kernels and the times of its steps. Eager's times are taken here: the same
operators one by one, on inputs of the same sizes. Both compute on one thread.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from magneto import _C, _trace, config
from magneto._debug import children, devices, same

SLOWER, LEAST = 1.3, 5e-6  # times as long, and seconds more: less is noise
_TIMES = 5
_SYMBOL = re.compile(r": \w+\[[^\]]*\b[su]\d")  # in an operator's type


class Program(NamedTuple):
    """Of the log: a graph's program, its operators as text, the times of its steps."""

    place: str
    program: dict[str, Any]
    text: str
    steps: list[list[float]]  # count, best and mean in nanoseconds


def report(run: Callable[[], Any], eagerly: Callable[[], Any], seconds: float) -> dict[str, list[str]]:
    """Sentences on "speed", "memory" and what is "unjudged" of what `run` compiles; `eagerly` runs the same without.
    In children: nothing stays."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            traced = found = children.run(lambda: _traced(run, folder), seconds, children.available_mb())
            if not traced.failed:
                found = children.run(lambda: _compared(Path(folder)), seconds, children.available_mb())
    except OSError as error:
        return {"unjudged": [f"not measured: {error.strerror}. Set TMPDIR to a folder with room"]}
    if found.failed:
        return {"unjudged": [f"not measured: {found}"]}
    measured: dict[str, list[str]] = found.result
    if traced.result:
        plain = children.run(lambda: (eagerly(), devices.peaks())[1], seconds, children.available_mb())
        measured["memory"] += devices.texts(traced.result, plain.result or {})
    return measured


def _traced(run: Callable[[], Any], folder: str) -> dict[str, Any]:
    """What the GPUs say of their memory; the log is in the folder."""
    devices.watch()
    _trace.write_to(folder)
    with config.patch(disk_cache=False, repro_after=""):
        run()
    _trace.finish()
    return {**devices.peaks(), "snapshot": devices.snapshot()} if devices.peaks() else {}


def _compared(folder: Path) -> dict[str, list[str]]:
    speed, memory, unjudged = [], [], []
    for one in _programs(folder):
        sized = any(_SYMBOL.search(line) for line, *_ in one.program["aten"])
        times, peak = ([], None) if sized else _eagerly(one.text)
        if sized:
            unjudged.append(f"{one.place}: its sizes are dynamic, so its times are of several sizes")
        elif all(count < 2 for count, *_ in one.steps):
            unjudged.append(f"{one.place}: it ran once")
        speed += _slower(one, times)
        planned = one.program["peak"]
        eager = f", eager's {_bytes(peak)}" if peak is not None else ""
        memory.append(f"{one.place}: planned peak {_bytes(planned)}{eager}")
    return {"speed": speed, "memory": memory, "unjudged": unjudged}


def _programs(folder: Path) -> Iterator[Program]:
    from magneto._report import log

    with contextlib.suppress(log.BadInput):
        for one in log.read_folder(folder):
            text, place = "", "?"
            programs: dict[str, list[tuple[str, dict[str, Any], str]]] = {}
            for record in one.records:
                name = record.metadata.get("name") if isinstance(record.metadata, dict) else None
                key = str(getattr(record, "compile_id", None))
                if record.name == "dynamo_start":
                    frame = record.metadata["stack"][-1]
                    place = f"{frame['name']} ({frame['filename']}:{frame['line']})"
                elif record.name == "inductor_post_grad_graph":
                    text = record.payload
                elif name == "magneto_program":
                    programs.setdefault(key, []).append((place, json.loads(record.payload), text))
                elif name == "magneto_runs" and programs.get(key):
                    yield Program(*programs[key].pop(0), json.loads(record.payload)["steps"])


def _eagerly(text: str) -> tuple[list[float | None], int | None]:
    """The time of each operator, None where it can't be called so; and the most memory besides the inputs."""
    from magneto._debug.minify_operators import random_inputs

    graph = _C.graph_from_text(text[: text.index("\n}") + 3])
    module: Any = _C.operator_calls(graph)
    values: dict[Any, Any] = {}
    given = iter(random_inputs(graph))
    times: list[float | None] = []
    with torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = getattr(module, node.target)
            elif node.op == "call_function":
                seconds = _call(node, values)
                if node.target is not operator.getitem:  # of several results one
                    times.append(seconds)
    return times, _peak(list(module.graph.nodes), values) if None not in times else None


def _peak(nodes: list[Any], values: dict[Any, Any]) -> int:
    """The most bytes at a time, where each storage goes after its last use."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for at, node in enumerate(nodes):
        for own in (node, *node.all_input_nodes):
            for x in same.tensors(values.get(own)):
                storage = x.untyped_storage()
                first.setdefault(storage.data_ptr(), at)
                last[storage.data_ptr()] = at
                inside = nodes[first[storage.data_ptr()]].op == "call_function"
                sizes[storage.data_ptr()] = storage.nbytes() if inside else 0
    return max(sum(sizes[x] for x in sizes if first[x] <= at <= last[x]) for at in range(len(nodes)))


def _call(node: Any, values: dict[Any, Any]) -> float | None:
    try:
        args = torch.fx.node.map_arg(node.args, values.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
        best = float("inf")
        for _ in range(_TIMES):
            start = time.perf_counter()
            values[node] = node.target(*args, **kwargs)
            best = min(best, time.perf_counter() - start)
        return best
    except Exception:  # of random indices, for one; what reads it can't be called, either
        return None


def _slower(one: Program, times: list[float | None]) -> list[str]:
    found, done = [], set()
    for step, (count, best, _) in zip(one.program["steps"], one.steps, strict=False):
        kernel = one.program["kernels"][step["kernel"]] if "kernel" in step else None
        operators = kernel["operators"] if kernel else [step["node"]]
        own = [at for at in operators if at not in done]  # what is computed again is eager's work once
        done.update(own)
        if count < 2 or not own or any(at >= len(times) or times[at] is None for at in own):
            continue
        eager, taken = sum(times[at] or 0.0 for at in own), best * 1e-9
        if taken > SLOWER * eager and taken > eager + LEAST:
            name = f"kernel {kernel['name']}" if kernel else "call"
            texts = ", ".join(one.program["aten"][at][0].rpartition(" = ")[2] for at in own[:4])
            found.append(f"{one.place}: {name} takes {taken * 1e6:.1f} us, eager {eager * 1e6:.1f} us: {texts}")
    return found


def _bytes(count: int) -> str:
    return f"{count / 2**20:.2f} MB" if count >= 2**20 // 10 else f"{count} bytes"
