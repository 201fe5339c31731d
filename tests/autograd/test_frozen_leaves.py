"""`requires_grad_(False)` of parameters, and back, in a function that makes a whole training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch import Tensor, nn

import magneto

TABLE = ProgramTable()
EXITS = ProgramTable()


class State:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        self.judge = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.judge_opt = torch.optim.Adam(self.judge.parameters(), lr=0.01)

    def parameters(self) -> list[Tensor]:
        return [*self.net.parameters(), *self.judge.parameters()]


@TABLE
def adversaries(s: State, x: Tensor) -> Any:
    s.judge_opt.zero_grad()
    d_loss = nn.functional.softplus(s.judge(s.net(x).detach()) - s.judge(x)).mean()
    d_loss.backward()
    s.judge_opt.step()
    s.judge.requires_grad_(False)
    s.opt.zero_grad()
    g_loss = -s.judge(s.net(x)).mean()
    g_loss.backward()
    s.opt.step()
    s.judge.requires_grad_(True)
    return d_loss.detach(), g_loss.detach()


@TABLE
def by_the_attribute(s: State, x: Tensor) -> Any:
    for p in s.judge.parameters():
        p.requires_grad = False
    s.judge(s.net(x)).mean().backward()
    for p in s.judge.parameters():
        p.requires_grad = True
    return s.judge[0].weight.requires_grad


@TABLE
def is_said_inside(s: State, x: Tensor) -> Any:
    w = s.judge[0].weight
    w.requires_grad_(False)
    given = (w * 2).requires_grad, w.requires_grad, s.judge(x).requires_grad
    w.requires_grad_()
    return given, (w * 2).requires_grad


@TABLE
def result_of_frozen_ones(s: State, x: Tensor) -> Any:
    """What is computed in between has no gradient for them, also later."""
    s.judge.requires_grad_(False)
    y = s.judge(s.net(x))
    s.judge.requires_grad_(True)
    return y, s.judge(y.detach().expand(-1, 4))


@TABLE
def twice(s: State, x: Tensor) -> Any:
    for layer in (s.judge, s.net):
        layer.requires_grad_(False)
        (s.judge(s.net(x)) * 2).sum().backward()
        layer.requires_grad_(True)


@EXITS
def left_frozen(s: State, x: Tensor) -> Any:
    s.judge.requires_grad_(False)
    y = s.judge(s.net(x))
    y.sum().backward()
    return y


@EXITS
def thawed(s: State, x: Tensor) -> Any:
    s.judge[2].weight.requires_grad_(True)
    y = s.judge(s.net(x))
    y.sum().backward()
    s.judge[2].weight.requires_grad_(False)
    return s.judge[2].weight.requires_grad


@EXITS
def computed_before(s: State, x: Tensor) -> Any:
    """Its gradient does not come to what is frozen when the backward runs."""
    loss = s.judge(s.net(x)).mean()
    s.judge.requires_grad_(False)
    loss.backward()
    s.judge.requires_grad_(True)


@EXITS
def read_in_between(s: State, x: Tensor) -> Any:
    s.judge.requires_grad_(False)
    loss = s.judge(s.net(x)).mean()
    value = loss.item()
    loss.backward()
    s.judge.requires_grad_(True)
    return loss.detach() * (2 if value > 0 else 3)


@EXITS
def that_raises(s: State, x: Tensor) -> Any:
    """What was frozen stays so."""
    s.judge.requires_grad_(False)
    y = s.net(x)
    z = y @ y
    s.judge.requires_grad_(True)
    return z


@EXITS
def asked_for_a_frozen_one(s: State, x: Tensor) -> Any:
    s.judge.requires_grad_(False)
    given = torch.autograd.grad(s.judge(s.net(x)).sum(), s.judge[0].weight)
    s.judge.requires_grad_(True)
    return given


def outcome(program: Callable[..., Any], name: str) -> Any:
    s = State()
    if name == "thawed":
        s.judge[2].weight.requires_grad_(False)
    found: list[Any] = []
    for seed in range(4):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).double()
        try:
            given = program(s, x)
        except RuntimeError as error:
            found.append(str(error))
            given = None
        for result in given if isinstance(given, tuple) else (given,):
            if isinstance(result, Tensor) and result.requires_grad:
                found.append(result.detach())
                try:
                    result.sum().backward()
                except RuntimeError as error:
                    found.append(str(error))
            elif not isinstance(result, Tensor):
                found.append(result)
        found.append([(p.detach().clone(), p.requires_grad) for p in s.parameters()])
        found.append([p.grad if p.grad is None else p.grad.clone() for p in s.parameters()])
    return found


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("name", TABLE)
def test_one_graph(name: str, backend: str) -> None:
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=True)
    assert_same(outcome(compiled, name), outcome(TABLE[name], name))
    assert magneto.stats()["frames"] <= 3 and not magneto.stats()["no_joint"]


@pytest.mark.lenient
@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("name", EXITS)
def test_cpython_runs_what_is_none(name: str, backend: str) -> None:
    assert_same(outcome(magneto.compile(EXITS[name], backend=backend), name), outcome(EXITS[name], name))
    assert magneto.stats()["breaks"] or name == "that_raises"
