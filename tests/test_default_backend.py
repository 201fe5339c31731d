"""The default backend on all that the others are tested with: as accurate as eager, measured against float64.

A part of it runs always, all of it in `make test-all`.
"""

from __future__ import annotations

import copy
from typing import Any

import models
import pytest
import test_architectures
import torch
from accuracy import assert_accurate, in_float64, widened
from test_models import compiled_path
from test_zoo import ZOO, make
from tiers import some

import magneto

CUT = {"recurrent_gemma": 2}  # expressions of its recurrence, which is unrolled: they would be too large


@pytest.mark.parametrize("name", some([name for name in models.MODELS if name not in models.FIRST], 40))
def test_architecture(name: str) -> None:
    module = models.build(name)

    def call(function: Any, seed: int, wide: bool = False) -> Any:
        torch.manual_seed(seed)
        given = models.inputs(name, seed)
        return function(**(widened(given) if wide else given))

    with torch.no_grad():
        call(module, 0)
        with compiled_path():
            expected = [call(module, seed) for seed in (0, 1)]
            exact = [in_float64(module, lambda wide, seed=seed: call(wide, seed, wide=True)) for seed in (0, 1)]
        with magneto.config.patch(cache_size_limit=100, accumulated_cache_size_limit=1000):
            compiled = magneto.compile(module, fullgraph=name not in test_architectures.BREAKS)
            for seed in (0, 0, 1):
                assert_accurate(call(compiled, seed), expected[seed], exact[seed])
    assert magneto.stats()["cut"] * 20 <= magneto.stats()["kernels"]
    assert magneto.stats()["breaks"] <= test_architectures.BREAKS.get(name, 0)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", some(list(ZOO), 4))
def test_zoo(name: str, training: bool) -> None:
    theirs, ours, inputs = make(name)
    theirs.train(training), ours.train(training)
    compiled = magneto.compile(ours)

    def call(function: Any, turn: int, wide: bool = False) -> Any:
        torch.manual_seed(turn)
        given = copy.deepcopy(inputs)
        return function(*(widened(given) if wide else given))

    with torch.no_grad(), magneto.config.patch(cache_size_limit=64, accumulated_cache_size_limit=1000):
        for turn in range(3):
            # Training draws other random numbers in float64.
            exact = None if training else in_float64(theirs, lambda wide, turn=turn: call(wide, turn, wide=True))
            want = call(theirs, turn)
            drawn = torch.rand(2)
            got = call(compiled, turn)
            assert torch.equal(torch.rand(2), drawn), "the random numbers that follow"
            assert_accurate(got, want, exact)
            assert_accurate(dict(ours.state_dict()), dict(theirs.state_dict()), None)


def test_many_tensors_of_equal_contents() -> None:
    """An optimizer's counters of steps: each is a tensor of its own, and no kernel stores them all."""

    def ones() -> list[torch.Tensor]:
        return [torch.zeros(()) + 1 for _ in range(130)]

    found = magneto.compile(ones)()
    assert all(torch.equal(one, torch.ones(())) for one in found)
    assert len({one.data_ptr() for one in found}) == 130
    assert magneto.stats()["kernels"] == 3
