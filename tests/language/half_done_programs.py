"""Instructions whose C code has gone on over an iterator, or changed a container, when it asks for what only data say."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

Tensor = torch.Tensor
Program = Callable[[Tensor], Any]


def items(x: Tensor) -> Iterator[Tensor]:
    for i in range(len(x)):
        yield x[i] * 1


def positive(x: Tensor) -> Iterator[Tensor]:
    return (item > 0 for item in items(x))


def all_of_pairs(x: Tensor) -> Any:
    y = x.cumsum(0)
    return x * 2 if all(a < b for a, b in zip(y[:-1], y[1:], strict=True)) else x * 3


def all_and_the_rest(x: Tensor) -> Any:
    answers = positive(x)
    return x * (3 if all(answers) else 2), list(answers)


def any_of_an_iterator(x: Tensor) -> Any:
    answers = iter([x[0] > 0, x[1] > 0, x[2] > 0])
    return x * (3 if any(answers) else 2), len(list(answers))


def all_of_a_map(x: Tensor) -> Any:
    return x * (2 if all(map(lambda item: item > 0, items(x))) else 3)


def all_of_zipped(x: Tensor) -> Any:
    pairs = zip(items(x), items(x.roll(1)), strict=True)
    return x * (2 if all(a > b for a, b in pairs) else 3), len(list(pairs))


def found_in_a_generator(x: Tensor) -> Any:
    of = items(x)
    return x * (2 if x[1] * 1 in of else 3), len(list(of))


def best_by_key(x: Tensor) -> Any:
    return x * max(items(x), key=lambda item: -item), sorted(items(x), key=lambda item: -item)


def filtered(x: Tensor) -> Any:
    kept = [x[0]]
    kept += filter(lambda item: item > 0, items(x))
    return x * len(list(filter(None, positive(x)))), kept


def compressed(x: Tensor) -> Any:
    return x * len(list(itertools.compress("abcd", positive(x)))), len(list(itertools.takewhile(bool, positive(x))))


def extended(x: Tensor) -> Any:
    ring = collections.deque([x[0]])
    ring.extend(filter(None, (item.relu() for item in items(x))))
    return list(ring)


def starred(x: Tensor) -> Any:
    return [x[0], *filter(lambda item: item > 0, items(x)), x[1]]


def looped_over(x: Tensor) -> Any:
    total = 0
    for item in filter(lambda item: item > 0, items(x)):
        total = total + item * 2
    return x * total


def reduced(x: Tensor) -> Any:
    return x * functools.reduce(lambda a, b: a if a > b else b, items(x))


def pushed(x: Tensor) -> Any:
    heap: list[Tensor] = []
    for item in items(x):
        heapq.heappush(heap, item)
    return torch.stack(heap), len(heap)


def made_a_heap(x: Tensor) -> Any:
    heap = list(items(x))
    heapq.heapify(heap)
    return torch.stack(heap), heapq.heappop(heap), len(heap)


def pushed_in_pairs(x: Tensor) -> Any:
    heap = [(item, i) for i, item in enumerate(items(x))]
    heapq.heapify(heap)
    heapq.heappush(heap, (x[0] * 2, 9))
    return x * heapq.heappop(heap)[1], len(heap)


def smallest(x: Tensor) -> Any:
    return torch.stack(heapq.nsmallest(2, list(items(x)))), list(heapq.merge(list(items(x)), [x.sum()]))


def sorted_in_place(x: Tensor) -> Any:
    values = list(items(x))
    values.sort()
    return values


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        all_of_pairs,
        all_and_the_rest,
        any_of_an_iterator,
        all_of_a_map,
        all_of_zipped,
        found_in_a_generator,
        best_by_key,
        filtered,
        compressed,
        extended,
        starred,
        looped_over,
        reduced,
        pushed,
        made_a_heap,
        pushed_in_pairs,
        smallest,
        sorted_in_place,
    )
}
