"""Where the core's log lines go: PyTorch's own loggers, so that TORCH_LOGS and torch._logging.set_logs apply.

The loggers are children of those that PyTorch configures for its compiler ("torch._dynamo" is a logger's name here, no
module): so they have its handlers, its format and its levels, `TORCH_LOGS=+dynamo` included. A compile's id, which the
core gives with each text, stands in front of its lines.
"""

from __future__ import annotations

import atexit
import dis
import functools
import inspect
import linecache
import logging
import os
import re
import types
import weakref
from collections.abc import Callable
from typing import Any

from torch._logging import _internal as _registry
from torch._logging._internal import getArtifactLogger

from magneto import _C, _graph_text, _trace, _variables, config, exc
from magneto._trace import Id

# The parts of torch.compile as TORCH_LOGS names them: their messages are at level INFO.
COMPONENTS = {
    "dynamo": "torch._dynamo.magneto",
    "aot": "torch._functorch._aot_autograd.magneto",
    "inductor": "torch._inductor.magneto",
    "dynamic": "torch.fx.experimental.symbolic_shapes.magneto",
}
# All artifacts that the core or this package emits, by the part that they belong to.
ARTIFACTS = {
    "dynamo": (
        *("graph", "graph_code", "graph_sizes", "graph_breaks", "guards", "recompiles", "recompiles_verbose"),
        *("trace_source", "trace_bytecode", "bytecode"),
    ),
    "aot": ("aot_graphs", "aot_joint_graph"),
    "inductor": (
        *("post_grad_graphs", "autotuning", "ir_pre_fusion", "ir_post_fusion", "fusion", "schedule"),
        *("output_code", "kernel_code", "perf_hints", "cudagraphs"),
    ),
}
_PARENTS = {artifact: COMPONENTS[part] for part, artifacts in ARTIFACTS.items() for artifact in artifacts}

_listeners: dict[str, list[weakref.WeakMethod[Callable[[str], None]]]] = {}


def listen(artifact: str, method: Callable[[str], None]) -> None:
    """Calls a bound method with each text of an artifact, as long as its object lives."""
    _listeners.setdefault(artifact, []).append(weakref.WeakMethod(method, lambda dead: _forget(artifact, dead)))


def _forget(artifact: str, dead: weakref.WeakMethod[Callable[[str], None]]) -> None:
    _listeners[artifact].remove(dead)


@functools.cache
def _logger(name: str) -> tuple[logging.Logger, int]:
    """The logger of an artifact or of a part, and the level of its lines."""
    if name in COMPONENTS:
        return logging.getLogger(COMPONENTS[name]), logging.INFO
    return getArtifactLogger(_PARENTS[name], name), logging.DEBUG


@functools.cache
def _all_loggers() -> tuple[tuple[str, logging.Logger, int], ...]:
    return tuple((name, *_logger(name)) for name in (*COMPONENTS, *_PARENTS))


def _is_heard(logger: logging.Logger, level: int) -> bool:
    # PyTorch keeps the lines of some artifacts back by `propagate` alone.
    return logger.isEnabledFor(level) and bool(logger.propagate or logger.handlers)


def enabled(name: str) -> bool:
    """Whether anybody listens; the core builds a text only then."""
    return bool(_listeners.get(name)) or _is_heard(*_logger(name))


_quiet = False  # no logger was enabled when they were asked last


def _is_quiet() -> bool:
    """No logger is enabled: the case that must cost nothing, so that not all of them are asked each time.

    A logger notes what it has answered, until any logger's level changes.
    """
    global _quiet
    _, first, level = _all_loggers()[0]
    if not _quiet or level not in getattr(first, "_cache", ()):
        _quiet = not any(logger.isEnabledFor(level) for _, logger, level in _all_loggers())
    return _quiet


