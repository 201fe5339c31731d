"""The messages that users meet most, each as its text: a program, a line `----`, all that is said of it.

Said is what the logs of graph breaks and recompiles have, warnings, what the program prints, and the error that ends
it. MAGNETO_BLESS=1 writes the texts anew.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import warnings
from pathlib import Path

import pytest
import torch
from golden_text import check_pair

import magneto
from magneto import _log, _test_settings

FILES = sorted((Path(__file__).parent / "messages").glob("*.txt"))
PROGRAM = "program.py"


class Said:
    """Keeps what is said, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        for artifact in ("graph_breaks", "recompiles"):
            _log.listen(artifact, self.take)

    def take(self, text: str) -> None:
        self.texts.append(text.rstrip("\n"))

    def warn(self, message: Warning | str, *_: object) -> None:
        self.take(f"RuntimeWarning: {message}")


def _said_of(program: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    said = Said()
    linecache.cache[PROGRAM] = (len(program), None, program.splitlines(True), PROGRAM)
    names = {"__name__": "program", "torch": torch, "magneto": magneto, "ones": torch.ones}
    names["test_settings"] = _test_settings.patch
    printed = io.StringIO()
    monkeypatch.setattr(warnings, "showwarning", said.warn)
    with magneto.config.patch(strict=False, debug_dir=str(folder)), contextlib.redirect_stdout(printed):
        warnings.simplefilter("always", RuntimeWarning)
        try:
            exec(compile(program, PROGRAM, "exec"), names)
        except Exception as error:
            said.take(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    if printed.getvalue():
        said.take(printed.getvalue())
    return _without_what_differs("\n\n".join(said.texts) + "\n")


def _without_what_differs(text: str) -> str:
    text = re.sub(r"(?m)Page: .*(docs/breaks/\w+\.md)$", r"Page: \1", text)
    text = re.sub(r"\S+magneto_error_\d+_\d+\.txt", "magneto_error.txt", text)
    text = re.sub(r'(?m)^ +File "[^"]*/(torch|magneto)/.*\n.*\n( *\^+\n)?', "", text)  # PyTorch's own lines move
    text = re.sub(r"(?m)^ *\^+\n", "", text)  # which part of a line is marked is the Python version's matter
    text = text.replace("call of _io.open", "call of io.open")  # its name from CPython 3.12 on
    return re.sub(r"\b\d+/(\d+): ", r"N/\1: ", text)


@pytest.mark.lenient
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_message(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        try:
            check_pair(file, lambda program: _said_of(program, monkeypatch, tmp_path))
        finally:
            magneto.uninstall()


# What a text that tells what to do next has one of.
NEXT = (
    "Hint: ",
    "What would stop it",
    "How to go on",
    "use ",
    "Mend ",
    "Did you mean",
    "under the stance",
    "Take the mark",
)
NEXT += (
    "Until that is mended",
    "Call it once",
    "says what would stop it",
    "must return",
    "magneto.recompiles()",
    'magneto.stats()["no_joint"]',
)
# Errors of calls of our own functions: a traceback has the place.
WITHOUT_PLACE = {"unknown_backend", "unknown_option", "unknown_setting", "not_yet"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_has_place_cause_and_next_step(file: Path) -> None:
    _, _, text = file.read_text().partition("----\n")
    assert f"{PROGRAM}:" in text or f'File "{PROGRAM}"' in text or file.stem in WITHOUT_PLACE
    assert any(part in text for part in NEXT), text
    for inner in ("___stack", "Eq(", "{name}", "{expression}", "builtins.builtins"):
        assert inner not in text


def test_there_are_forty() -> None:
    assert len(FILES) >= 40
