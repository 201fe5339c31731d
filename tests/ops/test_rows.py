"""The rows of src/ops: each names an operator, says something, and the operators of one name agree on errors."""

from __future__ import annotations

import collections

import torch

from magneto import _testing

ROWS = _testing.operator_rows()
NOTHING = ("unknown", "(none)", "(none)", "(none)", "(none)")
RAISES = {"never_raises", "raises_if_narrow", "raises_on_integers"}
# Bits of src/ops/operator.h.
NEVER, NARROW, INTEGERS, VIEW, FIXED_VIEW = 1, 2, 4, 8, 16


def test_each_row_is_of_an_operator_and_says_something() -> None:
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names))
    for name, *columns in ROWS:
        operator, _, overload = name.partition(".")
        assert torch._C._get_schema(operator, overload).name == operator
        assert tuple(columns) != NOTHING, name


def test_the_overloads_of_a_name_agree_on_errors() -> None:
    said = collections.defaultdict(set)
    for name, facts, *_ in ROWS:
        functional = name.partition(".")[0].removesuffix("_")
        said[functional].add(frozenset(RAISES.intersection(facts.split(" | "))))
    assert {name: facts for name, facts in said.items() if len(facts) > 1} == {}


def test_operators_without_a_row() -> None:
    facts = _testing.operator_facts
    assert facts("aten::frobnicate") == 0  # may raise
    assert facts("mylib::view") == 0
    assert facts("aten::_foreach_add_.Scalar") == facts("magneto::add") == NARROW
    assert facts("aten::transpose.Dimname") & (NEVER | VIEW | FIXED_VIEW) == NEVER | VIEW  # of its sibling
    assert facts("aten::squeeze_") & (NEVER | VIEW) == NEVER  # in place it is no view


def test_no_rule_is_written_twice() -> None:
    # One for plain numbers and one for sizes, both by hand (docs/fake.md).
    twice = [
        (name, shape, symbolic)
        for name, _, shape, symbolic, *_ in ROWS
        if "(none)" not in (shape, symbolic)
        and symbolic not in (shape, "(elementwise)")
        and "meta" not in shape
        # What says how a gradient lies is no second rule of its sizes: these are those of what it is the gradient of.
        and not symbolic.startswith("(gradients, ")
        # That one tells the sizes whatever the arguments; the other one, only for what layers ask.
        and symbolic != "(indexing, embedding_bag_sizes)"
    ]
    assert twice == []
