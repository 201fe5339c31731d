"""Ctrl-C at any moment, deep recursion, weak references, finalisers: what tests/test_interruptions.py has not."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

X = torch.linspace(-1, 1, 6)


class Held:
    pass


@pytest.mark.parametrize("drops", ["deletes", "assigns"])
def test_weak_reference_to_what_was_dropped(drops: str) -> None:
    """The weak reference is made in a side exit; behind it, the segment still held what the program had dropped."""

    def program(x: torch.Tensor) -> Any:
        held: Any = Held()
        reference = weakref.ref(held)
        before = reference() is held
        if drops == "deletes":
            del held
        else:
            held = None
        return x + 1, before, reference() is None

    compiled = magneto.compile(program)
    for _ in range(3):
        assert_same(compiled(X), program(X))


# -- Ctrl-C ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyboard() -> Iterator[Any]:
    """Sends this process a real SIGINT, as Ctrl-C does, after so many seconds.

    Callbacks of the garbage collector (hypothesis has one) are set aside: an interrupt that lands in one can't be raised,
    so Python prints it and goes on, which pytest takes for a failure.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    timers: list[threading.Timer] = []

    def press(seconds: float) -> threading.Timer:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()
        return timers[-1]

    yield press
    for timer in timers:
        timer.cancel()
        timer.join()
    signal.signal(signal.SIGINT, before)
    gc.callbacks[:] = callbacks


def test_ctrl_c_at_any_moment_of_a_compile(keyboard: Any) -> None:
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.GELU()) for _ in range(6)]
    )
    want = model(X)
    start = time.perf_counter()
    magneto.compile(model)(X)
    whole = time.perf_counter() - start
    interrupted = 0
    for moment in range(12):
        magneto.reset()
        compiled = magneto.compile(model)
        try:
            timer = keyboard(whole * (moment + 0.5) / 12)  # on a busy machine, it may be over before this returns
            try:
                assert_same(compiled(X), want)
            finally:
                timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        assert_same(compiled(X), want)
        stats = magneto.stats()
        assert stats["graphs"] >= 1 and stats["cache_entries"] == 1 and not stats["fallbacks"]
    assert interrupted


def test_ctrl_c_while_compiled_code_runs(keyboard: Any) -> None:
    compiled = magneto.compile(lambda x: x.sin() + 1)
    compiled(X)
    with pytest.raises(KeyboardInterrupt):
        keyboard(0.1)
        while True:
            compiled(X)
    assert_same(compiled(X), X.sin() + 1)


def test_ctrl_c_in_a_side_exit(keyboard: Any) -> None:
    def waiting(x: torch.Tensor, seconds: float) -> Any:
        y = x + 1
        try:
            if seconds:
                keyboard(0.1)
            time.sleep(seconds)
        except KeyboardInterrupt:
            return y, "stopped"
        return y, "done"

    compiled = magneto.compile(waiting)
    for _ in range(2):
        assert_same(compiled(X, 20.0), (X + 1, "stopped"))
        assert_same(compiled(X, 0.0), (X + 1, "done"))


# -- recursion ------------------------------------------------------------------------------------------------------------


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    return x if n == 0 else power(x, n - 1) * 1.001


def test_deep_recursion_is_captured() -> None:
    assert_same(magneto.compile(power, fullgraph=True)(X, 400), power(X, 400))


def test_deep_recursion_through_compiled_functions() -> None:
    @magneto.compile
    def countdown(x: torch.Tensor, n: int) -> torch.Tensor:
        print(end="")
        return x if n == 0 else countdown(x + 1, n - 1)

    with magneto.config.patch(cache_size_limit=100, accumulated_cache_size_limit=1000):
        assert_same(countdown(X, 30), X + 30)


def test_recursion_without_end_is_a_recursion_error() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        return endless(x + 1)

    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            return endless(x)
        except RecursionError:
            return x

    for compiled in (magneto.compile(endless), magneto.compile(caught)):
        for _ in range(2):
            try:
                assert_same(compiled(X), X)
            except RecursionError:
                assert compiled.__wrapped__ is endless
    assert_same(magneto.compile(power)(X, 5), power(X, 5))


def test_deep_recursion_in_a_thread_with_a_small_stack() -> None:
    results: list[Any] = []

    def work() -> None:
        for depth in (50, 300):
            try:
                results.append(magneto.compile(power)(X, depth))
            except RecursionError:
                results.append(None)

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert_same(results[0], power(X, 50))
    assert results[1] is None or torch.equal(results[1], power(X, 300))


def test_raised_recursion_limit() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(6000)
    try:
        assert_same(magneto.compile(power)(X, 1500), power(X, 1500))
    finally:
        sys.setrecursionlimit(before)


# -- weak references --------------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, value: float) -> None:
        self.value = value


def test_weak_references_of_all_kinds() -> None:
    node = Node(2.0)
    reference, proxy = weakref.ref(node), weakref.proxy(node)
    by_key: Any = weakref.WeakKeyDictionary({node: 3.0})
    by_value: Any = weakref.WeakValueDictionary({"n": node})
    members: Any = weakref.WeakSet([node])

    def program(x: torch.Tensor) -> Any:
        x = x * reference().value + proxy.value  # type: ignore[union-attr]
        x = x + by_key[node] + by_value["n"].value
        return x, node in members, len(by_key), weakref.getweakrefcount(node) > 2

    compiled = magneto.compile(program)
    for value in (2.0, 2.0, 7.0):
        node.value = value
        assert_same(compiled(X), program(X))


