"""Operators raise because of values that they are given, whether anybody reads what they give or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiers import ways_of
from torch import Tensor

import magneto

X = torch.arange(12.0).reshape(3, 4)
I = torch.tensor([0, 1, 2])
BAD = torch.tensor([0, 1, 7])
ZEROS = torch.tensor([1, 0, 2])

# name -> (operator on (x, i), a good i, a bad one)
OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Tensor, Tensor]] = {
    "index": (lambda x, i: x[i], I, BAD),
    "index_of_columns": (lambda x, i: x[:, i], I, BAD),
    "negative_index": (lambda x, i: x[i], I, -BAD - 2),
    "index_put": (lambda x, i: x.index_put((i,), x[:1]), I, BAD),
    "index_select": (lambda x, i: x.index_select(0, i), I, BAD),
    "index_add": (lambda x, i: x.index_add(0, i, x), I, BAD),
    "index_copy": (lambda x, i: x.index_copy(0, i, x), I, BAD),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), I, BAD),
    "index_reduce": (lambda x, i: x.index_reduce(0, i, x, "amax"), I, BAD),
    "gather": (lambda x, i: x.gather(0, i[None]), I, BAD),
    "scatter": (lambda x, i: x.scatter(0, i[None], 1.0), I, BAD),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[None], x), I, BAD),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i[None], x, "amin"), I, BAD),
    "take": (lambda x, i: x.take(i), I, BAD + 7),
    "take_along_dim": (lambda x, i: x.take_along_dim(i[None], 0), I, BAD),
    "put": (lambda x, i: x.put(i, x[0, :3]), I, BAD + 7),
    "embedding": (lambda x, i: F.embedding(i, x), I, BAD),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), I, BAD),
    "one_hot": (lambda x, i: F.one_hot(i, 4), I, BAD),
    "nll_loss": (lambda x, i: F.nll_loss(x, i), I, BAD),
    "nll_loss_none": (lambda x, i: F.nll_loss(x, i, reduction="none"), I, BAD),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), I, BAD),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x, i), I, BAD),
    "multilabel_margin_loss": (lambda x, i: F.multilabel_margin_loss(x[:, :3], i.expand(3, 3)), I, BAD),
    "binary_cross_entropy": (lambda x, i: F.binary_cross_entropy(i / 8, x[0, :3] / 8), I, BAD + 7),
    "floor_divide": (lambda x, i: 7 // i, I + 1, ZEROS),
    "remainder": (lambda x, i: 7 % i, I + 1, ZEROS),
    "fmod": (lambda x, i: torch.fmod(7, i) if False else torch.fmod(i + 7, i), I + 1, ZEROS),
    "div_floor": (lambda x, i: torch.div(i, i, rounding_mode="floor"), I + 1, ZEROS),
    "integer_power": (lambda x, i: i.pow(2), I, I),
    "bincount": (lambda x, i: torch.bincount(i, minlength=9), I, -BAD),
    "histc": (lambda x, i: torch.histc(x / i[0], 4), I + 1, ZEROS[1:]),
    "multinomial": (lambda x, i: torch.multinomial(i.float(), 2), I, -BAD),
    "bernoulli": (lambda x, i: torch.bernoulli(i / 2), I, BAD),
    "cholesky": (lambda x, i: torch.linalg.cholesky(torch.eye(3) * i), I + 1, -BAD),
    "inv": (lambda x, i: torch.linalg.inv(torch.eye(3) * i), I + 1, ZEROS),
    "solve": (lambda x, i: torch.linalg.solve(torch.eye(3) * i, x), I + 1, ZEROS),
    "eigh": (lambda x, i: torch.linalg.eigh(torch.eye(3) * i.float().log()), I + 1, -BAD),
    "repeat_interleave": (lambda x, i: x.repeat_interleave(i, 0, output_size=3), I, -BAD),
    "max_unpool": (lambda x, i: F.max_unpool1d(x[:, :3], i.expand(3, 3), 2), I, BAD),
    "searchsorted": (lambda x, i: torch.searchsorted(x, x), I, I),
    "ctc_loss": (
        lambda x, i: F.ctc_loss(torch.randn(5, 1, 4).log_softmax(2), i[None, 1:], [5], [2], zero_infinity=True),
        I,
        I,
    ),
}


# What becomes of the operator's result.
USES: dict[str, Callable[[Tensor], Any]] = {
    "dropped": lambda r: None,
    "a_part": lambda r: r[..., :1] * 2 if r.dim() else None,
    "the_last": lambda r: r[-1:] + 1 if r.dim() else None,
    "two_parts": lambda r: (r[..., :1] + 1, r[..., 2:] + 1) if r.dim() else None,
    "every_other": lambda r: r[..., ::2] * 2 if r.dim() else None,
    "a_diagonal": lambda r: r.diagonal() + 1 if r.dim() > 1 else None,
    "padded_less": lambda r: F.pad(r, (-1, 0)) + 0 if r.dim() else None,
    "overwritten": lambda r: r.zero_() + 1,
    "partly_overwritten": lambda r: (r[..., 1:].zero_(), r + 1)[1] if r.dim() else None,
    "selected_away": lambda r: torch.where(torch.zeros_like(r, dtype=torch.bool), r, 0),
    "spread_over_none": lambda r: r.expand(0, *r.shape) + 1,
    "transposed": lambda r: r.t() + 1 if r.dim() == 2 else r + 1,
    "flipped": lambda r: r.flip(0) + 1 if r.dim() else r + 1,
    "reshaped": lambda r: r.reshape(-1) + 1,
    "added_up": lambda r: r.sum(),
}


def outcome(program: Callable[..., Any], *args: Any) -> Any:
    torch.manual_seed(0)
    try:
        return program(*args)
    except Exception as error:
        return type(error)


# With one of the backends; with both in `make test-all`.
CASES = [
    pytest.param(name, backend, use, id=f"{name}-{backend}-{use}", marks=marks)
    for name in OPERATORS
    for use in USES
    for backend, marks in ways_of(f"{name}-{use}", [], ["magneto", "aot_eager"], count=1)
]


@pytest.mark.parametrize(("name", "backend", "use"), CASES)
def test_as_eager(name: str, backend: str, use: str) -> None:
    operator, good, bad = OPERATORS[name]

    def program(x: Tensor, i: Tensor, state: Tensor) -> Any:
        state.add_(1)
        result = operator(x, i)
        used = USES[use](result) if isinstance(result, Tensor) else None
        return x + 1 if used is None else used

    compiled = magneto.compile(program, backend=backend)
    for i in (good, bad, good):
        states = torch.zeros(2), torch.zeros(2)
        expected, actual = outcome(program, X, i, states[0]), outcome(compiled, X, i, states[1])
        if isinstance(expected, type) or isinstance(actual, type):
            assert actual is expected
        else:
            torch.testing.assert_close(actual, expected)
        assert torch.equal(*states)
