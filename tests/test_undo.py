"""Programs that raise behind writes leave the state that eager leaves: values, versions, random numbers, Python's side
effects and their order, calls of operators of one's own, the exception and its text.

MAGNETO_ALL_ERRORS=1 runs each write with each error at each place; else each error at each place, with some write.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import error_programs
import pytest
from error_programs import PLACES, RAISING, WRITES

import magneto


def cases() -> Iterator[tuple[str, str, str]]:
    if os.environ.get("MAGNETO_ALL_ERRORS"):
        yield from itertools.product(WRITES, RAISING, PLACES)
        return
    writes = itertools.cycle(WRITES)
    for place in PLACES:
        for raising in RAISING:
            yield next(writes), raising, place
        next(writes)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize(("write", "raising", "place"), cases())
def test_state_after_an_error(write: str, raising: str, place: str, backend: str) -> None:
    expected = error_programs.run(write, raising, place, lambda program: program)
    for dynamic in (None, True) if place == "plain" else (None,):
        magneto.reset()
        got = error_programs.run(
            write, raising, place, lambda program: magneto.compile(program, backend=backend, dynamic=dynamic)
        )
        assert got == expected
