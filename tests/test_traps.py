"""The traps that the design names: things that break a compiler of this kind, one test each, by the design's numbers.

13 (packaging) is tested by the build, 9 (the key of the fakes) by tests/fake, 4 (frozen weights) by nothing yet: no
weight is frozen.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import pickle
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import BACKENDS, Scenario, check

import magneto


class Key:
    pass


def same_as_eager(scenario: Scenario) -> None:
    for backend in BACKENDS:
        check(scenario, breaks=True, backend=backend)


def test_1_identity() -> None:
    """Keys that hash by identity, membership, and bound methods of containers."""
    keys = [Key(), Key()]
    registry = {keys[0]: 2.0, keys[1]: 3.0}
    weak = weakref.WeakKeyDictionary({keys[0]: 5.0})

    def scenario(start: Callable[..., Any]) -> None:
        log: list[Any] = []
        remember = log.append

        def f(x: torch.Tensor, key: Key) -> Any:
            remember(key in registry)
            return x * registry[key], key in weak, key is keys[0]

        call = start(f, log)
        call(torch.ones(2), keys[0])
        call(torch.ones(2), keys[1])

    same_as_eager(scenario)


def test_2_fakes_escape() -> None:
    """What keeps an argument or a result beyond the call gets no fake (strict mode fails the test if it does)."""
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=None)

    @functools.lru_cache
    def scaled(n: int) -> torch.Tensor:
        return torch.ones(2) * n

    class Holder:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        @functools.cached_property
        def double(self) -> torch.Tensor:
            return self.x * 2

    holder = Holder(torch.ones(2))

    def f(x: torch.Tensor) -> Any:
        token = variable.set(x + 1)
        result = scaled(3) + holder.double + variable.get()
        variable.reset(token)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn(f"{x.shape}", stacklevel=1)
        return result

    compiled = magneto.compile(f, backend="aot_eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 7.0))
    assert type(scaled(3)) is torch.Tensor and scaled(3).tolist() == [3.0, 3.0]
    assert holder.double.tolist() == [2.0, 2.0]


def test_3_break_inside_a_callback() -> None:
    """`sort` with a key that prints; a user's `except:` around it does not swallow the break."""

    def scenario(start: Callable[..., Any]) -> None:
        def loud(n: int) -> int:
            print("key", n)
            return -n

        def f(x: torch.Tensor) -> Any:
            items = [1, 3, 2]
            try:
                items.sort(key=loud)
            except:  # noqa: E722
                items.append(99)
            return x * items[0], items

        call = start(f)
        call(torch.ones(2))
        call(torch.ones(2))

    same_as_eager(scenario)
    assert magneto.stats()["break_reasons"]


def test_5_operator_that_raises_inside_try() -> None:
    def scenario(start: Callable[..., Any]) -> None:
        state = {"tried": 0}

        def f(x: torch.Tensor) -> Any:
            state["tried"] += 1
            try:
                return torch.linalg.cholesky(x) * 2
            except torch.linalg.LinAlgError as error:
                state["failed"] = type(error).__name__
                return x - 1

        call = start(f, state)
        call(torch.eye(2))
        call(-torch.eye(2))
        call(torch.eye(2))

    same_as_eager(scenario)


def test_6_live_objects_at_an_exit() -> None:
    def scenario(start: Callable[..., Any]) -> None:
        def f(x: torch.Tensor) -> Any:
            pairs = zip([1, 2, 3], iter([x, x + 1, x + 2]), strict=True)
            numbers = (n * n for n in range(5))
            half = functools.partial(torch.mul, other=0.5)
            first, total = next(pairs), next(numbers) + next(numbers)
            print("exit")
            return first, list(pairs), total, list(numbers), half(x)

        call = start(f)
        call(torch.ones(2))
        call(torch.ones(2))

    same_as_eager(scenario)


