"""TORCH_TRACE: what a compile did, as PyTorch's structured log, which `tlparse` makes a report of.

The core tells of each compile that begins, of what it makes and of its end; PyTorch's own handler of "torch.__trace"
writes one file for each process. What takes longer to make waits for a moment in which nothing is compiled, for a
second at most.
"""

from __future__ import annotations

import atexit
import dis
import functools
import hashlib
import json
import linecache
import logging
import os
import sys
import threading
import time
import types
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import distributed
from torch._guards import CompileContext, CompileId, compile_context
from torch._logging._internal import LazyTraceHandler, TorchLogsFormatter, trace_log
from torch._logging.structured import intern_string

from magneto import _C, _graph_text, _guard_tree

Id = tuple[int, int, int]  # place, compile, attempt

# Between a module's caller and its `forward`.
_MODULE_CALLS = (torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__)
_HERE = os.path.dirname(__file__) + os.sep


def enabled() -> bool:
    """TORCH_TRACE is set. Without it PyTorch's handler is there, but has nowhere to write."""
    if _muted:
        return False
    handlers = [handler for handler in _handlers() if handler.root_dir is not None]
    for handler in handlers:
        _guard(handler)
    return bool(handlers)


def _handlers() -> list[LazyTraceHandler]:
    return [handler for handler in trace_log.handlers if isinstance(handler, LazyTraceHandler)]


