"""Numbers that the data say, by default: one graph where nobody needs their values, or where a check alone compares them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import Program
from tried_number_programs import CAPTURED, LEFT

import magneto
from magneto import _test_settings

Tensor = torch.Tensor
PROGRAMS = CAPTURED | LEFT
LENGTHS = [
    (5, 7, 4),
    (3, 8, 5),
    (2, 2, 12),
    (6, 5, 5),
    (1, 9, 6),
    (0, 9, 7),
    (16, 0, 0),
    (4, 4, 8),
    (91, 2, 2),
    (-1, 3, 4),
]


def given(seed: int) -> list[Tensor]:
    lengths = LENGTHS[seed % len(LENGTHS)]
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(lengths), 3, generator=draw, dtype=torch.float64), torch.tensor(lengths)]


def outcome(program: Program, seed: int, gradients: bool) -> Any:
    x, lengths = given(seed)
    x.requires_grad_(gradients)
    try:
        result = program(x, lengths)
    except Exception as error:
        return type(error), str(error)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if tensors:
        sum((t * t.detach().cos()).sum() for t in tensors).backward()
    return result, x.grad


def check(program: Program, gradients: bool, seeds: int = len(LENGTHS) + 4, **options: Any) -> None:
    compiled = magneto.compile(program, **options)
    with magneto.config.patch(cache_size_limit=1000, accumulated_cache_size_limit=1000):
        for seed in range(seeds):
            assert_same(outcome(compiled, seed, gradients), outcome(program, seed, gradients))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", CAPTURED)
def test_is_one_graph(name: str, backend: str, dynamic: bool | None) -> None:
    check(CAPTURED[name], False, seeds=4, backend=backend, dynamic=dynamic)
    assert (magneto.stats()["breaks"], magneto.stats()["undone"]) == (0, {})


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_as_eager(name: str, gradients: bool) -> None:
    check(PROGRAMS[name], gradients)


@pytest.mark.parametrize("name", LEFT)
def test_goes_by_the_data(name: str) -> None:
    check(LEFT[name], False)
    assert magneto.stats()["breaks"] > 0
    assert magneto.stats()["uncompiled"] == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exits_anywhere(name: str) -> None:
    with _test_settings.patch(exit_every=5):
        check(PROGRAMS[name], False)
