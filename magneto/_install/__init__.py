"""`magneto.install()`: programs written for torch.compile use Magneto, unchanged.

The names that such programs write (`torch.compile`, `torch._dynamo.explain`, `torchdynamo`...) are rows of `table.py`.
Installing puts a finder in front of `sys.meta_path` that serves those modules from the rows, so PyTorch's compiler is
never loaded. `torch.compiler.*` needs nothing: its functions go to `torch._dynamo`.

What others hold already is changed in place, so that the order of imports does not matter: `torch.compile` stays the
same function with another body, and where PyTorch's compiler was loaded before, its modules' attributes become ours.
Every change goes through `_Changes`, which takes them back.
"""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from magneto import _log
from magneto._install import dynamo, modules, settings, table

_lock = threading.RLock()
_changes: _Changes | None = None


class _Changes:
    """What was changed, and how to take it back: in reverse order, exactly."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module."""
        namespace = vars(owner)
        if name in namespace:
            before = namespace[name]
            self._undo.append(lambda: namespace.__setitem__(name, before))
        else:
            self._undo.append(lambda: namespace.pop(name, None))
        namespace[name] = value

    def without_attribute(self, owner: Any, name: str) -> None:
        """Deletes an attribute of a module, if it has it, and does so again before anything is put back."""
        namespace = vars(owner)
        before = namespace.pop(name, self)

        def restore() -> None:
            namespace.pop(name, None)
            if before is not self:
                namespace[name] = before

        self._undo.append(restore)

    def body(self, function: Any, replacement: Callable[..., Any]) -> None:
        """Makes a Python function run `replacement`. It stays the same object, for all who hold it."""
        before = (function.__code__, function.__defaults__, function.__kwdefaults__)
        if before[0].co_freevars:
            return  # a closure's code can't be exchanged; the module's attribute is, which most callers read

        def restore() -> None:
            function.__code__, function.__defaults__, function.__kwdefaults__ = before

        self._undo.append(restore)
        function.__code__ = modules.bridge_to(function, replacement)
        function.__defaults__ = function.__kwdefaults__ = None

    def finder(self, finder: Any) -> None:
        sys.meta_path.insert(0, finder)
        self._undo.append(lambda: sys.meta_path.remove(finder))

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def take_back(self) -> None:
        while self._undo:
            self._undo.pop()()


def install() -> None:
    """Makes torch.compile and the names around it Magneto's. A second call does nothing."""
    global _changes
    with _lock:
        if _changes is not None:
            return
        changes = _Changes()
        try:
            _put_in_place(changes)
        except BaseException:
            changes.take_back()
            raise
        _changes = changes
    settings.read_environment()


def uninstall() -> None:
    """Puts back what stood there before `install`, PyTorch's compiler included if it was loaded. Else does nothing."""
    global _changes
    with _lock:
        if _changes is not None:
            _changes.take_back()
            _changes = None


def is_installed() -> bool:
    """Whether `install` holds."""
    return _changes is not None


def _put_in_place(changes: _Changes) -> None:
    table.forget_notes()
    loaded = {name: module for name, module in sys.modules.items() if modules.is_replaced(name)}
    changes.on_undo(lambda: sys.modules.update(loaded))
    changes.on_undo(lambda: modules.drop(modules.is_replaced))
    for name in loaded:
        del sys.modules[name]
    for parent, child in (("torch", "_dynamo"), ("torch", "_inductor")):
        changes.without_attribute(sys.modules[parent], child)
    served: tuple[str, ...] = table.PREFIXES
    symbolic_shapes = "torch.fx.experimental.symbolic_shapes"
    if symbolic_shapes in sys.modules:  # loaded already: it works on, for who uses it
        served = tuple(prefix for prefix in served if prefix != symbolic_shapes)
    else:
        changes.on_undo(lambda: modules.drop(lambda name: name == symbolic_shapes))
        changes.without_attribute(sys.modules["torch.fx.experimental"], "symbolic_shapes")
    changes.finder(modules.Finder(served))
    changes.on_undo(dynamo.forget_disabled)
    changes.on_undo(settings.forget_logs)
    changes.body(torch.compile, dynamo.torch_compile)
    changes.body(torch.export.export, dynamo.export)
    for logging in (torch._logging, torch._logging._internal):
        changes.attribute(logging, "set_logs", _log.set_logs_with_names(logging.set_logs))
    if proxy_tensor := sys.modules.get("torch.fx.experimental.proxy_tensor"):  # torch loads it, in most versions
        changes.body(proxy_tensor.make_fx, dynamo.make_fx)
    for name in ("torch._dynamo", "torch._inductor"):  # torch would import them in the middle of a capture
        modules.load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the notes are for programs that use the names
        for name, module in loaded.items():
            _change_loaded(changes, name, module)
    table.forget_notes()


def _change_loaded(changes: _Changes, name: str, module: types.ModuleType) -> None:
    """A module of PyTorch's compiler that somebody may hold: its names become ours."""
    if name not in table.MODULES:
        return
    shim = modules.load(name)
    for row in table.MODULES[name]:
        before = vars(module).get(row.name)
        if before is None or row.state is table.TO_COME:
            continue
        ours = getattr(shim, row.name)
        if isinstance(before, types.FunctionType) and isinstance(ours, (types.FunctionType, type)):
            changes.body(before, ours)
        changes.attribute(module, row.name, ours)
    for child in table.children(name):
        if child in vars(module):
            changes.attribute(module, child, modules.load(f"{name}.{child}"))
