"""The functions of the public API: they check their arguments and hand over to the core."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from magneto import _C, _arguments, _options, _shapes_spec, config, exc
from magneto._module import OptimizedModule
from magneto._options import MODES

if TYPE_CHECKING:  # their classes would be a third of the import's time
    from magneto._debug.bisect import Diagnosis
    from magneto._debug.record.minify import Minified
    from magneto._explain import ExplainOutput
    from magneto._history import Recompiles, Summary, Why

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
    name: str | None = ...,
    isolate_recompiles: bool = ...,
    shapes_spec: Any = ...,
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
    name: str | None = ...,
    isolate_recompiles: bool = ...,
    shapes_spec: Any = ...,
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
    name: str | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
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
        mode: "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite",
            "eager-numerics" (`magneto.list_modes()`); not together with `options`.
        options: Settings for this one callable, as `max_autotune`, `deterministic` or `debug_dump`
            (`magneto.list_options()` has all, with their meaning); another's backend gets them as its `options=`.
        disable: Whether to give `model` back as it is.
        recompile_limit: Captures kept for this one callable; None: `config.cache_size_limit`.
        name: What profilers, debug directories and `repr` call it.
        isolate_recompiles: Captures are always a callable's own, but for one thing: those of one object serve other
            objects of its class, compiled with the same arguments, where their guards hold. True: not those of this.
        shapes_spec: Which sizes of the arguments may vary: torch.fx.experimental.dynamic_spec's ParamsSpec or
            ShapesSpec, or a dict from parameters to a list with an entry for each dimension: None or a number (part of
            the program), `(min, max)` (may vary; each may be None). What it does not name is part of the program.
            A call with other sizes is a `magneto.exc.ConstraintViolation`. Not together with `dynamic`.

    Returns:
        A callable, or for a module an `OptimizedModule`; without `model` a decorator.

    Raises:
        magneto.exc.InvalidValue: An argument has a value that it can't have.
        magneto.exc.InvalidBackend: There is no such backend; `InvalidMode` and `InvalidOption` likewise.
    """
    arguments: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "backend": backend,
        "mode": mode,
        "options": options,
        "disable": disable,
        "recompile_limit": recompile_limit,
        "name": name,
        "isolate_recompiles": isolate_recompiles,
        "shapes_spec": shapes_spec,
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
    if core_options["shapes"]:
        _shapes_spec.check_parameters(core_options["shapes"], model)
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


class Disabler:
    """What `disable` gives without a function: a decorator and a context manager."""

    def __init__(self, recursive: bool, reason: str | None) -> None:
        self._recursive = recursive
        self._reason = reason
        self._previous: list[bool] = []

    def __call__(self, fn: F) -> F:
        return disable(fn, recursive=self._recursive, reason=self._reason)

    def __enter__(self) -> Disabler:
        if not self._recursive:
            raise exc.InvalidValue("disable(recursive=False) is a decorator: a block has no frame of its own to skip")
        if self._reason is not None:
            raise exc.InvalidValue("disable(reason=...) is a decorator: a block is no graph break that could name it")
        self._previous.append(_C.set_disabled(True))
        return self

    def __exit__(self, kind: Any, value: Any, traceback: types.TracebackType | None) -> None:
        _C.set_disabled(self._previous.pop())


@overload
def disable(fn: F, *, recursive: bool = ..., reason: str | None = ...) -> F: ...


@overload
def disable(fn: None = None, *, recursive: bool = ..., reason: str | None = ...) -> Disabler: ...


