"""Loops over the places where a mask holds (`for i in mask.nonzero()`): one graph where a turn leaves tensors alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compare import assert_same
from mask_loop_programs import CAPTURED, ENTRIES, LEFT, MAY_BE_UNDONE, TOKENS, WIDTH
from program_table import Program

import magneto
from magneto import _test_settings

PROGRAMS = CAPTURED | LEFT


def given(seed: int) -> list[torch.Tensor]:
    """Each mask of the entries comes, the empty and the full one first."""
    draw = torch.Generator().manual_seed(seed)
    x, w = (
        torch.randn(*sizes, generator=draw, dtype=torch.float64) for sizes in ((TOKENS, WIDTH), (ENTRIES, WIDTH, WIDTH))
    )
    chosen = torch.randint(ENTRIES, (TOKENS,), generator=draw)
    mask = (0, 15, *range(1, 15))[seed % 16]
    return [x, chosen, w, torch.tensor([bool(mask >> i & 1) for i in range(ENTRIES)])]


def outcome(program: Program, seed: int, gradients: bool = False) -> Any:
    """What it gives or raises, what it leaves of its arguments, and what comes next of the generator."""
    arguments = given(seed)
    for i in (0, 2):
        arguments[i].requires_grad_(gradients)
    leaves = copy.copy(arguments)
    if gradients:  # programs that write them may
        arguments = [argument * 1 if argument.requires_grad else argument for argument in arguments]
    torch.manual_seed(seed)
    try:
        result = program(*arguments)
    except Exception as error:
        return type(error), str(error)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    needing = [t for t in tensors if t.requires_grad]
    grads = []
    if needing:
        sum((t * t.detach().cos()).sum() for t in needing).backward()
        grads = [leaf.grad for leaf in leaves]
    return result, [a.detach() for a in arguments], grads, torch.rand(())


def check(program: Program, gradients: bool, **options: Any) -> None:
    compiled = magneto.compile(program, **options)
    with magneto.config.patch(cache_size_limit=1000, accumulated_cache_size_limit=1000):
        for seed in range(18):
            assert_same(outcome(compiled, seed, gradients), outcome(program, seed, gradients))


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", CAPTURED)
def test_is_one_graph(name: str, backend: str) -> None:
    check(CAPTURED[name], False, backend=backend)
    stats = magneto.stats()
    assert name in MAY_BE_UNDONE or (stats["breaks"], stats["recompiles"], stats["undone"]) == (0, 0, {})


@pytest.mark.parametrize("name", CAPTURED)
def test_no_gradients_wanted(name: str) -> None:
    with torch.no_grad():
        magneto.compile(CAPTURED[name], fullgraph=True)(*given(1))
        magneto.reset()
        check(CAPTURED[name], True, dynamic=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    check(PROGRAMS[name], True)


@pytest.mark.parametrize("name", LEFT)
def test_goes_by_the_data(name: str) -> None:
    check(LEFT[name], False)
    assert magneto.stats()["breaks"] > 0
    assert magneto.stats()["uncompiled"] == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exits_anywhere(name: str) -> None:
    with _test_settings.patch(exit_every=7):
        check(PROGRAMS[name], False)


def test_a_turn_that_raises_is_not_taken() -> None:
    """One entry of the mask too many, as in a mixture model that counts padding as an expert: no weights are there."""

    def program(x: torch.Tensor, hit: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for row in hit.nonzero():
            out += x * w[row[0]]
        return out

    compiled = magneto.compile(program, fullgraph=True)
    x, w = torch.ones(2), torch.tensor([2.0, 3.0])
    for places in ([0, 1], [], [1]):
        hit = torch.zeros(3, dtype=torch.bool)
        hit[places] = True
        assert_same(compiled(x, hit, w), program(x, hit, w))
    assert (magneto.stats()["graphs"], magneto.stats()["undone"]) == (1, {})
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, torch.tensor([False, True, True]), w)


@pytest.mark.parametrize(
    ("entries", "fullgraph", "breaks"), [(8, False, 0), (9, False, 1), (9, True, 0), (64, True, 0)]
)
def test_many_entries_go_by_the_data(entries: int, fullgraph: bool, breaks: int) -> None:
    """All turns of a loop that is one graph run: with many entries only where an exit would be an error."""

    def program(x: torch.Tensor, hit: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for i in hit.nonzero():
            out += x * i[0]
        return out

    compiled = magneto.compile(program, fullgraph=fullgraph)
    for places in ([1, 5], [], [0]):
        hit = torch.zeros(entries, dtype=torch.bool)
        hit[places] = True
        assert_same(compiled(torch.ones(2), hit), program(torch.ones(2), hit))
    assert (magneto.stats()["breaks"] > 0) == (breaks > 0)
