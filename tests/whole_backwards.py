"""Programs that run in eager, and with their functions compiled and their backwards captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from magneto._install import compiled_autograd

Compile = Callable[..., Any]
Seen = list[Any]
Program = Callable[[Compile, Seen], None]


def identity(function: Any, **_: Any) -> Any:
    return function


def run(program: Program, compile: Compile = identity, captured: bool = False, compiler: Any = None) -> Seen:
    torch.manual_seed(0)
    seen: Seen = []
    with compiled_autograd._block(compiler) if captured else contextlib.nullcontext():
        program(compile, seen)
    return seen


def compare(got: Seen, want: Seen) -> None:
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
        else:
            assert one == other


def network() -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    return nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)


def gradients(*modules: nn.Module) -> list[Tensor | None]:
    return [p.grad for module in modules for p in module.parameters()]
