"""Replaying a record: the frame is captured again, alone, with what it was given."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from magneto import _C, exc
from magneto._debug import children, record
from magneto._debug.record import container, show, state
from magneto._debug.record.decode import Decoder
from magneto._module import OptimizedModule


@dataclass
class Call:
    """The call that a record holds."""

    function: types.FunctionType
    subject: Any  # what was compiled: the function, a method, a module
    options: dict[str, Any]
    args: list[Any]
    kwargs: dict[str, Any]
    given: list[Any]  # the values of the function's parameters

    def args_of_function(self) -> list[Any]:
        """The positional arguments of the function itself."""
        return [self.given[0], *self.args] if self.subject is not self.function else self.args

    def compiled(self) -> Any:
        """Compiled as it was."""
        if isinstance(self.subject, torch.nn.Module):
            return OptimizedModule(self.subject, self.options)
        return _C.compile(self.subject, self.options)

    def run(self) -> Any:
        """Captures and runs it."""
        return self.compiled()(*self.args, **self.kwargs)


def rebuild(read: container.Record) -> Call:
    """The call. Runs imports, and makes the program's classes."""
    with container.checked(read), _plain():
        return _rebuild(read)


@contextlib.contextmanager
def _plain() -> Iterator[None]:
    """Nothing of the process as it is now takes part."""
    with torch.device("cpu"), torch.no_grad(), record._deep_recursion():
        yield


def _rebuild(read: container.Record) -> Call:
    frame = read.data["frame"]
    decoder = Decoder(read)
    function = decoder.value({"at": frame["function"]})
    given = [decoder.value(made) for _, made in frame["arguments"]]
    options = {name: decoder.value(made) for name, made in read.data["options"].items()}
    decoder.finish()
    return call_of(function, given, options)


def call_of(function: types.FunctionType, given: list[Any], options: dict[str, Any]) -> Call:
    """A call from the values of a function's parameters."""
    code = function.__code__
    names = code.co_varnames
    args = given[: code.co_argcount]
    kwargs = dict(zip(names[code.co_argcount :], given[code.co_argcount :], strict=False))
    rest = given[code.co_argcount + code.co_kwonlyargcount :]
    kwargs = dict(list(kwargs.items())[: code.co_kwonlyargcount])
    if code.co_flags & 0x04:
        args = [*args, *rest.pop(0)]
    if code.co_flags & 0x08:
        kwargs.update(rest.pop(0))
    subject: Any = function
    if args and isinstance(args[0], torch.nn.Module) and function is torch.nn.Module.__call__:
        subject, args = args[0], args[1:]
    elif args and getattr(type(args[0]), code.co_name, None) is function:
        subject, args = types.MethodType(function, args[0]), args[1:]
    return Call(function, subject, options, args, kwargs, given)


@dataclass
class Result:
    """How a replay ended. `same`: as the record says it did."""

    value: Any = None
    error: Exception | None = None
    failures: list[children.Outcome] | None = None
    same: bool = False


def run(read: container.Record) -> Result:
    """Captures the frame of a record, and runs it."""
    call = rebuild(read)
    result = Result()
    with contextlib.ExitStack() as stack:
        with container.checked(read):
            wanted = failure_of(read)
            stack.enter_context(state.applied(read.data["state"], read.data["settings"]))
        failures = stack.enter_context(record.listening())
        try:
            result.value = call.run()
        except Exception as error:
            result.error = error
    result.failures = failures.found
    seen = list(failures.found) + ([children.of_exception(result.error)] if result.error is not None else [])
    result.same = any(one.is_like(wanted) for one in seen)
    return result


def failure_of(read: container.Record) -> children.Outcome:
    """What the capture failed with when it was recorded."""
    said = read.data["failure"]
    return children.Outcome(children.RAISED, str(said["type"]), str(said["text"]))


def replay(filename: str | os.PathLike[str]) -> Any:
    """Captures the frame of a record again, alone, with what it was given: raises what it raises.

    A record holds code of the program that made it, and this runs that code: `python -m magneto replay --show FILE`
    shows it without running anything. Gives the call's result, if it does not fail any more.

    Raises:
        magneto.exc.InvalidRecord: The file can't be read, or needs what is not here.
    """
    read = container.read(filename)
    print(show.what_runs(read), file=sys.stderr)
    result = run(read)
    if result.error is not None:
        raise result.error
    if not result.same:
        print(f"{read.path}: the capture went well; the failure does not show here.", file=sys.stderr)
    return result.value


def main(arguments: list[str]) -> int:
    """`python -m magneto replay [--show] FILE`. Exit status: 1 it fails as recorded, 0 it does not fail, 2 it can't be
    replayed, 3 it fails otherwise."""
    shows = "--show" in arguments
    files = [argument for argument in arguments if argument != "--show"]
    if len(files) != 1 or files[0].startswith("-"):
        print("usage: python -m magneto replay [--show] FILE.rec", file=sys.stderr)
        return 2
    try:
        read = container.read(files[0])
        if shows:
            print(show.text(read))
            return 0
        print(show.what_runs(read), file=sys.stderr)
        result = run(read)
    except exc.InvalidRecord as error:
        print(f"python -m magneto replay: {error}", file=sys.stderr)
        return 2
    return _tell(read, result)


def _tell(read: container.Record, result: Result) -> int:
    import traceback

    if result.error is not None:
        shown = result.error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
            shown = shown.tb_next
        traceback.print_exception(type(result.error), result.error, shown)
    if result.same:
        print(f"{read.path}: it fails as it was recorded.", file=sys.stderr)
        return 1
    if result.error is None and not result.failures:
        print(f"{read.path}: the capture went well; the failure does not show here.", file=sys.stderr)
        return 0
    print(f"{read.path}: it fails, but otherwise than was recorded: {failure_of(read)}", file=sys.stderr)
    return 3
