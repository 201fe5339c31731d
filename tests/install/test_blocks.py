"""`with torch._dynamo.optimize(...)`: what the block calls is compiled, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

import magneto
from magneto import _history
from magneto._install import dynamo, profiling

X = torch.arange(3.0)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_another(x: torch.Tensor, *, plus: float = 1.0) -> torch.Tensor:
    return double(x) + plus


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print(end="")
    return double(y)


def counted() -> tuple[int, int]:
    stats = magneto.stats()
    return stats["graphs"], stats["breaks"]


def test_functions_of_a_block_are_captured_once() -> None:
    with dynamo.optimize("eager"):
        for _ in range(3):
            assert torch.equal(calls_another(X, plus=2.0), X * 2 + 2)
            assert torch.equal(breaks(X), (X + 1) * 2)
    assert counted() == (3, 1) and magneto.stats()["recompiles"] == 0
    double(X + 1)
    assert counted() == (3, 1)


def test_closures_methods_defaults_and_recursion() -> None:
    scale = torch.tensor(3.0)

    class Model:
        def __init__(self) -> None:
            self.weight = torch.ones(3)

        def forward(self, x: torch.Tensor, depth: int = 2, *rest: int, **named: int) -> torch.Tensor:
            if depth == 0:
                return x * self.weight + sum(rest) + named.get("more", 0)
            return self.forward(x * scale, depth - 1, *rest, **named)

    want = Model().forward(X, 2, 1, 2, more=4)
    with dynamo.optimize("eager"):
        model = Model()
        assert torch.equal(model.forward(X, 2, 1, 2, more=4), want)
        assert torch.equal((lambda x: x * scale)(X), X * scale)


def test_exceptions_come_through() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        raise ValueError(f"of {y.dim()} dimensions")

    with pytest.raises(ValueError, match="of 1 dimensions") as raised:
        with dynamo.optimize("eager"):
            raises(X)
    names = [entry.name for entry in raised.traceback]
    assert names[-1] == "raises" and names.count("raises") == 1
    with dynamo.optimize("eager"):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            double()  # type: ignore[call-arg]
    double(X)
    assert counted()[0] == 0


def test_generators_and_classes_run_as_they_are() -> None:
    def numbers(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x + 1
        yield double(x)

    with dynamo.optimize("eager"):
        assert [torch.equal(got, want) for got, want in zip(list(numbers(X)), [X + 1, X * 2])] == [True, True]

        class Local:
            value = double(X)

        assert torch.equal(Local.value, X * 2)


def test_what_a_backend_calls_is_not_compiled() -> None:
    seen = []

    def helper(gm: torch.fx.GraphModule) -> int:
        return len(gm.graph.nodes)

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        seen.append(helper(gm))

        def run(*args: torch.Tensor) -> object:
            return gm.forward(*args)

        return run

    with dynamo.optimize(backend):
        assert torch.equal(breaks(X), (X + 1) * 2)
        assert torch.equal(breaks(X), (X + 1) * 2)
    assert len(seen) == 2


def test_blocks_nest_and_end() -> None:
    inner, outer = profiling.CompileCounter(), profiling.CompileCounter()
    with dynamo.optimize(outer):
        double(X)
        with dynamo.optimize(inner):
            breaks(X)
        with dynamo.optimize(disable=True):
            calls_another(X)
        calls_another(X)
    calls_another(X.double())
    assert (outer.frame_count, inner.frame_count) == (2, 2)


def test_one_block_entered_again() -> None:
    counter = profiling.CompileCounter()
    block = dynamo.optimize(counter)
    for _ in range(2):
        with block:
            double(X)
    assert counter.frame_count == 2  # a block of its own each time, as torch.compile's callables are


def test_disabled_functions_and_other_threads_stay_out() -> None:
    def out(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    disabled = magneto.disable(out)
    counter = profiling.CompileCounter()
    with dynamo.optimize(counter):
        disabled(X)
        thread = threading.Thread(target=double, args=(X,))
        thread.start()
        thread.join()
        assert counter.frame_count == 0
        magneto.compile(double, backend="eager")(X)
    assert counter.frame_count == 0


def test_nopython_refuses_in_a_block() -> None:
    with pytest.raises(magneto.exc.Unsupported, match="builtins.print"):
        with dynamo.optimize("eager", nopython=True):
            breaks(X)
    assert torch.equal(double(X), X * 2)


def test_modules_in_a_block() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    want = model(X)
    with dynamo.optimize("eager"):
        got = model(X)
        again = model(X)
    assert torch.equal(got, want) and torch.equal(again, want)


def test_frames_that_are_not_captured_are_told() -> None:
    def numbers(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x + 1

    with dynamo.optimize("eager"):
        for _ in range(3):
            list(numbers(X))
    (row,) = _history.rows("skipped")
    assert row.function.endswith("numbers") and row.total == 1 and "generator" in row.cause
    assert "a generator or coroutine" in str(magneto.why(numbers)) and "numbers" in str(magneto.summary())
