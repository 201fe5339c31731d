"""Loops over tensors whose length only the data say: no number of turns is taken for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable

import magneto

Tensor = torch.Tensor
left = LEFT = ProgramTable()
counted = COUNTED = ProgramTable()


# Each is given x and a vector of zeros and ones.


@left
def nested(x: Tensor, hit: Tensor) -> Tensor:
    for i in hit.nonzero():
        for j in hit.nonzero():
            x = x + i[0] * j[0]
    return x


@left
def selected(x: Tensor, hit: Tensor) -> Tensor:
    total = x.sum()
    for row in x[hit.bool()]:
        total = total * 0.5 + row
    return total


@left
def masked_select(x: Tensor, hit: Tensor) -> Tensor:
    for value in x.masked_select(hit.bool()):
        x = x + value
    return x


@left
def flattened(x: Tensor, hit: Tensor) -> Tensor:
    for place in hit.nonzero().flatten():
        x = x + place
    return x


@left
def viewed(x: Tensor, hit: Tensor) -> Tensor:
    for place in hit.nonzero().view(-1, 1):
        x = x + place[0]
    return x


@left
def unique(x: Tensor, hit: Tensor) -> Tensor:
    for value in torch.unique(hit):
        x = x * 2 + value
    return x


@left
def ranged(x: Tensor, hit: Tensor) -> Tensor:
    for i in range(len(hit.nonzero())):
        x = x + i
    return x


@left
def zipped(x: Tensor, hit: Tensor) -> Tensor:
    for i, (place, value) in enumerate(zip(hit.nonzero(), x, strict=False)):
        x = x + place * value * i
    return x


@left
def listed(x: Tensor, hit: Tensor) -> Tensor:
    return x + sum(list(hit.nonzero().flatten()))


@left
def as_numbers(x: Tensor, hit: Tensor) -> Tensor:
    return x + sum(hit.nonzero().flatten().tolist())


@left
def spread(x: Tensor, hit: Tensor) -> Tensor:
    return torch.stack([x, *hit.nonzero().flatten()[:, None].expand(-1, 4)])


@left
def starred(x: Tensor, hit: Tensor) -> tuple[Tensor, int]:
    first, *others = hit.nonzero()
    return x + first, len(others)


@left
def unbound(x: Tensor, hit: Tensor) -> Tensor:
    for place in torch.unbind(hit.nonzero()):
        x = x + place
    return x


@left
def comprehended(x: Tensor, hit: Tensor) -> list[Tensor]:
    return [x * place for place in hit.nonzero().flatten()]


@left
def generated(x: Tensor, hit: Tensor) -> Tensor:
    def places() -> Any:
        yield from hit.nonzero()

    for place in places():
        x = x + place
    return x


@left
def pieces(x: Tensor, hit: Tensor) -> list[Tensor]:
    return [piece.sum() for piece in x[hit.bool()].split(2)]


@counted
def unpacked(x: Tensor, hit: Tensor) -> Tensor:
    first, second = hit.nonzero()
    return x + first * second


@counted
def unpacked_twice(x: Tensor, hit: Tensor) -> Tensor:
    (first,), (second,) = hit.nonzero()
    return x * first + second


PROGRAMS = LEFT | COUNTED
HITS = [[0, 1, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 1, 0], [1, 0, 0, 1]]


def outcome(program: Any, hit: list[int]) -> Any:
    try:
        return program(torch.arange(4.0, dtype=torch.float64), torch.tensor(hit))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_as_eager(name: str) -> None:
    compiled = magneto.compile(PROGRAMS[name])
    with magneto.config.patch(cache_size_limit=100):
        for hit in HITS * 2:
            assert_same(outcome(compiled, hit), outcome(PROGRAMS[name], hit))
    assert magneto.stats()["breaks"] > 0
    assert sum(magneto.stats()["undone"].values()) <= 4


@pytest.mark.parametrize("name", LEFT)
def test_is_an_error_where_one_graph_is_wanted(name: str) -> None:
    compiled = magneto.compile(LEFT[name], fullgraph=True)
    with pytest.raises(magneto.exc.Unsupported) as raised:
        compiled(torch.ones(4), torch.tensor(HITS[0]))
    line = LEFT[name].__code__.co_firstlineno
    text = str(raised.value)
    lines = [int(part.split(",")[0]) for part in text.split(f'File "{__file__}", line ')[1:]]
    assert lines and all(line < found < line + 9 for found in lines)
    assert "is data-dependent (u0 is of " in text and "Hint: " in text


@pytest.mark.parametrize("name", COUNTED)
def test_unpacking_says_the_length(name: str) -> None:
    """One graph for the length that the program takes; with another one, CPython raises what eager does."""
    compiled = magneto.compile(COUNTED[name], fullgraph=True)
    for hit in HITS:
        assert_same(outcome(compiled, hit), outcome(COUNTED[name], hit))
    others = sum(sum(hit) != 2 for hit in HITS)
    assert (magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (0, 0)
    assert magneto.stats()["undone"] == {"RuntimeError (an assumption)": others}
