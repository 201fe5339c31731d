"""The settings of torch._dynamo.config and torch._inductor.config: one row for each that Magneto knows of.

Others that PyTorch's compiler has are kept, said once, and change nothing. A name that it does not have is an error.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from magneto import _C, _log, config, exc
from magneto._install import sources, table
from magneto._install.table import NO_EFFECT, REPLACED, TO_COME, WORKS


class Setting(NamedTuple):
    """One row. `own` is the setting of magneto.config that it is; `apply` is told of a new value."""

    state: str
    own: str = ""
    apply: Callable[[Any], None] | None = None
    note: str = ""
    default: Any = None


# What the old documents' settings show, as artifacts of TORCH_LOGS.
_LEVELS = {
    logging.DEBUG: ("graph_breaks", "recompiles", "graph_code", "guards", "aot_graphs", "bytecode", "trace_bytecode"),
    logging.INFO: ("graph_breaks", "recompiles", "graph_code", "bytecode"),
    logging.WARNING: ("graph_breaks",),
}
_artifacts: dict[str, tuple[str, ...]] = {}  # setting -> what it asks for
_log_file: logging.Handler | None = None


def _show(setting: str, artifacts: tuple[str, ...]) -> None:
    """Turns on the artifacts that all settings together ask for."""
    _artifacts[setting] = artifacts
    wanted: dict[str, Any] = {name: True for names in _artifacts.values() for name in names}
    if "bytecode" in wanted:  # the messages of each step, too
        wanted |= {"dynamo": logging.INFO, "inductor": logging.INFO}
    torch._logging.set_logs(**wanted)  # type: ignore[attr-defined]


def _set_log_level(level: Any) -> None:
    if not isinstance(level, int):
        raise exc.InvalidValue(f"log_level takes a level of logging, not {level!r}")
    _show("log_level", next((_LEVELS[known] for known in sorted(_LEVELS) if level <= known), ()))


def _set_log_file(name: Any) -> None:
    global _log_file
    # Loggers' names: their children are ours (magneto/_log.py).
    parents = [logging.getLogger(parent.rpartition(".")[0]) for parent in _log.COMPONENTS.values()]
    children = [
        logging.getLogger(name)
        for name in list(logging.Logger.manager.loggerDict)
        if name.startswith(tuple(_log.COMPONENTS.values()))
    ]
    if _log_file is not None:
        for logger in (*parents, *children):
            logger.removeHandler(_log_file)
        _log_file.close()
        _log_file = None
    if name:
        _log_file = logging.FileHandler(name)
        _log_file.setFormatter(logging.Formatter("%(levelname).1s%(asctime)s %(filename)s:%(lineno)d] %(message)s"))
        for logger in parents:
            logger.addHandler(_log_file)
        for artifact in children:  # some of those that PyTorch has configured keep their lines to themselves
            if not artifact.propagate:
                artifact.addHandler(_log_file)


def _writes(*stages: str) -> Callable[[Any], None]:
    """A file of the debug directory is written or left out."""

    def apply(on: Any) -> None:
        left_out = [name for name in config.debug_dump_without.split(",") if name and name not in stages]
        config.debug_dump_without = ",".join(left_out if on else [*left_out, *stages])

    return apply


def forget_logs() -> None:
    """Ends what log settings have turned on."""
    _set_log_file(None)
    if any(_artifacts.values()):
        torch._logging.set_logs()  # type: ignore[attr-defined]
    _artifacts.clear()


_SIZES = "sizes and ints are symbols where they vary, floats are not"
_ALWAYS = "Magneto always does so"
_KERNELS = "Magneto chooses its kernels by itself"

DYNAMO: Mapping[str, Setting] = {
    "verbose": Setting(WORKS, "verbose"),
    "suppress_errors": Setting(WORKS, "suppress_errors"),
    "cache_size_limit": Setting(WORKS, "cache_size_limit"),
    "recompile_limit": Setting(WORKS, "cache_size_limit"),
    "accumulated_cache_size_limit": Setting(WORKS, "accumulated_cache_size_limit"),
    "accumulated_recompile_limit": Setting(WORKS, "accumulated_cache_size_limit"),
    "disable": Setting(WORKS, "disable"),
    "error_on_recompile": Setting(WORKS, "error_on_recompile"),
    "assume_static_by_default": Setting(WORKS, "assume_static_by_default"),
    "automatic_dynamic_shapes": Setting(WORKS, "automatic_dynamic_shapes"),
    "log_level": Setting(WORKS, apply=_set_log_level, note="as TORCH_LOGS", default=logging.WARNING),
    "log_file": Setting(WORKS, apply=_set_log_file),
    "log_file_name": Setting(WORKS, apply=_set_log_file),
    "debug": Setting(
        WORKS,
        apply=lambda on: _show("debug", ("graph_code", "guards") if on else ()),
        note="TORCH_LOGS=graph_code,guards",
        default=False,
    ),
    "debug_dir_root": Setting(WORKS, "debug_dir", note="torch_compile_debug/ lies in it"),
    "base_dir": Setting(REPLACED, "debug_dir", note="replaced by magneto.config.debug_dir, which is set"),
    "inline_inbuilt_nn_modules": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "nested_graph_breaks": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "guard_nn_modules": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "allow_empty_graphs": Setting(NO_EFFECT, note=_ALWAYS, default=True),
    "error_on_nested_fx_trace": Setting(NO_EFFECT, note="torch.fx traces the original", default=True),
    "reorderable_logging_functions": Setting(
        WORKS,
        apply=_C.set_reorderable_functions,
        note="`magneto.config.reorderable_logging_functions`",
        default=config.reorderable_logging_functions,
    ),
    "replay_record_enabled": Setting(TO_COME, note="record and replay are to come", default=False),
    "repro_after": Setting(TO_COME, note=table.MINIFIER),
    "repro_level": Setting(TO_COME, note=table.MINIFIER, default=2),
    "dynamic_shapes": Setting(TO_COME, note=_SIZES, default=True),
    "specialize_int": Setting(TO_COME, note=_SIZES, default=False),
    "specialize_float": Setting(TO_COME, note=_SIZES, default=False),
    "capture_scalar_outputs": Setting(WORKS, "capture_scalar_outputs"),
    "capture_dynamic_output_shape_ops": Setting(WORKS, "capture_dynamic_output_shape_ops"),
    "compiled_autograd": Setting(TO_COME, note="backward passes run under eager autograd", default=False),
}

INDUCTOR: Mapping[str, Setting] = {
    "debug": Setting(
        WORKS,
        apply=lambda on: _show("inductor", ("output_code", "kernel_code") if on else ()),
        note="TORCH_LOGS=output_code,kernel_code",
        default=False,
    ),
    "trace.enabled": Setting(WORKS, "debug_dump"),
    **{
        f"trace.{name}": Setting(WORKS, apply=_writes(*stages), note=note, default=default)
        for name, stages, note, default in (
            ("fx_graph", ("captured", "functional"), "captured.txt, aten_functional.txt", True),
            ("fx_graph_transformed", ("normal_form",), "aten_normal_form.txt", True),
            ("ir_pre_fusion", ("expressions",), "ir_pre_fusion.txt", True),
            ("ir_post_fusion", ("loops",), "ir_post_fusion.txt", True),
            ("output_code", ("llvm_ir", "assembly", "buffers", "plan"), "kernels.ll, kernels.s, plan.txt...", True),
            ("graph_diagram", ("diagram",), "graph_diagram.svg", False),
            ("compile_profile", ("profile",), "compile_profile.txt", False),
            ("log_autotuning_results", ("choices",), "choices.txt", True),
        )
    },
    "trace.debug_log": Setting(REPLACED, note="TORCH_LOGS=+inductor", default=False),
    "trace.info_log": Setting(REPLACED, note="TORCH_LOGS=inductor", default=False),
    "trace.debug_dir": Setting(WORKS, "debug_dir", note="torch_compile_debug/ lies in it"),
    "fx_graph_cache": Setting(WORKS, "disk_cache"),
    "fallback_random": Setting(NO_EFFECT, note="random numbers are always eager's", default=False),
    "compile_threads": Setting(NO_EFFECT, note="machine code is made in this process", default=1),
    "max_autotune": Setting(WORKS, "max_autotune"),
    "max_autotune_gemm": Setting(NO_EFFECT, note="max_autotune measures matrix products, too", default=False),
    "coordinate_descent_tuning": Setting(NO_EFFECT, note=_KERNELS, default=False),
    "epilogue_fusion": Setting(NO_EFFECT, note=_KERNELS, default=True),
    "shape_padding": Setting(NO_EFFECT, note=_KERNELS, default=True),
    "cpp_wrapper": Setting(NO_EFFECT, note="plans always run from C++", default=False),
    "freezing": Setting(NO_EFFECT, note="weights may change at any time", default=False),
    "triton.cudagraphs": Setting(NO_EFFECT, note="kernels are made for CPUs", default=False),
}

# Environment variables of the documents that the core does not read: each as the setting it stands for.
ENVIRONMENT: Mapping[str, tuple[str, str]] = {
    "TORCHINDUCTOR_TRACE": ("torch._inductor.config", "trace.enabled"),
    "TORCHDYNAMO_REPRO_AFTER": ("torch._dynamo.config", "repro_after"),
    "TORCHDYNAMO_REPRO_LEVEL": ("torch._dynamo.config", "repro_level"),
    "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": ("torch._dynamo.config", "capture_scalar_outputs"),
}


class InvalidSetting(exc.InvalidSetting):
    """The configuration module has no such setting."""


class ConfigModule(types.ModuleType):
    """A configuration module: attributes are settings, dotted ones in groups."""

    def __init__(self, name: str, rows: Mapping[str, Setting]) -> None:
        super().__init__(name)
        vars(self)["_rows"] = rows
        vars(self)["_kept"] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self._read(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self._write(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *(name.partition(".")[0] for name in self._names())})

    def patch(self, changes: Any = None, value: Any = None, **settings: Any) -> _Patch:
        """Changes settings for a block or for a function's calls; takes a dict, a name and a value, or keywords."""
        named = {changes: value} if isinstance(changes, str) else dict(changes or {})
        return _Patch(self, {**named, **settings})

    def get_config_copy(self) -> dict[str, Any]:
        """The settings that have a row or were set, with their values."""
        return {name: copy.copy(self._read(name, quiet=True)) for name in {**self._rows, **self._kept}}

    def take_over(self, module: Any) -> None:
        """Takes over what the program has set in PyTorch's module of this name."""
        values, defaults = module.get_config_copy(), sources.names(self.__name__)
        for name in self._rows:
            default = defaults.get(name, sources.UNKNOWN)
            if default is not sources.UNKNOWN and values.get(name, default) != default:
                self._write(name, values[name])

    def _names(self) -> set[str]:
        return {*self._rows, *(name for name in sources.names(self.__name__) if not name.startswith("_"))}

    def _row(self, name: str) -> Setting | None:
        row: Setting | None = self._rows.get(name)
        if row is None and name not in sources.names(self.__name__):
            near = exc.nearest(name, self._names())  # the list is of the rows: all would be hundreds
            raise InvalidSetting(f"setting of {self.__name__}", name, {*self._rows, *([near] if near else [])})
        return row

    def _read(self, name: str, quiet: bool = False) -> Any:
        if any(row.startswith(name + ".") for row in (*self._rows, *sources.names(self.__name__))):
            return _Group(self, name)
        row = self._row(name)
        if row and row.own:
            return getattr(config, row.own)
        if name in self._kept:
            return self._kept[name]
        default = row.default if row else sources.names(self.__name__)[name]
        if isinstance(default, (set, dict, list)):  # changed in place: that is how it is set
            if row and not quiet:
                self._say(name, row)
            return self._kept.setdefault(name, copy.copy(default))
        return None if default is sources.UNKNOWN else default

    def _write(self, name: str, value: Any) -> None:
        row = self._row(name)
        before = self._read(name, quiet=True)
        if row and row.own:
            setattr(config, row.own, value)
        else:
            if row and row.apply:
                row.apply(value)
            self._kept[name] = value
        if value != before:
            self._say(name, row)

    def _say(self, name: str, row: Setting | None) -> None:
        if row is None:
            table.note_once(f"{self.__name__}.{name}: Magneto has no such setting; it changes nothing")
        elif row.state in (REPLACED, TO_COME):
            table.note_once(f"{self.__name__}.{name}: {row.note}")


