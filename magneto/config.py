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

SETTINGS: Mapping[str, Setting] = {name: row for name, row in _setting.rows().items() if row.use != "tests"}

if TYPE_CHECKING:  # for type checkers and editors; written by tools/settings_page.py
    disable: bool
    cache_size_limit: int
    accumulated_cache_size_limit: int
    suppress_errors: bool
    verbose: bool
    debug_function: str
    error_on_recompile: bool
    fail_on_recompile_limit_hit: bool
    strict: bool
    repro_after: str
    repro_level: int
    repro_forward_only: bool
    repro_tolerance: float
    repro_ignore_non_fp: bool
    same_two_models_use_fp64: bool
    repro_seconds: int
    replay_record_enabled: bool
    replay_record_mb: int
    verify: str
    verify_rate: float
    verify_budget: float
    nan_watch: bool
    graph_limit: int
    pass_limit: int
    kernel_limit: int
    stage_memory: bool
    perf_map: bool
    progress_seconds: int
    debug_dump: bool
    debug_dir: str
    debug_dump_without: str
    assume_static_by_default: bool
    automatic_dynamic_shapes: bool
    use_duck_shape: bool
    capture_scalar_outputs: bool
    capture_dynamic_output_shape_ops: bool
    joint_graph: bool
    activation_memory_budget: float
    optimize_ddp: bool
    max_autotune: bool
    max_autotune_seconds: int
    deterministic: bool
    prepared_weights_mb: int
    disk_cache: bool
    disk_cache_dir: str
    disk_cache_mb: int
    disk_cache_key_file: str

# Functions that write (print, logging.info, warnings.warn) and whose calls may be put off to the end of a segment: no
# side exit then. `magneto.config.reorderable_logging_functions.add(print)`.
reorderable_logging_functions: set[Any] = set()
_C.set_reorderable_functions(reorderable_logging_functions)


_settings = _setting.Settings("config", SETTINGS)
_values = _settings.values
check = _settings.check
changes = _setting.changes
torch_names = _setting.torch_names


def current() -> dict[str, Any]:
    """All settings with their values."""
    return dict(_values)


def help(name: str | None = None) -> Shown:
    """The settings with value, default and meaning, as a table; or one of them."""
    names = [name] if name is not None else [*SETTINGS]
    rows = [_described(each, _settings.row(each)) for each in names]
    return Shown("Settings", ("magneto.config.", "Value", "Default", "Meaning"), rows)


def _described(name: str, setting: Setting) -> tuple[str, ...]:
    meaning = [setting.doc]
    if setting.environment:
        meaning.append(f"Environment: {setting.environment}")
    if setting.torch:
        meaning.append(f"As {', '.join(torch_names(setting))}")
    return name, repr(_values[name]), repr(setting.default), "\n".join(meaning)


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
        elif name == "reorderable_logging_functions":
            if not isinstance(value, (set, frozenset)):
                raise exc.InvalidValue(f"config.{name} must be a set of functions, not {value!r}")
            _C.set_reorderable_functions(value)
            super().__setattr__(name, value)
        else:
            _settings.assign(name, value)

    def __delattr__(self, name: str) -> None:
        raise exc.InvalidValue(f"config.{name} can't be deleted; set it to its default instead")

    def __dir__(self) -> Iterator[str]:
        return iter(sorted({*super().__dir__(), *SETTINGS}))


sys.modules[__name__].__class__ = _ConfigModule
