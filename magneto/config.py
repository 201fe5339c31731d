"""Settings of the process: typed, documented, patchable.

    magneto.config.cache_size_limit = 16
    with magneto.config.patch(verbose=True): ...
    @magneto.config.patch("cache_size_limit", 2)
    def test(): ...
    print(magneto.config.help())

An unknown name or a value of another type is an error at once. This module's own class checks assignments; the values
live in the core, which is told of each change.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils._config_module import ContextDecorator  # also of classes of tests

from magneto import _C, exc


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    default: bool | int | float | str
    doc: str
    minimum: int | None = None  # for numbers
    environment: str | None = None  # a variable that changes the default: "1" and "0" for bool, text for str
    choices: tuple[bool | int | float | str, ...] = ()  # the values that it can have; none: all


SETTINGS: Mapping[str, Setting] = {
    "disable": Setting(False, "Makes `compile` give back what it gets, uncompiled.", environment="TORCHDYNAMO_DISABLE"),
    "cache_size_limit": Setting(
        8, "Captures kept per code object; when they are used up, the frame runs in CPython, with a warning.", 1
    ),
    "accumulated_cache_size_limit": Setting(
        256, "Captures kept of a function, or of one compiled module, over all calls of `compile` and all closures.", 1
    ),
    "suppress_errors": Setting(
        False,
        "A backend that raises, and an error of Magneto's own, is a line of the log (WON'T CONVERT), and the frame "
        "runs in CPython.",
        environment="TORCHDYNAMO_SUPPRESS_ERRORS",
    ),
    "verbose": Setting(
        False, "Messages carry the whole stack and our own part of it.", environment="TORCHDYNAMO_VERBOSE"
    ),
    "debug_function": Setting(
        "",
        "Only functions of that name are captured; CPython runs the others.",
        environment="TORCHDYNAMO_DEBUG_FUNCTION",
    ),
    "strict": Setting(
        False,
        "For tests: any fallback that is our own fault, and any fake tensor alive after its capture, is an error.",
        environment="MAGNETO_STRICT",
    ),
    "fail_stage": Setting("", "For tests: that stage of compiles fails with an internal error."),
    "repro_after": Setting(
        "",
        'Each graph is tried in a child process before its backend gets it: "dynamo" as it was captured, "aot" the '
        "operators that code is generated for. What fails is minified and written as a script.",
        environment="TORCHDYNAMO_REPRO_AFTER",
        choices=("", "dynamo", "aot"),
    ),
    "repro_level": Setting(
        2,
        "What `repro_after` writes: 1 a script of the graph that failed, 2 of a minified one, 3 the launcher of the "
        "minifier for each graph, also of those that don't fail, 4 minified where results are not eager's.",
        environment="TORCHDYNAMO_REPRO_LEVEL",
        choices=(1, 2, 3, 4),
    ),
    "repro_forward_only": Setting(
        False, "The minifier runs no backward.", environment="TORCHDYNAMO_REPRO_FORWARD_ONLY"
    ),
    "repro_tolerance": Setting(
        1e-3, "Comparing results: the relative difference that is allowed where float64 can't tell the noise.", 0
    ),
    "repro_ignore_non_fp": Setting(
        False,
        "Comparing results: integers and booleans may differ.",
        environment="TORCHDYNAMO_REPRO_IGNORE_NON_FP",
    ),
    "same_two_models_use_fp64": Setting(
        True, "Comparing results: eager runs in float64, too; how far it is off by itself is what is allowed."
    ),
    "repro_seconds": Setting(60, "The longest that a graph may take in the minifier before it counts as hanging.", 1),
    "graph_limit": Setting(
        -1,
        "For bisecting: graphs with a higher number, counted from 1, are not compiled; -1: all are.",
        -1,
        "MAGNETO_GRAPH_LIMIT",
    ),
    "pass_limit": Setting(
        -1, "For bisecting: passes with a higher number don't run; -1: all do.", -1, "MAGNETO_PASS_LIMIT"
    ),
    "kernel_limit": Setting(
        -1,
        "For bisecting: kernels with a higher number run in the loop IR's interpreter; -1: none does.",
        -1,
        "MAGNETO_KERNEL_LIMIT",
    ),
    "operators_only": Setting(
        False,
        "For bisecting: what the passes leave runs operator by operator, no kernel is generated.",
        environment="MAGNETO_OPERATORS_ONLY",
    ),
    "stage_memory": Setting(
        False,
        "The peak of memory in each stage of compiles is measured, for compile_times(). That resets the peak that the "
        "system keeps for the process.",
        environment="MAGNETO_STAGE_MEMORY",
    ),
    "perf_map": Setting(
        False,
        "Kernels are named in /tmp/perf-<process>.map, so that `perf report` shows them by name.",
        environment="MAGNETO_PERF_MAP",
    ),
    "progress_seconds": Setting(
        1, "A compile that takes longer shows on the terminal how far it is; -1: none does.", -1
    ),
    "exit_every": Setting(
        0, "For tests: each segment ends after so many instructions, where it can; 0: only where it must.", 0
    ),
    "error_on_recompile": Setting(False, "A recompile is an error that names the guards that failed."),
    "fail_on_recompile_limit_hit": Setting(
        False, "A limit of captures that is reached is an error. With fullgraph=True it is in any case."
    ),
    "assume_static_by_default": Setting(True, "Sizes are constants until they turn out to vary."),
    "automatic_dynamic_shapes": Setting(True, "A size that varied becomes symbolic in the next capture."),
    "use_duck_shape": Setting(True, "Symbolic sizes that are equal in a capture are assumed to be so in all runs."),
    "capture_scalar_outputs": Setting(
        False,
        "Numbers that tensors hold (`.item()`, `int(t)`, `.tolist()`) are captured, and the capture goes on without "
        "knowing them. With fullgraph=True they are in any case.",
        environment="TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",
    ),
    "capture_dynamic_output_shape_ops": Setting(
        False,
        "Operators whose results' sizes only the data says (`nonzero`, `x[mask]`, `unique`) are captured. With "
        "fullgraph=True they are in any case.",
        environment="TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
    ),
    "joint_graph": Setting(
        True,
        "Results that require gradients are computed by compiled code, and so are the gradients (docs/autograd.md). "
        "Off: the captured torch calls run one by one under autograd.",
        environment="MAGNETO_JOINT_GRAPH",
    ),
    "activation_memory_budget": Setting(
        1.0,
        "How much memory the values may take that a forward saves for its backward: up to 1, as a share of what is "
        "fastest; above, in bytes. What does not fit is computed again.",
        0,
    ),
    "interpret_kernels": Setting(
        False,
        "For tests: fused kernels run in the slow interpreter of the loop IR instead of machine code.",
        environment="MAGNETO_INTERPRET_KERNELS",
    ),
    "debug_dump": Setting(
        False,
        "Writes all stages of each compiled graph to torch_compile_debug/ in debug_dir.",
        environment="TORCH_COMPILE_DEBUG",
    ),
    "debug_dir": Setting(
        "", "Where debug_dump writes; empty: the current directory.", environment="TORCH_COMPILE_DEBUG_DIR"
    ),
    "debug_dump_without": Setting(
        "diagram,profile", "The stages that debug_dump leaves out: names as in magneto.debug_dump, by commas."
    ),
    "max_autotune": Setting(
        False,
        "Alternatives (kernels, products, eager's kernels) are measured on the real shapes, and the fastest kept.",
        environment="TORCHINDUCTOR_MAX_AUTOTUNE",
    ),
    "max_autotune_seconds": Setting(20, "How long max_autotune may measure for one graph.", 1),
    "max_autotune_takes": Setting(
        -1, "For tests: the alternative of this number is taken, whatever was measured; -1: the fastest.", -1
    ),
    "deterministic": Setting(
        False,
        "Nothing is chosen by measuring: equal programs compute in the same order in each process. "
        "torch.use_deterministic_algorithms(True) does the same.",
        environment="TORCHINDUCTOR_DETERMINISTIC",
    ),
    "disk_cache": Setting(
        True,
        "Programs and machine code are kept on disk, so that other processes need not make them again.",
        environment="MAGNETO_DISK_CACHE",
    ),
    "disk_cache_dir": Setting(
        "",
        "The directory of the cache on disk; empty: magneto in $XDG_CACHE_HOME or in ~/.cache.",
        environment="MAGNETO_CACHE_DIR",
    ),
    "disk_cache_mb": Setting(
        128, "Megabytes that the cache on disk may take; what was not used for longest goes first.", 1
    ),
    "disk_cache_key_file": Setting(
        "",
        "A file with a key (16 bytes or more): only entries that were made with it are used. Empty: the variable "
        "MAGNETO_CACHE_KEY is the key, if it is set. For caches that are shared or restored.",
        environment="MAGNETO_CACHE_KEY_FILE",
    ),
    "prepared_weights_mb": Setting(
        1024,
        "Megabytes of memory that work on weights done once (layouts of libraries, folded constants) may keep; what "
        "does not fit is done in each call.",
        0,
    ),
}

if TYPE_CHECKING:  # for type checkers and editors; the values come from the table
    disable: bool
    cache_size_limit: int
    accumulated_cache_size_limit: int
    suppress_errors: bool
    verbose: bool
    debug_function: str
    strict: bool
    fail_stage: str
    repro_after: str
    repro_level: int
    repro_forward_only: bool
    repro_tolerance: float
    repro_ignore_non_fp: bool
    same_two_models_use_fp64: bool
    repro_seconds: int
    graph_limit: int
    pass_limit: int
    kernel_limit: int
    operators_only: bool
    stage_memory: bool
    perf_map: bool
    progress_seconds: int
    exit_every: int
    error_on_recompile: bool
    fail_on_recompile_limit_hit: bool
    assume_static_by_default: bool
    automatic_dynamic_shapes: bool
    use_duck_shape: bool
    capture_scalar_outputs: bool
    capture_dynamic_output_shape_ops: bool
    joint_graph: bool
    activation_memory_budget: float
    interpret_kernels: bool
    debug_dump: bool
    debug_dir: str
    debug_dump_without: str
    max_autotune: bool
    max_autotune_seconds: int
    max_autotune_takes: int
    deterministic: bool
    disk_cache: bool
    disk_cache_dir: str
    disk_cache_mb: int
    disk_cache_key_file: str
    prepared_weights_mb: int

# Functions that write (print, logging.info, warnings.warn) and whose calls may be put off to the end of a segment: no
# side exit then. `magneto.config.reorderable_logging_functions.add(print)`.
reorderable_logging_functions: set[Any] = set()
_C.set_reorderable_functions(reorderable_logging_functions)


def check(name: str, value: Any) -> None:
    """Raises `InvalidSetting` for an unknown name and `InvalidValue` for a value that the setting can't have."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise exc.InvalidSetting("setting", name, SETTINGS)
    kind = type(setting.default)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise exc.InvalidValue(f"config.{name} takes {kind.__name__}, not {value!r} ({type(value).__name__})")
    if setting.minimum is not None and not float(value) >= setting.minimum:  # NaN is not, either
        raise exc.InvalidValue(f"config.{name} must be at least {setting.minimum}, not {value}")
    if setting.choices and value not in setting.choices:
        raise exc.InvalidValue(f"config.{name} is one of {', '.join(map(repr, setting.choices))}, not {value!r}")


