"""States of Python's and NumPy's random generators, read and set inside a compiled function."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_same

import magneto
from magneto import _test_settings

OWN = random.Random(3)
LEGACY = np.random.RandomState(4)
KEPT: dict[str, Any] = {}


def kept_and_set(x: torch.Tensor) -> Any:
    state = random.getstate()
    first = random.random(), random.gauss(0, 1)
    random.setstate(state)
    return x * first[0] * random.random(), first[1], random.gauss(0, 1), random.random()


def handed_out(x: torch.Tensor) -> Any:
    before = random.getstate()
    noise = x * random.random()
    return noise, before, random.getstate()


def given(x: torch.Tensor) -> Any:
    random.setstate(KEPT["python"])
    return x * random.random(), random.randint(1, 100), random.getstate()


def given_and_nothing_drawn(x: torch.Tensor) -> Any:
    random.setstate(KEPT["python"])
    return x + 1


def of_another(x: torch.Tensor) -> Any:
    OWN.setstate(random.getstate())
    return x * OWN.random() * random.random(), OWN.random()


def set_twice(x: torch.Tensor) -> Any:
    first = random.getstate()
    random.setstate(KEPT["python"])
    second, drawn = random.getstate(), random.random()
    random.setstate(first)
    again = random.random()
    random.setstate(second)
    return x * drawn, again, random.random(), first == second


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def in_a_context(x: torch.Tensor) -> Any:
    before = random.random()
    with seeded(7):
        noise = x * random.random()
    return noise, before, random.random()


def swapped(x: torch.Tensor) -> Any:
    KEPT["last"], state = random.getstate(), KEPT.get("last")
    if state is not None:
        random.setstate(state)
    return x * random.random()


def numpy_kept_and_set(x: torch.Tensor) -> Any:
    state = np.random.get_state()
    first = np.random.rand(), np.random.randn()
    np.random.set_state(state)
    return x * first[0] * np.random.rand(), first[1], np.random.randn(), np.random.rand(2)


def numpy_handed_out(x: torch.Tensor) -> Any:
    before = np.random.get_state()
    noise = x * np.random.rand()
    return noise, before, np.random.get_state(), LEGACY.get_state()[0]


def numpy_given(x: torch.Tensor) -> Any:
    np.random.set_state(KEPT["numpy"])
    LEGACY.set_state(KEPT["numpy"])
    return x * np.random.rand(), LEGACY.rand(), np.random.get_state()


def numpy_seeded_between(x: torch.Tensor) -> Any:
    state = LEGACY.get_state()
    LEGACY.seed(3)
    noise = x * LEGACY.rand()
    LEGACY.set_state(state)
    return noise, LEGACY.rand()


def both(x: torch.Tensor) -> Any:
    states = random.getstate(), np.random.get_state()
    drawn = random.random() + np.random.rand()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return x * drawn, random.random() + np.random.rand()


WHOLE = [
    kept_and_set,
    handed_out,
    given,
    given_and_nothing_drawn,
    of_another,
    in_a_context,
    swapped,
    numpy_kept_and_set,
    numpy_handed_out,
    numpy_given,
    numpy_seeded_between,
    both,
]


def compared(x: torch.Tensor) -> Any:
    """All numbers of the states are read."""
    return x + 1, random.getstate() == KEPT["python"]


def around_an_exit(x: torch.Tensor) -> Any:
    state, of_numpy = random.getstate(), np.random.get_state()
    first = x * random.random() * np.random.rand()
    size = first.sum().item()
    random.setstate(state)
    np.random.set_state(of_numpy)
    return first, size, random.random(), np.random.rand()


def raises(x: torch.Tensor) -> Any:
    try:
        random.setstate((3, (1, 2), None))
    except ValueError as error:
        return x * random.random(), str(error)


def numpy_raises(x: torch.Tensor) -> Any:
    try:
        np.random.set_state(KEPT["wrong"])
    except (ValueError, IndexError):
        return x * np.random.rand()


def numpy_written(x: torch.Tensor) -> Any:
    state = np.random.get_state()
    state[1][0] = 5
    np.random.set_state(state)
    again = np.random.get_state()
    again[1][:] = 0
    return x * np.random.rand(), state, np.random.rand()


def numpy_written_behind(x: torch.Tensor) -> Any:
    state = np.random.get_state()
    LEGACY.set_state(state)
    state[1][:] = 0
    return x * LEGACY.rand(), state


def numpy_read_twice(x: torch.Tensor) -> Any:
    first, second = np.random.get_state(), np.random.get_state()
    return x + 1, first, second, first[1] is second[1]


def as_dicts(x: torch.Tensor) -> Any:
    state = np.random.get_state(legacy=False)
    drawn = np.random.rand()
    np.random.set_state(state)
    return x * drawn, np.random.rand()


def of_a_made_one(x: torch.Tensor) -> Any:
    own = random.Random(3)
    state = own.getstate()
    drawn = own.random()
    own.setstate(state)
    return x * drawn, own.random()


WITH_EXITS = [set_twice, compared, around_an_exit, raises, numpy_raises, numpy_written, numpy_written_behind]
WITH_EXITS += [numpy_read_twice, as_dicts, of_a_made_one]


def observe(function: Callable[..., Any], turns: int = 6) -> list[Any]:
    seen: list[Any] = []
    random.seed(1)
    OWN.seed(2)
    np.random.seed(3)
    LEGACY.seed(4)
    KEPT.clear()
    KEPT.update(python=random.Random(9).getstate(), numpy=np.random.RandomState(9).get_state())
    KEPT["wrong"] = ("MT19937", np.zeros(3, dtype=np.uint32), 4)
    for turn in range(turns):
        result = function(torch.arange(2.0 + turn % 2) + 1)
        states = [(one[1].tolist(), *one[2:]) for one in (np.random.get_state(), LEGACY.get_state())]
        seen.append((result, random.getstate(), OWN.getstate(), states))
        if turn == 3:
            KEPT.update(python=random.Random(8).getstate(), numpy=np.random.RandomState(8).get_state())
    return seen


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("program", WHOLE + WITH_EXITS, ids=lambda program: program.__name__)
def test_programs(program: Callable[..., Any], backend: str, every: int) -> None:
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=100):
        got = observe(magneto.compile(program, backend=backend))
    assert_same(got, observe(program))


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    assert_same(observe(magneto.compile(program, fullgraph=True)), observe(program))
    assert not magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]
    assert magneto.stats()["recompiles"] <= 2
