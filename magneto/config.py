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
    minimum: float | None = None  # for numbers
    use: str = "process"  # "callable": an option of one compiled callable as well; "tests": for tests of Magneto
    environment: str = ""  # a variable that changes the default: "1" and "0" for bool, text for str
    torch: tuple[str, ...] = ()  # the settings of PyTorch that it is: "dynamo.recompile_limit"


# src/support/settings.def
SETTINGS: Mapping[str, Setting] = {
    name: Setting(default, doc, minimum, use, environment, tuple(torch.split()))
    for name, default, minimum, use, environment, torch, doc in _C.setting_rows()
}

# Of settings that can have few values only.
_CHOICES: Mapping[str, tuple[Any, ...]] = {"repro_after": ("", "dynamo", "aot"), "repro_level": (1, 2, 3, 4)}

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
    fail_stage: str
    exit_every: int
    interpret_kernels: bool
    max_autotune_takes: int
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


def check(name: str, value: Any) -> None:
    """Raises `InvalidSetting` for an unknown name and `InvalidValue` for a value that the setting can't have."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise exc.InvalidSetting("setting", name, SETTINGS)
    kind = type(setting.default)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise exc.InvalidValue(f"config.{name} takes {kind.__name__}, not {value!r} ({type(value).__name__})")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise exc.InvalidValue(f"config.{name} is one of {', '.join(map(repr, _CHOICES[name]))}, not {value!r}")
    if setting.minimum is not None and not float(value) >= setting.minimum:  # NaN is not, either
        raise exc.InvalidValue(f"config.{name} must be at least {setting.minimum:g}, not {value}")


def torch_names(setting: Setting) -> list[str]:
    """The settings of PyTorch's modules that it is, by their whole names."""
    return [f"torch._{module}.config.{name}" for module, _, name in (alias.partition(".") for alias in setting.torch)]


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
            facts = f"default {setting.default!r}"
            if setting.environment:
                facts += f"; environment: {setting.environment}"
            if setting.torch:
                facts += f"; as {', '.join(torch_names(setting))}"
            doc = f"For tests: {setting.doc}" if setting.use == "tests" else setting.doc
            lines += [f"{key}: {type(setting.default).__name__} = {_values[key]!r} ({facts})", f"    {doc}"]
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
    if type(setting.default) in (int, float):
        try:
            return type(setting.default)(text)
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
