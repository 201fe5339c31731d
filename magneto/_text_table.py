"""Tables of text: plain columns, and boxes for terminals; as HTML for notebooks."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch


class Table(NamedTuple):
    """A title, the heads of the columns, and rows of cells, which may have several lines."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Tables:
    """What is shown as tables: by `print`, at the prompt (in colour on a terminal), and as HTML in a notebook."""

    _nothing = "Nothing."  # where no table has a row

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def lines(self, color: bool = False, width: int | None = None) -> list[str]:
        """The tables that have rows, an empty line behind each; at most `width` wide, if that is given."""
        lines: list[str] = []
        for title, head, rows in self._tables():
            if rows:
                lines += [*boxed(title, head, rows, color, width), ""]
        return lines or [self._nothing]

    def __str__(self) -> str:
        return "\n".join(self.lines()).rstrip("\n") + "\n"

    def __repr__(self) -> str:
        return "\n".join(self.lines(color=in_color())).rstrip("\n")

    def _repr_html_(self) -> str:
        from html import escape

        return "".join(_html(*table) for table in self._tables() if table.rows) or f"<p>{escape(self._nothing)}</p>"


class Shown(str, Tables):
    """A table that is its text: `print` writes it, a prompt and a notebook show it."""

    __slots__ = ("_only",)
    _only: Table

    def __new__(cls, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Shown:
        self = super().__new__(cls, "\n".join(boxed(title, head, rows)) + "\n")
        self._only = Table(title, head, rows)
        return self

    def _tables(self) -> Iterable[Table]:
        return (self._only,)

    __str__ = str.__str__
    __repr__ = Tables.__repr__


_PACKAGES = os.path.dirname(os.path.dirname(torch.__file__)) + os.sep
_BOLD, _DIM, _END = "\033[1m", "\033[2m", "\033[0m"


def plain(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their longest line, a rule below the head; cells may have several lines."""
    cells = [[cell.splitlines() or [""] for cell in row] for row in (head, *rows)]
    widths = _widths(cells)
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for row in cells
        for line in _lines_of(row)
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def boxed(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], color: bool = False, width: int | None = None
) -> list[str]:
    """A table in a box, at most as wide as the terminal, if it goes to one: the widest columns are wrapped."""
    width = width or (shutil.get_terminal_size().columns if _is_terminal() else 1 << 16)
    cells = [[shown_places(cell).splitlines() or [""] for cell in row] for row in (head, *rows)]
    widths = _widths(cells)
    room = max(width - 3 * len(widths) - 1, 8 * len(widths))
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    wrapped = [
        [[part for line in cell for part in _wrap(line, room)] for cell, room in zip(row, widths, strict=True)]
        for row in cells
    ]
    bold, dim, end = (_BOLD, _DIM, _END) if color else ("", "", "")

    def rule(left: str, middle: str, right: str) -> str:
        return dim + left + middle.join("─" * (each + 2) for each in widths) + right + end

    lines = [f"{bold}{title}{end}", rule("╭", "┬", "╮")]
    for number, row in enumerate(wrapped):
        for line in _lines_of(row):
            texts = (text.ljust(each) for text, each in zip(line, widths, strict=True))
            styled = (f"{bold}{text}{end}" if number == 0 else text for text in texts)
            bar = f"{dim}│{end}"
            lines.append(f"{bar} " + f" {bar} ".join(styled) + f" {bar}")
        if number == 0:
            lines.append(rule("├", "┼", "┤"))
    return [*lines, rule("╰", "┴", "╯")]


def _html(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from html import escape  # notebooks have it; others' imports stay light

    def shown(cell: str) -> str:
        return escape(shown_places(cell))

    def row(tag: str, cells: Sequence[str]) -> str:
        style = "text-align: left; vertical-align: top; white-space: pre-wrap"
        return "<tr>" + "".join(f'<{tag} style="{style}">{shown(cell)}</{tag}>' for cell in cells) + "</tr>"

    body = "".join(row("td", cells) for cells in rows)
    caption = f'<caption style="text-align: left; font-weight: bold">{escape(title)}</caption>'
    return f"<table>{caption}<thead>{row('th', head)}</thead><tbody>{body}</tbody></table>"


def shown_places(text: str) -> str:
    """The text with the files of installed libraries below site-packages: torch/nn/modules/module.py."""
    return text.replace(_PACKAGES, "")


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def in_color() -> bool:
    """Standard output is a terminal that shows colors."""
    return _is_terminal() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _widths(cells: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [max(len(line) for row in cells for line in row[column]) for column in range(len(cells[0]))]


def _wrap(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _lines_of(row: Sequence[Sequence[str]]) -> list[list[str]]:
    return [
        [cell[index] if index < len(cell) else "" for cell in row] for index in range(max(len(cell) for cell in row))
    ]
