"""`x.data` shares memory with `x` and no version counter: writes through it are no reason for autograd to complain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto


def clip(w: Tensor, x: Tensor) -> Tensor:
    w.data.clamp_(-0.5, 0.5)
    return (x @ w).sin().sum()


def after(w: Tensor, x: Tensor) -> Tensor:
    """What autograd kept is read as it is then, by eager too."""
    y = x @ w
    w.data.mul_(2)
    return y.sin().sum()


def part(w: Tensor, x: Tensor) -> Tensor:
    w.data[0].fill_(0.5)
    w.data.T[1] += 1
    return (x * w).exp().sum()


def average(w: Tensor, x: Tensor) -> Tensor:
    """Of a loss, and what follows it as an exponential average does."""
    loss = (x @ w).tanh().sum()
    x.data.mul_(0.9).add_(w.data, alpha=0.1)
    return loss


def both(w: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        x.add_(1)
    x.data.add_(1)
    return (w * 2).sum()


def handed_out(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return (x @ w).sum(), w.data


def observed(function: Callable[..., object], gradients: bool) -> list[object]:
    torch.manual_seed(0)
    w, x = torch.randn(4, 4, requires_grad=gradients), torch.randn(4, 4)
    kept = w.exp() * w  # autograd has saved the weight outside, too
    out = function(w, x)
    loss, *views = out if isinstance(out, tuple) else (out,)
    for view in views:
        view.add_(1)
    versions = [w._version, x._version]
    if gradients:
        (loss + kept.sum()).backward()
    return [loss.detach(), w.detach(), x.detach(), w.grad, *views, versions]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [clip, after, part, average, both, handed_out])
def test_as_eager(program: Callable[..., object], backend: str, dynamic: bool, gradients: bool) -> None:
    expected = observed(program, gradients)
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic, fullgraph=True)
    torch.testing.assert_close(observed(compiled, gradients), expected)
    stats = magneto.stats()
    assert not stats["breaks"] and not stats["no_joint"]
