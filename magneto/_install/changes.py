"""Changes of modules and functions that `uninstall` takes back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from magneto._install import modules


class Changes:
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

    def body(self, function: Any, replacement: Callable[..., Any]) -> None:
        """Makes a Python function run `replacement`. It stays the same object, for all who hold it."""
        before = (function.__code__, function.__defaults__, function.__kwdefaults__)

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
