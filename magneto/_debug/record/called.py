"""Calls that a program makes, caught where they begin: which function it is, and what it was given."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from magneto import _C, _arguments, config
from magneto._debug import record, scripts
from magneto._debug.record import container

_GENERATOR = 0x20 | 0x80 | 0x200
_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(config.__file__).parent), "<")
_MOST_CALLS = 4  # of one function that are tried


def is_the_program_s(code: types.CodeType) -> bool:
    """It is a function, no generator, and not one of PyTorch's or of ours."""
    return not (code.co_filename.startswith(_LIBRARIES) or code.co_flags & _GENERATOR)


def arguments_of(frame: types.FrameType) -> tuple[Any, ...]:
    """The values of a function's parameters, where its frame begins."""
    values = frame.f_locals
    return tuple(values[name] for name in parameters_of(frame.f_code))


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of a function's parameters, `*args` and `**kwargs` the last."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:count]


def made_record(function: types.FunctionType, arguments: tuple[Any, ...], options: dict[str, Any]) -> container.Record:
    """The record of a call that has not failed, as it would be read from its file.

    Raises:
        record.Refused: Something can't be recorded.
    """
    with record._deep_recursion():
        made = record.record_of(function, arguments, options, own=True)
    made.data["failure"] = {"type": "", "text": ""}
    return container.from_bytes(container.to_bytes(made))


def record_of(
    function: types.FunctionType, arguments: tuple[Any, ...], options: dict[str, Any]
) -> container.Record | None:
    """The same; None: something can't be recorded."""
    try:
        return made_record(function, arguments, options)
    except Exception:
        return None


class _Done(BaseException):
    pass


def minified(run: Callable[[], Any], name: str, with_earlier: bool) -> str:
    """Runs a program under CPython up to the first call of a function that fails when it is compiled, and reduces that
    (minify.py); where its script is, "" if there is none.

    `name`: "qualified name (file:first line)". `with_earlier`: the calls before it come first in the script. In a
    child: the program is left in its middle.
    """
    from magneto._debug.record import minify

    options = dict(_arguments.core_options())
    earlier: list[container.Record] = []
    written = [""]

    def watch(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})" != name:
            return
        sys.setprofile(None)
        made = record_of(_C.function_of(frame), arguments_of(frame), options)
        if made is None:
            raise _Done
        _C.set_disabled(False)
        written[0] = minify.minify(made, scripts.folder() / "repro.py", earlier if with_earlier else ()).script
        _C.set_disabled(True)
        earlier.append(made)
        if written[0] or len(earlier) == _MOST_CALLS:
            raise _Done
        sys.setprofile(watch)

    _C.set_disabled(True)
    sys.setprofile(watch)
    try:
        run()
    except _Done:
        pass
    finally:
        sys.setprofile(None)
    return written[0]
