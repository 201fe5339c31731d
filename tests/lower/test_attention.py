"""Attention written out, as programs write it: computed by one operator where that pays, with eager's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same
from tiers import some

import magneto
from magneto import _test_settings


@pytest.fixture(
    params=[pytest.param(True, marks=pytest.mark.long), False], ids=["interpreted", "machine"], autouse=True
)
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    with _test_settings.patch(interpret_kernels=request.param):
        yield


Tensor = torch.Tensor
# Large enough that the operator is worth its call.
BATCH, HEADS, LENGTH, SIZE = 8, 4, 132, 128


def heads(batch: int = BATCH, length: int = LENGTH, count: int = HEADS, size: int = SIZE) -> Tensor:
    """[batch, heads, length, size], as a linear layer and a transpose leave it. Scores are a few units large."""
    return torch.randn(batch, length, count, size).mul(0.4).transpose(1, 2)


def run(function: Callable[..., Any], *args: Any, fused: bool | None = True) -> None:
    """Against eager, and that the operator was (not) used."""
    magneto.reset()
    with torch.no_grad():
        assert_same(magneto.compile(function, dynamic=False)(*args), function(*args))
    if fused is not None:
        assert ("magneto::attention" in magneto.stats()["externs"]) == fused


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.mT) * 0.1, -1), v).transpose(1, 2).flatten(2)


def scaled_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    root = q.shape[-1] ** -0.25
    return ((q * root) @ (k * root).transpose(2, 3)).softmax(dim=3) @ v


def scaled_by_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], 8.0)
    return torch.matmul(torch.nn.functional.softmax(scores, dim=-1), v)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).mul(0.125).softmax(-1)
    return torch.einsum("bhqk,bhkd->bqhd", torch.nn.functional.dropout(weights, 0.1, False), v)


def in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.softmax(q @ k.transpose(2, 3) * 0.2, dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v


def batches_of_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(-1, x.shape[2], x.shape[3]) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


@pytest.mark.parametrize(
    "form", [plain, merged, scaled_before, scaled_by_tensor, by_einsum, in_float32, batches_of_heads]
)
def test_forms(form: Callable[..., Tensor]) -> None:
    run(form, heads(length=256), heads(length=256), heads(length=256))
    run(form, heads(length=5), heads(length=256), heads(length=256), fused=None)


def added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.transpose(2, 3) * 0.1 + mask).softmax(-1) @ v


def added_in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3)
    scores *= 0.1
    scores += mask
    return scores.softmax(-1) @ v


def mask_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(mask + q @ k.transpose(2, 3), -1) @ v


@pytest.mark.parametrize("form", [added, added_in_place, mask_first])
@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_added_mask(form: Callable[..., Tensor], lowest: float) -> None:
    q, k, v = heads(), heads(), heads()
    for shape in [(BATCH, 1, LENGTH, LENGTH), (BATCH, 1, 1, LENGTH), (LENGTH, LENGTH), (1, HEADS, LENGTH, LENGTH)]:
        mask = torch.zeros(shape).masked_fill(torch.rand(shape) < 0.3, lowest)
        run(form, q, k, v, mask)
    run(form, q, k, v, torch.randn(LENGTH, LENGTH).t())
    run(form, q, k, v, torch.randn(BATCH, 1, LENGTH, 1))
    run(form, q, k, v, torch.randn(LENGTH).expand(LENGTH, LENGTH))


@pytest.mark.parametrize("lowest", some([-math.inf, torch.finfo(torch.float32).min, -1e9, -1e4], every=2))
def test_filled(lowest: float) -> None:
    def masked_fill(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.transpose(2, 3) * 0.1).masked_fill(mask == 0, lowest).softmax(-1) @ v

    def where(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(2, 3) / 7
        return torch.where(mask, scores, torch.full([], lowest)).softmax(-1) @ v

    def where_not(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.where(~mask, lowest, q @ k.transpose(2, 3)).softmax(-1) @ v

    q, k, v = heads(), heads(), heads()
    for form in (masked_fill, where, where_not):
        run(form, q, k, v, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        run(form, q, k, v, torch.rand(BATCH, 1, 1, LENGTH) < 0.5)
        # Rows without a key: NaN, or the mean of all values.
        run(form, q, k, v, torch.rand(BATCH, 1, LENGTH, 1) < 0.5)
        run(form, q * 1e6, k, v, torch.rand(BATCH, HEADS, LENGTH, LENGTH) < 0.5)


def test_alibi() -> None:
    def form(q: Tensor, k: Tensor, v: Tensor, alibi: Tensor) -> Tensor:
        batch, count, length, size = q.shape
        q, k, v = (x.reshape(batch * count, length, size) for x in (q, k, v))
        scores = torch.baddbmm(alibi, q, k.transpose(1, 2), beta=1.0, alpha=0.1).view(batch, count, length, length)
        weights = scores.softmax(-1).view(batch * count, length, length)
        return torch.bmm(weights, v).view(batch, count, length, size)

    q, k, v = heads(), heads(), heads()
    run(form, q, k, v, torch.randn(BATCH * HEADS, 1, LENGTH))
    run(form, q, k, v, torch.randn(1, LENGTH, LENGTH))


def test_keys_of_several_heads() -> None:
    def form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def repeat(x: Tensor) -> Tensor:
            batch, count, length, size = x.shape
            return x[:, :, None].expand(batch, count, HEADS // count, length, size).reshape(batch, HEADS, length, size)

        return (q @ repeat(k).transpose(2, 3) * 0.1).softmax(-1) @ repeat(v)

    run(form, heads(length=512), heads(count=2, length=512), heads(count=2, length=512))


def test_layers_share_a_mask() -> None:
    def form(x: Tensor, mask: Tensor) -> Tensor:
        for _ in range(3):
            x = (x @ x.transpose(2, 3) * 0.05).masked_fill(mask, -math.inf).softmax(-1) @ x
        return x

    run(form, heads(), torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1))


def hostile_numbers() -> dict[str, Callable[[Tensor, Tensor, Tensor], None]]:
    def put(which: int, number: float, where: Any) -> Callable[..., None]:
        def change(*tensors: Tensor) -> None:
            tensors[which][where] = number

        return change

    rows = {}
    for number in (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e30, 1e-40, -0.0):
        for which, name in enumerate("qkv"):
            rows[f"one {name} {number}"] = put(which, number, (1, 2, 3, 4))
            rows[f"last {name} {number}"] = put(which, number, (-1, -1, -1, -1))
            rows[f"row of {name} {number}"] = put(which, number, (1, 2, 3))
            rows[f"column of {name} {number}"] = put(which, number, (1, 2, slice(None), 3))
    return rows


HOSTILE = hostile_numbers()


@pytest.mark.parametrize("name", some(HOSTILE, every=5))  # which meets each number, operand and place
def test_hostile_numbers(name: str) -> None:
    """What the kernel would do otherwise: NaN lost in its exp, rows of -infinity as zeros, sums that overflow."""
    q, k, v = heads(), heads(), heads()
    HOSTILE[name](q, k, v)
    run(plain, q, k, v)
    run(added, q, k, v, torch.zeros(LENGTH, LENGTH).masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -math.inf))


def test_values_whose_sum_overflows() -> None:
    run(plain, heads(), heads(), torch.full((BATCH, LENGTH, HEADS, SIZE), 3e38).transpose(1, 2))


def test_scores_of_minus_infinity() -> None:
    """Without any mask: all keys against an infinite query."""
    q, k, v = heads(), heads().abs(), heads()
    q[0, 0, 0] = -math.inf
    q[1, 1, 1] = -3e38
    run(plain, q, k * 100, v)


def test_not_for_the_operator() -> None:
    q, k, v = heads(), heads(), heads()
    # The weights leave, or are read twice.
    run(lambda q, k, v: (w := (q @ k.mT).softmax(-1), w @ v), q, k, v, fused=False)
    run(lambda q, k, v: (s := q @ k.mT, s.softmax(-1) @ v)[1] + s.sum(), q, k, v, fused=False)
    # A mask that is scaled, two masks, a softmax over queries, other sizes of values, a score that counts.
    run(lambda q, k, v: ((q @ k.mT + 1) * 0.1).softmax(-1) @ v, q, k, v, fused=False)
    run(lambda q, k, v, m: ((q @ k.mT + m) * 0.1).softmax(-1) @ v, q, k, v, torch.randn(LENGTH), fused=False)
    run(lambda q, k, v, m: (q @ k.mT + m + m).softmax(-1) @ v, q, k, v, torch.randn(LENGTH), fused=False)
    run(lambda q, k, v: (q @ k.mT).softmax(-2) @ v, q, k, v, fused=False)
    run(lambda q, k, v: (q @ k.mT).softmax(-1) @ v[..., :64], q, k, v, fused=False)
    run(
        lambda q, k, v, m: (q @ k.mT).masked_fill(m, -5.0).softmax(-1) @ v,
        q,
        k,
        v,
        torch.rand(LENGTH) < 0.5,
        fused=False,
    )
    # Small, or rounded by each operator.
    run(plain, heads(1, 4), heads(1, 4), heads(1, 4), fused=False)
    run(plain, q.double(), k.double(), v.double(), fused=False)


def test_a_mask_of_blocks() -> None:
    """Its sizes could be those of heads, queries and keys, but are others."""

    def form(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT).view(BATCH * HEADS, HEADS, LENGTH // HEADS, LENGTH) + mask
        return scores.softmax(-1).view(BATCH, HEADS, LENGTH, LENGTH) @ v

    run(form, heads(), heads(), heads(), torch.randn(HEADS, 1, LENGTH), fused=False)
    run(form, heads(), heads(), heads(), torch.randn(1, HEADS, 1, LENGTH), fused=False)


def test_no_keys_and_no_queries() -> None:
    for queries, keys in ((0, 4), (4, 0), (0, 0)):
        run(plain, heads(length=queries), heads(length=keys), heads(length=keys), fused=False)