def test_7_recursion_limit_holds() -> None:
    def down(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else down(x + 1, n - 1)

    compiled = magneto.compile(down, backend="aot_eager")
    assert compiled(torch.zeros(1), 50).item() == 50
    with pytest.raises(RecursionError):
        compiled(torch.zeros(1), sys.getrecursionlimit() * 2)
    assert compiled(torch.zeros(1), 50).item() == 50


def test_8_inference_mode() -> None:
    """Composite operators reach the fakes' key undecomposed there."""
    query = torch.randn(1, 2, 4, 8)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(x, torch.ones(8, 8))
        return torch.matmul(torch.nn.functional.scaled_dot_product_attention(y, x, x), x.mT)

    for backend in ("aot_eager", "magneto"):
        compiled = magneto.compile(f, backend=backend, fullgraph=True)
        with torch.inference_mode():
            torch.testing.assert_close(compiled(query), f(query))
        torch.testing.assert_close(compiled(query), f(query))


def test_10_generator_is_closed_by_a_break() -> None:
    """The `finally` of a generator that the loop leaves runs at each call, in its place."""

    def scenario(start: Callable[..., Any]) -> None:
        log: list[Any] = []

        def numbers() -> Any:
            try:
                yield from range(5)
            finally:
                log.append("closed")

        def f(x: torch.Tensor) -> torch.Tensor:
            for n in numbers():
                x = x + n
                if n == 2:
                    break
            log.append("after")
            held = numbers()
            next(held)
            return x * 2

        call = start(f, log)
        for _ in range(3):
            call(torch.ones(2))

    same_as_eager(scenario)


def test_10_generator_that_prints_or_raises_when_it_is_closed() -> None:
    def scenario(start: Callable[..., Any]) -> None:
        def numbers(x: torch.Tensor) -> Any:
            try:
                yield x.sum().item()
            finally:
                print("closed", x.shape)

        def f(x: torch.Tensor) -> torch.Tensor:
            for n in numbers(x):
                x = x + n
                break
            return x * 2

        call = start(f)
        for _ in range(3):
            call(torch.ones(2))

    same_as_eager(scenario)


def test_10_generator_from_before_an_exit_is_closed_by_a_break() -> None:
    def scenario(start: Callable[..., Any]) -> None:
        log: list[Any] = []

        def numbers() -> Any:
            try:
                yield from range(5)
            finally:
                log.append("closed")

        def f(x: torch.Tensor) -> Any:
            for _ in numbers():
                x = x + 1
                if x.sum() > 4:
                    break
            return x, list(log)

        call = start(f, log)
        for _ in range(3):
            call(torch.ones(2))

    same_as_eager(scenario)


def test_10_weak_reference_of_a_fresh_object() -> None:
    def scenario(start: Callable[..., Any]) -> None:
        log: list[Any] = []

        def f(x: torch.Tensor) -> torch.Tensor:
            key = Key()
            reference = weakref.ref(key, lambda _: log.append("died"))
            log.append(reference() is key)
            del key
            log.append(reference() is None)
            return x + len(log)

        call = start(f, log)
        for _ in range(3):
            call(torch.ones(2))

    same_as_eager(scenario)


def test_11_data_of_a_fake_is_asked_for() -> None:
    """Each of these ends a segment; none crashes, and none sees a fake."""

    def scenario(start: Callable[..., Any]) -> None:
        def f(x: torch.Tensor) -> Any:
            y = x * 2
            item, true, text = y[0].item(), bool(y[0] > 0), repr(y)
            same, wire = copy.deepcopy(y), pickle.loads(pickle.dumps(y))
            return item, true, text, f"{y[0]:.1f}", str(y), same + 1, wire + 1, y.tolist(), y.numpy().sum()

        call = start(f)
        for _ in range(2):
            call(torch.ones(2))

    same_as_eager(scenario)


def test_12_frames_are_real() -> None:
    """zero-argument super(), locals(), sys._getframe and stack levels of warnings, on both sides of an exit."""

    class Base:
        def go(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Derived(Base):
        def go(self, x: torch.Tensor) -> torch.Tensor:
            print("in", sys._getframe().f_code.co_name, sorted(locals()))
            return super().go(x) * 2

    def scenario(start: Callable[..., Any]) -> None:
        def f(x: torch.Tensor) -> Any:
            try:
                raise ValueError("first")
            except ValueError as error:
                print("handling", sys.exc_info()[1])
                kept = str(error)
            y = Derived().go(x)
            return y, kept, [name for name in locals() if name != "f"]

        call = start(f)
        for _ in range(2):
            call(torch.ones(2))

    same_as_eager(scenario)
