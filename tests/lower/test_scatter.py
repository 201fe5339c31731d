"""What is added at computed places: one kernel, element after element, with the sums that eager makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from eager_support import check

import magneto

pytestmark = pytest.mark.usefixtures("kernels")

aten = torch.ops.aten


def integers(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


X, ROWS = numbers(7, 24), integers(7, 30)
ADDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "index_add": (lambda x, i, y: x.index_add(0, i, y.relu()), (X, ROWS, numbers(30, 24))),
    "index_add, the last dimension": (lambda x, i, y: x.index_add(-1, i, y * 2), (X, ROWS % 24, numbers(7, 30))),
    "index_add, a middle one": (lambda x, i, y: x.index_add(1, i, y), (numbers(3, 7, 5), ROWS, numbers(3, 30, 5))),
    "index_add times alpha": (lambda x, i, y: x.index_add(0, i, y, alpha=3), (X, ROWS, numbers(30, 24))),
    "index_add of a vector": (lambda x, i, y: x.index_add(0, i.int(), y.exp()), (X[:, 0], ROWS, numbers(30))),
    "index_add of integers": (lambda x, i, y: x.index_add(0, i, y + 1), (integers(9, 7), ROWS, integers(9, 30))),
    "scatter_add": (lambda x, i, y: x.scatter_add(0, i, y.sin()), (X, integers(7, 30, 24), numbers(30, 24))),
    "scatter_add of a part": (lambda x, i, y: x.scatter_add(1, i, y), (X, integers(24, 5, 40), numbers(6, 50))),
    "scatter_add of one index": (lambda x, i, y: x.scatter_add(0, i, y), (X, integers(1, 1, 24), numbers(1, 24))),
    "index_put": (lambda x, i, y: x.index_put((i,), y.abs(), accumulate=True), (X, ROWS - 3, numbers(30, 24))),
    "index_put, two": (
        lambda x, i, y: x.index_put((i, i[:, None] * 2), y, accumulate=True),
        (X, ROWS, numbers(30, 30)),
    ),
    "index_put, some": (
        lambda x, i, y: aten.index_put(x, [None, i, None, i], y, True),
        (numbers(3, 8, 4, 9), integers(8, 6), numbers(6, 3, 4)),
    ),
    "index_put spread": (lambda x, i, y: x.index_put((i,), y.sum(), accumulate=True), (X, ROWS, X)),
    "index_put in bf16": (
        lambda x, i, y: x.index_put((i,), y * 3, accumulate=True),
        (X.bfloat16(), ROWS, numbers(30, 24, dtype=torch.bfloat16)),
    ),
    "embedding": (
        lambda g, i: aten.embedding_dense_backward(g * 2, i, 7, -1, False),
        (numbers(5, 6, 24), integers(7, 5, 6)),
    ),
    "embedding with padding": (
        lambda g, i: aten.embedding_dense_backward(g * 2, i, 7, 2, False),
        (numbers(30, 300), ROWS),
    ),
    "what it is added to is read": (lambda x, i, y: (x.index_add(0, i, y), x * 2), (X, ROWS, numbers(30, 24))),
    "what is computed is added to": (lambda x, i, y: x.exp().index_add(0, i, y), (X, ROWS, numbers(30, 24))),
    "both are read": (
        lambda x, i, y: (z := x.exp(), z.index_add(0, i, z[i] * y), z + 1),
        (X, ROWS, numbers(30, 24)),
    ),
    "one behind another": (
        lambda x, i, y: x.index_add(0, i, y).index_add(0, i, y).sum(0),
        (X, ROWS, numbers(30, 24)),
    ),
    "the same twice": (
        lambda x, i, y: (torch.zeros_like(x).index_add(0, i, y), torch.zeros_like(x).index_add(0, i, y)),
        (X, ROWS, numbers(30, 24)),
    ),
    "in place": (lambda x, i, y: x.index_add_(0, i, y * 2), (X, ROWS, numbers(30, 24))),
    "in place, of itself": (lambda x, i: x.index_add_(0, i, x[:1].expand(30, 24) * 2), (X, ROWS)),
    "a view in place": (lambda x, i, y: (x[:, ::2].index_add_(0, i, y), x), (X, ROWS, numbers(30, 12))),
    "transposed": (lambda x, i, y: x.t().index_add(1, i, y.t()), (X, ROWS, numbers(30, 24))),
    "nothing": (lambda x, i, y: x.index_add(0, i, y), (X, ROWS[:0], numbers(0, 24))),
    "as many as the data says": (
        lambda x, i, y: (at := torch.where(y[:, 0] > 0)[0], x.index_add(0, i[at], y[at] * 2)),
        (X, ROWS, numbers(30, 24)),
    ),
}


@pytest.mark.parametrize("name", ADDS)
def test_adds(name: str) -> None:
    function, given = ADDS[name]
    magneto.reset()
    check(function, *given)
    assert not [op for op in magneto.stats()["externs"] if "add" in op or "put" in op], magneto.stats()["externs"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 5, 128, 300, 768, 1031])
def test_rows_in_parts(width: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(lambda x, i, y: x.index_add(0, i, y * 2), numbers(7, width), ROWS, numbers(30, width))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["index_add", "scatter_add", "index_put"])
def test_sizes_are_symbols(name: str) -> None:
    function, _ = ADDS[name]
    magneto.reset()
    compiled = magneto.compile(function, dynamic=True, fullgraph=True)
    for rows, count, width in ((7, 30, 24), (5, 11, 40), (9, 2, 3)):
        index = integers(rows, count, width) if name == "scatter_add" else integers(rows, count)
        given = numbers(rows, width), index, numbers(count, width)
        assert_same(compiled(*given), function(*given))
    assert magneto.stats()["graphs"] == 1


@pytest.mark.parametrize("name", ["index_add", "index_put"])
def test_rows_without_elements(name: str) -> None:
    """A kernel without elements would look at no index; what eager does with them is its own."""
    function, _ = ADDS[name]
    given = torch.zeros(7, 0), ROWS + 1, torch.zeros(30, 0)
    outcomes = []
    for run in (function, magneto.compile(function, fullgraph=True)):
        try:
            outcomes.append(tuple(run(*given).shape))
        except Exception as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("wrong", [-8, 7])
@pytest.mark.parametrize("name", ["index_add", "scatter_add", "index_put", "in place"])
def test_indices_out_of_bounds(name: str, wrong: int) -> None:
    """Eager's error, and nothing is written."""
    function, (x, index, y) = ADDS[name]
    index = index.clone()
    index.view(-1)[-1] = wrong
    compiled = magneto.compile(function, fullgraph=True)
    mine, theirs = x.clone(), x.clone()
    with pytest.raises((IndexError, RuntimeError)) as expected:
        function(theirs, index, y)
    with pytest.raises(expected.type) as raised:
        compiled(mine, index, y)
    assert str(raised.value).split("\n")[0] == str(expected.value).split("\n")[0]
    if name != "in place":  # eager has added some
        assert torch.equal(mine, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i] * 2,
        lambda x, i: x[:, i % 4].sin(),
        lambda x, i: x.index_select(0, i).exp(),
        lambda x, i: x.gather(0, i[:, None].expand(-1, 24)) * 2,
        lambda x, i: F.embedding(i, x, padding_idx=3) * 2,
        lambda x, i: torch.zeros(7, 24).index_add(0, i, x[i]).relu(),
    ],
)
def test_gradients(function: Callable[..., Any]) -> None:
    magneto.reset()
    compiled = magneto.compile(function, fullgraph=True)
    found = []
    for run in (compiled, function):
        x = X.clone().requires_grad_()
        run(x, ROWS).square().sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)
    assert not magneto.stats()["externs"], magneto.stats()["externs"]
