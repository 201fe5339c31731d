"""The patterns whose forward and backward is measured: small programs that fusion is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from measuring import Function, check
from patterns import _rope


@dataclass
class Pattern:
    """A function of tensors, some of which require gradients."""

    function: Callable[..., torch.Tensor]
    arguments: tuple[torch.Tensor, ...]
    tangent: torch.Tensor
    #: It draws random numbers, which are the peer's own.
    random: bool = False

    def leaves(self) -> list[torch.Tensor]:
        return [x for x in self.arguments if x.requires_grad]

    def step(self, function: Function) -> list[torch.Tensor]:
        """Forward and backward: the result and the gradients."""
        for x in self.leaves():
            x.grad = None
        result = function(*self.arguments)
        result.backward(self.tangent)
        return [result.detach(), *(x.grad for x in self.leaves() if x.grad is not None)]

    def wide(self) -> Pattern:
        def double(x: torch.Tensor) -> torch.Tensor:
            return x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x

        return Pattern(self.function, tuple(map(double, self.arguments)), self.tangent.double())

    def check(self, name: str, compiled: Function) -> None:
        """The compiled function gives eager's result and gradients. Of a random one, which scales what it is given or
        drops it, the gradient follows from the result."""
        if not self.random:
            check(
                name,
                lambda: self.step(compiled),
                lambda: self.step(self.function),
                (),
                {},
                self.wide().step(self.function),
            )
            return
        x, y = self.arguments
        result, gradient, _ = self.step(compiled)
        torch.testing.assert_close((result - y.detach()) * self.tangent, gradient * x.detach(), rtol=1e-3, atol=1e-4)


def patterns() -> dict[str, Pattern]:
    torch.manual_seed(0)

    def leaf(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, requires_grad=True)

    def square(function: Callable[..., torch.Tensor], *more: torch.Tensor, random: bool = False) -> Pattern:
        return Pattern(function, (leaf(1024, 1024), *more), torch.randn(1024, 1024), random)

    positions = torch.randn(512, 64)
    heads = tuple(leaf(2, 8, 256, 64) for _ in range(3))
    features = (leaf(8, 64, 56, 56), leaf(64), leaf(64), torch.zeros(64), torch.ones(64))
    rows = torch.randint(0, 1024, (256, 16))
    return {
        "layer norm": square(lambda x, w, b: F.layer_norm(x, (1024,), w, b), leaf(1024), leaf(1024)),
        "RMS norm": square(lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, leaf(1024)),
        "softmax": square(lambda x: torch.softmax(x, -1)),
        "cross entropy": Pattern(F.cross_entropy, (leaf(1024, 1024), torch.randint(0, 1024, (1024,))), torch.ones(())),
        "GELU": square(lambda x, b: F.gelu(x + b), leaf(1024)),
        "SwiGLU": square(lambda x, y: F.silu(x) * y, leaf(1024, 1024)),
        "batch norm + ReLU": Pattern(
            lambda x, w, b, mean, variance: F.relu(F.batch_norm(x, mean, variance, w, b, training=True)),
            features,
            torch.randn(8, 64, 56, 56),
        ),
        "embedding": Pattern(
            lambda table, rows: F.embedding(rows, table) * 2, (leaf(1024, 1024), rows), torch.randn(256, 16, 1024)
        ),
        "dropout + add": square(lambda x, y: F.dropout(x, 0.1) + y, leaf(1024, 1024), random=True),
        "rotary embedding": Pattern(_rope, (leaf(1, 8, 512, 64), positions, positions), torch.randn(1, 8, 512, 64)),
        "attention": Pattern(F.scaled_dot_product_attention, heads, torch.randn(2, 8, 256, 64)),
    }
