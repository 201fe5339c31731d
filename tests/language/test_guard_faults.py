"""Faults planted in guards are noticed: each by the program that docs/guards.md names, a generated one where one does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Server
from test_generated_changes import READERS_OF_A_PAIR, useful
from tiers import picked

from magneto import _testing

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([a-z_.]+)` \| ([^|]+) \| (?:(\w+ \w+ \w+) )?\| (.+) \|$", re.M)
ROWS = {each[0]: each[1:] for each in ROW.findall((ROOT / "docs/guards.md").read_text())}  # meaning, generated, written


def test_the_table_has_all_faults() -> None:
    assert [(fault, meaning) for fault, (meaning, *_) in ROWS.items()] == _testing.guard_faults()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server([str(ROOT / "tests"), str(ROOT / "tests/language")], ["guard_fault_runs"])
    yield server
    server.close()


@pytest.mark.parametrize("fault", ROWS)
def test_fault_is_noticed(fault: str, server: Server) -> None:
    _, generated, written = ROWS[fault]
    case = f"generated_case({generated!r})" if generated else f"written_case({written!r})"
    code = f"from guard_fault_runs import *\nprint(found_by({case}, {{{fault!r}}}))"
    said, errors = server.run(code).communicate()
    assert said.strip() == str({fault}), errors


@pytest.mark.filterwarnings("ignore")
def test_programs_of_the_table_are_run() -> None:
    for case in filter(None, (generated for _, generated, _ in ROWS.values())):
        place, change, reader = case.split()
        assert reader in picked(f"{place} {change}", useful(change), READERS_OF_A_PAIR), case
