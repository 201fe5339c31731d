"""What comes from outside while a function is compiled or run: other threads, resets, Ctrl-C, signals, finalisers."""

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

import fresh
import pytest
import torch

import magneto


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def long_program(x: torch.Tensor, turns: int) -> torch.Tensor:
    total = 0
    for i in range(turns):
        total += i & 3
    return x + total


def test_ctrl_c_while_capturing(alarm: None) -> None:
    """The interrupt reaches the caller, nothing is kept, and the next call captures."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    compiled = magneto.compile(long_program, backend="eager")
    x = torch.ones(2)
    entries = magneto.stats()["cache_entries"]
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        compiled(x, 50_000_000)
    assert magneto.stats()["cache_entries"] == entries
    assert torch.equal(compiled(x, 10), long_program(x, 10))
    assert magneto.stats()["cache_entries"] == entries + 1


def test_ctrl_c_is_not_for_the_programs_handler(alarm: None) -> None:
    """A capture that is interrupted inside the program's `try` is dropped, not taken for the handler's path."""

    def program(x: torch.Tensor, turns: int) -> torch.Tensor:
        try:
            return long_program(x, turns)
        except BaseException:
            return x - 1

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    compiled = magneto.compile(program, backend="eager")
    x = torch.ones(2)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        compiled(x, 50_000_000)
    assert torch.equal(compiled(x, 10), program(x, 10))


def test_program_raises_keyboard_interrupt_itself() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            return x + 1

    assert torch.equal(magneto.compile(program, backend="eager", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))


def test_signal_handler_while_capturing(alarm: None) -> None:
    """A handler written in Python runs for real, outside of the capture."""
    seen = []

    def handler(number: int, frame: object) -> None:
        seen.append(float((torch.ones(2) * 3).sum()))

    def program(x: torch.Tensor, turns: int) -> torch.Tensor:
        y = x * 2
        return long_program(y, turns)

    signal.signal(signal.SIGALRM, handler)
    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    x = torch.ones(2)
    result = compiled(x, 300_000)
    assert seen == [6.0]
    assert torch.equal(result, program(x, 300_000))
    assert torch.equal(compiled(x, 300_000), result)
    assert seen == [6.0]


def under_vmap(x: torch.Tensor, turns: int) -> torch.Tensor:
    return torch.func.vmap(lambda row: long_program(row * 2, turns))(x)


def under_grad(x: torch.Tensor, turns: int) -> torch.Tensor:
    return torch.func.grad(lambda x: long_program(x * x, turns).sum())(x)


def under_no_grad(x: torch.Tensor, turns: int) -> torch.Tensor:
    with torch.no_grad():
        return long_program(x * 2, turns)


def under_a_mode(x: torch.Tensor, turns: int) -> torch.Tensor:
    with torch.device("cpu"):
        return long_program(x * 2, turns)


@pytest.mark.parametrize("program", [long_program, under_vmap, under_grad, under_no_grad, under_a_mode])
def test_signal_handler_that_compiles_while_another_program_is_captured(program: Any, alarm: None) -> None:
    """It finds the thread as the capture found it: no transforms, modes and states of the program that is captured."""
    seen = []

    def scale(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: row * weight)(torch.ones(3, 2))

    inner = magneto.compile(scale, fullgraph=True)

    def handler(number: int, frame: object) -> None:
        weight = torch.full((2,), 3.0, requires_grad=True)
        inner(weight).sum().backward()
        seen.append(weight.grad.tolist() if weight.grad is not None else None)

    signal.signal(signal.SIGALRM, handler)
    compiled = magneto.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(3, 2)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    result = compiled(x, 300_000)
    assert seen == [[3.0, 3.0]]
    assert torch.equal(result, program(x, 300_000))
    assert magneto.stats()["fallbacks"] == {}


def test_state_that_a_signal_handler_changes_while_it_is_captured(alarm: None) -> None:
    """The capture's own guards fail at its end: it is captured again with what is there now."""
    state = {"scale": 2}

    def handler(number: int, frame: object) -> None:
        state["scale"] = 3

    def program(x: torch.Tensor, turns: int) -> torch.Tensor:
        y = x * state["scale"]
        return long_program(y, turns)

    signal.signal(signal.SIGALRM, handler)
    compiled = magneto.compile(program, backend="eager")
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    x = torch.ones(2)
    compiled(x, 300_000)
    assert torch.equal(compiled(x, 10), program(x, 10))