def wanted() -> tuple[str, ...]:
    """The names that somebody listens to: asked at the start of each compile. "trace" is TORCH_TRACE."""
    loggers = () if _is_quiet() and not any(_listeners.values()) else _all_loggers()
    names = [name for name, logger, level in loggers if _is_heard(logger, level) or _listeners.get(name)]
    if _trace.enabled():
        names.append("trace")
    return tuple(names)


def set_logs_with_names(set_logs: Callable[..., None]) -> Callable[..., None]:
    """`torch._logging.set_logs` that takes the documents' names, and names the nearest of a wrong one."""
    valid = inspect.signature(set_logs).parameters

    @functools.wraps(set_logs)
    def named(**levels: Any) -> None:
        known = {_variables.LOGS.get(name, name): level for name, level in levels.items()}
        for name in known:
            if name not in valid:
                raise exc.InvalidLog("log", name, {*valid, *_variables.LOGS})
        set_logs(**known)

    return named


def announce(text: str) -> None:
    """Shown whatever TORCH_LOGS says: where something is that the user asked for."""
    text = _with_lines_of_frames(text)
    logging.getLogger(COMPONENTS["dynamo"]).warning("%s", text, stacklevel=2)


def error(text: str) -> None:
    """Shown whatever TORCH_LOGS says: a compile that failed, where the user asked to go on."""
    logging.getLogger(COMPONENTS["dynamo"]).error("%s", text, stacklevel=2)


def emit(name: str, text: str, compile_id: Id | None = None, stacklevel: int = 2) -> None:
    """Writes a text of an artifact (graph_breaks, guards, recompiles...) or a message of a part."""
    _said.add(name)
    if name == "guards":
        text = _with_source_lines(text)
    elif name == "dynamic":
        text = _with_lines_of_frames(text)
    for listener in _listeners.get(name, ()):
        if method := listener():
            method(text)
    logger, level = _logger(name)
    if compile_id is None:
        logger.log(level, "%s", text, stacklevel=stacklevel)
        return
    with _trace.in_compile(compile_id):
        logger.log(level, "%s", text, stacklevel=stacklevel)


_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+), in .*$', re.MULTILINE)


def _with_lines_of_frames(text: str) -> str:
    """As tracebacks have them."""

    def with_line(frame: re.Match[str]) -> str:
        line = linecache.getline(frame["file"], int(frame["line"])).strip()
        return f"{frame[0]}\n    {line}" if line else frame[0]

    return _FRAME.sub(with_line, text)


_PLACE = re.compile(r"  # (?P<file>\S.*):(?P<line>\d+) in (?P<function>\S+)$", re.MULTILINE)


def _with_source_lines(text: str) -> str:
    """Guards name the place that needed them: `# return x + 1  # playground.py:6 in fn`."""

    def with_line(place: re.Match[str]) -> str:
        line = linecache.getline(place["file"], int(place["line"])).strip()
        name = f"{os.path.basename(place['file'])}:{place['line']} in {place['function']}"
        return f"  # {line}  # {name}" if line else f"  # {name}"

    return _PLACE.sub(with_line, text)


def emit_graph(name: str, module: Any, compile_id: Id | None) -> None:
    """`graph`, `graph_code` and `graph_sizes` of a captured torch.fx.GraphModule."""
    for artifact, heading, text in (
        ("graph_code", "TRACED GRAPH", _graph_text.code),
        ("graph", "TRACED GRAPH", _graph_text.table),
        ("graph_sizes", "TRACED GRAPH TENSOR SIZES", _graph_text.sizes),
    ):
        if enabled(artifact):
            emit(artifact, f"{heading}\n===== {name} =====\n{text(module)}", compile_id, stacklevel=3)


def emit_bytecode(code: types.CodeType, plan: str, compile_id: Id | None) -> None:
    """`bytecode`: what CPython would run, and the plan that runs in its place."""
    place = f"{code.co_name} {code.co_filename} line {code.co_firstlineno}"
    original = dis.Bytecode(code).dis().rstrip()
    emit("bytecode", f"ORIGINAL BYTECODE {place}\n{original}\n\nPLAN {place}\n{plan}", compile_id, stacklevel=3)


