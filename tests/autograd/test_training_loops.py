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


@loop()
def normed_weights_used_twice() -> Loop:
    layer = nn.utils.weight_norm(nn.LSTM(6, 5, bidirectional=True), "weight_hh_l0_reverse")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)

    def step() -> Any:
        loss = descend(optimizer, layer(torch.randn(4, 2, 6))[0].square().mean())
        with torch.no_grad():
            return loss, layer(torch.randn(4, 2, 6))[0]

    return step, [layer, optimizer]


# -- leaves made inside --------------------------------------------------------------------------------------------------


@loop()
def samples_of_an_energy() -> Loop:
    energy = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(energy.parameters(), 0.1)

    def step() -> Any:
        x = torch.rand(4, 6).requires_grad_()
        for _ in range(3):
            x.grad = None
            energy(x).sum().backward()
            x.data.add_(x.grad, alpha=-0.1).clamp_(0, 1)
        seen = x.grad
        x.grad = None
        return descend(optimizer, energy(torch.rand(4, 6)).mean() - energy(x.detach()).mean()), seen, x.grad is None

    return step, [energy, optimizer]


@loop()
def cleared_and_handed_on() -> Loop:
    weight = nn.Parameter(torch.ones(3))

    def step() -> Any:
        x = torch.rand(3).requires_grad_()
        (weight * x).sum().backward()
        x.grad = None
        y = x.detach() * 2
        torch.sum(y * weight).backward()
        return y, x.grad

    return step, [weight]


# -- backwards that take gradients themselves ---------------------------------------------------------------------------


def tanh_net(size: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, size))


class Checkpointed(torch.autograd.Function):
    """Computed again in the backward, as written by hand."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor, *weights: Tensor) -> Tensor:  # type: ignore[override]
        ctx.run, ctx.weights = run, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, (x, *ctx.weights), gradient)


class Equilibrium(torch.autograd.Function):
    """A fixed point, whose gradient is a fixed point itself."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, given: Tensor, *weights: Tensor) -> Tensor:  # type: ignore[override]
        z = torch.zeros_like(given)
        for _ in range(5):
            z = torch.tanh(0.3 * layer(z) + given)
        ctx.layer, ctx.weights = layer, weights
        ctx.save_for_backward(z, given)
        return z

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        z, given = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            y = torch.tanh(0.3 * ctx.layer(z) + given)
        solved = gradient
        for _ in range(3):
            solved = torch.autograd.grad(y, z, solved, retain_graph=True)[0] + gradient
        return None, *torch.autograd.grad(y, (given, *ctx.weights), solved)


class Reversible(torch.autograd.Function):
    """Keeps its results alone, and computes what it was given of these."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, f: nn.Module, g: nn.Module, *weights: Tensor) -> Any:  # type: ignore[override]
        a = a + f(b)
        b = b + g(a)
        ctx.f, ctx.g = f, g
        ctx.save_for_backward(a.detach(), b.detach())
        return a, b

    @staticmethod
    def backward(ctx: Any, of_a: Tensor, of_b: Tensor) -> Any:  # type: ignore[override]
        a, b = ctx.saved_tensors
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            made = ctx.g(a)
            through_g = torch.autograd.grad(made, (a, *ctx.g.parameters()), of_b)
        of_a = of_a + through_g[0]
        with torch.enable_grad():
            b = (b - made.detach()).requires_grad_()
            through_f = torch.autograd.grad(ctx.f(b), (b, *ctx.f.parameters()), of_a)
        return of_a, of_b + through_f[0], None, None, *through_f[1:], *through_g[1:]


@loop()
def checkpoints_by_hand() -> Loop:
    blocks = nn.ModuleList(tanh_net() for _ in range(3))
    optimizer = torch.optim.SGD(blocks.parameters(), 0.1)

    def step() -> Tensor:
        x = torch.randn(4, 6)
        for block in blocks:
            x = Checkpointed.apply(block, x, *block.parameters())
        return descend(optimizer, x.square().mean())

    return step, [blocks, optimizer]


@loop()
def implicit_layer() -> Loop:
    first, layer = nn.Linear(6, 6), nn.Linear(6, 6)
    optimizer = torch.optim.Adam([*first.parameters(), *layer.parameters()])

    def step() -> Tensor:
        return descend(
            optimizer, Equilibrium.apply(layer, first(torch.randn(4, 6)), *layer.parameters()).square().mean()
        )

    return step, [first, layer, optimizer]


@loop()
def reversible_layers() -> Loop:
    first, f, g = nn.Linear(6, 6), tanh_net(3), tanh_net(3)
    weights = [*f.parameters(), *g.parameters()]
    optimizer = torch.optim.Adam([*first.parameters(), *weights])

    def step() -> Tensor:
        a, b = first(torch.randn(4, 6)).chunk(2, 1)
        a, b = Reversible.apply(a, b, f, g, *weights)
        return descend(optimizer, (a * b).square().mean())

    return step, [first, f, g, optimizer]


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
