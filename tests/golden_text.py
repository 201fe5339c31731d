"""Golden files with both sides of a rewrite in them: input, a line `----`, output."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

_SEPARATOR = "----\n"


def check_pair(path: pathlib.Path, run: Callable[[str], str]) -> None:
    """Compares what `run` makes of the first part with the second; writes it there when blessing."""
    given, _, expected = path.read_text().partition(_SEPARATOR)
    actual = run(given)
    if os.environ.get("MAGNETO_BLESS") == "1":
        path.write_text(given + _SEPARATOR + actual)
        return
    assert actual == expected, f"{path.name} differs; run with MAGNETO_BLESS=1 if the new text is right"
