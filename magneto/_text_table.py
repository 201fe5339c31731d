"""Tables of text: plain columns, and boxes for terminals."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

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
    width = width or (shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 16)
    cells = [[cell.splitlines() or [""] for cell in row] for row in (head, *rows)]
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


def in_color() -> bool:
    """Standard output is a terminal that shows colors."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def _widths(cells: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [max(len(line) for row in cells for line in row[column]) for column in range(len(cells[0]))]


def _wrap(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _lines_of(row: Sequence[Sequence[str]]) -> list[list[str]]:
    return [
        [cell[index] if index < len(cell) else "" for cell in row] for index in range(max(len(cell) for cell in row))
    ]
