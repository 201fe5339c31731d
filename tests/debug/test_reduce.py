"""The reducer of graphs, on skeletons: the smallest part for which a question is still answered with yes."""

from __future__ import annotations

import random

import pytest

from magneto import _C


def chain(length: int) -> tuple[list[tuple[list[int], list[int]]], list[int], list[int], list[int]]:
    """Value 0 is the input, node i makes value i + 1 of value i."""
    nodes = [([i], [i + 1]) for i in range(length)]
    return nodes, [0] * (length + 1), [0], [length]


def reduced(skeleton, fails):
    asked = []

    def question(kept, inputs, outputs, read_as):
        asked.append(tuple(kept))
        return fails(kept)

    return _C.reduce_graph(*skeleton, question), asked


@pytest.mark.parametrize("culprit", [0, 1, 700, 1498, 1499])
def test_one_node_of_many(culprit: int) -> None:
    (kept, inputs, outputs, _), asked = reduced(chain(1500), lambda kept: culprit in kept)
    assert (kept, inputs, outputs) == ([culprit], [culprit], [culprit + 1])
    assert len(asked) < 40


@pytest.mark.parametrize("seed", range(20))
def test_several_nodes_of_random_graphs(seed: int) -> None:
    """Whatever is needed stays, and nothing else does: each part that is asked about is a graph."""
    draw = random.Random(seed)
    length = draw.randrange(2, 60)
    nodes = [([draw.randrange(i + 1) for _ in range(draw.randrange(1, 3))], [i + 1]) for i in range(length)]
    outputs = sorted({draw.randrange(length + 1) for _ in range(3)} | {length})
    needed = {draw.randrange(length) for _ in range(draw.randrange(1, 4))}

    def question(kept, inputs, outputs, read_as):
        made = set(inputs)
        assert outputs
        for number in kept:
            assert all(read_as[value] in made for value in nodes[number][0])
            made.add(number + 1)
        assert all(read_as[value] in made for value in outputs)
        return needed <= set(kept)

    classes = [draw.randrange(2) for _ in range(length + 1)]
    kept, _, _, _ = _C.reduce_graph(nodes, classes, [0], outputs, question)
    assert set(kept) == needed


def test_values_that_are_no_tensors_keep_their_producer() -> None:
    # %1 is a pair, %2 and %3 its items.
    nodes = [([0], [1]), ([1], [2]), ([1], [3]), ([2, 3], [4])]
    kept, inputs, _, _ = _C.reduce_graph(
        nodes, [0, -1, 0, 0, 0], [0], [4], lambda kept, inputs, outputs, read_as: 1 in kept
    )
    assert (kept, inputs) == ([0, 1], [0])


def test_an_answer_of_none_ends_it() -> None:
    asked = []

    def question(kept, inputs, outputs, read_as):
        asked.append(kept)
        return True if len(asked) == 1 else None

    kept, _, _, _ = _C.reduce_graph(*chain(100), question)
    assert len(asked) == 2 and kept == asked[0]


def test_errors_of_the_question_go_through() -> None:
    with pytest.raises(ZeroDivisionError):
        reduced(chain(4), lambda kept: 1 / 0)
    with pytest.raises(TypeError):
        _C.reduce_graph([([0], ["a"])], [0, 0], [0], [1], print)


def test_inputs_of_one_kind_become_one() -> None:
    nodes = [([0, 1], [2])]
    _, inputs, _, read_as = _C.reduce_graph(nodes, [0, 0, 1], [0, 1], [2], lambda *part: True)
    assert inputs == [0] and read_as == [0, 0, 2]
