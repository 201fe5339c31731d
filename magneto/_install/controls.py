"""What torch._dynamo offers to steer captures: marks on functions, regions, callbacks."""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from magneto import _C, _api, _history, _substitute, exc

F = TypeVar("F", bound=Callable[..., Any])


def _each(mark: Callable[[Any], None], fn: Any, name: str) -> Any:
    """Marks a callable, or each of several."""
    if isinstance(fn, (list, tuple)):
        return [_each(mark, item, name) for item in fn]
    if not callable(fn):
        raise exc.InvalidValue(f"{name} takes a callable, not an object of type {type(fn).__name__}")
    mark(fn)
    return fn


def disallow_in_graph(fn: Any) -> Any:
    """A call of `fn`, or of each of several, is a graph break."""
    return _each(_C.disallow_in_graph, fn, "disallow_in_graph")


def forbid_in_graph(fn: Any) -> Any:
    """A capture that comes to a call of `fn`, or of one of several, raises AssertionError."""
    return _each(_C.forbid_in_graph, fn, "forbid_in_graph")


def substitute_in_graph(
    original_fn: Callable[..., Any],
    *,
    can_constant_fold_through: bool = False,
    skip_signature_check: bool = False,
    is_embedded_type: bool = False,
) -> Callable[[F], F]:
    """magneto.substitute_in_graph. `is_embedded_type` tells of types that PyTorch's compiler models itself."""
    return _substitute.substitute_in_graph(  # type: ignore[return-value]
        original_fn, can_constant_fold_through=can_constant_fold_through, skip_signature_check=skip_signature_check
    )


def nonstrict_trace(fn: F) -> F:
    """Calls go into the graph as they are, as those of magneto.allow_in_graph do."""
    if not callable(fn):
        raise exc.InvalidValue(f"nonstrict_trace takes a callable, not an object of type {type(fn).__name__}")

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return _api.allow_in_graph(traced)  # type: ignore[return-value]


class error_on_graph_break:
    """Makes graph breaks errors in a `with` block or in a function's calls, within compiled code or around it; with
    False, lets them be breaks again there. fullgraph=True holds in any case."""

    def __init__(self, error_on_graph_break: bool) -> None:
        self._on = error_on_graph_break

    def __enter__(self) -> None:
        _C.errors_on_break(self._on)

    def __exit__(self, *exception: object) -> None:
        _C.errors_on_break(None)

    def __call__(self, fn: F) -> F:
        @functools.wraps(fn)
        def in_region(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        return in_region  # type: ignore[return-value]


def skip_frame(msg: str = "") -> None:
    """CPython runs the rest of the function that calls this, and what it calls."""
    _C.leave_frame()


_C.disallow_in_graph(skip_frame)


# Told when a compile begins and ends.


class CallbackTrigger(enum.Enum):
    """Why a compile began."""

    DYNAMO = 1
    LAZY_BACKWARD = 2
    TRITON_AUTOTUNING = 3
    CUDAGRAPH_RECORDING = 4


@dataclass
class CallbackArgs:
    """What callbacks get."""

    callback_trigger: CallbackTrigger
    compile_id: str


Callback = Callable[[CallbackArgs], None]


@dataclass
class CompilationCallbackHandler:
    """The callbacks, in the order in which they were registered."""

    start_callbacks: list[Callback] = field(default_factory=list)
    end_callbacks: list[Callback] = field(default_factory=list)

    def register_start_callback(self, callback: Callback) -> Callback:
        return self._register(self.start_callbacks, callback)

    def register_end_callback(self, callback: Callback) -> Callback:
        return self._register(self.end_callbacks, callback)

    def remove_start_callback(self, callback: Callback) -> None:
        self.start_callbacks.remove(callback)
        self._tell_the_core()

    def remove_end_callback(self, callback: Callback) -> None:
        self.end_callbacks.remove(callback)
        self._tell_the_core()

    def run_start_callbacks(self, args: CallbackArgs) -> None:
        for callback in list(self.start_callbacks):
            callback(args)

    def run_end_callbacks(self, args: CallbackArgs) -> None:
        for callback in list(self.end_callbacks):
            callback(args)

    @contextlib.contextmanager
    def install_callbacks(self, trigger: CallbackTrigger, compile_id: str) -> Iterator[None]:
        """Calls them around a block: parts of PyTorch's that are used in eager code do."""
        args = CallbackArgs(trigger, compile_id)
        self.run_start_callbacks(args)
        try:
            yield
        finally:
            self.run_end_callbacks(args)

    def clear(self) -> None:
        self.start_callbacks.clear()
        self.end_callbacks.clear()
        self._tell_the_core()

    def _register(self, callbacks: list[Callback], callback: Callback) -> Callback:
        callbacks.append(callback)
        self._tell_the_core()
        return callback

    def _tell_the_core(self) -> None:
        def call(run: Callable[[CallbackArgs], None]) -> Callable[[str], None]:
            return lambda compile_id: run(CallbackArgs(CallbackTrigger.DYNAMO, compile_id))

        _C.set_compile_hooks(
            call(self.run_start_callbacks) if self.start_callbacks else None,
            call(self.run_end_callbacks) if self.end_callbacks else None,
        )


callback_handler = CompilationCallbackHandler()


def on_compile_start(callback: Callback) -> Callback:
    """Decorates a function that is called when a compile begins."""
    return callback_handler.register_start_callback(callback)


def on_compile_end(callback: Callback) -> Callback:
    """Decorates a function that is called when a compile has ended."""
    return callback_handler.register_end_callback(callback)


class GuardFail(NamedTuple):
    """What `guard_fail_fn` gets."""

    reason: str
    orig_code: types.CodeType | None


def tell_of_guard_failures(told: Callable[[GuardFail], Any]) -> Callable[[F], F]:
    """A decorator: `told` hears of each guard of the function that has failed so that it is compiled again."""

    def watch(fn: F) -> F:
        code = getattr(inspect.unwrap(fn), "__code__", None)
        seen = _failures(code)

        def look(args: CallbackArgs) -> None:
            nonlocal seen
            reasons = _failures(code)
            new, seen = reasons[len(seen) :] if len(reasons) >= len(seen) else reasons, reasons
            for reason in new:
                told(GuardFail(reason, code))

        on_compile_end(look)
        return fn

    return watch


def _failures(code: types.CodeType | None) -> list[str]:
    """The guards that have failed so far, of the function with that code."""
    return [
        reason
        for row in _history.rows("recompile")
        if code and row.file == code.co_filename and row.function == code.co_name
        for reason in row.example.splitlines()
    ]
