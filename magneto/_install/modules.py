"""Modules made from the rows of the table, and the finder that serves them."""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

from magneto import exc
from magneto._install import config_modules, peer, sources, table


class Shim(types.ModuleType):
    """A module whose names are rows; what no row names is PyTorch's own module's."""

    def __getattr__(self, name: str) -> Any:
        module = self.__name__
        if name == "__file__":  # where PyTorch's code of that name is
            return sources.file_of(module)
        if name.startswith("__"):  # what Python itself asks a module for
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        for row in table.MODULES[module]:
            if row.name == name:
                value = table.value_of(module, row)
                if not isinstance(value, int):  # a count is read anew each time
                    vars(self)[name] = value
                return value
        if sources.is_module(f"{module}.{name}"):
            return importlib.import_module(f"{module}.{name}")
        if sources.has(module, name):
            real = peer.module(module)
            if hasattr(real, name):  # else it is another platform's, or another build's
                return getattr(real, name)
        raise exc.InvalidAttribute(f"name in {module}", name, _known(module, name))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (real := self._real_home(name)) is not None and not isinstance(value, types.ModuleType):
            setattr(real, name, value)  # its own functions read it there

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            super().__delattr__(name)
        if (real := self._real_home(name)) is not None:
            vars(real).pop(name, None)

    def _real_home(self, name: str) -> types.ModuleType | None:
        """PyTorch's own module, if it is loaded and the name is its."""
        module = vars(self)["__name__"]
        return None if name.startswith("__") or table.has_row(module, name) else peer.loaded(module)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *table.names_of(self.__name__), *sources.public(self.__name__)})


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        rows = config_modules.ROWS.get(spec.name)
        return Shim(spec.name) if rows is None else config_modules.ConfigModule(spec.name, rows)

    def exec_module(self, module: types.ModuleType) -> None:
        """Resolves what works, so that captured code finds plain attributes; the rest when it is asked for."""
        for row in table.MODULES[module.__name__]:
            if row.target not in ("", table.PEERS) and row.state in (table.WORKS, table.NO_EFFECT):
                getattr(module, row.name)


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


class _PeerLoader(Loader):
    """A module that is PyTorch's alone, as it is."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        self._module = peer.module(spec.name)
        self._spec, self._loader = self._module.__spec__, self._module.__loader__
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(__spec__=self._spec, __loader__=self._loader)


class Finder(MetaPathFinder):
    """Serves what lies below the prefixes: from rows, or as PyTorch's own."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = prefixes

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if peer.is_loading():
            return None
        package, _, rest = fullname.partition(".")
        if package in table.ALIASES:
            canonical = table.ALIASES[package] + ("." + rest if rest else "")
            return importlib.util.spec_from_loader(fullname, _AliasLoader(canonical), is_package=True)
        if not any(_is_below(fullname, prefix) for prefix in self._prefixes):
            return None
        if fullname in table.MODULES:
            # All are packages: `from module import nmae` then asks for a submodule, and gets the error below.
            return importlib.util.spec_from_loader(fullname, _Loader(), is_package=True)
        if sources.is_module(fullname):
            return importlib.util.spec_from_loader(fullname, _PeerLoader(), is_package=sources.is_package(fullname))
        parent, _, name = fullname.rpartition(".")
        raise exc.InvalidModule(f"name in {parent}", name, _known(parent, name))


def _known(module: str, name: str) -> set[str]:
    """What an error names: ours, and the nearest of PyTorch's own. All would be hundreds."""
    ours = {*table.names_of(module)} if module in table.MODULES else set()
    near = exc.nearest(name, [*ours, *sources.public(module)])
    return ours | ({near} if near else set())


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


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
