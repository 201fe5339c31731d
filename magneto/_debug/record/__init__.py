"""Records of frames whose capture failed, and their replay.

The core calls `remember` and `write` while `config.replay_record_enabled` is on (src/dispatch/frame_record.h). The file
(container.py) holds the frame's function, what it was given and reads (encode.py), and the process's state (state.py).
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import platform
import re
import sys
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import magneto
from magneto import _log, config
from magneto._debug import children, scripts
from magneto._debug.record import container, state
from magneto._debug.record.encode import Encoder, Refused


@dataclass
class Frame:
    """A frame at its beginning: a record, or why there can be none."""

    record: container.Record | None = None
    why_not: str = ""


@dataclass
class Failures:
    """What `write` is told of while a replay runs, instead of writing files."""

    found: list[children.Outcome] = field(default_factory=list)


_listening: Failures | None = None


@contextlib.contextmanager
def listening() -> Iterator[Failures]:
    """Failures of captures are noted, and no record is written."""
    global _listening
    before, _listening = _listening, Failures()
    try:
        with config.patch(replay_record_enabled=True):
            yield _listening
    finally:
        _listening = before


def remember(function: types.FunctionType, arguments: tuple[Any, ...], options: Mapping[str, Any] | None) -> Frame:
    """The frame of that function at its beginning. `arguments`: of its parameters; `options`: of `compile`."""
    if _listening is not None:
        return Frame()
    try:
        with _deep_recursion():
            return Frame(record_of(function, arguments, dict(options or {})))
    except Refused as refused:
        return Frame(why_not=str(refused))
    except Exception as error:
        return Frame(why_not=f"{type(error).__name__} while {function.__qualname__} was recorded: {error}")


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """Objects lead to each other in chains that may be long."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 20000))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def record_of(
    function: types.FunctionType, arguments: tuple[Any, ...], options: dict[str, Any], own: bool = False
) -> container.Record:
    """The record, without what failed. `own`: with the function's text, though a library has it. Raises Refused."""
    process = state.capture()
    encoder = Encoder(function if own and function is not torch.nn.Module.__call__ else None)
    names = function.__code__.co_varnames[: len(arguments)]
    given = [[name, encoder.value(x, f"argument {name}")] for name, x in zip(names, arguments, strict=True)]
    row = encoder.row(function, f"the function {function.__qualname__}")
    _refuse_missing_globals(encoder, function)
    choices = {name: encoder.value(x, f"compile's {name}") for name, x in options.items()}
    encoder.finish()
    with torch.no_grad():
        blobs = encoder.storages.fill(int(config.replay_record_mb * 2**20))
    for storage, uses in zip(encoder.storages.rows, encoder.storages.uses, strict=True):
        storage["uses"] = uses
    code = shown_code(function, arguments)
    data = {
        "made_by": {
            "magneto": magneto.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "command": sys.argv[:1],
        },
        "frame": {
            "function": row,
            "name": code.co_name,
            "qualname": code.co_qualname,
            "file": code.co_filename,
            "line": code.co_firstlineno,
            "arguments": given,
        },
        "options": choices,
        "settings": state.settings(),
        "state": process,
        "namespaces": encoder.namespaces,
        "sources": {name: file.text() for name, file in encoder.files.all.items() if file is not None and file.kept},
        "imports": sorted(encoder.imports),
        "left_out": encoder.left_out,
        "storages": encoder.storages.rows,
        "objects": encoder.objects,
    }
    return container.Record(data, blobs)


def shown_code(function: types.FunctionType, arguments: tuple[Any, ...]) -> types.CodeType:
    """What people know a frame by: without decorators; of a module's call, which is PyTorch's code, its `forward`."""
    shown: Any = function
    if function is torch.nn.Module.__call__:
        shown = getattr(getattr(arguments[0], "forward", None), "__func__", function)
    shown = inspect.unwrap(shown)
    return shown.__code__ if isinstance(shown, types.FunctionType) else function.__code__


def _refuse_missing_globals(encoder: Encoder, function: types.FunctionType) -> None:
    """What the frame itself reads may not be left out."""
    for path, why in encoder.left_out.items():
        if path.startswith("global ") and path.endswith(f" of {function.__qualname__}"):
            raise Refused(*why.split(": ", 1))


_count = itertools.count(1)


def write(frame: Frame | None, code: types.CodeType, error: BaseException | None, failure: str) -> None:
    """The capture of a frame failed: writes its record, and says where. `error`: what the program gets; None: it goes
    on, and `failure` says what went wrong."""
    outcome = children.of_exception(error) if error is not None else children.Outcome(children.RAISED, text=failure)
    if _listening is not None:
        _listening.found.append(outcome)
        return
    if frame is None or frame.record is None:
        _log.announce(f"There is no record of {code.co_qualname}: {_why_none(frame)}")
        return
    name = frame.record.data["frame"]
    frame.record.data["failure"] = {"type": outcome.type, "text": outcome.text, "raised": error is not None}
    path = Path(_file_name(name["name"], name["line"], outcome))
    try:
        path = scripts.folder("error_recordings") / path
        container.write(path, frame.record)
    except OSError as problem:
        _log.announce(
            f"There is no record of {name['qualname']}: {path} can't be written: {problem.strerror}. Set "
            "magneto.config.debug_dir to a folder with room; the program goes on."
        )
        return
    if error is not None:
        error.record_filename = str(path)  # type: ignore[attr-defined]
    _log.announce(
        f"Last frame execution written to {path}. To run only this frame while debugging, run "
        f"torch._dynamo.replay('{path}') or python -m magneto replay {path}.{_words(frame.record)}"
    )


def _why_none(frame: Frame | None) -> str:
    if frame is None:
        return (
            "the capture that failed goes on in the middle of the frame, which began before it was recorded. "
            "magneto.reset() in front of the call that fails makes its record begin with the frame."
        )
    return (
        f"{frame.why_not}. Make it where it is used, or keep it out of what the function is given and reads; the "
        "program goes on."
    )


def _words(record: container.Record) -> str:
    random = [row for row in record.data["storages"] if "random" in row]
    text = ""
    if random:
        size = sum(row["nbytes"] for row in random) / 2**20
        text += (
            f" {len(random)} tensors ({size:.0f} MB) are above magneto.config.replay_record_mb: replay gives them "
            "random values."
        )
    if record.data["left_out"]:
        text += f" {len(record.data['left_out'])} values that other functions read are left out (--show lists them)."
    return text


def _file_name(function: str, line: int, outcome: children.Outcome) -> str:
    kind = outcome.type.rpartition(".")[2] or re.sub(r"\W+", "_", outcome.text.partition(":")[0])
    name = re.sub(r"\W+", "_", f"{function}_{kind}_{line}")[:100]
    number = next(_count)
    return f"{name}.rec" if number == 1 else f"{name}_{number}.rec"


__all__ = ["Failures", "Frame", "Refused", "listening", "remember", "write"]
