"""What a program read is changed between its calls: every place with every change, and some readers of each pair."""

from __future__ import annotations

import functools
import os
import warnings

import pytest
from generated_changes import CHANGES, PLACES, READERS, scenario_of
from scenario import observe, same
from tiers import picked

import magneto

READERS_OF_A_PAIR = int(os.environ.get("MAGNETO_READERS", "2"))  # which ones, the names of place and change pick


def differences(place: str, change: str, readers: set[str], backend: str) -> list[str]:
    found = []
    for reader in sorted(readers):
        scenario = scenario_of(PLACES[place], CHANGES[change], READERS[reader])
        expected = observe(scenario, None)
        magneto.reset()
        actual = observe(scenario, lambda function: magneto.compile(function, backend=backend))
        for number, (left, right) in enumerate(zip(actual, expected, strict=True), 1):
            if not same(left, right, backend):
                found.append(f"{place}, {change}, {reader}, call {number}:\n{left}\ninstead of\n{right}")
                break
    return found


@functools.cache
def useful(change: str) -> set[str]:
    """Readers that say more of the value than that it is an error to ask."""
    told = set()
    for reader in READERS:
        trace = observe(scenario_of(PLACES["argument"], CHANGES[change], READERS[reader]), None)
        if any("raised None" in text for text in trace[:-1]):
            told.add(reader)
    return told


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", PLACES)
def test_change(place: str, change: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        readers = picked(f"{place} {change}", useful(change), READERS_OF_A_PAIR)
        found = differences(place, change, readers, "aot_eager")
    assert not found, "\n".join(found)
