"""What is compiled keeps no object of the program alive that eager would let go: those that guards tell apart."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto


class Thing:
    scale = 2.0


WEAK: weakref.WeakKeyDictionary[Thing, float] = weakref.WeakKeyDictionary()
VALUES: weakref.WeakValueDictionary[str, Thing] = weakref.WeakValueDictionary()
HELD: list[Thing] = []


def looks_up(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x * WEAK[thing]


def is_in(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x + 1 if thing in WEAK else x - 1


def gets(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x * VALUES["a"].scale


def is_same(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x + 1 if thing is HELD[0] else x - 1


def refers(x: torch.Tensor, thing: Thing) -> Any:
    return x * thing.scale, weakref.ref(thing)


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("program", [looks_up, is_in, gets, is_same, refers], ids=lambda each: each.__name__)
def test_an_object_goes_when_the_program_lets_it_go(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    x = torch.ones(3)
    for turn in range(3):  # each lies where the last one lay, perhaps
        thing = Thing()
        WEAK[thing] = turn + 1.0
        VALUES["a"] = thing
        HELD[:] = [thing]
        for _ in range(2):
            got, want = compiled(x, thing), program(x, thing)
            assert str(got) == str(want)
        gone = weakref.ref(thing)
        HELD.clear()
        del thing, got, want
        gc.collect()
        assert gone() is None and not WEAK and not VALUES
        other = Thing()
        WEAK[other] = 7.0
        VALUES["a"] = other
        HELD[:] = [Thing()]
        assert str(compiled(x, other)) == str(program(x, other))
        del other


def test_an_object_where_another_one_lay() -> None:
    """The one that the guard awaits has gone: what lies in its place is another one."""

    def program(x: torch.Tensor, things: list[Thing]) -> torch.Tensor:
        return x + len(things) if things[0] is things[-1] else x - 1

    compiled = magneto.compile(program)
    x = torch.ones(3)
    places = set()
    for _ in range(20):
        things = [Thing()]
        places.add(id(things[0]))
        assert torch.equal(compiled(x, things), x + 1)
        things.append(Thing())
        assert torch.equal(compiled(x, things), x - 1)
        del things
    assert len(places) < 20  # memory was used again