def _guard(handler: LazyTraceHandler) -> None:
    """A folder that can't be written ends the log, with one sentence: PyTorch's handler raises, or prints for each
    record how it came there."""
    if "emit" in vars(handler):
        return
    emit, handle_error = handler.emit, handler.handleError

    def guarded(record: logging.LogRecord) -> None:
        try:
            emit(record)
        except OSError as error:
            _give_up(handler, error)

    def handle(record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            _give_up(handler, error)
        else:
            handle_error(record)

    handler.emit, handler.handleError = guarded, handle  # type: ignore[method-assign]


def _give_up(handler: LazyTraceHandler, error: OSError) -> None:
    from magneto import _log

    if handler in trace_log.handlers:
        trace_log.removeHandler(handler)
        _log.announce(
            f"No more of TORCH_TRACE's log is written: {handler.root_dir}: {error.strerror}. Set TORCH_TRACE to a "
            "folder with room; the program goes on."
        )


_muted = False


def mute() -> None:
    """This process is a child that tries something: the log is its parent's."""
    global _muted
    _muted = True


def write_to(folder: str) -> None:
    """The log of this process lies in that folder, in a muted child, too."""
    global _muted
    if not _handlers():  # PyTorch's own goes when it has a record and nowhere to write
        handler = LazyTraceHandler(None)
        handler.setFormatter(TorchLogsFormatter(trace=True))
        trace_log.addHandler(handler)
    for handler in _handlers():
        handler.root_dir = folder
    trace_log.setLevel(logging.DEBUG)
    _muted = False


def in_compile(compile_id: Id) -> AbstractContextManager[Any]:
    """What is logged meanwhile is of that compile."""
    context = CompileContext(CompileId(frame_id=compile_id[0], frame_compile_id=compile_id[1]))
    context.attempt = compile_id[2]
    return compile_context(context)


def _write(compile_id: Id | None, name: str, metadata: Any = None, payload: str | None = None) -> None:
    """A record as `trace_structured` writes it, but that the rank is known after the process group has ended, too.
    Without a compile's id it is of the program."""
    record: dict[str, Any] = {name: metadata or {}}
    if compile_id is not None:
        record |= zip(("frame_id", "frame_compile_id", "attempt"), compile_id, strict=True)
    if (rank := _rank()) is not None:
        record["rank"] = rank
    if payload is not None:
        record["has_payload"] = hashlib.md5(payload.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
    trace_log.debug("", extra={"metadata": record, "payload": payload}, stacklevel=2)


_last_rank: int | None = None


def _rank() -> int | None:
    global _last_rank
    if distributed.is_available() and distributed.is_initialized():
        _last_rank = distributed.get_rank()
    return _last_rank


def _frame(file: str, line: int, function: str) -> dict[str, Any]:
    source = linecache.getline(file, line).strip()
    return {"line": line, "name": function, "filename": intern_string(file), "loc": source}


@functools.cache
def _finish_at_exit() -> None:
    atexit.register(finish)
    os.register_at_fork(after_in_child=_forget)


def begin(code: types.CodeType, line: int, compile_id: Id) -> None:
    """A compile begins, of `code` from that line on; who called it is on this thread's stack."""
    global _open
    _finish_at_exit()
    _open += 1
    stack = [_frame(code.co_filename, line, code.co_name)] if code not in _MODULE_CALLS else []
    caller: types.FrameType | None = sys._getframe(1)
    if caller is not None and caller.f_code is code:  # it is being compiled from here on
        caller = caller.f_back
    while caller is not None:
        if caller.f_code not in _MODULE_CALLS and not caller.f_code.co_filename.startswith((_HERE, "<frozen")):
            stack.append(_frame(caller.f_code.co_filename, caller.f_lineno, caller.f_code.co_name))
        caller = caller.f_back
    _write(compile_id, "dynamo_start", {"stack": stack[::-1]})


def bytecode(code: types.CodeType, plan: str, compile_id: Id) -> None:
    """The original, and the plan that runs in its place."""
    _bytecode.append((compile_id, code, plan))


# Stages of a graph that have a name of their own in the log; others are artifacts.
_STAGES: dict[str, tuple[str, dict[str, str]]] = {
    "functional": ("aot_inference_graph", {}),
    "normal_form": ("inductor_post_grad_graph", {}),
}


def stage(name: str, text: str, compile_id: Id) -> None:
    """A graph on its way to a plan (src/observe/stages.def)."""
    if name in _STAGES:
        _write(compile_id, _STAGES[name][0], _STAGES[name][1], text)
    else:
        artifact(name, text, compile_id)


def artifact(name: str, text: str, compile_id: Id) -> None:
    """Anything else, as text."""
    _write(compile_id, "artifact", {"name": name, "encoding": "string"}, text)


def data(name: str, text: str, compile_id: Id) -> None:
    """What `python -m magneto report` reads: JSON, an artifact for others."""
    _write(compile_id, "artifact", {"name": f"magneto_{name}", "encoding": "json"}, text)


def finding(found: dict[str, Any], texts: dict[str, str]) -> None:
    """What a tool found (magneto/_debug/findings.py): for the report, and as texts for other readers."""
    _write(None, "artifact", {"name": "magneto_finding", "encoding": "json"}, json.dumps(found))
    for name, text in texts.items():
        _write(None, "artifact", {"name": name, "encoding": "string"}, text)


def program(plan: str, text: str, compile_id: Id) -> None:
    """The plan of a graph, and its kernels with all else that the report shows of them. They may crash: not put off."""
    _write(compile_id, "inductor_output_code", {"filename": "plan.txt"}, plan)
    data("program", text, compile_id)


_bytecode: list[tuple[Id, types.CodeType, str]] = []  # ...and the plan, not written yet
_sources: dict[str, Id] = {}  # a file that graphs came from, and the first compile that needed it: not written yet
_known: set[str] = set()  # those, and what has been written


def sources(files: list[str], compile_id: Id) -> None:
    """The files that a graph comes from."""
    for file in files:
        if file not in _known:
            _known.add(file)
            _sources[file] = compile_id


_writing = threading.RLock()


def write_texts() -> None:
    """What takes longer to make than the rest of a trace: graphs as Python code, trees of guards...

    Called when nothing is being compiled, when something has waited long enough, or when the program ends.
    """
    with _writing:
        for compile_id, module, text in _C.traced_graphs():
            sizes = {node.name: list(node.meta["tensor"][1]) for node in module.graph.nodes if "tensor" in node.meta}
            _write(compile_id, "dynamo_output_graph", {"sizes": sizes}, _graph_text.code(module))
            data("graph", text, compile_id)
        while _bytecode:
            compile_id, code, plan = _bytecode.pop(0)
            artifact(f"{code.co_name}_ORIGINAL_BYTECODE", dis.Bytecode(code).dis(), compile_id)
            artifact(f"{code.co_name}_PLAN", plan, compile_id)
        for compile_id, text in _C.traced_guards():
            data("guards", text, compile_id)
            _write(compile_id, "dynamo_cpp_guards_str", payload=_guard_tree.text(json.loads(text)))
        while _sources:
            file, compile_id = _sources.popitem()
            if lines := linecache.getlines(file):
                data("source", json.dumps({file: "".join(lines)}), compile_id)


_QUIET, _LONGEST = 0.3, 0.9  # seconds: nothing has been compiled, something waits
_open = 0  # compiles that have begun and not ended
_last_end = 0.0
_writer: threading.Thread | None = None


def _write_soon() -> None:
    """On a thread: a program that is killed leaves what it compiled before, too."""
    global _writer
    latest = time.monotonic() + _LONGEST
    while (_open or time.monotonic() < _last_end + _QUIET) and time.monotonic() < latest:
        time.sleep(0.1)
    _writer = None
    write_texts()


def finish() -> None:
    """The program ends: what has been put off, and how long the steps of its graphs took."""
    with _writing:
        write_texts()
        for compile_id, runs in _C.traced_runs():
            data("runs", runs, compile_id)


def _forget() -> None:
    """This is a fork's child: its parent writes what was traced before."""
    global _writing, _writer, _open
    _writing, _writer, _open = threading.RLock(), None, 0
    _bytecode.clear()
    _sources.clear()
    _C.forget_traced()


def end(
    code: types.CodeType, outcome: dict[str, Any], stages: list[tuple[str, float, float, int]], compile_id: Id
) -> None:
    """The compile has ended: what came of it, and when its stages began (seconds since 1970) and how long they took."""
    global _open, _last_end, _writer
    seconds: dict[str, float] = {}
    for name, _, duration, _ in stages:
        seconds[name] = seconds.get(name, 0.0) + duration
    _write(
        compile_id,
        "compilation_metrics",
        {
            "co_name": code.co_name,
            "co_filename": code.co_filename,
            "co_firstlineno": code.co_firstlineno,
            "start_time": min((begun for _, begun, _, _ in stages), default=time.time()),
            "entire_frame_compile_time_s": seconds.get("compile"),
            "backend_compile_time_s": seconds.get("compile.backend"),
            "inductor_compile_time_s": seconds.get("compile.backend"),
            "code_gen_time_s": seconds.get("compile.backend.code_generation"),
            **outcome,
        },
    )
    place = {"compile_id": f"{compile_id[0]}/{compile_id[1]}", "fn_name": code.co_name}
    for name, begun, duration, peak in sorted(stages, key=lambda run: run[1]):
        event = {
            "name": name,
            "ph": "X",
            "ts": begun * 1e6,
            "dur": duration * 1e6,
            "cat": "dynamo_timed",
            "args": {**place, "peak_memory_bytes": peak} if peak else place,
        }
        _write(compile_id, "chromium_event", payload=json.dumps({**event, "pid": os.getpid(), "tid": 0}))
    _open, _last_end = _open - 1, time.monotonic()
    if _writer is None:
        _writer = threading.Thread(target=_write_soon, name="magneto trace", daemon=True)
        _writer.start()
