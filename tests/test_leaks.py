"""Nothing grows: 10,000 calls and 100 recompiles leave memory, objects and reference counts as they were."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import models
import pytest
import torch
from tiers import ways_of

import magneto

CALLS = 10_000
RECOMPILES = 100
WARM_UP = 500
WINDOWS = 5


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """What is there before a test is left out of garbage collections: a suite's million objects take a second each."""
    settle()
    gc.freeze()
    yield
    gc.unfreeze()


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Heap(ctypes.Structure):
    """What the C library's mallinfo2 gives."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocated() -> int:
    """Bytes of the C library's heap that are in use. (What the process holds swings by megabytes: the allocator's.)"""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Heap
    heap = ask()
    return heap.uordblks + heap.hblkhd


def settle() -> None:
    """Collects garbage, and empties CPython's cache of type lookups, which keeps names alive for a while."""
    sys._clear_type_cache()
    while gc.collect():  # what dies may leave garbage of its own
        pass


def growth(run: Callable[[], Any], calls: int) -> tuple[float, float]:
    """Per call: blocks of Python's allocator that stay, and bytes by which the process grows.

    The bytes are those of the median window of some: the system's allocator and eager kernels take and give back
    memory now and then, a leak takes it in every window.
    """
    settle()
    blocks, windows = sys.getallocatedblocks(), []
    for _ in range(WINDOWS):
        before = resident()
        for _ in range(calls // WINDOWS):
            run()
        settle()  # torch.fx graphs are cyclic garbage, which CPython lets pile up for a while
        windows.append((resident() - before) / (calls // WINDOWS))
    settle()
    return (sys.getallocatedblocks() - blocks) / calls, statistics.median(windows)


def settled_objects() -> int:
    settle()
    return len(gc.get_objects())


def plain() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return (lambda x: x + 1), (torch.ones(4),)


def containers() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def function(items: list[torch.Tensor], table: dict[str, torch.Tensor], *, scale: float = 2.0) -> Any:
        total = items[0] * scale
        for item in items[1:]:
            total = total + item
        return {"total": total, **{key: value - total for key, value in table.items()}}, [total], (1, "two")

    return function, ([torch.ones(3), torch.ones(3)], {"a": torch.ones(3), "b": torch.zeros(3)})


def module() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    return layers, (torch.ones(2, 4),)


class Counter:
    def __init__(self) -> None:
        self.count = 0
        self.last: torch.Tensor | None = None


def writing() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def function(counter: Counter, log: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        counter.last = x * 2
        log.append(counter.last)
        log.pop(0)
        return counter.last + 1

    return function, (Counter(), [torch.zeros(3)], torch.ones(3))


def with_exit() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y * y.sum().item()

    return (lambda x: inner(x).cos() + x), (torch.ones(4),)


def raising() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum().item() > 0:
            raise ValueError("expected")
        return y

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            return inner(x)
        except ValueError:
            return x - 1

    return function, (torch.ones(4),)


def handling() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                x = x * x.sum().item()
                raise ValueError("second") from error
        except ValueError as error:
            return x.sin() * x.sum().item() + len(error.args)

    return function, (torch.ones(4),)


def generating() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def produce(x: torch.Tensor) -> Any:
        try:
            for factor in range(4):
                yield x * factor
        finally:
            x = x + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        values, left = produce(x.sin()), produce(x)
        total = next(values) + next(left)
        scale = x.sum().item()
        return total + sum(values) * scale

    return function, (torch.ones(4),)


PROGRAMS = [plain, containers, module, writing, with_exit, raising, handling, generating]


@pytest.mark.parametrize(
    ("program", "backend"),
    [
        pytest.param(program, backend, id=f"{program.__name__}-{backend}", marks=marks)
        for program in PROGRAMS
        for backend, marks in ways_of(program.__name__, [], ["aot_eager", "eager"], count=1)
    ],
)
def test_calls_leak_nothing(program: Any, backend: str) -> None:
    function, arguments = program()
    compiled = magneto.compile(function, backend=backend)
    with torch.no_grad():
        for _ in range(WARM_UP):
            compiled(*arguments)
        objects = settled_objects()
        counts = [sys.getrefcount(argument) for argument in arguments]
        singletons = [sys.getrefcount(value) for value in (True, compiled, function, type(arguments[0]))]
        blocks, size = growth(lambda: compiled(*arguments), CALLS)
        assert blocks < 0.01
        assert size < 24  # less than the smallest allocation
        assert [sys.getrefcount(argument) for argument in arguments] == counts
        after = [sys.getrefcount(value) for value in (True, compiled, function, type(arguments[0]))]
        assert all(abs(now - then) < 50 for now, then in zip(after, singletons, strict=True)), (singletons, after)
        assert settled_objects() - objects < 50  # what earlier tests left may go meanwhile
    assert magneto.stats()["recompiles"] == 0


@pytest.mark.parametrize(
    ("program", "backend"),
    [
        pytest.param(program, backend, id=f"{program.__name__}-{backend}", marks=marks)
        for program in (plain, module, writing, with_exit, handling, generating)
        for backend, marks in ways_of(program.__name__, [], ["aot_eager", "eager"], count=1)
    ],
)
def test_recompiles_leak_nothing(program: Any, backend: str) -> None:
    """Sizes that are new each time: the captures go with the callable, and nothing else has grown."""
    function, arguments = program()
    others = [argument for argument in arguments if not isinstance(argument, torch.Tensor)]

    def recompile() -> int:
        compiled = magneto.compile(function, backend=backend, dynamic=False)
        with torch.no_grad(), magneto.config.patch(cache_size_limit=1000, accumulated_cache_size_limit=1000):
            for size in range(1, RECOMPILES + 2):
                compiled(*others, torch.ones(size, arguments[-1].shape[-1]))
        recompiles = magneto.stats()["recompiles"]
        magneto.reset()
        return recompiles

    def cycle() -> int:
        recompiles = recompile()
        settle()  # piled up, the cyclic garbage of one round would lie where the next one allocates
        return recompiles

    def round_growth() -> tuple[int, int]:
        blocks, size = sys.getallocatedblocks(), allocated()
        assert cycle() >= RECOMPILES
        return sys.getallocatedblocks() - blocks, allocated() - size

    cycle()
    counts = [sys.getrefcount(value) for value in (function, type(arguments[-1]), *others)]
    objects = settled_objects()
    # Tables of the process's life reach their size, and the heap its shape; what leaks does so in every round.
    blocks, size = (min(each) for each in zip(*[round_growth() for _ in range(3)], strict=True))
    assert blocks < 25
    assert size < RECOMPILES * 16  # less than the smallest allocation a recompile
    assert [sys.getrefcount(value) for value in (function, type(arguments[-1]), *others)] == counts
    assert settled_objects() - objects < 50


def test_gradients_leak_nothing() -> None:
    layer = torch.nn.Linear(4, 4)
    compiled = magneto.compile(layer)
    x = torch.ones(2, 4)

    def step() -> None:
        layer.zero_grad()
        compiled(x).sum().backward()

    for _ in range(WARM_UP):
        step()
    objects = settled_objects()
    blocks, size = growth(step, CALLS // 2)
    assert blocks < 0.02
    assert size < 24
    assert abs(settled_objects() - objects) < 50


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_captures_leak_nothing(backend: str) -> None:
    """Capturing, resetting and capturing again: what a capture made goes with it."""
    bert, given = models.build("bert"), models.inputs("bert")

    def cycle() -> None:
        with torch.no_grad():
            magneto.compile(bert, backend=backend)(**given)
        magneto.reset()

    for _ in range(10):
        cycle()
    objects = settled_objects()
    blocks, size = growth(cycle, 100)
    assert blocks < 8  # some caches of PyTorch grow a little; a leaked capture is hundreds
    assert size < 16 * 1024  # a graph of BERT is some hundreds of KiB
    assert abs(settled_objects() - objects) < 200


def test_a_compiled_module_dies_with_its_last_reference() -> None:
    import weakref

    layer = torch.nn.Linear(2, 2)
    compiled = magneto.compile(layer)
    with torch.no_grad():
        compiled(torch.ones(1, 2))
    dead = [weakref.ref(layer), weakref.ref(compiled), weakref.ref(layer.weight)]
    magneto.reset()
    del layer, compiled
    gc.collect()
    assert [reference() for reference in dead] == [None, None, None]


def test_arguments_and_results_are_not_kept() -> None:
    import weakref

    compiled = magneto.compile(lambda x: (x + 1, x * 2))
    argument = torch.ones(3)
    first, second = compiled(argument)
    dead = [weakref.ref(argument), weakref.ref(first), weakref.ref(second)]
    del argument, first, second
    gc.collect()
    assert [reference() for reference in dead] == [None, None, None]


@pytest.mark.parametrize("backend", ["magneto", "eager"])
def test_a_compiled_function_in_its_own_globals_dies(backend: str) -> None:
    """As in a notebook's cell or a script that runpy runs: captures hold the globals, and these the callable."""
    names: dict[str, Any] = {"torch": torch, "magneto": magneto, "scale": 2}
    exec(f"@magneto.compile(backend={backend!r})\ndef run(x):\n    print(end='')\n    return x * scale\n", names)
    names["run"](torch.ones(3))
    dead = weakref.ref(names["run"])
    del names
    settle()
    assert dead() is None


@pytest.mark.parametrize("backend", ["magneto", "eager"])
def test_a_compiled_function_in_its_own_closure_dies(backend: str) -> None:
    @magneto.compile(backend=backend)
    def run(x: torch.Tensor, depth: int) -> torch.Tensor:
        return run(x + 1, depth - 1) if depth else x

    assert run(torch.zeros(3), 2)[0] == 2
    dead = weakref.ref(run)
    del run
    settle()
    assert dead() is None
