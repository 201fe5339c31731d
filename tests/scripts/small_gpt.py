"""A small GPT in the spelling that many repositories share, with its own sampling loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        parts = self.qkv(self.norm1(x)).split(C, 2)
        q, k, v = [part.view(B, T, self.heads, C // self.heads).transpose(1, 2) for part in parts]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    context = 64

    def __init__(self, vocabulary: int = 50, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(self.context, width)
        self.blocks = nn.ModuleList([Block(width, 4) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, ids: Tensor, count: int, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
        for _ in range(count):
            logits, _ = self(ids[:, -self.context :])
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                values, _ = torch.topk(logits, min(top_k, logits.size(-1)))
                logits[logits < values[:, [-1]]] = -float("inf")
            ids = torch.cat((ids, torch.multinomial(F.softmax(logits, -1), 1)), 1)
        return ids