def test_dead_references() -> None:
    node: Any = Node(2.0)
    reference = weakref.ref(node)

    def program(x: torch.Tensor) -> Any:
        target = reference()
        return x + 1 if target is None else x * target.value

    compiled = magneto.compile(program)
    assert_same(compiled(X), X * 2)
    del node
    gc.collect()
    assert reference() is None  # the capture does not keep it
    assert_same(compiled(X), X + 1)


def test_compiled_functions_can_be_referred_to_weakly() -> None:
    compiled = magneto.compile(lambda x: x + 1)
    compiled(X)
    gone: list[str] = []
    reference = weakref.ref(compiled, lambda _: gone.append("gone"))
    assert reference() is compiled
    del compiled
    gc.collect()
    assert reference() is None and gone == ["gone"]


def test_captures_keep_no_arguments_alive() -> None:
    def program(x: torch.Tensor, node: Node, items: list[Any]) -> Any:
        items.append(x + node.value)
        print(end="")
        return items[-1] * 2

    compiled = magneto.compile(program)
    node, x = Node(1.0), X.clone()
    items: list[Any] = []
    alive = [weakref.ref(node), weakref.ref(x)]
    for _ in range(3):
        compiled(x, node, items)
    del node, x
    items.clear()
    gc.collect()
    assert [reference() for reference in alive] == [None, None]


def test_finalize_runs_when_eager_runs_it() -> None:
    events: list[str] = []

    def program(x: torch.Tensor) -> Any:
        node = Node(3.0)
        weakref.finalize(node, events.append, "end")
        y = x * node.value
        del node
        events.append("after")
        return y

    compiled = magneto.compile(program)
    for _ in range(2):
        events.clear()
        assert_same(compiled(X), X * 3)
        assert events == ["end", "after"]


# -- finalisers -------------------------------------------------------------------------------------------------------------


def test_finaliser_that_calls_compiled_code() -> None:
    seen: list[Any] = []
    inner = magneto.compile(lambda x: x + 1)

    class Closing:
        def __del__(self) -> None:
            seen.append(inner(X))

    def program(x: torch.Tensor) -> Any:
        thing = Closing()
        y = x * 2
        thing = None
        return y, len(seen)

    compiled = magneto.compile(program)
    for turn in range(1, 4):
        assert_same(compiled(X), (X * 2, turn))
    assert_same(seen, [X + 1] * 3)


def test_resurrection() -> None:
    kept: list[Any] = []

    class Phoenix:
        def __init__(self, value: float) -> None:
            self.value = value

        def __del__(self) -> None:
            kept.append(self)

    def program(x: torch.Tensor) -> Any:
        bird = Phoenix(4.0)
        y = x * bird.value
        del bird
        return y + kept[-1].value

    compiled = magneto.compile(program)
    for _ in range(2):
        kept.clear()
        assert_same(compiled(X), X * 4 + 4)
        assert len(kept) == 1


def test_finaliser_that_raises(capsys: pytest.CaptureFixture[str]) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("in the end")

    def program(x: torch.Tensor) -> Any:
        Failing()
        return x + 1

    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda info: unraisable.append(str(info.exc_value))
    try:
        compiled = magneto.compile(program)
        for _ in range(2):
            assert_same(compiled(X), X + 1)
    finally:
        sys.unraisablehook = before
    assert unraisable == ["in the end"] * 2


def test_garbage_of_others_is_collected_beside_captures() -> None:
    """Cycles with finalisers that are garbage already when a capture starts."""
    seen: list[float] = []

    class Ring:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(float(torch.ones(2).sum()))

    for size in range(1, 6):
        for _ in range(800):
            Ring()
        compiled = magneto.compile(lambda x: [x + i for i in range(50)][-1])
        assert_same(compiled(X[:size]), X[:size] + 49)
    gc.collect()
    assert seen == [2.0] * 4000


# -- threads ----------------------------------------------------------------------------------------------------------------


def test_thread_local_state_is_the_threads_own() -> None:
    local = threading.local()

    def program(x: torch.Tensor) -> Any:
        return x * local.scale

    compiled = magneto.compile(program)
    results: dict[int, Any] = {}

    def work(scale: int) -> None:
        local.scale = scale
        for _ in range(3):
            results[scale] = compiled(X)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_same(results, {scale: X * scale for scale in results})


def test_grad_mode_of_other_threads() -> None:
    compiled = magneto.compile(lambda x: x * 2)
    x = X.clone().requires_grad_()
    seen: list[bool] = []

    def work() -> None:
        seen.append(compiled(x).requires_grad)
        with torch.no_grad():
            seen.append(compiled(x).requires_grad)

    with torch.no_grad():
        assert not compiled(x).requires_grad
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [True, False]


def test_threads_started_inside() -> None:
    def program(x: torch.Tensor) -> Any:
        results: list[Any] = []
        threads = [threading.Thread(target=lambda i=i: results.append(x * i)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(float(r.sum()) for r in results), x + 1

    compiled = magneto.compile(program)
    for _ in range(2):
        assert_same(compiled(X + 1), program(X + 1))


def test_futures_locks_and_queues() -> None:
    from concurrent.futures import ThreadPoolExecutor
    from queue import Queue

    lock = threading.Lock()
    queue: Any = Queue()

    def program(x: torch.Tensor) -> Any:
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(lambda part: part + 1, x.chunk(2)))
        with lock:
            queue.put(parts[0])
        return torch.cat(parts) * 2, queue.get(), lock.locked()

    compiled = magneto.compile(program)
    for _ in range(2):
        assert_same(compiled(X), program(X))
