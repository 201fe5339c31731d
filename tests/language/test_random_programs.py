"""A bounded number of random programs against eager, plain and with forced exits; a failure prints the smallest found."""

from __future__ import annotations

import time

import pytest
from generator import Writer, difference, shrink

SECONDS = 12.0


@pytest.mark.parametrize("every", [0, 1, 2, 5])
def test_random_programs(every: int) -> None:
    end = time.monotonic() + SECONDS
    for seed in range(60):
        source = Writer(1000 * every + seed).program()
        failing = difference(source, every)
        assert not failing, shrink(source, every)
        if time.monotonic() > end:
            break
