"""What PyTorch and built-in functions read of their arguments is guarded, whatever class they are of: another value is
another result."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import operator
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


class DerivedSet(set):  # type: ignore[type-arg]
    pass


# Built-in functions and statements that read a container.
READERS: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "sum": sum,
    "max": max,
    "sorted": sorted,
    "list": list,
    "tuple": tuple,
    "set": set,
    "str": str,
    "repr": repr,
    "format": lambda v: f"{v}",
    "loop": lambda v: [item + 1 for item in v],
    "star": lambda v: [*v],
    "in": lambda v: 3 in v,
    "equal": lambda v: tuple(v) == (2, 3),
    "prod": math.prod,
    "reduce": lambda v: functools.reduce(operator.mul, v),
    "zip": lambda v: list(zip(v, v, strict=True)),
    "enumerate": lambda v: list(enumerate(v)),
    "map": lambda v: list(map(str, v)),
    "filter": lambda v: list(filter(lambda item: item > 2, v)),
    "chain": lambda v: list(itertools.chain(v, v)),
    "product": lambda v: list(itertools.product(v, v)),
    "accumulate": lambda v: list(itertools.accumulate(v)),
    "islice": lambda v: list(itertools.islice(v, 1)),
    "any": lambda v: any(item > 3 for item in v),
    "fromkeys": lambda v: dict.fromkeys(v, 1),
    "join": lambda v: ",".join(map(str, v)),
    "deque": collections.deque,
    "Counter": collections.Counter,
    "extend": lambda v: extended([], v),
    "update": lambda v: updated({2}, v),
    "bytes": bytes,
}


def extended(items: list[Any], more: Any) -> list[Any]:
    items.extend(more)
    return items


def updated(items: set[Any], more: Any) -> set[Any]:
    items.update(more)
    return items


CONTAINERS: dict[str, Callable[[int, int], Any]] = {
    "Pair": Pair,
    "DerivedList": lambda a, b: DerivedList([a, b]),
    "DerivedTuple": lambda a, b: DerivedTuple([a, b]),
    "Size": lambda a, b: torch.Size([a, b]),
    "DerivedSet": lambda a, b: DerivedSet([a, b]),
    "DerivedDict": lambda a, b: DerivedDict({a: 1, b: 2}),
    "range": lambda a, b: range(a, b + 1),
    "bytearray": lambda a, b: bytearray([a, b]),
}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("reader", READERS)
def test_containers_of_derived_classes_are_guarded(reader: str, container: str) -> None:
    read, make = READERS[reader], CONTAINERS[container]

    def program(x: torch.Tensor, value: Any) -> tuple[torch.Tensor, Any]:
        return x + 1, read(value)

    compiled = magneto.compile(program, backend="aot_eager", dynamic=False)
    for numbers in ((2, 3), (3, 4), (2, 3), (3, 5)):
        assert_same(compiled(X, make(*numbers)), program(X, make(*numbers)), exact=True)


def test_what_torch_has_read_is_still_itself() -> None:
    def program(x: torch.Tensor, items: list[Any]) -> tuple[Any, ...]:
        sizes = torch.tensor(items)
        return sizes + x[0, 0], items[0], items, items[0] is items[1]

    pair = Pair(2, 3)
    items = [pair, pair]
    result = magneto.compile(program, backend="aot_eager")(X, items)
    assert result[1] is pair and result[2] is items and items[0] is pair and result[3] is True