def emit_line(code: types.CodeType, line: int, depth: int, compile_id: Id | None) -> None:
    """`trace_source`: the capture goes on at another line."""
    inlined = f" (inline depth: {depth})" if depth else ""
    place = f"{code.co_filename}:{line} in {code.co_name} ({code.co_qualname}){inlined}"
    source = linecache.getline(code.co_filename, line).rstrip()
    emit("trace_source", f"TRACE starts_line {place}\n    {source}", compile_id, stacklevel=3)


@functools.lru_cache(maxsize=32)
def _instructions(code: types.CodeType) -> dict[int, str]:
    return {one.offset: f"{one.opname} {one.argval}" for one in dis.get_instructions(code)}


def emit_instruction(code: types.CodeType, offset: int, stack: str, compile_id: Id | None) -> None:
    """`trace_bytecode`: an instruction, and the value stack in front of it."""
    emit("trace_bytecode", f"TRACE {_instructions(code).get(offset, '?')} [{stack}]", compile_id, stacklevel=3)


_said: set[str] = set()  # what has been written, by name

# Why an artifact that was asked for by its name had nothing to say.
_SILENT = {
    "graph_breaks": "no graph break",
    "recompiles": "nothing was captured again",
    "recompiles_verbose": "nothing was captured again",
    "dynamic": "no size is dynamic: none differed from call to call or was marked, and dynamic=True was not asked for",
    "aot_joint_graph": "no graph with gradients: no input required them, or all ran under torch.no_grad()",
    "autotuning": 'nothing was measured: mode="max-autotune" measures',
    "perf_hints": "no hints: all operators were generated",
    "cudagraphs": "there are none: nothing runs on a GPU",
    "aot_graphs": 'no graph was lowered: the backend runs the torch-level graph (backend="eager")',
}
_LOWERED = 'no graph was lowered: the backend runs the graph itself (backend="eager", "aot_eager", or one of your own)'


def _tell_what_was_silent() -> None:
    """When the program ends: what was asked for by name, and had nothing to say."""
    wanted = {name for name in _registry.log_state.artifact_names if name in _registry.log_registry.artifact_names}
    if _is_heard(*_logger("dynamic")) and logging.getLogger(_parent(COMPONENTS["dynamic"])).level != logging.NOTSET:
        wanted.add("dynamic")
    captures = _C.stats()["frames"] or bool(_said)  # the program may have reset the counters
    for name in sorted(wanted - _said):
        if name in _PARENTS or name == "dynamic":
            why = _SILENT.get(name, _LOWERED) if captures else "nothing was compiled"
            emit(name, f"{name}: {why}")
        else:
            announce(f"TORCH_LOGS={name}: Magneto writes nothing under this name")


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _tell_of_debug_function() -> None:
    """When the program ends: `config.debug_function` had a name that no function has that was called."""
    named = config.debug_function
    if not named:
        return
    rows = _C.history()
    if any(
        event == "capture" and named in (function, function.rpartition(".")[2]) for event, _, _, _, function, *_ in rows
    ):
        return
    others = {
        function.rpartition(".")[2]
        for event, _, _, _, function, cause, *_ in rows
        if event == "skipped" and cause.startswith("config.debug_function")
    }
    near = exc.nearest(named, others)
    guess = f" Did you mean {near!r}?" if near else ""
    called = f" Called were: {', '.join(sorted(others))}." if others else ""
    announce(f"config.debug_function is {named!r}, and nothing of that name was captured.{guess}{called}")


@atexit.register
def _finish() -> None:
    try:
        _tell_what_was_silent()
        _tell_of_debug_function()
    except Exception as error:  # the program is over: its status is not ours to change
        logging.getLogger(COMPONENTS["dynamo"]).debug("at the end: %s", error)
