"""Each fault of the table is found, named and minified; `python tools/planted_faults.py` prints it."""

from __future__ import annotations

from pathlib import Path

import fresh
import pytest
from faults import FAULTS, Fault
from find import find


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=str(fault), marks=() if fault.quick else pytest.mark.long) for fault in FAULTS]
)
def test_is_found_named_and_minified(fault: Fault) -> None:
    found = find(fault)
    assert not found.missing(fault), f"{found.report}\n{found.script}\n{found.ended}"


def test_the_table() -> None:
    assert len(FAULTS) == len({(str(fault), fault.finder) for fault in FAULTS}) >= 60
    assert 3 <= sum(fault.quick for fault in FAULTS) <= 6


def test_the_command() -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "planted_faults.py"
    done = fresh.python(str(tool), "no such fault")
    assert "0 of 0 found" in done.stdout, done.stderr
