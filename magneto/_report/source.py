"""The parts of the program's text that a report shows: the functions that operators came from."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

_AROUND = 4  # lines shown around one that is in no function


@dataclass
class Sources:
    """Sections (a function, a class body, some lines of a script), each once, by their position in `sections`."""

    texts: dict[str, str] = field(default_factory=dict)  # as the log has them
    sections: list[dict[str, Any]] = field(default_factory=list)
    _lines: dict[str, list[str]] = field(default_factory=dict)
    _functions: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    _known: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def sections_of(self, places: list[tuple[str, int, str]]) -> list[int]:
        """The sections that hold these places (file, line, function), in order of first use."""
        used: dict[int, None] = {}
        for file, line, name in dict.fromkeys(places):
            number = self._section(file, line, name)
            if number is not None:
                used[number] = None
        return list(used)

    def _section(self, file: str, line: int, name: str) -> int | None:
        lines = self._text(file)
        if not 0 < line <= len(lines):
            return None
        first, last, title = self._function_at(file, line) or self._window(file, line, len(lines))
        key = (file, first, last)
        if key not in self._known:
            self._known[key] = len(self.sections)
            self.sections.append(
                {"file": file, "name": title or name, "first": first, "lines": lines[first - 1 : last]}
            )
        return self._known[key]

    def _text(self, file: str) -> list[str]:
        if file not in self._lines:
            text = self.texts.get(file)
            if text is None:
                try:
                    with open(file, encoding="utf-8", errors="replace") as handle:
                        text = handle.read()
                except (OSError, ValueError):  # a name with a null byte is a ValueError
                    text = ""
            self._lines[file] = text.splitlines()
            self._functions[file] = _functions(text)
        return self._lines[file]

    def _function_at(self, file: str, line: int) -> tuple[int, int, str] | None:
        around = [function for function in self._functions[file] if function[0] <= line <= function[1]]
        return max(around, default=None)  # the innermost begins last

    def _window(self, file: str, line: int, count: int) -> tuple[int, int, str]:
        """Lines of a script: those around this one, in steps, so that neighbours share a section."""
        step = 8 * _AROUND
        first = (line - 1) // step * step + 1
        return first, min(count, first + step - 1), ""


def _functions(text: str) -> list[tuple[int, int, str]]:
    """First line (decorators included), last line and name of each function."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    pending: list[tuple[ast.AST, str]] = [(tree, "")]
    while pending:
        node, outer = pending.pop()
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}" if outer else child.name
                if not isinstance(child, ast.ClassDef) and child.end_lineno:
                    first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                    found.append((first, child.end_lineno, name))
            pending.append((child, name))
    return found
