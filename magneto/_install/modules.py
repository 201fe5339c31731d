"""Modules made from the rows of the table, and the finder that serves them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from magneto import exc
from magneto._install import settings, sources, table


class InvalidAttribute(exc.InvalidName, AttributeError):
    """A module of PyTorch's compiler is asked for a name that Magneto does not serve."""


class InvalidModule(exc.InvalidName, ModuleNotFoundError):
    """A module of PyTorch's compiler is imported that Magneto does not serve."""


class Shim(types.ModuleType):
    """A module whose names are rows."""

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        for row in table.MODULES[module]:
            if row.name == name:
                value = table.value_of(module, row)
                vars(self)[name] = value
                return value
        if name in table.children(module):
            return importlib.import_module(f"{module}.{name}")
        raise InvalidAttribute(f"name in {module}", name, table.names_of(module), sources.known_there(module, name))

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *table.names_of(self.__name__)})


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return settings.MODULES[spec.name](spec.name) if spec.name in settings.MODULES else Shim(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Resolves what works, so that captured code finds plain attributes; the rest when it is asked for."""
        for row in table.MODULES[module.__name__]:
            if row.target and row.state in (table.WORKS, table.NO_EFFECT):
                vars(module)[row.name] = table.value_of(module.__name__, row)


class _AliasLoader(Loader):
    """An older name of a module: the module itself."""

    def __init__(self, canonical: str) -> None:
        self._canonical = canonical

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        self._module = importlib.import_module(self._canonical)
        self._spec = self._module.__spec__
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__spec__"] = self._spec  # the import system has put the alias's there


class Finder(MetaPathFinder):
    """Serves what lies below the prefixes, and refuses the rest of what lies there."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package in table.ALIASES:
            canonical = table.ALIASES[package] + ("." + rest if rest else "")
            return importlib.util.spec_from_loader(fullname, _AliasLoader(canonical), is_package=True)
        if not any(_is_below(fullname, prefix) for prefix in self._prefixes):
            return None
        if fullname in table.MODULES:
            # All are packages: `from module import nmae` then asks for a submodule, and gets the error below.
            return importlib.util.spec_from_loader(fullname, _Loader(), is_package=True)
        parent, _, name = fullname.rpartition(".")
        known = table.names_of(parent) if parent in table.MODULES else table.MODULES
        raise InvalidModule(f"name in {parent}", name, known, sources.known_there(parent, name))


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def is_replaced(name: str) -> bool:
    """Whether a module of that name is a part of PyTorch's compiler, or an older name of one."""
    return any(_is_below(name, package) for package in (*table.PACKAGES, *table.ALIASES))


def drop(what: Callable[[str], bool]) -> None:
    """Removes modules from sys.modules."""
    for name in [name for name in sys.modules if what(name)]:
        del sys.modules[name]


def load(name: str) -> types.ModuleType:
    """The served module of that name."""
    return importlib.import_module(name)


def bridge_to(function: types.FunctionType, replacement: Callable[..., Any]) -> types.CodeType:
    """A body for `function` that calls `replacement`, under the same name.

    Python takes only code with the free variables that the function has cells for; this one leaves them alone.
    """

    def bridge(*args: Any, **kwargs: Any) -> Any:
        replaced: Any = ...
        return replaced(*args, **kwargs)

    code, names = bridge.__code__, function.__code__
    constants = tuple(replacement if constant is ... else constant for constant in code.co_consts)
    return code.replace(
        co_consts=constants,
        co_name=names.co_name,
        co_qualname=names.co_qualname,
        co_freevars=names.co_freevars,
    )