def test_garbage_of_the_program_that_is_collected_with_a_captures() -> None:
    """A capture that leaves cycles collects them: finalisers of the program's own garbage compute, and compile, for real."""
    seen = []

    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            doubled = magneto.compile(lambda x: x * 2, fullgraph=True)
            seen.append(float(doubled(torch.ones(2)).sum()))

    def program(x: torch.Tensor) -> torch.Tensor:
        cycle = [x * 2]
        cycle.append(cycle)
        return cycle[0] + 1

    gc.collect()
    gc.disable()
    try:
        Garbage()
        assert torch.equal(magneto.compile(program, fullgraph=True)(torch.ones(2)), torch.full((2,), 3.0))
        assert seen == [4.0]
    finally:
        gc.enable()


COMPILES_IN_THE_COLLECTOR = """
import gc, torch, magneto
from magneto import _C

def compile_new(number):
    scope = {}
    exec(f"def f{number}(x): return x + {number}", scope)
    magneto.compile(scope[f"f{number}"], backend="eager")(torch.ones(2))

def collected(phase, info):
    gc.callbacks.clear()
    for number in range(60):
        compile_new(number)

for number in range(40):
    compile_new(1000 + number)
for rows in (_C.history, _C.compile_times):
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    before = rows()
    gc.set_threshold(700)
    assert len(rows()) >= len(before) > 3, rows
"""


def test_tables_that_grow_while_they_are_read() -> None:
    """Freed memory is filled, so that reading it shows. (From 3.12 on nothing is collected before C code returns.)"""
    fresh.python("-c", COMPILES_IN_THE_COLLECTOR, env={**os.environ, "MALLOC_PERTURB_": "165"}, check=True, whole=True)


def test_object_with_a_finaliser() -> None:
    events = []

    class Resource:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            events.append(self.name)

    def program(x: torch.Tensor) -> torch.Tensor:
        resource = Resource("a")
        y = x + len(resource.name)
        del resource
        events.append("after")
        return y * 2

    compiled = magneto.compile(program, backend="eager")
    for _ in range(2):
        events.clear()
        result = compiled(torch.ones(2))
        assert events == ["a", "after"]
        assert torch.equal(result, torch.full((2,), 4.0))


EVENTS: list[str] = []


def test_weak_reference_callbacks() -> None:
    class Thing:
        pass

    def program(x: torch.Tensor) -> torch.Tensor:
        thing = Thing()
        reference = weakref.ref(thing, lambda _: EVENTS.append("gone"))
        y = x + (reference() is thing)
        del thing
        EVENTS.append("after")
        return y if reference() is None else y * 100

    compiled = magneto.compile(program, backend="eager")
    for _ in range(2):
        EVENTS.clear()
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert EVENTS == ["gone", "after"]


def test_user_code_that_a_torch_call_runs() -> None:
    """sum() over tensors and user objects is recorded as a torch call: the objects' __radd__ is the user's code."""
    calls = []

    class Offset:
        def __init__(self, by: float) -> None:
            self.by = by

        def __radd__(self, other: torch.Tensor) -> torch.Tensor:
            calls.append(self.by)
            return other + self.by

    offset = Offset(1.0)

    def program(x: torch.Tensor) -> torch.Tensor:
        return sum([x, offset, offset])

    compiled = magneto.compile(program, backend="eager")
    x = torch.ones(2)
    for by in (1.0, 1.0, 5.0):
        offset.by = by
        calls.clear()
        assert torch.equal(compiled(x), x + by + by)
        assert calls == [by, by]


def run_threads(count: int, work: object) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def body(index: int) -> None:
        start.wait()
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def breaking(x: torch.Tensor, scale: int, log: list[int]) -> torch.Tensor:
    y = x * scale
    for i in range(3):
        y = y + len(str(time.perf_counter_ns())) * 0  # time() ends the segment
        y = sorted([(2, y), (1, y + i)], key=lambda pair: pair[0])[0][1]
        log.append(i)
    return y


@pytest.mark.threads
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_threads_that_call_compile_and_reset_one_function(backend: str) -> None:
    compiled = magneto.compile(breaking, backend=backend, options={"cache_size_limit": 1000})
    x = torch.ones(3)

    def work(index: int) -> None:
        for turn in range(40):
            log: list[int] = []
            scale = (index * 7 + turn) % 11
            result = compiled(x, scale, log)
            assert torch.equal(result, x * scale + 3) and log == [0, 1, 2]
            if index == 0 and turn % 10 == 9:
                magneto.reset()

    with magneto.config.patch(accumulated_cache_size_limit=10_000):
        run_threads(4, work)


