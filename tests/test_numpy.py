"""NumPy inside captured functions: what is captured gives eager's arrays, to the last bit and flag; the rest is a side
exit. (Whole programs are in tests/language/numpy_programs.py.)"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import fresh
import numpy as np
import pytest
import torch
from scenario import Describer

import magneto

SHAPES: dict[str, Callable[[], np.ndarray]] = {
    "vector": lambda: np.linspace(-2.0, 3.0, 6),
    "matrix": lambda: np.arange(6.0).reshape(2, 3) - 2.5,
    "columns": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "gaps": lambda: np.arange(24.0).reshape(4, 6)[::2, ::2],
    "int64": lambda: np.arange(-3, 3),
    "uint8": lambda: np.arange(250, 256, dtype=np.uint8),
    "bool": lambda: np.array([True, False, True]),
    "float32": lambda: np.linspace(0, 1, 6, dtype=np.float32),
    "float16": lambda: np.linspace(0, 1, 6, dtype=np.float16),
    "complex": lambda: np.array([1 + 2j, -3.0j]),
    "scalar": lambda: np.array(2.5),
    "empty": lambda: np.zeros((0, 3)),
    "read_only": lambda: np.broadcast_to(np.arange(3.0), (2, 3)),
}


def written(a: Any) -> Any:
    before = a.sum()
    a[1:] = a[:1]
    a += 1
    a[..., -1] *= 2
    a[[0]] = 3
    a[a > 100] = 7
    view = a[:1]
    view[...] = 5
    return before, a, view, a.sum(), np.multiply(a, 1, out=a) is a


def made_and_written(a: Any) -> Any:
    b = a + 1
    same, before = b, b.sum()
    b *= 2
    b[0] = 3
    b[..., 1:] = b[..., :1] + 0
    np.add(b, 1, out=b)
    return b, same is b, before, b.sum(), b[0]


def written_over_a_tensor(a: Any) -> Any:
    t = torch.arange(6.0) * 2
    n = t.numpy()
    n[1] = 5
    n += a.size
    return t, n, t + 1, n[2:]


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "written": written,
    "made_and_written": made_and_written,
    "written_over_a_tensor": written_over_a_tensor,
    "arithmetic": lambda a: (a + 1, 2 - a, a * 0.5, a * a, -a, a + a[...], a // 2, a % 3),
    "comparisons": lambda a: (a < 1, a >= a.mean(), a == 2, (a > 0) & (a < 2), ~(a != 1)),
    "numbers": lambda a: (a.sum(), a.mean(), a.max() - a.min(), np.float32(2) * a.sum(), a.sum() + a),
    "reductions": lambda a: (a.sum(axis=0), a.mean(axis=-1, keepdims=True), np.std(a), a.any(), np.argmax(a, axis=0)),
    "functions": lambda a: (np.exp(a / 256), np.sqrt(np.abs(a)), np.maximum(a, 1), np.where(a > 0, a, 0), np.tanh(a)),
    "views": lambda a: (a[...], a.T, a[1:], a[::2, None], np.reshape(a, -1), a.ravel(), a[0]),
    "views_of_results": lambda a: ((a + 1)[1:], (a * 2).reshape(-1)[1:3], (a + 1).T[0]),
    "shape": lambda a: (a.shape, a.ndim, a.size, len(a), a.strides, a.dtype, a.itemsize, a.dtype.name),
    "joined": lambda a: (np.concatenate([a, a]), np.stack((a, a + 1), axis=1), np.vstack([a, a]), np.tile(a, 2)),
    "split": lambda a: np.split(a + 1, 2),
    "made": lambda a: (np.zeros(3), np.ones((2, 2), dtype="f4"), np.full(2, 7), np.arange(5) + 1, np.eye(2)),
    "made_twice": lambda a: (np.zeros(3), np.zeros(3)),
    "made_like": lambda a: (np.zeros_like(a), np.ones_like(a, dtype=np.float32), np.full_like(a, 1)),
    "same": lambda a: (np.asarray(a), np.asarray(a) is a, np.array(a), np.ascontiguousarray(a), a.copy()),
    "types": lambda a: (type(a), isinstance(a + 1, np.ndarray), type(a.sum()), isinstance(a.mean(), float)),
    "astype": lambda a: (a.astype(np.float32), a.astype("int64"), a.astype(float), np.asarray(a, dtype=np.float64)),
    "rows": lambda a: [row + 1 for row in a],
    "unpacked": lambda a: (lambda x, *rest: (x, rest))(*a),
    "product": lambda a: (a @ a.T, np.dot(a, a.T), np.outer(a, a), np.einsum("...i,...i->...", a, a)),
    "sorted": lambda a: (np.sort(a), np.argsort(a), np.cumsum(a), np.diff(a), np.clip(a, 0, 1), a.clip(min=0)),
    "indexed": lambda a: (a[[1, 0]], a[np.array([0, 1])], np.take(a, [0, 1]), a[-1], a[..., -1]),
    "mask": lambda a: a[a > 0],
    "in_place": lambda a: [np.add(a, 1, out=a), a.__setitem__(0, 5), a],
    "literals": lambda a: (np.array([1.0, 2.0]) + 1, np.concatenate([[1, 2], [3]]), np.float64(1) + np.inf, np.nan),
    "tensors": lambda a: (torch.from_numpy(a) + 1, torch.as_tensor(a), torch.tensor(a), torch.tensor(a).numpy()),
    "shared": lambda a: [b := a + 1, torch.from_numpy(b), torch.from_numpy(b).add_(1), b * 2, torch.as_tensor(b)],
    "shared_with_an_argument": lambda a: [torch.from_numpy(a).add_(1), a * 2, torch.from_numpy(a[1:]), a],
    "tensor_to_array": lambda a: [t := torch.arange(6.0) * 2, n := t.numpy(), n + 1, t.add_(1), n.sum(), n[1:3]],
    "branch": lambda a: 1 if a.sum() > 0 else a,
    "python_numbers": lambda a: (float(a.sum()), int(a.sum()), a.tolist(), abs(a), round(a.sum(), 2)),
    "attributes": lambda a: (a.base is None, a.flags.writeable, hasattr(a, "cpu"), hasattr(a, "numpy"), a.real),
    "divided_by_zero": lambda a: (a / 0, a + 1),
    "dict_keys": lambda a: dict.fromkeys(a.ravel()),
    "counted": lambda a: Counter(a.ravel()),
    "iterated_by_c_code": lambda a: (list(enumerate(a + 1)), [x for x, y in zip(a * 2, a, strict=True)], sum(a)),
    "text": lambda a: (f"{a}", str(a + 1)),
}


def outcome(function: Callable[[Any], Any], argument: np.ndarray) -> str:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result: Any = function(argument)
        except Exception as error:
            result = (type(error), str(error))
    describe = Describer()
    once = ("Magneto runs the operators", "The compiled code of", "The given NumPy array is not writable")
    said = [f"{each.category.__name__}: {each.message}" for each in told if not str(each.message).startswith(once)]
    return f"{describe(argument)}\n{describe(result)}\n{said}"


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_against_eager(name: str, shape: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = magneto.compile(program, backend=backend)
    for _ in range(3):
        assert outcome(compiled, SHAPES[shape]()) == outcome(program, SHAPES[shape]())


CAPTURED = [
    "arithmetic", "comparisons", "numbers", "reductions", "functions", "views_of_results", "shape", "joined", "split",
    "made", "made_twice", "made_like", "same", "types", "astype", "rows", "product", "sorted", "indexed", "literals",
    "tensors", "shared_with_an_argument", "tensor_to_array", "written", "made_and_written",
    "written_over_a_tensor",
]  # fmt: skip


@pytest.mark.parametrize("name", CAPTURED)
def test_is_captured(name: str) -> None:
    compiled = magneto.compile(PROGRAMS[name], fullgraph=True)
    for _ in range(3):
        argument = SHAPES["matrix"]()
        assert outcome(compiled, argument) == outcome(PROGRAMS[name], SHAPES["matrix"]())
    assert magneto.stats()["recompiles"] == 0


def test_first_program_of_a_process() -> None:
    """What is looked up on first use (operators of our own) is no part of the program that C code calls."""
    code = (
        "import numpy, magneto; magneto.compile(lambda a: [row + 1 for row in a], fullgraph=True)(numpy.ones((2, 3)))"
    )
    fresh.python("-c", code, check=True)


def test_layout_is_guarded() -> None:
    @magneto.compile(fullgraph=True)
    def program(a):
        return a + 1, a.shape, a.T

    for argument in (
        np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 3), order="F"), np.ones((2, 3), dtype="f4"), np.ones(6)
    ):  # fmt: skip
        before = magneto.stats()["recompiles"]
        for _ in range(2):
            result = program(argument)
            assert Describer()(result) == Describer()((argument + 1, argument.shape, argument.T))
        assert argument.shape == (2, 3) and argument.flags.c_contiguous or magneto.stats()["recompiles"] == before + 1


def test_another_layout_is_named() -> None:
    @magneto.compile
    def program(a):
        return a + 1

    program(np.ones(3))
    program(np.ones(4))
    assert "float64, size=[3], stride=[1]): actual float64, size=[4]" in str(magneto.recompiles())


def test_arrays_are_not_kept_alive() -> None:
    @magneto.compile(fullgraph=True)
    def program(a):
        return a + 1

    for _ in range(3):
        argument = np.ones(3)
        before = sys.getrefcount(argument)
        result = program(argument)
        assert sys.getrefcount(argument) == before
        assert sys.getrefcount(result) == sys.getrefcount(argument)
    gone = weakref.ref(result)
    del result
    gc.collect()
    assert gone() is None


def test_no_memory_grows() -> None:
    @magneto.compile(fullgraph=True)
    def program(a, t):
        b = np.sqrt(a * a) + t.numpy()
        return torch.from_numpy(b), b[1:], b.sum()

    argument, tensor = np.ones(100), torch.ones(100)
    for _ in range(50):
        program(argument, tensor)
    gc.collect()
    before = len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(2000):
        program(argument, tensor)
    gc.collect()
    assert len(gc.get_objects()) - before[0] < 50
    assert sys.getallocatedblocks() - before[1] < 200


def test_tensors_over_one_memory() -> None:
    """Two tensors with storages of their own over one array: writes to the one are seen in the other."""

    def program(t, u):
        t.add_(1)
        v = u * 2
        t.mul_(3)
        return v, u + 1

    def run(function):
        memory = np.arange(6.0)
        return [x.tolist() for x in function(torch.from_numpy(memory), torch.from_numpy(memory[1:]).view(-1))] + [
            memory.tolist()
        ]

    compiled = magneto.compile(program)
    program_apart = [torch.arange(6.0), torch.arange(5.0)]
    compiled(*program_apart)
    for _ in range(2):
        assert run(compiled) == run(program)


def test_iterators_read_the_array_as_it_is_then() -> None:
    def program(a, x):
        total = []
        for value in a:
            total.append(value)
            a[:] = 0
        return total, x + 1

    compiled = magneto.compile(program)
    for _ in range(2):
        assert Describer()(compiled(np.arange(1.0, 4.0), torch.ones(2))) == Describer()(
            program(np.arange(1.0, 4.0), torch.ones(2))
        )


def test_function_that_has_been_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    original = np.sqrt

    def program(a):
        return original(a), np.sqrt(a)

    compiled = magneto.compile(program)
    compiled(np.ones(3))
    monkeypatch.setattr(np, "sqrt", lambda a: a * 3)
    assert Describer()(compiled(np.full(3, 4.0))) == Describer()(program(np.full(3, 4.0)))


def test_error_states() -> None:
    """What NumPy says of a division by zero is the program's own setting."""

    def program(a):
        return a / 0

    compiled = magneto.compile(program)
    for how in ("ignore", "warn", "raise", "ignore"):
        with np.errstate(all=how):
            assert outcome(compiled, np.ones(2)) == outcome(program, np.ones(2))


def test_attributes_that_are_set() -> None:
    def program(a):
        b = a * 2
        b.shape = (2, -1)
        return b + 1

    compiled = magneto.compile(program)
    for _ in range(2):
        assert Describer()(compiled(np.arange(6.0))) == Describer()(program(np.arange(6.0)))
    assert magneto.stats()["breaks"] == 1
