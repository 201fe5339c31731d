"""FlexAttention inside captures: score and mask functions are a part of the caller's graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
import torch.utils._pytree as pytree
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import magneto

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 96, 16
DOCUMENT = torch.arange(LENGTH) // 20
SLOPES = torch.linspace(0.1, 1, HEADS)
BIAS = torch.sin(torch.arange(float(LENGTH * LENGTH))).view(LENGTH, LENGTH)
TABLE = torch.cos(torch.arange(float(HEADS * 2 * LENGTH))).view(HEADS, 2 * LENGTH)

SCORES: dict[str, Callable[..., torch.Tensor]] = {
    "alibi": lambda s, b, h, i, j: s - SLOPES[h] * (i - j).abs(),
    "relative": lambda s, b, h, i, j: s + BIAS[i, j],
    "table": lambda s, b, h, i, j: s + TABLE[h, i - j + LENGTH],
    "soft cap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
    "causal": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
}
MASKS: dict[str, Callable[..., torch.Tensor]] = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 16),
    "documents": lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j),
    "nothing": lambda b, h, i, j: i < 0,
}


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compared with are PyTorch's operators, which its own compiler would be called for."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield
    assert "torch._inductor.compile_fx" not in sys.modules


def tensors(heads: int = HEADS, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [HEADS, heads, heads]
    return [torch.randn(BATCH, count, LENGTH, WIDTH).to(dtype) for count in shapes]


def check(function: Callable[..., Any], *args: Any) -> None:
    magneto.reset()
    with torch.no_grad():
        function(*args)  # its first call imports a part of torch, which is seen from outside
        compiled = magneto.compile(function, fullgraph=True)
        for _ in range(2):
            got, want = pytree.tree_leaves(compiled(*args)), pytree.tree_leaves(function(*args))
            for mine, own in zip(got, want, strict=True):
                assert mine.stride() == own.stride()
                tolerance = 1e-2 if own.dtype == torch.bfloat16 else 1e-5
                torch.testing.assert_close(mine, own, rtol=tolerance, atol=tolerance)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"]) == (1, 0)


@pytest.mark.parametrize("score", SCORES)
def test_scores(score: str) -> None:
    check(lambda q, k, v: flex_attention(q, k, v, score_mod=SCORES[score]), *tensors())


@pytest.mark.parametrize("given", ["closure", "argument"])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, given: str) -> None:
    blocks = create_block_mask(MASKS[mask], None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
    if given == "argument":
        check(lambda q, k, v, blocks: flex_attention(q, k, v, block_mask=blocks), *tensors(), blocks)
    else:
        score = SCORES["alibi"]
        check(lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=blocks), *tensors())


def test_a_mask_that_is_made_inside() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        blocks = create_block_mask(MASKS["causal"], None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)
        return flex_attention(q, k, v, block_mask=blocks)

    check(function, *tensors())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda q, k, v: flex_attention(q, k, v, scale=0.3), *tensors(dtype=dtype))


def test_strides_follow_the_query() -> None:
    q, k, v = tensors()
    check(flex_attention, q.transpose(1, 2).contiguous().transpose(1, 2), k, v)


def test_grouped_queries() -> None:
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), *tensors(heads=2))


def test_statistics() -> None:
    auxiliary = flex.AuxRequest(lse=True)
    check(lambda q, k, v: flex_attention(q, k, v, return_aux=auxiliary)[1].lse, *tensors())


def test_eager_s_errors() -> None:
    q, k, v = tensors()
    with pytest.raises(ValueError, match="enable_gqa"):
        magneto.compile(flex_attention)(q, k[:, :2], v[:, :2])
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        magneto.compile(flex_attention)(q.requires_grad_(), k, v)