def disable(fn: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Keeps a function, or with a `with` statement a block, from being compiled.

    In compiled code a call of a disabled function is a graph break.

    Args:
        fn: A function, a method, a module or a compiled callable. Without it: a decorator and a context manager.
        recursive: False: only the function's own frame is left to CPython; functions that it calls may be captured.
        reason: What messages about the graph break say.

    Raises:
        magneto.exc.InvalidValue: `fn` is no callable; `recursive=False` or `reason` for a block.
    """
    if not isinstance(recursive, bool):
        raise exc.InvalidValue(f"recursive must be True or False, not {recursive!r}")
    if reason is not None and not isinstance(reason, str):
        raise exc.InvalidValue(f"reason must be a text or None, not {reason!r}")
    if fn is None:
        return Disabler(recursive, reason)
    fn = _original(fn)
    if not callable(fn):
        raise exc.InvalidValue(f"magneto.disable takes a callable, not an object of type {type(fn).__name__}")
    disabled = _C.disable(fn, recursive)
    if reason is not None:
        disabled._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    return disabled


def graph_break(msg: str = "") -> None:
    """Ends the graph here when it is captured; else does nothing.

    Args:
        msg: What messages about this break say.
    """


graph_break.__module__ = "magneto"
graph_break._torchdynamo_disable_msg = True  # type: ignore[attr-defined]  # the reason is the call's argument
_C.disallow_in_graph(graph_break)


@overload
def explain(fn: Callable[..., Any]) -> Callable[..., ExplainOutput]: ...


@overload
def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> ExplainOutput: ...


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Captures a call of `fn` and reports graphs, graph breaks with their reasons, ops and guards.

    `explain(fn)(*args, **kwargs)` and `explain(fn, *args, **kwargs)` are the same. The call happens: its side effects
    do too. Nothing is left in `fn`'s own cache.

    Returns:
        A report to `print`, with the fields graphs, graph_count, graph_break_count, op_count, break_reasons,
        ops_per_graph, out_guards and compile_times.

    Raises:
        magneto.exc.InvalidValue: `fn` can't be called.
    """
    original = _original(fn)
    if not callable(original):
        raise exc.InvalidValue(f"magneto.explain takes a callable, not an object of type {type(fn).__name__}")

    def inner(*args: Any, **kwargs: Any) -> Any:
        from magneto import _explain

        return _explain.run(original, args, kwargs)

    return inner(*args, **kwargs) if args or kwargs else inner


@overload
def debug_dump(fn: Callable[..., Any]) -> Callable[..., list[dict[str, str]]]: ...


@overload
def debug_dump(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> list[dict[str, str]]: ...


def debug_dump(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compiles a call of `fn` afresh and gives the stages of each graph as text: a list of dicts, stage -> text.

    Stages, in order: captured, guards, functional, normal_form, choices (in max-autotune), expressions, fusion, loops,
    schedule, llvm_ir, assembly, buffers, plan, hints. Behind a graph that trains come its backwards, whose `part` is
    "backward". `debug_dump(fn)(*args, **kwargs)` and `debug_dump(fn, *args, **kwargs)` are the same. The call happens:
    its side effects do too. Nothing is left in `fn`'s own cache.
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


def bisect(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Callable[[Any], Any] | None = None,
    before: Iterable[Iterable[Any]] = (),
) -> Diagnosis:
    """Finds what is at fault where `fn(*args, **kwargs)` fails compiled, or does not give eager's results or gradients.

    It is called under each backend and several settings, then with fewer and fewer graphs, passes and kernels compiled,
    in child processes, until stage, graph, pass or kernel are named. `print` what it gives; its `script` is a script
    that shows the fault.

    Args:
        fn: A function or module, compiled or not.
        args: Its arguments. Each call gets copies.
        kwargs: Its keyword arguments.
        check: Gets the result of each call; false: that is wrong. None: compared with eager's, gradients included.
        before: The arguments of calls that come first, where the fault shows in a later call only.
    """
    from magneto._debug import bisect as debug

    return debug.bisect(fn, tuple(args), kwargs, check=check, before=[tuple(given) for given in before])


def minify(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str = "",
    before: Iterable[Iterable[Any]] = (),
) -> Minified:
    """Reduces the program of a call that fails compiled, or does not give eager's results, to the shortest function.

    What is called is looked into: the innermost function that still fails by itself, its statements, its parameters.
    Candidates run in child processes. `print` what it gives; its `script` is a script that shows the failure.

    Args:
        fn: A function, method or module, compiled or not. It is not called in this process.
        args: Its arguments.
        kwargs: Its keyword arguments.
        out: Where the script goes; empty: beside those of the minifier of graphs.
        before: The arguments of calls that come first, where the failure shows in a later call only.
    """
    from magneto._debug.record import minify as debug

    return debug.minify_call(fn, tuple(args), dict(kwargs or {}), out, [tuple(given) for given in before])


def why(fn: Callable[..., Any]) -> Why:
    """How calls of `fn` have run, and where under CPython, why. For any function, method or module: `print` it."""
    from magneto import _history

    return _history.why(fn)


def recompiles() -> Recompiles:
    """What keeps changing from call to call, most frequent first, each with the line that would stop it: `print` it."""
    from magneto import _history

    return _history.recompiles()


def summary() -> Summary:
    """All captures, graph breaks, recompiles and fallbacks by place, with counts: `print` it."""
    from magneto import _history

    return _history.summary()


def reset() -> None:
    """Forgets all captures, counters, break sites and what was said once.

    Compiled callables start anew on their next call.
    """
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
    bucket_parts (of backwards that are cut at the buckets of DistributedDataParallel),
    autograd_graphs (graphs run call by call under autograd), no_joint (why: reason -> count), whole_backwards (programs
    of compiled autograd), whole_backward_runs (backwards that these computed), eager_backwards (why others, or their
    rest, are eager's: reason -> count), kernels, instructions
    (of their loops), cut (expressions kept out of a kernel that they would make too large), externs (operator ->
    count), uncompiled (reason -> count), tuned (kernels and products that measuring changed), shared_captures
    (captures that served another object of the class, compiled for itself), cached_programs (graphs for which nothing
    had to be lowered), specialised (sizes that got code of their own), and of the cache on disk cache_hits,
    cache_misses, cache_damaged, cache_removed, cache_waits (for another process that made the entry). `memory`: bytes
    that programs hold now: arenas (of intermediates), weights (work on them that was done once), outputs (free blocks
    for the next call's results). `run_as_captured`: runs in which the captured operators ran one by one after all:
    overlapping (inputs share memory with a written one), other_tensors (lazy or conjugated ones), watched (a dispatch
    mode is active). `checked_runs`: runs that config.verify and config.nan_watch have looked at: verified, of these
    differences (not eager's), left_out (of graphs with operators of libraries), nonfinite (with NaN or infinity).
    """
    return _C.stats()


def is_compiling() -> bool:
    """True in code that is being captured, so that a program can choose a path."""
    return _C.is_compiling()


@overload
def allow_in_graph(fn: F) -> F: ...


@overload
def allow_in_graph(fn: list[F] | tuple[F, ...]) -> list[F]: ...


def allow_in_graph(fn: Any) -> Any:
    """Puts calls of `fn` into the graph as they are, without looking inside. Takes a callable or several.

    Also a decorator.

    Args:
        fn: A function, or a list or tuple of several. It must be a pure function of tensors and constants that gives
            tensors; nothing checks that.

    Raises:
        magneto.exc.InvalidValue: One of them can't be called.
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
