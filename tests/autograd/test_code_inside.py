"""Custom autograd functions, and hooks that change nothing, in functions that call backward() or torch.autograd.grad:
what autograd's engine would call is interpreted, so a training step with them is one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import magneto

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: ProgramTable = ProgramTable()
EXITS: ProgramTable = ProgramTable()
CALLS: list[Any] = []


class Scaled(torch.autograd.Function):
    """An attribute and an argument that is no tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient * ctx.factor, None


class Product(torch.autograd.Function):
    """setup_context and needs_input_grad."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (
            gradient @ w.t() if ctx.needs_input_grad[0] else None,
            x.t() @ gradient if ctx.needs_input_grad[1] else None,
        )


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (ctx.saved_tensors[0] > 0)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Sorted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, order = x.sort(1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return values, order

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, of_order: Tensor) -> Tensor:
        return torch.zeros_like(gradient).scatter(1, ctx.saved_tensors[0], gradient)


class Straight(torch.autograd.Function):
    """No operator in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Two(torch.autograd.Function):
    """None in place of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        if first is None:
            return None if second is None else second * 3
        return first * 2 if second is None else first * 2 + second * 3


class Telling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        CALLS.append(gradient.clone())
        return gradient * 2


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2 if gradient.sum() > 0 else gradient * 3


class Cautious(torch.autograd.Function):
    """Warns in both halves, once in each call of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        warnings.warn("forward", stacklevel=1)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        warnings.warn("backward", stacklevel=1)
        return gradient * 2


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no gradient")


@LOSSES
def scaled(h: Tensor, w: Tensor) -> Tensor:
    return Scaled.apply(h, 3.0).mean()


@LOSSES
def product(h: Tensor, w: Tensor) -> Tensor:
    return Product.apply(h, w).square().mean()


@LOSSES
def product_of_one(h: Tensor, w: Tensor) -> Tensor:
    return Product.apply(h.detach(), w).square().mean() + h.sum()


@LOSSES
def once(h: Tensor, w: Tensor) -> Tensor:
    return Once.apply(h).sum()


@LOSSES
def dirty(h: Tensor, w: Tensor) -> Tensor:
    return Doubled.apply(h * 1).sin().sum()


@LOSSES
def not_differentiable(h: Tensor, w: Tensor) -> Tensor:
    return (Sorted.apply(h)[0] * torch.arange(3.0).double()).sum()


@LOSSES
def straight(h: Tensor, w: Tensor) -> Tensor:
    return (Straight.apply(h * 3) * h.detach()).sum()


@LOSSES
def one_of_two(h: Tensor, w: Tensor) -> Tensor:
    return Two.apply(h)[1].sin().sum()


@LOSSES
def both_of_two(h: Tensor, w: Tensor) -> Tensor:
    first, second = Two.apply(h)
    return first.sin().sum() + second.cos().sum()


@LOSSES
def nested(h: Tensor, w: Tensor) -> Tensor:
    return Scaled.apply(Once.apply(Product.apply(h, w)), 2.0).sum()


@LOSSES
def halved_by_a_hook(h: Tensor, w: Tensor) -> Tensor:
    g = h.sin()
    g.register_hook(lambda gradient: gradient * 0.5)
    return (g @ w).sum()


@LOSSES
def asking(h: Tensor, w: Tensor) -> Tensor:
    return Asking.apply(h).sin().sum()


@EXITS
def that_tells(h: Tensor, w: Tensor) -> Tensor:
    return Telling.apply(h).sin().sum()


@EXITS
def that_fails(h: Tensor, w: Tensor) -> Tensor:
    return Failing.apply(h).sum()


def training(loss_of: Loss) -> Any:
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).double()
    w = nn.Parameter(torch.randn(3, 2).double())
    opt = torch.optim.SGD([*net.parameters(), w], lr=0.01)

    def step(x: Tensor) -> Any:
        opt.zero_grad()
        loss = loss_of(net(x), w)
        loss.backward()
        opt.step()
        return loss.detach()

    return step, [*net.parameters(), w]


def handing_on(loss_of: Loss) -> Any:
    """What is freed stays freed, and what is retained not."""
    net, w = nn.Linear(4, 3).double(), nn.Parameter(torch.randn(3, 2).double())

    def step(x: Tensor) -> Any:
        first, second = loss_of(net(x), w), loss_of(net(x) * 2, w)
        first.backward()
        second.backward(retain_graph=True)
        return first, second

    return step, [*net.parameters(), w]


def taking(loss_of: Loss) -> Any:
    net, w = nn.Linear(4, 3).double(), nn.Parameter(torch.randn(3, 2).double())

    def step(x: Tensor) -> Any:
        return torch.autograd.grad(loss_of(net(x), w) * 2, list(net.parameters()))

    return step, [*net.parameters(), w]


def twice(loss_of: Loss) -> Any:
    """Gradients of gradients."""
    net, w = nn.Linear(4, 3).double(), nn.Parameter(torch.randn(3, 2).double())

    def step(x: Tensor) -> Any:
        y = (x * 1).requires_grad_()
        loss = loss_of(net(y).sin(), w)
        (gradient,) = torch.autograd.grad(loss, [y], torch.ones_like(loss), create_graph=True)
        (loss + gradient.square().sum()).backward()
        return gradient.detach()

    return step, [*net.parameters(), w]


def outcome(way: Callable[[Loss], Any], loss_of: Loss, wrap: Callable[[Any], Any]) -> Any:
    torch.manual_seed(0)
    step, parameters = way(loss_of)
    step = wrap(step)
    CALLS.clear()
    found: list[Any] = []
    for _ in range(3):
        try:
            given = step(torch.randn(6, 4).double())
        except (ValueError, RuntimeError) as error:
            found.append((type(error), str(error)))
            continue
        given = given if isinstance(given, tuple) else (given,)
        for result in given:
            if not result.requires_grad:
                continue
            try:
                result.backward()
            except RuntimeError as error:
                found.append(str(error))
        found += [[result.detach().clone() for result in given], [p.detach().clone() for p in parameters]]
        found.append([p.grad if p.grad is None else p.grad.clone() for p in parameters])
    return found, list(CALLS)


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("way", [training, handing_on, taking, twice])
@pytest.mark.parametrize("name", LOSSES)
def test_one_graph(name: str, way: Callable[[Loss], Any], backend: str) -> None:
    # A gradient that has none, and one that is chosen by data, when it is differentiated.
    whole = way is not twice or name not in ("once", "nested", "asking")
    compiled = outcome(way, LOSSES[name], lambda step: magneto.compile(step, backend=backend, fullgraph=whole))
    assert_same(compiled, outcome(way, LOSSES[name], lambda step: step))
    assert not magneto.stats()["breaks"] or not whole


@pytest.mark.lenient
@pytest.mark.parametrize("way", [training, handing_on, taking, twice])
@pytest.mark.parametrize("name", EXITS)
def test_cpython_runs_what_is_none(name: str, way: Callable[[Loss], Any]) -> None:
    compiled = outcome(way, EXITS[name], magneto.compile)
    assert_same(compiled, outcome(way, EXITS[name], lambda step: step))
    assert magneto.stats()["breaks"]


@pytest.mark.lenient
@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("way", [training, handing_on, taking])
def test_warnings_of_them(way: Callable[[Loss], Any], backend: str) -> None:
    def told(wrap: Callable[[Any], Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome(way, lambda h, w: Cautious.apply(h).sum(), wrap)
        return [text for text in map(str, (warning.message for warning in caught)) if text in ("forward", "backward")]

    assert told(lambda step: magneto.compile(step, backend=backend)) == told(lambda step: step)
