"""Operators that take a plain number, given one that follows from a size, under autograd and under transforms.

Captures call operators of ours there, that take sizes and have no derivative: where one is needed they must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto

Program = Callable[[torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "max_pool1d": lambda x: F.max_pool1d(x, x.size(2)),
    "avg_pool1d": lambda x: F.avg_pool1d(x, x.size(2)),
    "max_pool2d": lambda x: F.max_pool2d(x[None], (1, x.size(2))),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], (1, x.size(2) // 2)),
    "max_pool1d with indices": lambda x: F.max_pool1d(x, x.size(2) // 2, return_indices=True)[0],
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, x.size(2) // 2),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, x.size(2) // 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (2, x.size(2) // 2)),
    "im2col": lambda x: F.unfold(x[None], (1, x.size(2) // 2)),
    "col2im": lambda x: F.fold(x.reshape(1, -1, x.size(2)), (1, x.size(2)), (1, 1)),
    "group_norm": lambda x: F.group_norm(x, x.size(1) // 2),
    "lp_pool1d": lambda x: F.lp_pool1d(x.abs() + 1, 2, x.size(2) // 2),
    "hann_window": lambda x: (x * torch.hann_window(x.size(2))).sum(-1),
    "topk": lambda x: x.topk(x.size(2) // 2, 2)[0],
    "element": lambda x: x[:, torch.arange(3)[2]],
    "local_response_norm": lambda x: F.local_response_norm(x, x.size(1) // 2),
}


def backward(function: Program) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.clone().requires_grad_()
        y = function(x)
        y.square().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        return y.detach(), x.grad

    return run


TRANSFORMS: dict[str, Callable[[Program], Callable[[torch.Tensor], Any]]] = {
    "grad": lambda function: torch.func.grad(lambda x: function(x).square().sum()),
    "jvp": lambda function: lambda x: torch.func.jvp(function, (x,), (x.cos(),)),
    "vmap": lambda function: lambda x: torch.func.vmap(function)(x[None].repeat(3, 1, 1, 1)),
}


# PyTorch's forward derivative of group norm asks a wrapper of torch.func for plain sizes, and fails where there are none.
CASES = [(name, way) for name in PROGRAMS for way in ("backward", *TRANSFORMS) if (name, way) != ("group_norm", "jvp")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_as_eager(name: str, way: str) -> None:
    program = PROGRAMS[name]
    if way == "backward":
        eager, ours = backward(program), backward(magneto.compile(program, dynamic=True))
    else:
        eager, ours = TRANSFORMS[way](program), magneto.compile(TRANSFORMS[way](program), dynamic=True)
    for length in (6, 8, 10):
        x = torch.randn(4, 4, length)
        want, got = eager(x), ours(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, check_stride=True)


def test_a_gradient_inside() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos().requires_grad_()
        return torch.autograd.grad(F.max_pool1d(y, y.size(2)).square().sum(), y)[0]

    compiled = magneto.compile(program, dynamic=True)
    for length in (6, 8):
        x = torch.randn(4, 4, length)
        torch.testing.assert_close(compiled(x), program(x))
