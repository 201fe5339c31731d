"""Training steps as people write them, whole: results, weights, gradients and their versions as eager's, and the exits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import Tensor, nn

import magneto

pytestmark = [pytest.mark.lenient, pytest.mark.filterwarnings("ignore")]

Step = Callable[[], Any]
Loop = tuple[Step, list[Any]]  # and what it works on: modules, optimizers, tensors


@dataclasses.dataclass
class Row:
    make: Callable[[], Loop]
    exits: int  # in three steps


TABLE: dict[str, Row] = {}


def loop(exits: int = 0) -> Any:
    def add(make: Callable[[], Loop]) -> Callable[[], Loop]:
        TABLE[make.__name__] = Row(make, exits)
        return make

    return add


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# -- norms of weights that hooks compute -------------------------------------------------------------------------------


@loop()
def recurrent_with_weight_norm() -> Loop:
    layer = nn.utils.weight_norm(nn.GRU(6, 5, num_layers=2), "weight_hh_l0")
    optimizer = torch.optim.Adam(layer.parameters())
    return lambda: descend(optimizer, layer(torch.randn(4, 2, 6))[0].square().mean()), [layer, optimizer]


@loop()
def recurrent_with_all_weights_normed() -> Loop:
    layer = nn.LSTM(6, 5)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        nn.utils.weight_norm(layer, name)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    return lambda: descend(optimizer, layer(torch.randn(4, 2, 6))[0].square().mean()), [layer, optimizer]


# ----------------------------------------------------------------------------------------------------------------------


def state_of(thing: Any) -> Any:
    if isinstance(thing, nn.Module):
        return [state_of(tensor) for tensor in thing.state_dict(keep_vars=True).values()]
    if isinstance(thing, torch.optim.Optimizer):
        return [
            [
                value.clone() if isinstance(value, Tensor) else value
                for value in state.values()
                if isinstance(value, (Tensor, int, float))
            ]
            for state in thing.state.values()
        ]
    if isinstance(thing, Tensor):
        gradient = None if thing.grad is None else (thing.grad.clone(), thing.grad.stride(), thing.grad.requires_grad)
        return thing.detach().clone(), gradient, thing._version, thing.requires_grad, thing.is_leaf
    return list(thing)


def run(make: Callable[[], Loop], wrap: Callable[[Step], Step]) -> list[Any]:
    torch.manual_seed(0)
    step, things = make()
    step = wrap(step)
    return [(step(), [state_of(thing) for thing in things], torch.rand(1)) for _ in range(3)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", TABLE)
def test_as_eager(name: str, backend: str) -> None:
    want = run(TABLE[name].make, lambda step: step)
    got = run(TABLE[name].make, lambda step: magneto.compile(step, backend=backend))
    assert_same(got, want)
    assert magneto.stats()["breaks"] == TABLE[name].exits, magneto.stats()["break_reasons"]
