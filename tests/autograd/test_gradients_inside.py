"""Programs that take gradients themselves (torch.autograd.grad): physics, force fields, penalties, meta-learning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import magneto

Program = Callable[[nn.Module, Tensor], Tensor]
grad = torch.autograd.grad


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 1))


def residual_of_heat(model: nn.Module, x: Tensor) -> Tensor:
    u = model(x)
    (du,) = grad(u.sum(), x, create_graph=True)
    (ddu,) = grad(du[:, 0].sum(), x, create_graph=True)
    return (du[:, 1] - 0.1 * ddu[:, 0]).pow(2).mean()


def forces(model: nn.Module, x: Tensor) -> Tensor:
    distances = (x[:, None] - x[None]).pow(2).sum(-1) + torch.eye(x.shape[0])
    energy = model(x).sum() + (1 / distances).sum()
    (slope,) = grad(energy, x, create_graph=True)
    return F.mse_loss(-slope, torch.zeros_like(x)) + energy


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    score = model(x)
    (slope,) = grad(score, x, torch.ones_like(score), create_graph=True, retain_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean() - score.mean()


def inner_step(model: nn.Module, x: Tensor) -> Tensor:
    weights = dict(model.named_parameters())
    inner = torch.func.functional_call(model, weights, (x,)).pow(2).mean()
    slopes = grad(inner, list(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
    return torch.func.functional_call(model, moved, (x + 1,)).pow(2).mean()


def first_order(model: nn.Module, x: Tensor) -> Tensor:
    (slope,) = grad(model(x).sum(), x)
    return x + 0.01 * slope.sign()


def hessian_times_vector(model: nn.Module, x: Tensor) -> Tensor:
    (slope,) = grad(model(x).sin().sum(), x, create_graph=True)
    return grad(slope, x, torch.ones_like(x))[0]


def unused_allowed(model: nn.Module, x: Tensor) -> Tensor:
    first, other = grad(model(x).sum(), (x, model[0].bias), create_graph=True, allow_unused=True)
    return first.sum() + other.sum()


PROGRAMS: list[Program] = [
    residual_of_heat, forces, penalty, inner_step, first_order, hessian_times_vector, unused_allowed,
]  # fmt: skip


def run(program: Program, model: nn.Module, backward: bool = True, hook: bool = False) -> list[Tensor | None]:
    torch.manual_seed(4)
    x = torch.randn(5, 2, requires_grad=True)
    if hook:
        x.register_hook(lambda g: g * 3)
    model.zero_grad()
    result = program(model, x)
    if result.requires_grad and backward:
        result.sum().backward()
    return [result.detach(), x.grad, *(w.grad for w in model.parameters())]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Program, backend: str, dynamic: bool | None) -> None:
    model = net()
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
    for hook in (False, True, False):
        torch.testing.assert_close(run(compiled, model, hook=hook), run(program, model, hook=hook))
    stats = magneto.stats()
    assert stats["joint_graphs"] and not stats["no_joint"] and not stats["breaks"]


def test_freed_by_the_gradient_inside() -> None:
    """The loss cannot be differentiated again, with eager's error."""

    def program(x: Tensor) -> Tensor:
        loss = x.exp().sum()
        grad(loss, x)
        return loss

    def error(function: Callable[[Tensor], Tensor]) -> str:
        with pytest.raises(RuntimeError) as caught:
            function(torch.ones(3, requires_grad=True)).backward()
        return str(caught.value)

    assert error(magneto.compile(program)) == error(program)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_through_what_was_computed_before(backend: str) -> None:
    """y comes from x, outside: the gradient for x goes that way, too."""

    def slope(x: Tensor, y: Tensor, allow_unused: bool) -> Tensor:
        return grad((x * y + y.exp()).sum(), [x], create_graph=True)[0] * 2

    def around(function: Callable[..., Tensor]) -> list[Tensor | None]:
        x = torch.linspace(0, 1, 5, requires_grad=True)
        result = function(x, x.sin(), False)
        result.sum().backward()
        return [result.detach(), x.grad]

    compiled = magneto.compile(slope, backend=backend)
    torch.testing.assert_close(around(compiled), around(slope))

    def unrelated(function: Callable[..., Tensor]) -> Tensor:
        x, z = torch.linspace(0, 1, 5, requires_grad=True), torch.ones(5, requires_grad=True)
        return function(x, z.sin(), False).detach()

    torch.testing.assert_close(unrelated(compiled), unrelated(slope))
