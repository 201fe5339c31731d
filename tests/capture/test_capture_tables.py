"""Golden texts of small programs, one for each feature, kind of guard, operator family and exit: tables of them.

A file of `tables/` has a title, and for each program a line `---- name`, its source with `make()` as in `golden/`,
`====`, and what the capture wrote. Left out are the check of the global state, which all have, the name of the
instruction at which a frame exits, and lines of library code. What the library itself does differs between releases, and
comprehensions between Pythons: elsewhere than where they were written the programs have to be captured.
`MAGNETO_BLESS=1` writes the texts anew.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from capture.test_capture_text import capture

FILES = sorted((Path(__file__).parent / "tables").glob("*.txt"))
NAME = re.compile(r"(?m)^---- (\w+)\n")
SEPARATOR = "====\n"
WRITTEN_WITH = ((3, 11), "2.13")


def programs(path: Path) -> dict[str, tuple[str, str]]:
    """name -> (source, text)."""
    _, *parts = NAME.split(path.read_text())
    found = {}
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        source, _, text = part.partition(SEPARATOR)
        assert name not in found, name
        found[name] = source, text.strip() + "\n"
    return found


def written(name: str, source: str) -> str:
    text = re.sub(r"(?m)^GLOBAL_STATE: .*\n", "", capture(source, f"{name}.py"))
    text = re.sub(r"(frame \S+) at [A-Z_]+ line", r"\1 at line", text)

    def own(code: re.Match[str]) -> str:
        return code[0] if code[1].rpartition(".")[2] in source else f"<code {code[1]}>"

    return re.sub(r"<code (\S+), line \d+>", own, text)


CASES = [(path, name) for path in FILES for name in programs(path)]


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{path.stem}-{name}" for path, name in CASES])
def test_program(path: Path, name: str) -> None:
    source, expected = programs(path)[name]
    actual = written(name, source)
    if os.environ.get("MAGNETO_BLESS"):
        before = path.read_text()
        start = before.index(f"---- {name}\n")
        head, _, rest = before[start:].partition(SEPARATOR)
        following = NAME.search(rest)
        end = "\n" + rest[following.start() :] if following else ""
        path.write_text(before[:start] + head + SEPARATOR + actual + end)
        return
    if (sys.version_info[:2], torch.__version__[:4]) == WRITTEN_WITH:
        assert actual == expected
