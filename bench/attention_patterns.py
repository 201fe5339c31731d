"""FlexAttention whose steady state is measured: score and mask functions over lengths, 8 heads of 64. `make bench
ARGS="--only attention_patterns"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.attention.flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

Function = Callable[..., Any]
HEADS, WIDTH, WINDOW = 8, 64, 256


def _kinds(length: int) -> dict[str, tuple[Function | None, Function | None]]:
    slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
    document = torch.arange(length) // (length // 8)
    causal: Function = lambda b, h, i, j: i >= j  # noqa: E731
    return {
        "causal": (None, causal),
        f"window of {WINDOW}": (None, lambda b, h, i, j: (i >= j) & (i - j < WINDOW)),
        "8 documents": (None, lambda b, h, i, j: (i >= j) & (document[i] == document[j])),
        "alibi": (lambda score, b, h, i, j: score - slopes[h] * (i - j), causal),
    }


def patterns() -> dict[str, tuple[Function, tuple[Any, ...]]]:
    torch.manual_seed(0)
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # eager is eager, and not the peer with another backend
    found: dict[str, tuple[Function, tuple[Any, ...]]] = {}
    for name, length in (*(("causal", n) for n in (1024, 2048, 4096)), *((kind, 4096) for kind in _kinds(8))):
        if f"{name} {length}" in found:
            continue
        score, mask = _kinds(length)[name]
        tensors = tuple(torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
        blocks = mask and create_block_mask(mask, None, None, length, length, device="cpu")

        def function(q: Any, k: Any, v: Any, score: Any = score, blocks: Any = blocks) -> Any:
            return flex_attention(q, k, v, score_mod=score, block_mask=blocks)

        found[f"{name} {length}"] = (function, tensors)
    return found
