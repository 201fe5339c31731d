"""PyTorch's own modules behind those that are served: set aside, loaded when what is theirs alone is asked for.

PyTorch's eager code and libraries use much of what lies beside its compiler: fake tensors, sources of symbols, test
classes, proxies. What no row names is the real module's, imported then as if `install` had not been called: for the
time of that import the served modules step back. Afterwards what was loaded is changed as if it had been loaded before
`install` (patched.py): what has a row is ours there, too. Another thread that imports one of these names meanwhile gets
PyTorch's module, whose functions are ours a moment later.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magneto._install import table

loading = False
"""Whether any thread imports PyTorch's own modules now. A plain global: captured code may read it."""

_lock = threading.RLock()
_thread = threading.local()
_aside: dict[str, types.ModuleType] = {}  # PyTorch's modules, under names that are served
_originals: dict[tuple[str, str], Any] = {}  # what rows stand in for, as it was
_copies: dict[int, tuple[Any, Any]] = {}  # id of a function -> itself, and as it was: several modules name it

Modules = Mapping[str, types.ModuleType]
_on_load: Callable[[Modules, Modules], None] | None = None


def set_aside(on_load: Callable[[Modules, Modules], None]) -> Modules:
    """Takes PyTorch's modules whose names will be served out of sys.modules, and gives them.

    `on_load` gets those that are loaded from here on, and the served ones that give way to PyTorch's for good.
    """
    global _on_load
    _on_load = on_load
    _aside.update(_take_out(lambda module: True))
    _set_attributes()
    return dict(_aside)


def put_back() -> None:
    """All as without Magneto: what it serves goes, and what is PyTorch's takes its name again."""
    global _on_load
    _on_load = None
    for name in [name for name, module in sys.modules.items() if is_served(module)]:
        del sys.modules[name]
    sys.modules.update(_aside)
    _aside.clear()
    _originals.clear()
    _copies.clear()
    _set_attributes()


def is_served(module: Any) -> bool:
    """Whether the module is one of Magneto's."""
    return type(module).__module__.startswith(__package__)


def is_loading() -> bool:
    """Whether this thread imports PyTorch's own modules now."""
    return getattr(_thread, "loading", False)


def module(name: str) -> types.ModuleType:
    """PyTorch's own module."""
    with _lock:
        if is_loading():
            return importlib.import_module(name)
        there = _aside.get(name) or sys.modules.get(name)
        if there is not None and not is_served(there):
            return there
        with _stepping_back():
            return importlib.import_module(name)


def loaded(name: str) -> types.ModuleType | None:
    """PyTorch's own module, if it is loaded."""
    return _aside.get(name)


def original(module_name: str, name: str) -> Any:
    """What PyTorch's own module has under a name that a row stands in for."""
    home = module(module_name)
    return _originals.get((module_name, name)) or getattr(home, name)


def keep_original(module_name: str, name: str, value: Any) -> Any:
    """Notes it, before it is changed. A function keeps nothing of itself when its body is exchanged: a copy does."""
    if isinstance(value, types.FunctionType):
        value = _copies.setdefault(id(value), (value, _copy(value)))[1]
    return _originals.setdefault((module_name, name), value)


def _copy(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    vars(copy).update(vars(function))
    return copy


def unless_loading(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """`ours`; but PyTorch's modules decorate and register with their own functions while they are loaded."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        if loading:
            return original(*args, **kwargs)
        return ours(*args, **kwargs)

    return choose


@contextlib.contextmanager
def _stepping_back() -> Iterator[None]:
    """The served modules are out of the way in the block."""
    global loading
    served = _take_out(is_served)
    sys.modules.update(_aside)
    _set_attributes()
    _thread.loading = loading = True
    try:
        yield
    finally:
        _thread.loading = loading = False
        real = _take_out(lambda module: True)
        new = {name: module for name, module in real.items() if name not in _aside}
        _aside.update(real)
        stood_in = {name: module for name, module in served.items() if name in sys.modules}
        sys.modules.update({**served, **{name: sys.modules[name] for name in stood_in}})
        _set_attributes()
        if _on_load is not None:
            _on_load(new, stood_in)


def _take_out(which: Callable[[types.ModuleType], bool]) -> dict[str, types.ModuleType]:
    """Takes modules with served names out of sys.modules. PyTorch's own stay where ours only stand in for them."""
    names = [
        name
        for name in table.MODULES
        if name in sys.modules
        and which(sys.modules[name])
        and (name not in table.STAND_INS or is_served(sys.modules[name]))
    ]
    return {name: sys.modules.pop(name) for name in names}


def _set_attributes() -> None:
    """Packages around the served modules name what sys.modules has."""
    for name in table.PREFIXES:
        package, _, child = name.rpartition(".")
        if package not in sys.modules:
            continue
        if name in sys.modules:
            setattr(sys.modules[package], child, sys.modules[name])
        else:
            vars(sys.modules[package]).pop(child, None)
