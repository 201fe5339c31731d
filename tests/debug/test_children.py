"""Attempts in children: what they start ends with them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magneto._debug import children

_WAITS = [sys.executable, "-c", "import time; time.sleep(100)"]


def _starts(file: Path, how: str) -> None:
    """Leaves the numbers of the processes that it starts."""
    if how == "in a session of its own":
        process = subprocess.Popen(_WAITS, start_new_session=True).pid
    elif how == "forked":
        process = os.fork()
        if not process:
            time.sleep(100)
    else:
        process = subprocess.Popen(_WAITS).pid
    file.write_text(str(process))


def _is_there(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _ends(file: Path) -> bool:
    process = int(file.read_text())
    for _ in range(100):
        if not _is_there(process):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("how", ["started", "forked", "in a session of its own", "of a child's child"])
def test_a_limit_of_time_ends_all(tmp_path: Path, how: str) -> None:
    file = tmp_path / "number"

    def attempt() -> None:
        if how == "of a child's child":
            children.run(lambda: (_starts(file, "started"), time.sleep(100)), 100)
        _starts(file, how)
        time.sleep(100)

    assert children.run(attempt, 2).kind == children.TIME
    assert _ends(file)


@pytest.mark.parametrize("how", ["started", "forked"])
def test_what_a_child_leaves_behind_ends(tmp_path: Path, how: str) -> None:
    outcome = children.run(lambda: _starts(tmp_path / "number", how) or 7, 20)
    assert (outcome.kind, outcome.result) == (children.OK, 7) and outcome.seconds < 10
    assert _ends(tmp_path / "number")
