"""Checks of a tensor's data stay in the graph: when one fails, the run is undone and CPython raises, as eager does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from check_programs import (
    RAISING,
    assert_on_a_sum,
    assert_on_a_tensor,
    assert_on_several_elements,
    assert_that_is_caught,
    check_tensor_all,
    raises_on_several_elements,
)
from compare import assert_same

import magneto

BACKENDS = ["eager", "aot_eager", "magneto"]


def run(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def compare(function: Any, *calls: torch.Tensor, backend: str) -> None:
    compiled = magneto.compile(function, backend=backend, fullgraph=True)
    for x in calls:
        for _ in range(2):
            mine, theirs = x.clone(), x.clone()
            assert_same(run(compiled, mine), run(function, theirs), exact=True)
            assert_same(mine, theirs, exact=True)
    assert magneto.stats()["recompiles"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_assert_on_a_tensor(backend: str) -> None:
    compare(assert_on_a_tensor, torch.ones(3), -torch.ones(3) * 5, torch.ones(3), backend=backend)
    assert magneto.stats()["undone"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_assert_that_fails_at_first(backend: str) -> None:
    compare(assert_on_a_sum, -torch.ones(3) * 5, torch.ones(3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assert_that_is_caught(backend: str) -> None:
    compare(assert_that_is_caught, torch.ones(3), -torch.ones(3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_assert_on_a_tensor_of_several_elements(backend: str) -> None:
    compare(assert_on_several_elements, torch.ones(1), -torch.ones(1), backend=backend)
    magneto.reset()
    compare(assert_on_several_elements, torch.ones(2), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_tensor_all(backend: str) -> None:
    compare(check_tensor_all, torch.ones(3), -torch.ones(3), torch.ones(3), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", RAISING, ids=lambda program: program.__name__)
def test_branches_that_raise(program: Any, backend: str) -> None:
    compare(program, torch.ones(1), -torch.ones(1) * 5, torch.full((1,), float("nan")), torch.ones(1), backend=backend)
    magneto.reset()
    if program is not raises_on_several_elements:
        compare(program, torch.ones(3), -torch.ones(3) * 5, torch.ones(3), backend=backend)


def test_a_branch_that_does_not_raise_is_a_side_exit() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            if x.sum() > 0:
                raise ValueError("positive")
        except ValueError:
            return x - 1
        return x + 1

    compiled = magneto.compile(program, backend="aot_eager")
    for x in (torch.ones(3), -torch.ones(3)):
        assert_same(compiled(x), program(x), exact=True)
    assert magneto.stats()["breaks"] > 0 and not magneto.stats()["undone"]
