"""Gradients that a program sets itself: `p.grad = g` and `p.grad /= 2` are a part of the graph, each run sets them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_table import ProgramTable
from torch import Tensor, nn

import magneto

TABLE = ProgramTable()


def loss_of(net: nn.Sequential, x: Tensor) -> Tensor:
    return net(x).square().mean()


@TABLE
def step_by_grad(net: nn.Sequential, x: Tensor) -> Any:
    loss = loss_of(net, x)
    parameters = [*net.parameters()]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * parameter.grad
    return loss.detach()


@TABLE
def surgery(net: nn.Sequential, x: Tensor) -> Any:
    parameters = [*net.parameters()]
    y = net(x)
    first = torch.autograd.grad(y.square().mean(), parameters, retain_graph=True)
    second = torch.autograd.grad(y.abs().mean(), parameters)
    for parameter, a, b in zip(parameters, first, second, strict=True):
        parameter.grad = torch.where((a * b).sum() < 0, b, a + b)
        parameter.grad /= 2
    return net[0].weight.grad


@TABLE
def read_and_written_again(net: nn.Sequential, x: Tensor) -> Any:
    weight = net[0].weight
    weight.grad = None
    was_none, gradient = weight.grad is None, x.mean() * torch.ones(8, 4)
    weight.grad = gradient
    same = weight.grad is gradient
    gradient.mul_(2)
    weight.grad.add_(1)
    return was_none, same, gradient


@TABLE
def exchanged(net: nn.Sequential, x: Tensor) -> Any:
    first, last = net[0].bias, net[1].bias
    first.grad, last.grad = x.mean() * torch.ones(8), x.sum() * torch.ones(8)
    first.grad, last.grad = last.grad, first.grad
    return last.grad.sum() - first.grad.sum()


@TABLE
def one_of_two(net: nn.Sequential, x: Tensor) -> Any:
    gradient = x.mean() * torch.ones(8)
    net[0].bias.grad = net[1].bias.grad = gradient
    net[0].bias.grad += 1
    return net[1].bias.grad is gradient


@TABLE
def view(net: nn.Sequential, x: Tensor) -> Any:
    flat = torch.zeros(32) + x.mean()
    net[0].weight.grad = flat.view(8, 4)
    net[0].weight.grad[0] = 5
    return flat


@TABLE
def zeros_are_kept(net: nn.Sequential, x: Tensor) -> Any:
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter) * x.mean()
    nn.utils.clip_grad_value_(net.parameters(), 0.1)
    largest = net[0].weight.grad.max()
    net.zero_grad(set_to_none=False)
    return largest


@TABLE
def error_behind(net: nn.Sequential, x: Tensor) -> Any:
    net[0].bias.grad = x.mean() * torch.ones(8)
    raise ValueError("behind")


def outcome(program: Callable[..., Any], net: nn.Module, x: Tensor) -> Any:
    """What it gives, and what the parameters and their gradients are then."""
    try:
        given = program(net, x)
    except ValueError:
        given = None
    gradients = [parameter.grad for parameter in net.parameters()]
    shared = [a is b for a in gradients for b in gradients]
    return copy.deepcopy((given, [parameter.detach() for parameter in net.parameters()], gradients, shared))


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", TABLE)
def test_one_graph(name: str, backend: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
    plain = copy.deepcopy(net)
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=True)
    for seed in range(4):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(outcome(compiled, net, x), outcome(TABLE[name], plain, x))
    assert magneto.stats()["frames"] <= 2


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(8, dtype=torch.float64)], ids=["size", "dtype"])
def test_what_is_no_gradient_raises_as_in_eager(wrong: Tensor) -> None:
    weight = nn.Parameter(torch.ones(8))

    def program() -> None:
        weight.grad = wrong * 2

    with pytest.raises(RuntimeError) as raised:
        program()
    with pytest.raises(RuntimeError) as again:
        magneto.compile(program)()
    assert str(again.value) == str(raised.value) and weight.grad is None
