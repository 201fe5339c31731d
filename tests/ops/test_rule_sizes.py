"""Each row of the symbolic table is reached, and gives eager's results for all sizes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import rule_sizes
import sweep
import torch
from other_sizes import outcome, said
from tiers import some

import magneto
from magneto import _testing

rows = pytest.mark.parametrize("row", rule_sizes.CASES)


def test_every_row_has_a_case() -> None:
    of_groups = {row for row in _testing.fake_symbolic_rules() if row.startswith("_c10d_functional")}
    assert set(rule_sizes.CASES) == set(_testing.fake_symbolic_rules()) - of_groups  # tests/test_collectives.py


def spelling(row: str) -> str:
    """As text of graphs names the operator."""
    name = row.replace("::", ".")
    return name if name.count(".") > 1 else f"{name}.default"


def assert_as_eager(compiled: Any, program: Any, given: list[torch.Tensor]) -> None:
    expected, actual = outcome(program, given), outcome(compiled, given)
    shapes = [list(tensor.shape) for tensor in given]
    if isinstance(actual, type) or isinstance(expected, type):
        assert actual is expected, f"{shapes}: {said(actual)}, eager {said(expected)}"
    else:
        assert (problem := sweep.difference(actual, expected)) is None, f"{shapes}: {problem}"


@rows
def test_the_rule_is_reached(row: str) -> None:
    shapes, program = rule_sizes.CASES[row]
    with magneto.config.patch(assume_static_by_default=False), torch.no_grad():
        dumps = magneto.debug_dump(program, *rule_sizes.arguments(shapes, rule_sizes.FITTING[0]))
    lines = [line.strip() for line in dumps[0]["captured"].splitlines()]
    said_of = {name: line for line in lines for name in re.findall(r"(%\d+): ", line)}
    calls = [line for line in lines if f" {spelling(row)}(" in f" {line}"]
    operands = [said_of[name] for line in calls for name in re.findall(r"%\d+", line)]
    assert any(re.search(r"\bs\d", line) for line in calls + operands), "with dynamic sizes"


@rows
def test_one_capture_serves_sizes_that_fit(row: str) -> None:
    shapes, program = rule_sizes.CASES[row]
    compiled = magneto.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)
    for sizes in rule_sizes.FITTING:
        assert_as_eager(compiled, program, rule_sizes.arguments(shapes, sizes))
    assert magneto.stats()["recompiles"] == 0


@pytest.mark.parametrize("row", some(rule_sizes.CASES, every=2))
def test_sizes_of_zero_and_one_and_such_as_do_not_fit(row: str) -> None:
    shapes, program = rule_sizes.CASES[row]
    compiled = magneto.compile(program, backend="aot_eager", dynamic=True)
    with magneto.config.patch(cache_size_limit=100):
        assert_as_eager(compiled, program, rule_sizes.arguments(shapes, rule_sizes.FITTING[0]))
        for given in rule_sizes.other_arguments(shapes):
            assert_as_eager(compiled, program, given)
