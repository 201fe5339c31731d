"""docs/operators.md says which way each operator goes: a part of it, made again."""

from __future__ import annotations

import pytest
import sweep
import ways

SOME = sweep.infos()[4::40]


@pytest.mark.skipif(f"on PyTorch {ways.version()}," not in ways.PAGE.read_text(), reason="made on another PyTorch")
def test_the_page_is_current() -> None:
    listed = ways.listed()
    names = {info.name for info in SOME}
    found = ways.rows(info for info in sweep.infos() if info.name in names)
    assert {name: listed.get(name) for name in found} == found


def test_all_operators_are_listed() -> None:
    """But those of which the database has no sample on the CPU."""
    missing = {info.name for info in sweep.infos() if ways.dtype_of(info)} - set(ways.listed())
    assert {name for name in missing if not name.startswith(("jiterator_", "sparse."))} == set()
