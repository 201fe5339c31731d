"""`if self.steps > 0:` of what a module has noted in a buffer is no side exit: each run checks what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import magneto

Tensor = torch.Tensor


class Noting(nn.Module):
    """Subclasses say what is noted, and what is asked."""

    start: Any = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(self.start))
        self.register_buffer("scale", torch.ones(3))


class Initialised(Noting):
    start = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.steps:
            self.scale.copy_(x.abs().mean(0))
            self.steps.fill_(True)
        return x / self.scale


class InitialisedAsFloat(Initialised):
    start = 0.0


class WarmsUp(Noting):
    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.scale


class Counts(Noting):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 if self.steps > 3 else x * self.scale
        self.steps += 1
        return y


class EveryThird(Noting):
    def forward(self, x: Tensor) -> Tensor:
        if self.steps % 3 == 0:
            self.scale.lerp_(x.mean(0), 0.5)
        self.steps += 1
        return x - self.scale


class AsksWhatItWrote(Noting):
    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        if self.steps > 2:
            return x * 3
        return x + self.scale


class AsksTheData(Noting):
    """This is another matter."""

    def forward(self, x: Tensor) -> Tensor:
        if (x.sum() * self.steps) > 0:
            return x * 3
        return x + self.scale


def outcome(compiled: Callable[[Any], Any], kind: type[Noting]) -> list[Any]:
    torch.manual_seed(0)
    module, found = kind(), []
    run = compiled(module)
    for turn in range(12):
        found += [run(torch.randn(4, 3) + turn % 2), module.steps.clone(), module.scale.clone()]
        if turn == 8:
            module.steps.zero_()
    return found


KINDS = [Initialised, InitialisedAsFloat, WarmsUp, Counts, EveryThird, AsksWhatItWrote, AsksTheData]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("kind", KINDS)
def test_as_eager(kind: type[Noting], backend: str) -> None:
    want = outcome(lambda module: module, kind)
    assert_same(outcome(lambda module: magneto.compile(module, backend=backend), kind), want)
    assert magneto.stats()["breaks"] == 0


AVERAGES = {
    "ema": lambda net: AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "swa": AveragedModel,
    "function": lambda net: AveragedModel(net, avg_fn=lambda a, b, n: 0.9 * a + 0.1 * b * (n > 0), use_buffers=True),
}


def averaged(compiled: Callable[[Any], Any], average: Callable[[nn.Module], AveragedModel]) -> list[Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer, kept = torch.optim.AdamW(net.parameters(), 1e-2), average(net)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        kept.update_parameters(net)
        return loss.detach()

    run = compiled(step)
    losses = [run(torch.randn(5, 3)) for _ in range(5)]
    return [*losses, *kept.parameters(), *kept.buffers()]


@pytest.mark.parametrize("name", AVERAGES)
def test_a_step_with_an_average_is_one_graph(name: str) -> None:
    want = averaged(lambda step: step, AVERAGES[name])
    got = averaged(magneto.compile, AVERAGES[name])
    torch.testing.assert_close(got, want)
    stats = magneto.stats()
    # None yet; one by its value; whatever it is by then.
    assert (stats["breaks"], stats["graphs"], stats["no_joint"], stats["undone"]) == (0, 3, {}, {})


def test_without_exits_it_is_captured_anew_once() -> None:
    torch.manual_seed(0)
    module, same = InitialisedAsFloat(), InitialisedAsFloat()
    compiled = magneto.compile(module, fullgraph=True)
    for _ in range(6):
        x = torch.randn(4, 3)
        assert_same([compiled(x), *module.buffers()], [same(x), *same.buffers()])
    stats = magneto.stats()
    assert (stats["graphs"], sum(stats["undone"].values()), stats["breaks"]) == (2, 1, 0)
