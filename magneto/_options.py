"""What `compile` accepts as `mode=` and `options=`, for Magneto's own backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from magneto import config, exc

# They choose between kernels, so the backends that generate none run alike in all of them.
MODES: Mapping[str, str] = {
    "default": "balances compile time and speed",
    "reduce-overhead": "the least cost per call, for memory that is kept between calls; on the CPU that is the default",
    "max-autotune": "measures alternatives on the real shapes, once, and keeps the fastest; the disk cache remembers",
    "max-autotune-no-cudagraphs": "as max-autotune, without CUDA graphs",
    "lite": "compiles as little as possible: the backend aot_eager",
    "eager-numerics": "eager's results bit for bit: the backend eager_numerics",
}

# Modes that are a backend.
MODE_BACKENDS: Mapping[str, str] = {"lite": "aot_eager", "eager-numerics": "eager_numerics"}

# What a mode stands for.
MODE_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "max-autotune": {"max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


@dataclass(frozen=True)
class Option:
    """One row of the table: a setting for one compiled callable."""

    doc: str
    setting: str = ""  # of magneto.config; empty: there is nothing to set
    convert: Callable[[Any], Any] = lambda value: value


OPTIONS: Mapping[str, Option] = {
    **{name: Option(setting.doc, name) for name, setting in config.SETTINGS.items() if setting.use == "callable"},
    # Of torch.compile, under its names.
    "trace.enabled": Option("As debug_dump.", "debug_dump"),
    "force_disable_caches": Option("Nothing is read from or written to the disk.", "disk_cache", lambda on: not on),
    "fallback_random": Option("Nothing changes: random numbers are always eager's."),
    "triton.cudagraphs": Option("Nothing changes: on the CPU there are no CUDA graphs."),
}


def resolve(mode: str | None, options: Mapping[str, Any], backend: Any) -> dict[str, Any]:
    """The settings for one callable, by name; raises for what is not known."""
    settings: dict[str, Any] = dict(MODE_OPTIONS.get(mode or "default", {}))
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is None:
            hint = f"They belong to the backend {backend!r}; settings of the process are in magneto.config."
            raise exc.InvalidOption("option", name, OPTIONS, hint)
        if option.setting in ("", "disk_cache") and name not in config.SETTINGS and not isinstance(value, bool):
            raise exc.InvalidValue(f"the option {name!r} takes bool, not {value!r} ({type(value).__name__})")
        if option.setting:
            value = option.convert(value)
            config.check(option.setting, value)
            settings[option.setting] = value
    return settings
