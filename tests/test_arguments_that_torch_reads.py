"""What PyTorch reads of its arguments is guarded, whatever class they are of: another value is another result."""

from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_same

import magneto

Pair = collections.namedtuple("Pair", "a b")


class DerivedList(list):  # type: ignore[type-arg]
    pass


class DerivedTuple(tuple):  # type: ignore[type-arg]
    pass


class DerivedDict(dict):  # type: ignore[type-arg]
    pass


class DerivedInt(int):
    pass


class DerivedFloat(float):
    pass


class DerivedStr(str):
    pass


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


class Few(enum.IntEnum):
    TWO = 2
    THREE = 3


def written(x: torch.Tensor, key: Any) -> torch.Tensor:
    y = x.clone()
    y[key] = 0
    return y


def filled(x: torch.Tensor, value: Any) -> torch.Tensor:
    y = x.clone()
    y[0] = value
    return y


X = torch.arange(30.0).reshape(6, 5)
PACKED = torch.nn.utils.rnn.pack_sequence

# name: the program, and pairs of arguments of which neither may get the other's result.
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, Any]]]] = {
    "ones": (
        lambda x, v: torch.ones(v),
        [
            (Pair(2, 3), Pair(3, 4)),
            (DerivedList([2, 3]), DerivedList([3, 4])),
            (DerivedTuple([2, 3]), DerivedTuple([3, 4])),
            (torch.Size([2, 3]), torch.Size([3, 4])),
            (torch.Size([]), torch.Size([3, 4])),
            (DerivedInt(2), DerivedInt(3)),
            (Few.TWO, Few.THREE),
            (np.int64(2), np.int64(3)),
            (Index(2), Index(3)),
            ([np.int64(2)], [np.int64(3)]),
            ([Index(2)], [Index(3)]),
            ((Few.TWO,), (Few.THREE,)),
        ],
    ),
    "several sizes": (lambda x, v: torch.ones(*v), [(Pair(2, 3), Pair(3, 4)), (torch.Size([2]), torch.Size([3]))]),
    "view": (lambda x, v: x.view(v), [(Pair(6, 5), Pair(5, 6)), (torch.Size([6, 5]), torch.Size([5, 6]))]),
    "permute": (lambda x, v: x.permute(v), [(Pair(0, 1), Pair(1, 0)), (torch.Size([0, 1]), torch.Size([1, 0]))]),
    "roll": (lambda x, v: x.roll(v), [(DerivedInt(1), DerivedInt(2)), (np.int64(1), np.int64(2))]),
    "split": (
        lambda x, v: x.split(v),
        [
            (Pair(2, 4), Pair(3, 3)),
            (torch.Size([2, 4]), torch.Size([3, 3])),
            (DerivedList([2, 4]), DerivedList([3, 3])),
        ],
    ),
    "pad": (
        lambda x, v: torch.nn.functional.pad(x, v),
        [
            (Pair(1, 1), Pair(1, 2)),
            (torch.Size([1, 1]), torch.Size([1, 2])),
            (DerivedList([1, 1]), DerivedList([1, 2])),
        ],
    ),
    "interpolate": (
        lambda x, v: torch.nn.functional.interpolate(x[None], size=v),
        [(torch.Size([3]), torch.Size([4])), (DerivedInt(3), DerivedInt(4))],
    ),
    "element": (
        lambda x, v: x[v],
        [
            (slice(0, 2), slice(0, 3)),
            ((slice(0, 2), 1), (slice(0, 3), 1)),
            (slice(Index(0), Index(2)), slice(Index(0), Index(3))),
            (range(2), range(3)),
            (DerivedList([0, 1]), DerivedList([0, 1, 2])),
            (DerivedTuple([0, 1]), DerivedTuple([1, 2])),
            (Pair(0, 1), Pair(1, 2)),
            (torch.Size([0, 1]), torch.Size([1, 2])),
            (Index(1), Index(2)),
            (np.array([0, 1]), np.array([1, 2])),
        ],
    ),
    "written element": (
        written,
        [
            (slice(0, 2), slice(0, 3)),
            (Pair(0, 1), Pair(1, 2)),
            (range(2), range(3)),
            (DerivedList([0]), DerivedList([1])),
        ],
    ),
    "written value": (
        filled,
        [(DerivedFloat(1.0), DerivedFloat(2.0)), (np.float64(1), np.float64(2))],
    ),
    "product": (
        lambda x, v: x * v,
        [
            (DerivedFloat(2.0), DerivedFloat(3.0)),
            (np.float32(2.0), np.float32(3.0)),
            (Few.TWO, Few.THREE),
            (np.array(2.0), np.array(3.0)),
            (1j, 2j),
        ],
    ),
    "stack": (
        lambda x, v: torch.stack(v),
        [(DerivedList([X, X]), DerivedList([X, X, X])), (Pair(X, X + 1), Pair(X + 1, X))],
    ),
    "cat": (
        lambda x, v: torch.cat(v),
        [(DerivedTuple([X]), DerivedTuple([X, X])), (DerivedList([X, X + 1]), DerivedList([X + 1, X]))],
    ),
    "einsum": (lambda x, v: torch.einsum(v, x), [(DerivedStr("ij->ji"), DerivedStr("ij->i"))]),
    "tensor": (
        lambda x, v: torch.tensor(v),
        [
            (Pair(1, 2), Pair(3, 4)),
            ([Pair(1, 2)], [Pair(3, 4)]),
            (DerivedList([1, 2]), DerivedList([3, 4])),
            (torch.Size([1, 2]), torch.Size([3, 4])),
            (range(2), range(3)),
            ([DerivedFloat(1.0)], [DerivedFloat(2.0)]),
            (collections.deque([1]), collections.deque([2])),
        ],
    ),
    "keywords": (
        lambda x, v: torch.sum(x, **v),
        [(DerivedDict(dim=0), DerivedDict(dim=1)), ({"dim": Pair(0, 1)}, {"dim": (1,)})],
    ),
    "packed sequence": (
        lambda x, v: torch.nn.utils.rnn.pad_packed_sequence(v)[0],
        [(PACKED([torch.ones(3), torch.ones(2)]), PACKED([torch.zeros(4), torch.zeros(2)]))],
    ),
    "two results": (lambda x, v: torch.cat([v[0], v[1].float()]), [(torch.max(X, 0), torch.max(X + 1, 1))]),
}

CASES = [
    pytest.param(program, pair, id=f"{name}-{type(pair[0]).__name__}-{number}")
    for name, (program, pairs) in PROGRAMS.items()
    for number, pair in enumerate(pairs)
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("program", "pair"), CASES)
def test_another_value_is_another_result(program: Callable[..., Any], pair: tuple[Any, Any], dynamic: bool) -> None:
    compiled = magneto.compile(program, backend="aot_eager", dynamic=dynamic)
    for value in (*pair, *pair):
        assert_same(compiled(X, value), program(X, value), exact=True)