class _Group:
    """Settings with a common first name: `config.trace`."""

    def __init__(self, module: ConfigModule, name: str) -> None:
        vars(self).update(_module=module, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._module._read(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._module._write(f"{self._name}.{name}", value)


class _Patch(contextlib.ContextDecorator):
    def __init__(self, module: ConfigModule, changes: dict[str, Any]) -> None:
        for name in changes:
            module._row(name)
        self._module, self._changes = module, changes
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({name: self._module._read(name, quiet=True) for name in self._changes})
        for name, value in self._changes.items():
            self._module._write(name, value)

    def __exit__(self, *exception: object) -> None:
        for name, value in self._before.pop().items():
            self._module._write(name, value)


# What makes each configuration module.
MODULES: Mapping[str, Callable[[str], ConfigModule]] = {
    "torch._dynamo.config": lambda name: ConfigModule(name, DYNAMO),
    "torch._inductor.config": lambda name: ConfigModule(name, INDUCTOR),
}


def _module(name: str) -> ConfigModule:
    import importlib

    module: ConfigModule = importlib.import_module(name)  # type: ignore[assignment]
    return module


def patch_dynamo(*args: Any, **kwargs: Any) -> _Patch:
    """torch._dynamo.config.patch under another name."""
    return _module("torch._dynamo.config").patch(*args, **kwargs)


def read_environment() -> None:
    """Takes the variables of `ENVIRONMENT` over into the settings."""
    for variable, (module, setting) in ENVIRONMENT.items():
        text = os.environ.get(variable, "")
        if text not in ("", "0"):
            _module(module)._write(setting, True if text == "1" else text)
