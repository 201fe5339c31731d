"""The functions of the public API: they check their arguments and hand over to the core."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from magneto import _C, _arguments, _options, config, exc
from magneto._module import OptimizedModule
from magneto._options import MODES

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
    recompile_limit: int | None = ...,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
    recompile_limit: int | None = ...,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "magneto",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
) -> Any:
    """Compiles a function, a method or a module; without `model`, gives a decorator.

    The result is called as the original is and gives the same results. It is captured on its first call, and again
    when what a capture assumed no longer holds.

    Args:
        model: What to compile. A module stays a module: `state_dict`, `parameters`, hooks and `.train()` work.
        fullgraph: Whether what can't be captured is an error (`magneto.exc.Unsupported`) instead of a graph break.
        dynamic: True: sizes are symbolic from the start. False: never. None: when they turn out to vary.
        backend: What runs the graphs: a name of `magneto.list_backends()` or a callable
            `(graph_module, example_inputs) -> callable`.
        mode: "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"; not together with `options`.
        options: Settings for this one callable, as `max_autotune`, `deterministic` or `debug_dump`
            (`magneto.list_options()` has all, with their meaning); another's backend gets them as its `options=`.
        disable: Whether to give `model` back as it is.
        recompile_limit: Captures kept for this one callable; None: `config.cache_size_limit`.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
        "recompile_limit": recompile_limit,
    }
    core_options = _arguments.core_options(**arguments)
    if model is None:
        return lambda function: compile(function, **arguments)
    model = _original(model)
    if isinstance(model, type) or not callable(model):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"an object of type {type(model).__name__}"
        raise exc.InvalidValue(
            f"magneto.compile takes a function, a method or a module, not {what}."
            + (" Compile its methods or an instance of it." if isinstance(model, type) else "")
        )
    if disable or config.disable:
        return model
    if isinstance(model, torch.nn.Module):
        return OptimizedModule(model, core_options)
    return _C.compile(model, core_options)


def list_options() -> dict[str, str]:
    """What `compile(options=...)` takes: name -> meaning. Unknown names are an error that names the nearest."""
    return {name: option.doc for name, option in _options.OPTIONS.items()}


def list_modes() -> dict[str, str]:
    """What `compile(mode=...)` takes: name -> meaning."""
    return dict(MODES)


class _Disabler:
    """`disable` without a function: a decorator and a context manager."""

    def __init__(self, recursive: bool) -> None:
        self._recursive = recursive
        self._previous: list[bool] = []

    def __call__(self, fn: F) -> F:
        return disable(fn, recursive=self._recursive)

    def __enter__(self) -> _Disabler:
        if not self._recursive:
            raise exc.InvalidValue("disable(recursive=False) is a decorator: a block has no frame of its own to skip")
        self._previous.append(_C.set_disabled(True))
        return self

    def __exit__(self, kind: Any, value: Any, traceback: types.TracebackType | None) -> None:
        _C.set_disabled(self._previous.pop())


@overload
def disable(fn: F, *, recursive: bool = ...) -> F: ...


@overload
def disable(fn: None = None, *, recursive: bool = ...) -> _Disabler: ...


def disable(fn: Any = None, *, recursive: bool = True) -> Any:
    """Keeps a function, or with a `with` statement a block, from being compiled.

    In compiled code a call of a disabled function is a graph break. With `recursive=False` only the function's own
    frame is left to CPython: functions that it calls may be captured.
    """
    if not isinstance(recursive, bool):
        raise exc.InvalidValue(f"recursive must be True or False, not {recursive!r}")
    if fn is None:
        return _Disabler(recursive)
    fn = _original(fn)
    if not callable(fn):
        raise exc.InvalidValue(f"magneto.disable takes a callable, not an object of type {type(fn).__name__}")
    return _C.disable(fn, recursive)


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Captures a call of `fn` and reports graphs, graph breaks with their reasons, ops and guards.

    `explain(fn)(*args, **kwargs)` and `explain(fn, *args, **kwargs)` are the same. The call happens: its side effects
    do too. Nothing is left in `fn`'s own cache.
    """
    original = _original(fn)
    if not callable(original):
        raise exc.InvalidValue(f"magneto.explain takes a callable, not an object of type {type(fn).__name__}")

    def inner(*args: Any, **kwargs: Any) -> Any:
        from magneto import _explain  # its classes would be a third of the import's time

        return _explain.run(original, args, kwargs)

    return inner(*args, **kwargs) if args or kwargs else inner


def debug_dump(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compiles a call of `fn` afresh and gives the stages of each graph as text: a list of dicts, stage -> text.

    Stages, in order: captured, guards, functional, normal_form, choices (in max-autotune), expressions, fusion, loops,
    schedule, llvm_ir, assembly, buffers, plan, hints. `debug_dump(fn)(*args, **kwargs)` and
    `debug_dump(fn, *args, **kwargs)` are the
    same. The call happens: its side effects do too. Nothing is left in `fn`'s own cache.
    """
    original = _original(fn)
    if not callable(original):
        raise exc.InvalidValue(f"magneto.debug_dump takes a callable, not an object of type {type(fn).__name__}")

    def inner(*args: Any, **kwargs: Any) -> list[dict[str, str]]:
        return _C.debug_dump(original, args, kwargs)

    return inner(*args, **kwargs) if args or kwargs else inner


