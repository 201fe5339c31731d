"""Ints of any sign that differ from call to call, and marked sizes, on all backends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from int_programs import difference

import magneto

BACKENDS = ["magneto", "aot_eager", "eager"]
COUNT = int(os.environ.get("MAGNETO_RANDOM_PROGRAMS", "25"))
NUMBERS = [2, 7, -1, -9, 0, 1, -64]


class Module(torch.nn.Module):
    k: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.k % 5) + self.k // 3


PROGRAMS: dict[str, Callable[[int], torch.Tensor]] = {
    "size": lambda k: torch.ones(-k) + 1 if k <= 0 else torch.ones(k),
    "size_of_a_negative": lambda k: torch.ones(-k) + 1,
    "remainder": lambda k: torch.tensor([k % 5, k % -5]),
    "quotient": lambda k: torch.tensor([k // 5, k // -5]),
    "shift": lambda k: torch.tensor([k >> 1, k >> 3]),
    "extremes": lambda k: torch.tensor([max(k, 0), min(k, 0), abs(k)]),
    "divisor": lambda k: torch.arange(12).unflatten(0, (k, -1)),
    "index": lambda k: torch.arange(12)[k] + torch.arange(12).roll(k)[:k].sum(),
    "of_a_float": lambda k: torch.tensor([int(k * 1.0) % 5, int(k * 0.5)]),
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def assert_same(got: Any, want: Any) -> None:
    assert torch.equal(got, want) if isinstance(want, torch.Tensor) else got is want, (got, want)


@pytest.mark.parametrize("dynamic", [True, None, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_ints_of_any_sign(name: str, backend: str, dynamic: bool | None) -> None:
    compiled = magneto.compile(PROGRAMS[name], backend=backend, dynamic=dynamic)
    for k in NUMBERS:
        assert_same(outcome(compiled, k), outcome(PROGRAMS[name], k))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_int_attribute_of_a_module(backend: str) -> None:
    module = Module()
    compiled = magneto.compile(module, backend=backend)
    for k in NUMBERS:
        module.k = k
        assert_same(compiled(torch.ones(3)), module(torch.ones(3)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_int_of_a_tensor(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        k = x.max().item()
        return torch.tensor([k % 5, k // 5, k >> 1])

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for k in NUMBERS:
        assert_same(compiled(torch.tensor([k, k - 1])), program(torch.tensor([k, k - 1])))


MARKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pointwise": lambda x: x * 2,
    "reduction": lambda x: x.sum(0) + x.shape[0],
    "row_sums": lambda x: x.sum(1) * x.shape[0],
    "view": lambda x: x.reshape(-1) + 1,
    "transposed": lambda x: x.t().contiguous() - x.shape[0],
    "new": lambda x: torch.arange(x.shape[0]) * 3 + x.new_ones(x.shape[0]),
    "product": lambda x: x @ x.t(),
    "write": lambda x: x.clone().add_(1).mul_(x.shape[0]),
}
MARKS = [magneto.mark_unbacked, magneto.mark_dynamic, magneto.maybe_mark_dynamic]


@pytest.mark.parametrize("dynamic", [True, None, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.__name__)
def test_marked_sizes(mark: Callable[..., Any], backend: str, dynamic: bool | None) -> None:
    for name, program in MARKED.items():
        magneto.reset()
        compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
        for n in (3, 5, 4, 2, 1, 0, 7):
            x = torch.arange(5.0 * n).reshape(n, 5)
            mark(x, 0)
            want = program(x)
            got = compiled(x)
            assert got.stride() == want.stride() or n < 2, name
            assert torch.equal(got, want), (name, n)
        # One capture for all sizes; 0 and 1 are captures of their own where they are marked as dynamic.
        most = 0 if mark is magneto.mark_unbacked else 2
        assert magneto.stats()["recompiles"] <= most, (name, magneto.stats()["recompiles"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [True, None, False])
def test_random_programs(backend: str, dynamic: bool | None) -> None:
    first = {True: 0, None: 100_000, False: 200_000}[dynamic]
    for seed in range(first, first + COUNT):
        found = difference(seed, backend, dynamic)
        assert not found, found
