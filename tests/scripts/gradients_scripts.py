"""Derivatives by other ways than one backward pass: torch.func, gradients of gradients, hooks, own backward passes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from scripts import Compiled, Scripts
from torch import Tensor, nn

scripts = Scripts()


@scripts
def vmap_over_rows(compiled: Compiled) -> Any:
    def rows(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: (row * 2).sin().sum())(x)

    return compiled(rows)(torch.arange(12.0).view(3, 4))


@scripts
def functional_gradient(compiled: Compiled) -> Any:
    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda point: (point**3).sum())(x)

    return compiled(gradient)(torch.arange(4.0))


@scripts
def jacobian_and_hessian(compiled: Compiled) -> Any:
    def derivatives(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jacrev(torch.sin)(x), torch.func.hessian(lambda point: (point**3).sum())(x)

    return compiled(derivatives)(torch.arange(4.0))


@scripts
def gradients_of_each_sample(compiled: Compiled) -> Any:
    """vmap over grad over functional_call, as in differential privacy."""
    model = nn.Linear(3, 2)
    parameters = dict(model.named_parameters())

    def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    def gradients(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return torch.func.vmap(torch.func.grad(loss_of), (None, 0, 0))(parameters, x, y)

    return compiled(gradients)(torch.randn(4, 3), torch.randn(4, 2))


@scripts
def gradient_penalty(compiled: Compiled) -> Any:
    """The norm of a gradient is part of the loss, and has a gradient itself."""
    critic = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def penalty(real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(real.size(0), 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        score = critic(between)
        gradient = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)[0]
        return ((gradient.norm(2, 1) - 1) ** 2).mean()

    loss = compiled(penalty)(torch.randn(4, 3), torch.randn(4, 3))
    loss.backward()
    return loss.detach(), critic[0].weight.grad


@scripts
def hook_on_an_intermediate(compiled: Compiled) -> Any:
    """A tensor hook that keeps the gradient in a list and gives another one."""
    seen = []

    def loss_of(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 3)
        return (y**2).sum()

    x = torch.ones(3, requires_grad=True)
    compiled(loss_of)(x).backward()
    return x.grad, seen


@scripts
def meta_learning(compiled: Compiled) -> Any:
    """Inner steps of gradient descent on a dict of weights, through which the outer loss is derived."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def adapted_loss(x: Tensor, y: Tensor, steps: int) -> Tensor:
        weights = dict(model.named_parameters())
        for _ in range(steps):
            loss = F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)
            gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: old - 0.1 * slope for (name, old), slope in zip(weights.items(), gradients)}
        return F.mse_loss(torch.func.functional_call(model, weights, (x,)), y)

    x = torch.randn(5, 1)
    loss = compiled(adapted_loss)(x, x.sin(), 2)
    loss.backward()
    return loss.detach(), model[0].weight.grad


@scripts
def straight_through_quantizer(compiled: Compiled) -> Any:
    """A codebook whose gradient goes straight through, and a class of its own with another backward pass."""

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sign()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    codebook = nn.Parameter(torch.randn(8, 4))

    def quantize(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nearest = torch.cdist(z, codebook).argmin(1)
        chosen = codebook[nearest]
        loss = F.mse_loss(chosen, z.detach()) + 0.25 * F.mse_loss(z, chosen.detach())
        chosen = z + (chosen - z).detach()
        return Sign.apply(chosen), loss, nearest

    z = torch.randn(5, 4, requires_grad=True)
    chosen, loss, nearest = compiled(quantize)(z)
    (chosen.sum() + loss).backward()
    return chosen.detach(), loss.detach(), nearest, z.grad, codebook.grad
