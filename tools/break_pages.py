"""Writes docs/breaks/: a page for each break reason, of src/capture/breaks.def and of the programs of the tests.

python tools/break_pages.py          # after a change of either
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import break_programs  # noqa: E402

_TEXT = r'"(?:[^"\\]|\\.)*"'
_ROW = re.compile(rf"^X\((\w+),\s*({_TEXT}(?:\s*{_TEXT})*),\s*({_TEXT}(?:\s*{_TEXT})*)\)", re.MULTILINE)


def rows() -> dict[str, tuple[str, str]]:
    """Reason -> (cause, hint)."""

    def joined(literals: str) -> str:
        return "".join(part[1:-1] for part in re.findall(_TEXT, literals)).replace('\\"', '"')

    table = (ROOT / "src" / "capture" / "breaks.def").read_text()
    return {name: (joined(cause), joined(hint)) for name, cause, hint in _ROW.findall(table) if name != "None"}


def _block(function: Callable[..., Any]) -> list[str]:
    return ["<!-- not run: tests/test_break_pages.py does -->", "```python", break_programs.source(function), "```"]


def page(name: str, cause: str, hint: str) -> str:
    """The page of a reason."""
    lines = [f"# {name}", "", f"The graph ends here because {cause}.", ""]
    if hint:
        lines += [f"What helps: {hint}.", ""]
    if example := break_programs.EXAMPLES.get(name):
        lines += ["This breaks:", "", *_block(example.function)]
        if example.settings:
            lines += ["", "(only in Magneto's own tests, which ask for it)"]
        if example.fixed:
            lines += ["", "This does not:", "", *_block(example.fixed)]
    else:
        lines.append(f"No example: {break_programs.WITHOUT[name]}.")
    lines += [
        "",
        "CPython runs the instruction, in the same frame, and the next graph begins behind it: results are eager's.",
        "`TORCH_LOGS=graph_breaks` shows each with its stack, `magneto.stats()['break_reasons']` counts them as",
        f"`{name}: ...`, `fullgraph=True` makes the first one an error.",
    ]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name in docs/breaks -> text."""
    reasons = rows()
    index = ["# Break reasons", "", "What ends a graph, by the name that logs, errors and counters give it.", ""]
    index += ["| reason | cause |", "|---|---|"]
    index += [f"| [{name}]({name}.md) | {cause} |" for name, (cause, _) in reasons.items()]
    return {"README.md": "\n".join(index) + "\n"} | {
        f"{name}.md": page(name, cause, hint) for name, (cause, hint) in reasons.items()
    }


if __name__ == "__main__":
    folder = ROOT / "docs" / "breaks"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    for file, text in pages().items():
        (folder / file).write_text(text)
