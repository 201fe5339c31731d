"""Writes to arrays of NumPy and to their views inside captured functions, and arrays whose contents follow from
constants: each program is one graph and gives eager's arrays, aliasing and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_numpy
import torch

import magneto


def outcome(function: Callable[[Any], Any], argument: np.ndarray) -> str:
    text, _, said = test_numpy.outcome(function, argument).rpartition("\n")
    return f"{text}\n{'[]' if 'UserWarning: Magneto' in said else said}"


def views_of_made(a: Any) -> Any:
    b = a * 2
    rows = b[::2]
    rows[:] = 0
    b.T[0] = 1
    flat = b.ravel()
    flat[5] = 42
    inner = b[:, 1:3]
    inner += 100
    np.multiply(inner, 2, out=inner)
    b[None][0, 1, 1] = -5
    b[b == 0] = -1
    b[[0, 1], [1, 2]] = 77
    return b, rows, flat, inner


def view_of_view(a: Any) -> Any:
    b = np.zeros((4, 4))
    inner = b[1:-1]
    cell = inner[:, 1:-1]
    cell += a[:2, :2]
    inner[0] *= 3
    b[2] = inner[0]
    return b, inner, cell


def backwards(a: Any) -> Any:
    b = a + 1
    last = b[::-1]
    last[0] = 9
    np.fliplr(b)[:, 0] -= 4
    return b, last, last + 1, last[::-1], np.sort(a.ravel())[::-1][:2], a[np.argsort(a[:, 0])[::-1]]


def backwards_over_an_argument(a: Any) -> Any:
    a[::-1, 1] = 5
    a.T[::-1] += 1
    return a, a[::-1].sum(0)


def parts(a: Any) -> Any:
    z = np.exp(1j * a)
    z.real[0] = 4
    z.imag *= 2
    w = np.zeros(a.shape, complex)
    w.real = a
    w.flat = 1 + 2j
    return z, z.real, z.imag + 1, w, a.imag, torch.from_numpy(z.imag) + 1, torch.tensor(z.real)


def functions_that_write(a: Any) -> Any:
    b = a.copy()
    np.fill_diagonal(b, 7)
    np.put(b, [1, 2], [8, 9])
    np.copyto(b[0], 3, where=b[0] > 0)
    np.putmask(b, b > 5, -b)
    np.place(b, b < -6, [1, 2])
    np.put_along_axis(b, b.argmin(1)[:, None], 0, axis=1)
    np.add.at(b, ([0, 0], [1, 1]), 1)
    np.divide(b, a, out=b, where=a != 0)
    np.add(b, 1, b)
    return b


def methods_that_write(a: Any) -> Any:
    b = a.copy()
    b.sort(axis=0)
    b[:, 0].fill(2)
    b.partition(1)
    b.put([0], 6)
    return b


def tiled(a: Any) -> Any:
    b = np.tile(a, 2)
    b[0] = 1
    return b.flags.owndata, b, b.sum()


def while_it_is_read(a: Any) -> Any:
    b = a * 1
    b[1:] = b[:-1]
    b += b.T[: b.shape[0], : b.shape[1]] if b.shape[0] == b.shape[1] else 1
    b[:, ::-1] = b
    return b


def known(a: Any) -> Any:
    total = 0
    for i in np.arange(3).tolist() + np.array(a.shape).tolist():
        total += i
    order = np.argsort([3, 1, 2])
    odd = np.arange(6)
    odd = odd[odd % 2 == 1]
    rows, columns = np.nonzero(np.eye(2))
    values, counts = np.unique([1, 2, 2], return_counts=True)
    if np.linspace(0, 1, 3)[1] == 0.5 and np.any(odd > 4) and int(order[0]) == 1:
        total += int(odd.sum())
    board = np.zeros(4)
    board[1] = 2
    for i in range(int(board[1])):
        total += i
    return a * total, odd, a[rows, columns], values, counts, np.bincount([0, 1, 1]), float(np.ones(1)[0])


def unpacked(a: Any) -> Any:
    y, x = np.mgrid[-1:1:3j, -2:1:4j]
    first, *rest = a
    r, c = np.ogrid[:2, :3]
    return (y + x) * a[:3, :4], first, rest, (r - c) ** 2, len(list(enumerate(a)))


def facts(a: Any) -> Any:
    return (
        np.result_type(a, np.float32).name, np.can_cast(np.int32, np.float64), np.promote_types("i4", "f4"),
        np.issubdtype(a.dtype, np.floating), np.dtype("f4").type(3), np.ndim(a), np.shape(a), np.size(a),
        np.iscomplexobj(a), np.broadcast_shapes((2, 1), (3,)), np.finfo(a.dtype).eps,
    )  # fmt: skip


def windows(a: Any) -> Any:
    steps = a.strides
    pairs = np.lib.stride_tricks.as_strided(a, (2, 2, 2), (steps[0], steps[1], steps[1]))
    return pairs.sum((1, 2)), np.lib.stride_tricks.sliding_window_view(a, (2, 2)).mean((-1, -2)), pairs


def added_up(a: Any) -> Any:
    return sum(np.roll(a, i, 0) for i in (-1, 0, 1) if i), sum([a, a[0]], 1), sum(row for row in a)


PROGRAMS: list[Callable[[Any], Any]] = [
    views_of_made, view_of_view, backwards, backwards_over_an_argument, parts, functions_that_write,
    methods_that_write, tiled, while_it_is_read, known, unpacked, facts, windows, added_up,
]  # fmt: skip

ARRAYS: dict[str, Callable[[], np.ndarray]] = {
    "matrix": lambda: np.arange(12.0).reshape(3, 4) - 4.5,
    "columns": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "gaps": lambda: np.arange(48.0).reshape(6, 8)[::2, ::2],
    "float32": lambda: np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4),
}


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_is_captured(program: Callable[[Any], Any], array: str, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    want = outcome(program, ARRAYS[array]())
    for _ in range(3):
        assert outcome(compiled, ARRAYS[array]()) == want
    assert magneto.stats()["recompiles"] == 0


def unknown_size(a: Any) -> Any:
    return np.unique(a), np.nonzero(a), a.tolist(), np.count_nonzero(a), a[a > 0] + 1


def warns(a: Any) -> Any:
    return (np.zeros(3) / 0.0).tolist(), a + 1


def read_only(a: Any) -> Any:
    b = np.broadcast_to(a[0], (2, *a[0].shape))
    b[0] = 1
    return b


def other_shapes(a: Any) -> Any:
    b = a * 1
    b[0] += np.ones(7)
    return b


def written_under_a_tensor(a: Any) -> Any:
    b = a + 1
    view = b[1:]
    t = torch.from_numpy(view)
    b[:] = 3
    return t, b, view, t + 1


def written_through_a_tensor(a: Any) -> Any:
    b = a + 1
    t = torch.from_numpy(b[1:])
    t.add_(1)
    b[0] = 5
    return t, b


def views_across_an_exit(a: Any) -> Any:
    b = a * 2
    view, back = b[1:], b[::-1]
    view[0] = 5
    print(end="")
    b[1, 1] = 7
    back[0] = 1
    return view, back, b


def methods_on_read_only(a: Any) -> Any:
    b = a.imag
    b.sort()
    return b


def flattened_after_a_write(a: Any) -> Any:
    a += 1
    b = a.ravel()
    a[0] = 3
    c = np.reshape(a, -1)
    b[0] = 9
    return b, c, b.base is None


def left_uninitialised(a: Any) -> Any:
    b = np.empty(3)
    return len(b.tolist()), np.add(a, 1, where=a > 100).shape


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize(
    "program",
    [unknown_size, warns, read_only, other_shapes, written_under_a_tensor, written_through_a_tensor,
     views_across_an_exit, left_uninitialised, methods_on_read_only, flattened_after_a_write],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_exits(program: Callable[[Any], Any], array: str, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    want = outcome(program, ARRAYS[array]())
    for _ in range(3):
        assert outcome(compiled, ARRAYS[array]()) == want
