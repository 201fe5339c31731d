"""Where code comes from: what is a library's has a name to import, what is the program's has a text.

A function's code is found again in its file's text: the file is compiled, not run, and the code object that is equal is
named by its place. So decorators, closures and lambdas need nothing of their own. A record holds those statements of a
file in which such code stands, the other lines being empty, so that the lines' numbers stay.
"""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_STDLIB = tuple({sysconfig.get_path("stdlib") + os.sep, os.path.dirname(os.__file__) + os.sep})


class NoSource(Exception):
    """The text of some code is not to be had."""


@functools.cache
def is_library(module: str) -> bool:
    """Whether another process can be expected to import a module: Python's own, PyTorch, Magneto, what is installed."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("torch", "magneto"):
        return top != "__main__"
    package = sys.modules.get(top)
    file = getattr(package, "__file__", None)
    places = [os.path.dirname(file)] if file else list(getattr(package, "__path__", ()))
    if not places:
        return top in sys.builtin_module_names
    folder = Path(places[0])
    if not file or os.path.basename(file) == "__init__.py":
        folder = folder.parent
    if folder.name in ("site-packages", "dist-packages"):
        return True
    return any(entry.suffix in (".dist-info", ".egg-info") and _names(entry, top) for entry in folder.iterdir())


def _names(entry: Path, top: str) -> bool:
    listed = entry / "top_level.txt"
    if listed.exists():
        return top in listed.read_text(encoding="utf-8", errors="replace").split()
    return entry.name.lower().replace("-", "_").startswith(top.lower().replace("-", "_"))


def resolve(module: str, qualname: str) -> Any:
    """What a name stands for. Imports the module. Raises ImportError or AttributeError."""
    value: Any = importlib.import_module(module)
    for part in filter(None, qualname.split(".")):
        value = getattr(value, part)
    return value


_HOMES = ("torch", "torch.nn.functional", "torch._C._nn", "builtins")  # of what doesn't know its own


def name_of(value: Any) -> tuple[str, str] | None:
    """The module and qualified name under which a library has that very object; None: under none that is known."""
    module = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(qualname, str) or "<" in qualname:
        return None
    own = getattr(value, "__self__", None)
    if module is None and isinstance(own, type):
        module, qualname = own.__module__, f"{own.__qualname__}.{value.__name__}"
    elif isinstance(own, types.ModuleType):
        module, qualname = own.__name__, value.__name__
    if isinstance(module, str) and _is_at(module, qualname, value):
        return module, qualname
    for home in _HOMES:
        if _is_at(home, qualname.rpartition(".")[2], value):
            return home, qualname.rpartition(".")[2]
    return None


def _is_at(module: str, qualname: str, value: Any) -> bool:
    if module not in sys.modules or not is_library(module):
        return False
    found: Any = sys.modules[module]
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found is value


# -- the program's text


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """All code objects in one, itself first, in order."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def codes_at(whole: types.CodeType, qualname: str, line: int) -> list[types.CodeType]:
    """Those of that name that begin in that line: of several lambdas in a line, all."""
    return [code for code in nested(whole) if code.co_qualname == qualname and code.co_firstlineno == line]


def compiled(text: str, file: str) -> types.CodeType:
    """A file's code. Nothing of it runs."""
    return compile(text, file, "exec", dont_inherit=True)


@dataclass
class File:
    """A file of which a record holds a part."""

    name: str
    lines: list[str]
    tree: ast.Module
    code: types.CodeType
    kept: set[int] = field(default_factory=set)  # lines, from 1

    def keep(self, line: int) -> None:
        """The statement of the module that a line belongs to."""
        for statement in self.tree.body:
            first = _first_line(statement)
            if first <= line <= (statement.end_lineno or first):
                self.kept.update(range(first, (statement.end_lineno or first) + 1))

    def text(self) -> str:
        """The lines that are kept, each in its place."""
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.keep(statement.lineno)
        last = max(self.kept, default=0)
        return "".join(self.lines[i] if i + 1 in self.kept else "\n" for i in range(last))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


class Files:
    """The files that code of a record stands in."""

    def __init__(self) -> None:
        self.all: dict[str, File | None] = {}
        self._found: dict[int, dict[str, Any]] = {}
        self._alive: list[types.CodeType] = []

    def place(self, code: types.CodeType) -> dict[str, Any]:
        """Where a code object stands, as a record says it. Raises NoSource."""
        if id(code) not in self._found:
            self._alive.append(code)
            self._found[id(code)] = self._place(code)
        return self._found[id(code)]

    def _place(self, code: types.CodeType) -> dict[str, Any]:
        file = self._file(code.co_filename)
        if file is None:
            raise NoSource(f"the source of {code.co_qualname} is not to be had ({code.co_filename})")
        same = codes_at(file.code, code.co_qualname, code.co_firstlineno)
        for number, candidate in enumerate(same):
            if candidate == code:
                file.keep(code.co_firstlineno)
                return {
                    "file": code.co_filename,
                    "qualname": code.co_qualname,
                    "line": code.co_firstlineno,
                    "number": number,
                }
        if code.co_filename == "<string>":  # of `python -c`, where linecache has it, as of any exec
            raise NoSource(f"the source of {code.co_qualname} is not to be had ({code.co_filename})")
        raise NoSource(
            f"{code.co_qualname} is not what {code.co_filename} says: the file was changed since it was loaded"
        )

    def _file(self, name: str) -> File | None:
        if name not in self.all:
            self.all[name] = _load(name)
        return self.all[name]


def _load(name: str) -> File | None:
    lines = linecache.getlines(name)
    if not lines:
        return None
    text = "".join(lines)
    try:
        return File(name, lines, ast.parse(text), compiled(text, name))
    except (SyntaxError, ValueError, RecursionError):
        return None


# -- what a function reads


_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")


@functools.lru_cache(maxsize=4096)
def globals_read(code: types.CodeType) -> tuple[str, ...]:
    """The names of globals in a function and in those that it defines."""
    import dis

    names: dict[str, None] = {}
    for part in nested(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _GLOBALS:
                names[str(instruction.argval)] = None
    return tuple(names)


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> tuple[str, ...]:
    """All names, attributes' as well."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(part.co_names for part in nested(code))))
