"""Numbers and lists that change from turn to turn behind a side exit: eager's results, with few captures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import number_programs
import pytest
import torch
from compare import assert_same
from number_programs import PROGRAMS

import magneto
from magneto import _test_settings


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_numbers_that_change(function: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(function, backend=backend)
    for start in (1.0, 1.0, 0.3):
        x = torch.arange(3.0) + start
        assert_same(compiled(x), function(x), exact=True)
    assert not magneto.stats()["fallbacks"]


# A tensor of another shape at each turn is another capture.
SHAPES = {"counter_as_a_shape"}


@pytest.mark.parametrize("every", [1, 2, 3, 5, 7])
@pytest.mark.parametrize(
    "function", [f for f in PROGRAMS if f.__name__ not in SHAPES], ids=lambda function: function.__name__
)
def test_numbers_under_forced_exits(function: Callable[..., Any], every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_programs, "TURNS", 12)
    x = torch.arange(3.0)
    with _test_settings.patch(exit_every=every):
        compiled = magneto.compile(function, backend="eager")
        for _ in range(2):
            assert_same(compiled(x), function(x), exact=True)


@pytest.mark.parametrize("name", ["counter_and_list", "while_with_sums", "nested_loops", "counter_in_an_attribute"])
def test_each_segment_is_captured_once(name: str) -> None:
    function = getattr(number_programs, name)
    compiled = magneto.compile(function, backend="eager")
    compiled(torch.ones(3))
    assert magneto.stats()["recompiles"] <= 2
    before = magneto.stats()["frames"]
    compiled(torch.ones(3) * 2)
    assert magneto.stats()["frames"] <= before + 1


def test_a_counter_of_a_module() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.total = 0.0

        def forward(self, x):
            self.calls += 1
            self.total = self.total * 0.5 + 1
            if self.calls % 4 == 0:
                return x * 2
            return x + 1

    ours, theirs = Counting(), Counting()
    compiled = magneto.compile(ours, backend="eager", fullgraph=True)
    for _ in range(20):
        assert_same(compiled(torch.ones(3)), theirs(torch.ones(3)), exact=True)
        assert (ours.calls, ours.total) == (theirs.calls, theirs.total)
    assert magneto.stats()["recompiles"] <= 3


def test_a_number_that_is_an_argument() -> None:
    compiled = magneto.compile(lambda x, n: (x + 1, n + 1, n > 3), backend="eager", fullgraph=True)
    for n in (1, 2, 2.5, 3, 4, True, 10**30, float("nan"), -0.0):
        got, want = compiled(torch.ones(2), n), (torch.ones(2) + 1, n + 1, n > 3)
        assert_same(got, want, exact=True)
    assert magneto.stats()["recompiles"] < 8


def test_what_is_appended_is_seen_by_all() -> None:
    def program(x, first, second, box):
        first.append(x + 1)
        second.append(2)
        box["list"].append(3)
        return len(first), list(second)

    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    for make in (lambda: ([], [1]), lambda: ([1], [1, 2]), lambda: [[]] * 2, lambda: ([], [])):
        results = []
        for function in (compiled, program):
            first, second = copy.deepcopy(make())
            results.append((function(torch.ones(2), first, second, {"list": first}), first, second))
        assert_same(results[0], results[1], exact=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_a_number_beside_a_tensor_is_an_input(backend: str) -> None:
    def program(x, rate):
        return x - rate * (x * 2), x > rate, (x.long() * rate).dtype

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    x = torch.arange(6.0).reshape(2, 3)
    for rate in (0.1, 0.2, 0.3, 0.5, 1.0, -0.0, float("inf"), 3, 4, 5, 10**17):
        assert_same(compiled(x, rate), program(x, rate), exact=backend != "magneto")
        assert_same(compiled(x.t(), rate), program(x.t(), rate), exact=backend != "magneto")
    assert magneto.stats()["recompiles"] <= 7  # two layouts, two types, the first value of each


def test_gradients_beside_a_number_that_changes() -> None:
    compiled = magneto.compile(lambda x, rate: (x * rate).sum(), backend="aot_eager", fullgraph=True)
    for rate in (0.1, 0.2, 0.3, 2, 3):
        x = torch.ones(3, requires_grad=True)
        compiled(x, rate).backward()
        assert_same(x.grad, torch.ones(3) * rate, exact=True)


def test_an_int_that_is_too_large_for_a_tensor() -> None:
    def program(x, n):
        return x * n

    compiled = magneto.compile(program, backend="eager")
    for n in (1, 2, 3, 10**30, 4):
        results = []
        for function in (compiled, program):
            try:
                results.append(function(torch.ones(2), n))
            except Exception as error:
                results.append((type(error), str(error)))
        assert_same(results[0], results[1], exact=True)


class Counting(torch.nn.Module):
    """As torchmetrics counts: `__setattr__` asks whether the number is a Parameter, whose metaclass answers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not isinstance(self.count, torch.nn.Parameter)
        self.count += 1
        return x * self.count


def test_a_counter_that_a_metaclass_is_asked_about() -> None:
    model = Counting()
    compiled = magneto.compile(model)
    for turn in range(6):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), turn + 1.0))
    assert model.count == 6 and magneto.stats()["graphs"] == 2
