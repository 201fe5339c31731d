"""Golden text files: `MAGNETO_BLESS=1` rewrites the expectations that differ."""

import os
import pathlib


def check(path: pathlib.Path, actual: str) -> None:
    """Compares `actual` with the file at `path`, or writes it there when blessing."""
    if os.environ.get("MAGNETO_BLESS") == "1":
        path.write_text(actual)
        return
    assert path.exists(), f"{path.name} is missing; run with MAGNETO_BLESS=1 to write it"
    expected = path.read_text()
    assert actual == expected, f"{path.name} differs; run with MAGNETO_BLESS=1 if the new text is right"
