"""The patterns whose steady state is measured: small programs that fusion is for. A function and arguments each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Pattern = tuple[Callable[..., Any], tuple[Any, ...]]


def _rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = q.shape[-1] // 2
    return q * cos + torch.cat((-q[..., half:], q[..., :half]), -1) * sin


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def _sample(logits: torch.Tensor) -> torch.Tensor:
    values, tokens = torch.topk(logits / 0.8, 50)
    chosen = torch.multinomial(torch.softmax(values, -1), 1)
    return tokens.gather(-1, chosen)


def _many(step: Callable[..., None], count: int) -> Callable[..., None]:
    def run(*tensors: torch.Tensor) -> None:
        for index in range(count):
            step(*tensors[4 * index : 4 * index + 4])

    return run


def patterns() -> dict[str, Pattern]:
    torch.manual_seed(0)
    x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)
    w, b = torch.randn(1024), torch.randn(1024)
    target = torch.randint(0, 1024, (1024,))
    statistics = (torch.randn(64), torch.rand(64), torch.randn(64), torch.randn(64))
    positions = torch.randn(512, 64)
    adam = tuple(torch.rand(256, 256) for _ in range(24))
    return {
        "gelu chain": (lambda x: F.gelu(x * 1.5 + 0.5) * x + 1, (x,)),
        "rms norm": (lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, (x, w)),
        "layer norm + residual": (lambda x, y, w, b: F.layer_norm(x + y, (1024,), w, b), (x, y, w, b)),
        "masked softmax": (lambda x, m: torch.softmax(x.masked_fill(m, -1e9), -1), (x, y > 0)),
        "softmax": (lambda x: torch.softmax(x, -1), (x,)),
        "cross entropy": (F.cross_entropy, (x, target)),
        "SwiGLU": (lambda x, y: F.silu(x) * y, (x, y)),
        "rotary embedding": (_rope, (torch.randn(1, 8, 512, 64), positions, positions)),
        "Adam, six parameters": (_many(_adam, 6), adam),
        "several reductions": (lambda x: (x.sum(-1), x.amax(-1), (x * x).mean(-1)), (x,)),
        "transposed add": (lambda x, y: x.t() + y, (x, y)),
        "batch norm + relu": (
            lambda x, mean, var, w, b: F.relu(F.batch_norm(x, mean, var, w, b)),
            (torch.randn(8, 64, 56, 56), *statistics),
        ),
        "embedding, summed": (
            lambda table, rows: F.embedding(rows, table).sum(1),
            (x, torch.randint(0, 1024, (256, 16))),
        ),
        "embedding bag": (lambda table, rows: F.embedding_bag(rows, table), (x, torch.randint(0, 1024, (256, 16)))),
        "top-k sampling": (_sample, (torch.randn(8, 32000),)),
    }
