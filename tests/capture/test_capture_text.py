"""Golden texts of captures: a program above, the graph, guards and plan of each of its segments below.

A golden file holds the source of `make()`, which gives a callable and its arguments, then `====`, then what the capture
wrote. `MAGNETO_BLESS=1` writes the second part anew.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
from pathlib import Path
from typing import Any

import pytest

from magneto import _testing

GOLDEN = Path(__file__).parent / "golden"
SEPARATOR = "\n====\n"


def capture(source: str, file_name: str) -> str:
    lines = source.splitlines(keepends=True)
    linecache.cache[file_name] = (len(source), None, lines, file_name)  # inspect and tracebacks find the source
    namespace: dict[str, Any] = {"__name__": "golden"}
    exec(compile(source, file_name, "exec"), namespace)
    function, args, *kwargs = namespace["make"]()
    with contextlib.redirect_stdout(io.StringIO()):
        segments = _testing.capture_text(function, args, *kwargs)
    text = "".join(f"{graph}guards\n{guards}{plan}\n" for graph, guards, plan in segments)
    text = re.sub(
        r"/\S*/(?:site|dist)-packages/(\S+?):\d+", r"\1", text
    )  # which PyTorch is installed where does not matter
    text = re.sub(
        r"(<code (?:(?:Module|Sequential|Linear|ReLU)\.\w+|relu), line) \d+", r"\1 ?", text
    )  # PyTorch's own lines differ between its versions
    # ...and so does which of its own C functions its code reads by name.
    text = re.sub(r"(?m)^ID_MATCH: ___check_obj_id\(G\['\w+'\], <built-in function \w+>\)\n", "", text)
    return re.sub(r"0x[0-9a-f]+", "0x?", text).strip() + "\n"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_capture_text(path: Path) -> None:
    source, _, expected = path.read_text().partition(SEPARATOR)
    actual = capture(source + "\n", path.name)
    if os.environ.get("MAGNETO_BLESS"):
        path.write_text(source.rstrip() + "\n" + SEPARATOR[1:] + actual)
        return
    assert actual == expected
