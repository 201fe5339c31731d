"""The two tiers: `make test` runs a program plainly and in some further ways, `make test-all` in every way.

Which ways these are follows from the program's name: each run takes the same ones, and over many programs each way gets
its share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def picked(name: str, ways: Iterable[str], count: int = 2) -> set[str]:
    """As many of the ways as asked for."""
    return set(sorted(ways, key=lambda way: hashlib.sha256(f"{name} {way}".encode()).digest())[:count])


def ways_of(name: str, always: Sequence[str], further: Sequence[str], count: int = 2) -> list[Any]:
    """(way, marks) for each way that the program goes; marks: () or `long`."""
    now = {*always, *picked(name, further, count)}
    return [(way, () if way in now else (pytest.mark.long,)) for way in [*always, *further]]


def some(names: Iterable[Any], every: int) -> list[Any]:
    """All of them, of which those in between are long."""
    return [name if i % every == 0 else pytest.param(name, marks=pytest.mark.long) for i, name in enumerate(names)]


def those_that_pick(way: str, ways: Sequence[str], names: Iterable[str]) -> list[Any]:
    """All of the names; long are those that pick another of the ways."""
    return [pytest.param(name, marks=() if way in picked(name, ways, 1) else (pytest.mark.long,)) for name in names]