def _original(value: Any) -> Any:
    """What a compiled callable was made from; other values are themselves."""
    if isinstance(value, OptimizedModule):
        return value._orig_mod
    if isinstance(value, _C.CompiledFunction):
        return value._torchdynamo_orig_callable
    return value


def why(fn: Callable[..., Any]) -> Any:
    """How calls of `fn` have run, and where under CPython, why. For any function, method or module: `print` it."""
    from magneto import _history

    return _history.why(fn)


def recompiles() -> Any:
    """What keeps changing from call to call, most frequent first, each with the line that would stop it: `print` it."""
    from magneto import _history

    return _history.recompiles()


def summary() -> Any:
    """All captures, graph breaks, recompiles and fallbacks by place, with counts: `print` it."""
    from magneto import _history

    return _history.summary()


def reset() -> None:
    """Forgets all captures, counters and break sites; compiled callables start anew on their next call."""
    _C.reset()


def stats() -> dict[str, Any]:
    """What has happened since the start or the last `reset`, as a dict.

    Keys: frames, graphs, ops, breaks, break_reasons (reason -> count), other_exits (side exits that are no breaks of
    their own: a loop goes on after one, or a number of it is needed; reason -> count), recompiles, cache_entries,
    fallbacks (reason -> count), meta_kernels (operators whose shapes PyTorch's meta kernels gave -> count),
    python_meta_kernels (of these, those written in Python -> count), undone (runs that ended by raising, which CPython
    did again: exception -> count; what CPython did not raise is marked as an assumption about data that didn't hold, or
    as raised by compiled code only),
    joint_graphs (graphs whose gradients are compiled), saved_bytes (that their forwards keep for their backwards,
    one run of each), eager_saved_bytes (that eager would), recomputed (operators that backwards run again),
    partitions (backwards for which other tensors are saved than asked: reason -> count),
    autograd_graphs (graphs run call by call under autograd), no_joint (why: reason -> count), kernels, instructions
    (of their loops), cut (expressions kept out of a kernel that they would make too large), externs (operator ->
    count), uncompiled (reason -> count), tuned (kernels and products that measuring changed), shared_captures
    (captures that served another object of the class, compiled for itself), cached_programs (graphs for which nothing
    had to be lowered), specialised (sizes that got code of their own), and of the cache on disk cache_hits,
    cache_misses, cache_damaged, cache_removed. `memory`: bytes
    that programs hold now: arenas (of intermediates), weights (work on them that was done once), outputs (free blocks
    for the next call's results). `run_as_captured`: runs in which the captured operators ran one by one after all:
    overlapping (inputs share memory with a written one), other_tensors (lazy or conjugated ones), watched (a dispatch
    mode is active).
    """
    return _C.stats()


def is_compiling() -> bool:
    """True in code that is being captured, so that a program can choose a path."""
    return _C.is_compiling()


def allow_in_graph(fn: Any) -> Any:
    """Puts calls of `fn` into the graph as they are, without looking inside. Takes a callable or several.

    `fn` must be a pure function of tensors and constants that gives tensors; nothing checks that. Also a decorator.
    """
    if isinstance(fn, (list, tuple)):
        return [allow_in_graph(item) for item in fn]
    if not callable(fn):
        raise exc.InvalidValue(f"allow_in_graph takes a callable, not an object of type {type(fn).__name__}")
    _C.allow_in_graph(fn)
    return fn


def assume_constant_result(fn: F) -> F:
    """Promises that `fn` gives the same result for the same arguments: captured code keeps its first result."""
    if not callable(fn):
        raise exc.InvalidValue(f"assume_constant_result takes a callable, not an object of type {type(fn).__name__}")
    _C.assume_constant_result(fn)
    return fn
