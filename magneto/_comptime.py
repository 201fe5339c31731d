"""What `comptime` callbacks get: the state of a capture, as texts.

    comptime.print_graph()  # in a function that is compiled: prints when the line is captured
    comptime(lambda ctx: ctx.print_locals())

Under magneto.install() it is torch._dynamo.comptime.comptime.
"""

from __future__ import annotations

import builtins
import dis
import linecache
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from magneto import _C, _graph_text, exc

_HERE = os.path.dirname(__file__) + os.sep


class ComptimeVar:
    """A local variable of the captured function."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class ComptimeContext:
    """The capture at the line that called `comptime`: what runs there is the user's innermost function."""

    def __init__(self, frames: list[tuple[Any, ...]], graph: Any, guards: str) -> None:
        self._caller = frames[-1]
        self._frames = [frame for frame in frames if not frame[0].co_filename.startswith(_HERE)]
        self._graph, self._guards = graph, guards

    def print(self, value: Any, *, file: TextIO | None = None) -> None:
        """Prints a variable that `get_local` gave, or any object."""
        print(value, file=file or sys.stdout)

    def print_graph(self, *, verbose: bool = True, file: TextIO | None = None) -> None:
        """The graph that has been captured so far."""
        text = _graph_text.code(self._graph, heading="", full=False) if verbose else _graph_text.table(self._graph)
        lines = [line for line in text.splitlines() if line.strip() != "return ()"]
        print("\n".join(lines), file=file or sys.stdout)

    def print_bt(self, *, file: TextIO | None = None) -> None:
        """The user's functions that run, outermost first."""
        for code, _, line, *_ in self._frames:
            print(f'  File "{code.co_filename}", line {line}, in {code.co_name}', file=file or sys.stdout)
            if source := linecache.getline(code.co_filename, line).strip():
                print(f"    {source}", file=file or sys.stdout)

    def print_locals(self, *, file: TextIO | None = None) -> None:
        """The local variables."""
        for name, text in self._frames[-1][3].items():
            print(f"{name} = {text}", file=file or sys.stdout)

    def print_value_stack(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """The values that the interrupted expression has computed so far, one a line."""
        for text in self._frames[-1][4]:
            print(f"- {text}", file=file or sys.stdout)

    def print_guards(self, *, file: TextIO | None = None) -> None:
        """What the capture relies on so far."""
        print(self._guards, file=file or sys.stdout, end="")

    def print_disas(self, *, file: TextIO | None = None, stacklevel: int = 0) -> None:
        """The function's bytecode, the current instruction marked."""
        code, offset, *_ = self._frames[-1]
        print(dis.Bytecode(code, current_offset=offset).dis(), file=file or sys.stdout)

    disas = print_disas

    def print_argument(self) -> None:
        """What `comptime.print` was given."""
        print(self._caller[3]["value"])

    def assert_argument_static(self) -> None:
        """Raises if what `comptime.assert_static` was given differs from run to run."""
        if "val" in self._caller[5]:
            value = self._caller[3]["val"]
            raise AssertionError(f"expected static but got dynamic: {value} in this run (TORCH_LOGS=dynamic says more)")

    def get_local(self, name: str, stacklevel: int = 0) -> ComptimeVar:
        """A local variable, to be printed."""
        return ComptimeVar(self._frames[-1][3][name])

    def graph(self) -> Any:
        """The torch.fx.Graph that has been captured so far."""
        return self._graph.graph


def _nothing() -> None: ...


class Comptime:
    """`comptime(callback)` calls `callback(ctx)` when the line is captured; `comptime.print_graph()` and so on are
    short for it. Where the function runs under CPython, `fallback_fn` is called instead."""

    def __call__(self, fn: Callable[[Any], Any], fallback_fn: Callable[[], Any] = _nothing) -> None:
        if not _C.comptime(fn):
            fallback_fn()

    def print(self, value: Any) -> None:
        """Prints a value when the line is captured."""
        _C.comptime(ComptimeContext.print_argument)

    def print_graph(self) -> None:
        """The graph so far."""
        _C.comptime(ComptimeContext.print_graph)

    def print_bt(self, stacklevel: int = 0) -> None:
        """The user's stack."""
        _C.comptime(ComptimeContext.print_bt)

    def print_locals(self, stacklevel: int = 0) -> None:
        """The local variables."""
        _C.comptime(ComptimeContext.print_locals)

    def print_value_stack(self, stacklevel: int = 0) -> None:
        """The value stack."""
        _C.comptime(ComptimeContext.print_value_stack)

    def print_value_stack_and_return(self, e: Any, stacklevel: int = 0) -> Any:
        """Prints the value stack in the middle of an expression, and gives `e`."""
        _C.comptime(ComptimeContext.print_value_stack)
        return e

    def print_guards(self) -> None:
        """The guards so far."""
        _C.comptime(ComptimeContext.print_guards)

    def print_disas(self, stacklevel: int = 0) -> None:
        """The bytecode."""
        _C.comptime(ComptimeContext.print_disas)

    disas = print_disas

    def breakpoint(self) -> None:
        """A debugger when the line is captured, with the view of the capture as `ctx`."""
        _C.comptime(_breakpoint)

    def sleep(self, sec: float) -> None:
        """Waits when the line is captured, to attach something."""
        _C.comptime(lambda ctx: time.sleep(sec))

    def assert_static(self, val: Any) -> None:
        """An AssertionError if a size or number is none of the capture's constants."""
        _C.comptime(ComptimeContext.assert_argument_static)

    def force_static(self, val: Any) -> None:
        """Makes a size or number a constant of the capture: with another one there is another capture."""
        if not isinstance(val, (int, float, str)):
            raise AssertionError(f"cannot force an object of type {type(val).__name__} static")
        hash(val)  # which needs its value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise exc.InvalidAttribute("name of comptime", name, [own for own in vars(Comptime) if not own.startswith("_")])


def _breakpoint(ctx: ComptimeContext) -> None:
    builtins.breakpoint()


comptime = Comptime()
