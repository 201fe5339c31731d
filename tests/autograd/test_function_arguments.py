"""What torch.autograd.Function.apply takes beside tensors: modules, functions, objects, and containers of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import magneto


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: nn.ModuleList, options: dict[str, float]) -> Tensor:
        ctx.blocks, ctx.options = blocks, options
        return functools.reduce(lambda y, block: block(y), blocks, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        for block in reversed(ctx.blocks):
            gradient = gradient * block.scale
        return gradient * ctx.options["factor"], None, None


class Through(torch.autograd.Function):
    """A function comes first, and is differentiated in the backward."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.function = function
        return function(x) * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.function(x)
            (dx,) = torch.autograd.grad(y, x, gradient * weight)
        return None, dx, (y.detach() * gradient).sum(0)


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, module: nn.Module, activation: Callable[[Tensor], Tensor]) -> Tensor:
        return activation(module(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.module, ctx.activation = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            (dx,) = torch.autograd.grad(ctx.activation(ctx.module(x)), x, gradient)
        return dx, None, None


class Items(torch.autograd.Function):
    """Tensors in a list get no gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, items: Sequence[Any], *rest: Any) -> Tensor:
        ctx.items, ctx.rest = items, len(rest)
        return x * items[0] + sum(items[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient * ctx.items[0], None, *(None,) * ctx.rest


class Entries(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, entries: dict[str, Any]) -> Tensor:
        ctx.entries = entries
        return x * entries["a"] + entries["b"][0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.entries["a"], None


class Appends(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, items: list[Tensor]) -> Tensor:
        y = x * 2
        items.append(y.detach())
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2, None


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: Settings) -> Tensor:
        ctx.settings = settings
        return x * settings.factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.settings.factor, None


class Settings:
    factor = 3.0


LINEAR = nn.Linear(4, 4)
BLOCKS = nn.ModuleList([Scaled(2.0), Scaled(3.0)])
SETTINGS = Settings()
OUTSIDE = [torch.ones(4), torch.zeros(4)]


def of_a_closure(x: Tensor, w: Tensor) -> Tensor:
    factor = 2.0
    return Through.apply(lambda y: torch.sin(y) * factor, x, w)


def of_a_closure_over_a_tensor(x: Tensor, w: Tensor) -> Tensor:
    return Through.apply(lambda y: y * w.detach(), x, w)


def of_a_list_that_grows(x: Tensor, w: Tensor) -> Tensor:
    items: list[Tensor] = []
    return Appends.apply(x, items) + items[0] * w + len(items)


COMPILED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "modules": lambda x, w: Reversed.apply(x * w, BLOCKS, {"factor": 1.5}),
    "function": lambda x, w: Through.apply(torch.tanh, x, w),
    "module": lambda x, w: Through.apply(LINEAR, x, w),
    "method": lambda x, w: Through.apply(LINEAR.forward, x, w),
    "partial": lambda x, w: Through.apply(functools.partial(torch.mul, 3.0), x, w),
    "closure": of_a_closure,
    "setup": lambda x, w: WithSetup.apply(x * w, LINEAR, torch.relu),
    "setup_closure": lambda x, w: WithSetup.apply(x * w, LINEAR, lambda y: y * 2),
    "list": lambda x, w: Items.apply(x * w, [w.detach(), w.detach() + 1], 1, None),
    "list_that_needs_gradients": lambda x, w: Items.apply(x * w, [w, w + 1]),
    "tuple": lambda x, w: Items.apply(x * w, (w.detach(), 2.0), "text"),
    "parameters": lambda x, w: Items.apply(x * w, list(LINEAR.parameters())[1:]),
    "constants": lambda x, w: Items.apply(x * w, [2.0], torch.float32, slice(0, 2), torch.Size([2])),
    "nested": lambda x, w: Entries.apply(x * w, {"a": w.detach(), "b": [w.detach(), 1]}),
    "object": lambda x, w: Reads.apply(x * w, SETTINGS),
}
EXITS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "closure_over_a_tensor": (of_a_closure_over_a_tensor, "object of type function that is no constant"),
    "list_that_grows": (of_a_list_that_grows, "changes objects from outside"),
    "list_from_outside": (lambda x, w: Items.apply(x * w, OUTSIDE), "object of type list that is no constant"),
    "object_made_inside": (lambda x, w: Reads.apply(x * w, Settings()), "object of type Settings that is no constant"),
}


def run(program: Callable[[Tensor, Tensor], Any], rows: int) -> list[Any]:
    torch.manual_seed(rows)
    x, w = torch.randn(rows, 4, requires_grad=True), torch.linspace(0.5, 1.5, 4, requires_grad=True)
    LINEAR.zero_grad()
    BLOCKS.zero_grad()
    result = program(x, w)
    result.square().sum().backward()
    return [result.detach(), x.grad, w.grad, *(p.grad for p in [*LINEAR.parameters(), *BLOCKS.parameters()])]


def check(program: Callable[[Tensor, Tensor], Any], compiled: Callable[..., Any], rows: int) -> None:
    torch.testing.assert_close(run(compiled, rows), run(program, rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", COMPILED)
def test_one_graph(name: str, backend: str) -> None:
    compiled = magneto.compile(COMPILED[name], backend=backend, fullgraph=True)
    for rows in (3, 5, 6):
        check(COMPILED[name], compiled, rows)
    assert magneto.stats()["graphs"] == 2
    assert not magneto.stats()["no_joint"]


@pytest.mark.parametrize("name", EXITS)
def test_exits(name: str) -> None:
    program, why = EXITS[name]
    compiled = magneto.compile(program, dynamic=True)
    for rows in (3, 5):
        check(program, compiled, rows)
    assert [reason for reason in magneto.stats()["break_reasons"] if why in reason]


def test_what_it_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    program = COMPILED["object"]
    compiled = magneto.compile(program, fullgraph=True)
    check(program, compiled, 3)
    monkeypatch.setattr(SETTINGS, "factor", 5.0, raising=False)
    check(program, compiled, 3)
    monkeypatch.setitem(globals(), "SETTINGS", Settings())
    check(program, compiled, 3)


def test_another_module_is_another_constant() -> None:
    def program(x: Tensor, w: Tensor, module: nn.Module = LINEAR) -> Any:
        return Through.apply(module, x, w)

    compiled = magneto.compile(program, fullgraph=True)
    check(program, compiled, 3)
    other = functools.partial(compiled, module=nn.Tanh())
    check(functools.partial(program, module=nn.Tanh()), other, 3)
    check(program, compiled, 3)
