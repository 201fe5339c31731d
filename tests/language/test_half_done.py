"""A segment that ends while C code runs begins anew with the whole instruction: nothing of it is done twice, or left out
(src/capture/exits/half_done.h)."""

from __future__ import annotations

import heapq
import itertools

import pytest
import torch
from compare import assert_same
from half_done_programs import PROGRAMS

import magneto
from magneto import _test_settings

GIVEN = [torch.tensor(values) for values in itertools.product([-1.0, 1.0, 2.0], repeat=4)]


@pytest.mark.parametrize("exit_every", [0, 7])
@pytest.mark.parametrize("backend", ["eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_case(name: str, backend: str, exit_every: int) -> None:
    compiled = magneto.compile(PROGRAMS[name], backend=backend)
    settings = magneto.config.patch(cache_size_limit=1000, accumulated_cache_size_limit=1000)
    with settings, _test_settings.patch(exit_every=exit_every):
        for x in GIVEN[::5] if exit_every else GIVEN:
            assert_same(compiled(x), PROGRAMS[name](x), exact=backend == "eager")
    assert not magneto.stats()["fallbacks"]


def test_a_container_from_outside() -> None:
    heap: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        heapq.heappush(heap, x.sum())
        return x * len(heap)

    found = []
    for call in (program, magneto.compile(program)):
        heap.clear()
        results = [call(torch.tensor(values)) for values in ([3.0], [1.0], [2.0], [0.0])]
        found.append((results, list(heap)))
    assert_same(found[1], found[0])


def test_the_exit_keeps_its_reason() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if all(item > 0 for item in x) else x * 3

    magneto.compile(program)(torch.ones(2))
    assert magneto.stats()["break_reasons"] == {"DataDependentBranch: data-dependent jump": 1}
