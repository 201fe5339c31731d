"""A training step with a torch.amp.GradScaler is one graph; steps with gradients that are no numbers are skipped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch import Tensor, nn

import magneto
from magneto import _aot

TABLE = ProgramTable()
TURNS = 8


class State:
    def __init__(self, enabled: bool = True) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.other = nn.Linear(4, 1)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.other_opt = torch.optim.SGD(self.other.parameters(), lr=0.1, momentum=0.9, foreach=False)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, enabled=enabled)

    def all(self) -> Any:
        tensors = [*self.net.parameters(), *self.other.parameters(), *self.net.buffers()]
        states = [self.opt.state_dict(), self.other_opt.state_dict(), self.scaler.state_dict()]
        gradients = [p.grad for p in self.net.parameters()]
        return copy.deepcopy([[t.detach() for t in tensors], gradients, states])


@TABLE
def plain(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    loss = s.net(x).square().mean()
    s.scaler.scale(loss).backward()
    s.scaler.step(s.opt)
    s.scaler.update()
    return loss.detach(), torch.rand(2)


@TABLE
def clipped(s: State, x: Tensor) -> Any:
    s.opt.zero_grad(set_to_none=False)
    loss = s.net(x).square().mean()
    s.scaler.scale(loss).backward()
    s.scaler.unscale_(s.opt)
    norm = nn.utils.clip_grad_norm_(s.net.parameters(), 0.1)
    given = s.scaler.step(s.opt)
    s.scaler.update()
    return loss.detach(), norm, given


@TABLE
def two_optimizers(s: State, x: Tensor) -> Any:
    for opt in (s.opt, s.other_opt):
        opt.zero_grad()
    losses = s.scaler.scale([s.net(x).square().mean(), s.other(x[1:]).square().mean()])
    for loss in losses:
        loss.backward()
    s.scaler.unscale_(s.other_opt)
    s.scaler.step(s.opt)
    s.scaler.step(s.other_opt)
    s.scaler.update()
    return [loss.detach() for loss in losses]


@TABLE
def writes_around(s: State, x: Tensor) -> Any:
    """What stands in front of the check, and behind it, is undone where the step is skipped."""
    x.mul_(2)
    plain(s, x)
    x.add_(1)
    s.other.weight.data.mul_(0.9)
    return x.sum()


def numbers(turn: int, bad: tuple[int, ...]) -> Tensor:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(turn))
    if turn in bad:
        x[0] = torch.inf
    return x


def trained(program: Callable[..., Any], bad: tuple[int, ...], enabled: bool = True) -> list[Any]:
    state, seen = State(enabled), []
    for turn in range(TURNS):
        x = numbers(turn, bad)
        seen += [program(state, x), x, state.all()]
    return seen


@pytest.mark.parametrize("bad", [(), (0,), (3,), (0, 1, 3, 4, 5, 6)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", TABLE)
def test_one_graph(name: str, backend: str, bad: tuple[int, ...]) -> None:
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=True)
    assert_same(trained(compiled, bad), trained(TABLE[name], bad))
    assert magneto.stats()["breaks"] == 0 and magneto.stats()["frames"] <= 3
    assert sum(magneto.stats()["undone"].values()) == len(bad)


@pytest.mark.parametrize("name", TABLE)
def test_a_scaler_that_is_off(name: str) -> None:
    compiled = magneto.compile(TABLE[name], fullgraph=True)
    assert_same(trained(compiled, (), enabled=False), trained(TABLE[name], (), enabled=False))
    assert not magneto.stats()["undone"]


def test_the_scale_is_read() -> None:
    """A side exit for each question; the step itself is asked for none."""

    def program(s: State, x: Tensor) -> Any:
        before = s.scaler.get_scale()
        plain(s, x)
        return before, s.scaler.get_scale() < before

    assert_same(trained(magneto.compile(program), (2, 5)), trained(program, (2, 5)))
    assert "_maybe_opt_step" not in str(magneto.stats())


def test_an_optimizer_that_asks_for_data_is_no_scaler() -> None:
    class Careful(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if self.param_groups[0]["params"][0].grad.sum().item():
                return super().step(closure)
            return None

    def trained_carefully(wrap: Callable[[Any], Any]) -> list[Any]:
        state = State()
        state.opt = Careful(state.net.parameters(), lr=0.1)  # type: ignore[assignment]
        program = wrap(plain)
        return [[program(state, numbers(turn, ())), state.all()] for turn in range(4)]

    assert_same(trained_carefully(magneto.compile), trained_carefully(lambda program: program))
    assert not magneto.stats()["undone"] and magneto.stats()["breaks"]


@pytest.mark.parametrize("bad", [(), (1,)])
@pytest.mark.parametrize("name", TABLE)
def test_compilers_of_the_users_own(name: str, bad: tuple[int, ...]) -> None:
    """Their graphs read what the check gives as it gives that: a list, and a tensor beside it."""
    compiled = magneto.compile(TABLE[name], backend=_aot.aot_autograd(fw_compiler=_aot.nop))
    assert_same(trained(compiled, bad), trained(TABLE[name], bad))
