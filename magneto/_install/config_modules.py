"""The modules torch._dynamo.config, torch._inductor.config and torch._functorch.config: settings.py has what ours are.

Others that PyTorch's compiler has are kept, said once, and change nothing. A name that it does not have is an error.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils import _config_module

from magneto import config, exc
from magneto._install import settings, sources, table
from magneto._install.settings import Setting


class ConfigModule(types.ModuleType):
    """A configuration module: attributes are settings, dotted ones in groups."""

    def __init__(self, name: str, rows: Mapping[str, Setting]) -> None:
        super().__init__(name)
        vars(self)["_rows"] = rows
        vars(self)["_kept"] = {}
        vars(self)["_deleted"] = set()

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":
            return sources.file_of(self.__name__)
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if callable(getattr(_config_module.ConfigModule, name, None)):
            return getattr(self._theirs(), name)
        return self._read(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            self._write(name, value)

    def __delattr__(self, name: str) -> None:
        """What unittest.mock.patch does before it sets the value from before."""
        self._read(name, quiet=True)
        self._deleted.add(name)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *(name.partition(".")[0] for name in self._names())})

    def patch(self, changes: Any = None, value: Any = None, **settings: Any) -> _Patch:
        """Changes settings for a block, a function's calls or a class of tests; takes a dict, a name and a value, or
        keywords."""
        return _Patch(self, config.changes(changes, value, settings))

    def get_config_copy(self) -> dict[str, Any]:
        """The settings that have a row or were set, with their values."""
        return {name: copy.copy(self._read(name, quiet=True)) for name in {**self._rows, **self._kept}}

    def shallow_copy_dict(self) -> dict[str, Any]:
        """The same, with the values themselves."""
        return {name: self._read(name, quiet=True) for name in {**self._rows, **self._kept}}

    def load_config(self, values: Any) -> None:
        """Sets what `save_config` has given, or a dict."""
        theirs = self._theirs()
        theirs.load_config(values)
        loaded = theirs.get_config_copy()
        for name in {**self._rows, **self._kept, **(values if isinstance(values, dict) else {})}:
            if name in loaded and loaded[name] != self._read(name, quiet=True):
                self._write(name, loaded[name])

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
            raise exc.InvalidSetting(f"setting of {self.__name__}", name, {*self._rows, *([near] if near else [])})
        return row

    def _read(self, name: str, quiet: bool = False) -> Any:
        if name in self._deleted:
            raise AttributeError(f"{self.__name__}.{name} was deleted")
        if name in _groups(self.__name__):
            return _Group(self, name)
        row = self._row(name)
        if row and row.own:
            return getattr(config, row.own)
        if name in self._kept:
            return self._kept[name]
        default = row.default if row else sources.names(self.__name__)[name]
        if default is sources.UNKNOWN:  # not a constant of the source: it has to run
            return functools.reduce(getattr, name.split("."), _executed(self.__name__))
        if isinstance(default, (set, dict, list)):  # changed in place: that is how it is set
            if row and not quiet:
                self._say(name, row)
            return self._kept.setdefault(name, copy.copy(default))
        return default

    def _write(self, name: str, value: Any) -> None:
        row = self._row(name)
        self._deleted.discard(name)
        before = self._read(name, quiet=True)
        if row and row.own:
            text = row.own in config.SETTINGS and isinstance(config.SETTINGS[row.own].default, str)
            setattr(config, row.own, "" if text and value is None else value)  # None: nothing, in PyTorch's
        else:
            if row and row.apply:
                row.apply(value)
            self._kept[name] = value
        if value != before:
            self._say(name, row)

    def _say(self, name: str, row: Setting | None) -> None:
        if row is None:
            table.note_once(f"{self.__name__}.{name}: Magneto has no such setting; it changes nothing")
        elif row.state == table.NO_EFFECT:
            table.note_once(f"{self.__name__}.{name} changes nothing: {row.note}")
        elif row.state != table.WORKS:
            table.note_once(f"{self.__name__}.{name}: {row.note}")

    def _theirs(self) -> Any:
        """PyTorch's module of settings with the values that hold here, for what it does with them (save_config...)."""
        theirs = _executed(self.__name__)
        for name, value in self.get_config_copy().items():
            if name in theirs._config:
                setattr(theirs, name, value)
        return theirs


@functools.cache
def _executed(name: str) -> Any:
    """PyTorch's module of settings, run by itself under another name: the package around it is not loaded."""
    alias = f"{__package__}.theirs.{name}"
    spec = importlib.util.spec_from_file_location(alias, sources.file_of(name))
    assert spec and spec.loader
    sys.modules[alias] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _groups(module: str) -> frozenset[str]:
    """The first names of dotted settings."""
    names = (*ROWS[module], *sources.names(module))
    return frozenset(name[:at] for name in names for at, letter in enumerate(name) if letter == ".")


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

    def __delattr__(self, name: str) -> None:
        delattr(self._module, f"{self._name}.{name}")


class _Patch(_config_module.ContextDecorator):
    def __init__(self, module: ConfigModule, changes: Mapping[str, Any]) -> None:
        for name in changes:
            module._row(name)
        self._module, self._changes = module, changes
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({name: self._module._read(name, quiet=True) for name in self._changes})
        for name, value in self._changes.items():
            self._module._write(name, value)

    def __exit__(self, *exception: object) -> None:  # type: ignore[override]
        for name, value in self._before.pop().items():
            self._module._write(name, value)


# The rows of each configuration module.
ROWS: Mapping[str, Mapping[str, Setting]] = {
    "torch._dynamo.config": settings.DYNAMO,
    "torch._inductor.config": settings.INDUCTOR,
    "torch._functorch.config": settings.FUNCTORCH,
}


def served(name: str) -> ConfigModule:
    """The configuration module of that name."""
    module: ConfigModule = importlib.import_module(name)  # type: ignore[assignment]
    return module


def patch_dynamo(*args: Any, **kwargs: Any) -> _Patch:
    """torch._dynamo.config.patch under another name."""
    return served("torch._dynamo.config").patch(*args, **kwargs)


def read_environment() -> None:
    """Takes the variables of `settings.ENVIRONMENT` over into the settings."""
    for variable, (module, setting) in settings.ENVIRONMENT.items():
        text = os.environ.get(variable, "")
        if text not in ("", "0"):
            served(module)._write(setting, True if text == "1" else text)
