"""Coroutines that nobody awaits: CPython warns where they die, and does so in each run of a compiled program."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
import torch

import magneto


async def work(value):
    return value + 1


def kept_in_locals(x):
    first, second = work(x), work(x)
    return x * 2


def of_a_computed_tensor(x):
    y = x + 1
    kept = work(y)
    return y * 2


def in_a_list(x):
    kept = [work(x) for _ in range(2)]
    kept.clear()
    return x * 3


def dropped(x):
    work(x)
    return x * 3


def in_a_function(x):
    def inner(y):
        kept = work(y)
        return y * 2

    return inner(x) + 1


def closed(x):
    kept = work(x)
    kept.close()
    return x * 2


def returned(x):
    return x * 2, work(x)


PROGRAMS = (kept_in_locals, of_a_computed_tensor, in_a_list, dropped, in_a_function, closed, returned)


def warnings_of(function: Callable[..., object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            function(torch.ones(2))
            gc.collect()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_run_warns_as_eager_does(program):
    magneto.reset()
    compiled = magneto.compile(program)
    with magneto.config.patch(strict=True):
        assert warnings_of(compiled) == warnings_of(program)
    assert not magneto.stats()["fallbacks"]
