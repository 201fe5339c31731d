"""Programs that raise behind writes leave the state that eager leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import magneto


def margin(x: torch.Tensor, w: torch.Tensor) -> Any:
    return F.multi_margin_loss(x, torch.tensor([0, 9, 0, 0]))


def put(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x.put(torch.tensor([99]), torch.ones(1))


def histogram(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch.histogram(x * float("nan"), 4)


def two_dimensions(x: torch.Tensor, w: torch.Tensor) -> Any:
    i = torch.tensor([3])
    y = x[i]
    w.add_(1)
    return y.sum() + x.t()[:, i].sum() + x[:, i].sum()


RAISING: list[Callable[..., Any]] = [margin, put, histogram, two_dimensions]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("write", ["add", "norm", "random"])
@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("raising", RAISING)
def test_state_after_an_error(raising: Callable[..., Any], handled: bool, write: str, backend: str) -> None:
    def run(compiled: bool) -> tuple[Any, ...]:
        torch.manual_seed(0)
        x, w, norm = torch.ones(4, 3), torch.zeros(3), torch.nn.BatchNorm1d(3)

        def program(x: torch.Tensor, w: torch.Tensor) -> Any:
            if write == "norm":
                norm(x + w)
            elif write == "random":
                w.add_(torch.rand(3))
            else:
                w.add_(1)
            if not handled:
                return raising(x, w)
            try:
                return raising(x, w)
            except (RuntimeError, IndexError):
                return w.add_(2)

        options = {} if backend == "default" else {"backend": backend}
        f = magneto.compile(program, **options) if compiled else program
        try:
            f(x, w)
            error = None
        except (RuntimeError, IndexError) as e:
            error = type(e)
        return error, w, norm.running_mean, norm.running_var, norm.num_batches_tracked, torch.get_rng_state()

    expected, got = run(False), run(True)
    assert got[0] is expected[0]
    for ours, eagers in zip(got[1:], expected[1:], strict=True):
        assert torch.equal(ours, eagers)