def current() -> dict[str, Any]:
    """All settings with their values."""
    return dict(_values)


def help(name: str | None = None) -> str:
    """The settings with type, value, default and meaning; or one of them."""
    if name is not None and name not in SETTINGS:
        raise exc.InvalidSetting("setting", name, SETTINGS)
    lines = []
    for key, setting in SETTINGS.items():
        if name in (None, key):
            variable = f"; environment: {setting.environment}" if setting.environment else ""
            kind = type(setting.default).__name__
            lines += [f"{key}: {kind} = {_values[key]!r} (default {setting.default!r}{variable})", f"    {setting.doc}"]
    return "\n".join(lines)


def changes(first: Any, value: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `patch` is to change: it takes a dict, or a name and a value, and keywords."""
    if isinstance(first, str):
        return {first: value, **settings}
    if first is None or isinstance(first, Mapping):
        return {**(first or {}), **settings}
    raise exc.InvalidValue(f"config.patch takes a dict, a name and a value, or keywords, not {first!r}")


class patch(ContextDecorator):
    """Changes settings for a `with` block, for the calls of a decorated function, or for the tests of a class.

    Takes keyword arguments, a dict, or a name and a value.
    """

    def __init__(self, first: Mapping[str, Any] | str | None = None, value: Any = None, **settings: Any) -> None:
        self._changes = changes(first, value, settings)
        for name, new in self._changes.items():
            check(name, new)
        self._previous: list[dict[str, Any]] = []

    def __enter__(self) -> patch:  # type: ignore[override]
        self._previous.append({name: _values[name] for name in self._changes})
        for name, value in self._changes.items():
            _assign(name, value)
        return self

    def __exit__(self, *exception: object) -> None:  # type: ignore[override]
        for name, value in self._previous.pop().items():
            _assign(name, value)


_values: dict[str, Any] = {}


def _assign(name: str, value: Any) -> None:
    check(name, value)
    _C.set_config(name, value)
    _values[name] = value


def _initial(setting: Setting) -> bool | int | float | str:
    text = os.environ.get(setting.environment) if setting.environment else None
    if text is None:
        return setting.default
    if isinstance(setting.default, str):
        return text
    if type(setting.default) is int:
        try:
            return int(text)
        except ValueError:
            raise exc.InvalidValue(
                f"The environment variable {setting.environment} must be a number, not {text!r}"
            ) from None
    if text not in ("0", "1"):
        raise exc.InvalidValue(f"The environment variable {setting.environment} must be 0 or 1, not {text!r}")
    return text == "1"


class _ConfigModule(types.ModuleType):
    """Serves settings as the module's attributes and checks what is assigned to them."""

    def __getattr__(self, name: str) -> Any:
        if name in _values:
            return _values[name]
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise exc.InvalidSetting("setting", name, SETTINGS)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            _assign(name, value)

    def __delattr__(self, name: str) -> None:
        raise exc.InvalidValue(f"config.{name} can't be deleted; set it to its default instead")

    def __dir__(self) -> Iterator[str]:
        return iter(sorted({*super().__dir__(), *SETTINGS}))


for _name, _setting in SETTINGS.items():
    _assign(_name, _initial(_setting))
del _name, _setting
sys.modules[__name__].__class__ = _ConfigModule
