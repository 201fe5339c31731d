"""Programs that raise behind writes leave the state that eager leaves: values, versions, random numbers, Python's side
effects and their order, calls of operators of one's own, the exception and its text.

`make test` runs each error at each place behind two of the writes with one of the backends, `make test-all` all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import error_programs
import pytest
from error_programs import PLACES, RAISING, WRITES
from tiers import ways_of

import magneto

BACKENDS = ["eager", "aot_eager", "magneto"]


def cases() -> Iterator[Any]:
    for raising, place in itertools.product(RAISING, PLACES):
        for write, marks in ways_of(f"{raising}-{place}", [], list(WRITES), count=2):
            for backend, more in ways_of(f"{raising}-{place}-{write}", [], BACKENDS, count=1):
                names = write, raising, place, backend
                yield pytest.param(*names, id="-".join(names), marks=marks or more)


@pytest.mark.parametrize(("write", "raising", "place", "backend"), list(cases()))
def test_state_after_an_error(write: str, raising: str, place: str, backend: str) -> None:
    expected = error_programs.run(write, raising, place, lambda program: program)
    for dynamic in (None, True) if place == "plain" else (None,):
        magneto.reset()
        got = error_programs.run(
            write, raising, place, lambda program: magneto.compile(program, backend=backend, dynamic=dynamic)
        )
        assert got == expected
