"""Settings of the process: typed, documented, patchable.

    magneto.config.cache_size_limit = 16
    with magneto.config.patch(verbose=True): ...
    @magneto.config.patch("cache_size_limit", 2)
    def test(): ...
    magneto.config.help()               # all of them, as a table; help("verbose"): one

An unknown name or a value of another type is an error at once. This module's own class checks assignments; the values
live in the core, which is told of each change.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magneto import _C, _setting, exc
from magneto._setting import Setting
from magneto._text_table import Shown

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
        "What Magneto can't compile by its own fault is an error, not a warning and a call under CPython.",
        environment="MAGNETO_STRICT",
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
    stage_memory: bool
    perf_map: bool
    progress_seconds: int
    error_on_recompile: bool
    fail_on_recompile_limit_hit: bool
    assume_static_by_default: bool
    automatic_dynamic_shapes: bool
    use_duck_shape: bool
    capture_scalar_outputs: bool
    capture_dynamic_output_shape_ops: bool
    joint_graph: bool
    activation_memory_budget: float
    debug_dump: bool
    debug_dir: str
    debug_dump_without: str
    max_autotune: bool
    max_autotune_seconds: int
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


_settings = _setting.Settings("config", SETTINGS)
_values = _settings.values
check = _settings.check


def current() -> dict[str, Any]:
    """All settings with their values."""
    return dict(_values)


def help(name: str | None = None) -> Shown:
    """The settings with value, default, environment variable and meaning, as a table; or one of them."""
    names = [name] if name is not None else [*SETTINGS]
    rows = [_described(each, _settings.row(each)) for each in names]
    return Shown("Settings", ("magneto.config.", "Value", "Default", "Meaning"), rows)


def _described(name: str, setting: Setting) -> tuple[str, ...]:
    meaning = setting.doc + (f"\nEnvironment: {setting.environment}" if setting.environment else "")
    return name, repr(_values[name]), repr(setting.default), meaning


changes = _setting.changes


class patch(_setting.Patch):
    """Changes settings for a `with` block, for the calls of a decorated function, or for the tests of a class.

    Takes keyword arguments, a dict, or a name and a value.
    """

    _of = _settings


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
            _settings.assign(name, value)

    def __delattr__(self, name: str) -> None:
        raise exc.InvalidValue(f"config.{name} can't be deleted; set it to its default instead")

    def __dir__(self) -> Iterator[str]:
        return iter(sorted({*super().__dir__(), *SETTINGS}))


sys.modules[__name__].__class__ = _ConfigModule
