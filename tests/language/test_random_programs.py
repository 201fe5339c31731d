"""Random programs against eager, plain and with forced exits: always the same ones; a failure prints the smallest found."""

from __future__ import annotations

import pytest
from generator import Writer, difference, shrink

BLOCK = 10


@pytest.mark.parametrize("first", range(0, 60, BLOCK))
@pytest.mark.parametrize("every", [0, 1, 2, 5])
def test_random_programs(every: int, first: int) -> None:
    for seed in range(first, first + BLOCK):
        source = Writer(1000 * every + seed).program()
        assert not difference(source, every), shrink(source, every)
