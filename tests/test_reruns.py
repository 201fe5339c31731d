"""Runs of compiled code that raise and are undone: whose fault it was is told, counted, and not silent."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import magneto
from magneto.exc import FailedFallback, Unsupported

NEGATIVE = -torch.eye(3)
calls = 0


def first_time_raises(x: Tensor) -> Tensor:
    global calls
    calls += 1
    if calls % 2:
        raise ValueError("the first of two calls")
    return x.clone()


@pytest.fixture
def digamma_of_two_minds() -> Iterator[None]:
    """An operator of PyTorch, which CPython's second run calls once more."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("digamma", first_time_raises, "CPU")
    yield
    library._destroy()


@torch.library.custom_op("reruns::raises_when_negative", mutates_args=())
def raises_when_negative(x: Tensor) -> Tensor:
    global calls
    calls += 1
    if x.min() < 0:
        raise KeyboardInterrupt("negative")
    return x.clone()


@raises_when_negative.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def raises(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(x * 2) + 1


def catches(x: Tensor) -> Tensor:
    try:
        return torch.linalg.cholesky(x * 2)
    except RuntimeError:
        return x.relu()


def inner(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.linalg.cholesky(x * 2)


def catches_in_a_loop(x: Tensor) -> list[Tensor]:
    results = []
    for sign in (1, -1):
        try:
            results.append(inner(x * sign))
        except torch.linalg.LinAlgError:
            results.append(x)
    return results


def only_when_compiled(x: Tensor) -> Tensor:
    return torch.digamma(x * 2) + 1


@pytest.fixture(autouse=True)
def from_the_start() -> None:
    global calls
    calls = 0


def test_what_the_program_raises() -> None:
    compiled = magneto.compile(raises)
    compiled(torch.eye(3))
    for _ in range(3):
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(NEGATIVE)
    assert sys.gettrace() is None
    assert magneto.stats()["undone"] == {"_LinAlgError": 3}


@pytest.mark.parametrize("program", [catches, catches_in_a_loop])
def test_what_the_program_catches(program: Any) -> None:
    compiled = magneto.compile(program)
    compiled(torch.eye(3))
    for _ in range(3):
        torch.testing.assert_close(compiled(NEGATIVE), program(NEGATIVE))
    assert all("compiled code only" not in name for name in magneto.stats()["undone"]), magneto.stats()["undone"]


@pytest.mark.usefixtures("digamma_of_two_minds")
def test_what_only_compiled_code_raises() -> None:
    with magneto.config.patch(strict=False):
        compiled = magneto.compile(only_when_compiled)
        with pytest.warns(RuntimeWarning, match="raised ValueError .the first of two calls"):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert magneto.stats()["undone"] == {"ValueError (of compiled code only)": 2}


@pytest.mark.usefixtures("digamma_of_two_minds")
def test_which_is_an_error_for_who_wants_one() -> None:
    with magneto.config.patch(strict=True), pytest.raises(FailedFallback, match="the first of two calls"):
        magneto.compile(only_when_compiled)(torch.ones(2))
    with magneto.config.patch(strict=False), pytest.raises(Unsupported, match="the first of two calls"):
        magneto.compile(only_when_compiled, fullgraph=True)(torch.ones(2))


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_an_operator_of_a_library_is_called_once(backend: str) -> None:
    """Also one that is interrupted, by whatever number of calls in front of it; handlers in the program see that."""
    handled = []

    def program(x: Tensor, w: Tensor) -> Tensor:
        w.add_(1)
        try:
            y = raises_when_negative(x.abs()) * 0.5
            return raises_when_negative(x + y)
        except KeyboardInterrupt as error:
            handled.append(str(error))
            return w.add_(10) + 1
        finally:
            w.mul_(2)

    states = []
    for function in (program, magneto.compile(program, backend=backend)):
        w = torch.zeros(2)
        function(torch.ones(2), w)
        result = function(torch.full((2,), -1.0), w)
        result_of_error = function(torch.tensor([-5.0, 1.0]) * -1, w)
        states.append((w.tolist(), w._version, result.tolist(), result_of_error.tolist(), handled.copy()))
        handled.clear()
    assert states[0] == states[1]


def test_an_assumption_about_data() -> None:
    def program(x: Tensor) -> Tensor:
        return x.nonzero() * 2

    compiled = magneto.compile(program, fullgraph=True)
    compiled(torch.ones(4))
    with pytest.warns(RuntimeWarning, match="assumed more than this call's data keep .2 <= u0"):
        assert compiled(torch.zeros(4)).shape == (0, 1)
    assert magneto.stats()["undone"] == {"RuntimeError (an assumption)": 1}


def test_a_tracer_of_the_program_stays() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(x * 2)
        except RuntimeError:
            sys.settrace(tracer)
            return x

    def tracer(*event: Any) -> None:
        return None

    compiled = magneto.compile(program)
    try:
        compiled(NEGATIVE)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


def test_runs_as_captured_are_counted() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    compiled = magneto.compile(program)
    memory = torch.zeros(6)
    with torch.no_grad():
        compiled(memory[:4], torch.zeros(4))
        assert magneto.stats()["run_as_captured"]["overlapping"] == 0
        assert torch.equal(compiled(memory[:4], memory[2:]), torch.tensor([4.0, 4.0, 0.0, 0.0]))
    assert magneto.stats()["run_as_captured"] == {"overlapping": 1, "other_tensors": 0, "watched": 0}


def test_exits_that_are_no_breaks_are_counted() -> None:
    def program(x: Tensor, numbers: Iterator[int]) -> Tensor:
        for number in numbers:
            x = x + number
        return x

    assert torch.equal(magneto.compile(program)(torch.zeros(2), iter([1, 2, 3])), torch.full((2,), 6.0))
    assert magneto.stats()["other_exits"] == {"OpaqueIterator: a loop over an iterator from outside goes on": 3}