FIRST_USES = """
import sys, threading
import numpy, torch, magneto

def label(x):
    with torch.profiler.record_function("label"):
        return x * 2

def places(x):
    y = x.clone()
    y[0] = 3
    return y[1], 2 in y, x < y

programs = [
    label,
    places,
    lambda x: (x.nonzero().shape[0], x.sum().item()),
    lambda x: torch.from_numpy(numpy.sin(x.numpy())),
    lambda x: [i for i in map(abs, (1, -2))] + [x.to(torch.bfloat16)],
] * 2
sys.setswitchinterval(1e-6)
start = threading.Barrier(len(programs))
done = []

def work(program):
    compiled = magneto.compile(program, backend="eager")
    start.wait()
    compiled(torch.ones(3))
    done.append(program)

threads = [threading.Thread(target=work, args=(program,), daemon=True) for program in programs]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done))
"""


def test_threads_that_compile_first_at_the_same_time() -> None:
    """What the core makes on first use runs code of Python: a thread that waits for it must not hold the GIL."""
    done = fresh.python("-c", FIRST_USES, timeout=120)
    assert done.stdout == "10\n", done.stderr


@pytest.mark.threads
def test_no_garbage_is_collected_in_a_capture_beside_another() -> None:
    """The collector's callbacks are the process's own: a capture that took one for the program's code interrupted it."""
    compiled = magneto.compile(breaking, backend="eager", options={"cache_size_limit": 1000})
    seen: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        seen.append(str(len(info)) + phase)

    def work(index: int) -> None:
        for turn in range(40):
            assert torch.equal(
                compiled(torch.ones(3), (index * 7 + turn) % 11, []), torch.ones(3) * ((index * 7 + turn) % 11) + 3
            )
            magneto.reset()

    threshold = gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(20)
    try:
        with magneto.config.patch(accumulated_cache_size_limit=10_000):
            run_threads(4, work)
    finally:
        gc.callbacks.remove(callback)
        gc.set_threshold(*threshold)
    assert seen and set(seen) == {"3start", "3stop"}


@pytest.mark.threads
def test_thread_running_eagerly_beside_a_capture() -> None:
    """Another thread's frames are its own: its calls run once each, in eager, while captures come and go."""
    stop = threading.Event()
    count = [0]

    def square(n: int) -> int:
        count[0] += 1
        return n * n

    def compile_all(index: int) -> None:
        if index:
            calls = 0
            while not stop.is_set():
                assert sum(map(square, range(50))) == 40425
                calls += 50
            assert count[0] == calls
            return
        try:
            for turn in range(30):
                compiled = magneto.compile(breaking, backend="eager")
                assert torch.equal(compiled(torch.ones(2), turn, []), torch.full((2,), turn + 3.0))
        finally:
            stop.set()

    run_threads(2, compile_all)


def test_reset_inside_a_compiled_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        magneto.reset()
        return y * 2

    compiled = magneto.compile(program, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_fresh_closure_over_a_variable_from_outside() -> None:
    """A function made in a segment shares the enclosing function's cell; it does not get a copy of what is in it."""
    events: list[str] = []

    def program(x: torch.Tensor) -> tuple[torch.Tensor, object]:
        remember = lambda: events.append("closure")  # noqa: E731
        time.perf_counter()
        remember()
        events.append("after")
        return x + 1, remember

    compiled = magneto.compile(program, backend="eager")
    for _ in range(2):
        events.clear()
        _, remember = compiled(torch.ones(2))
        assert events == ["closure", "after"]
        assert remember.__closure__[0] is program.__closure__[0]


@pytest.mark.lenient
def test_tracers_see_each_line() -> None:
    """Under a tracer compiled functions run in CPython, and that is said; a tracer set inside goes on from there."""
    lines: list[int] = []

    def trace(frame: object, event: str, arg: object) -> object:
        if event == "line" and frame.f_code is program.__code__:
            lines.append(frame.f_lineno - program.__code__.co_firstlineno)
        return trace

    def program(x: torch.Tensor, inside: bool) -> torch.Tensor:
        y = x + 1
        if inside:
            sys._getframe().f_trace = trace
            sys.settrace(trace)
        y = y * 2
        return y - 1

    compiled = magneto.compile(program, backend="eager")
    x = torch.ones(2)
    before = sys.gettrace()
    try:
        for inside, seen in ((True, [5, 6]), (False, [1, 2, 5, 6])):
            if not inside:
                sys.settrace(trace)
            lines.clear()
            result = compiled(x, inside)
            sys.settrace(before)
            assert torch.equal(result, torch.full((2,), 3.0))
            assert lines == seen
    finally:
        sys.settrace(before)
    assert magneto.stats()["fallbacks"]["tracing"] == 2
