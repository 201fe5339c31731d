"""torch.autograd.grad inside compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)
WEIGHT = torch.linspace(0.5, 2, 6).requires_grad_()


def gradient_of_an_argument(x: torch.Tensor) -> Any:
    (grad,) = torch.autograd.grad((x.sin() ** 2).sum(), x)
    return grad * 2


def gradient_of_a_result(x: torch.Tensor) -> Any:
    y = x.detach() * 2
    y.requires_grad_()
    (grad,) = torch.autograd.grad((y**3).sum(), [y])
    return grad.detach(), y * 2


def gradient_of_a_parameter(x: torch.Tensor) -> Any:
    loss = (x * WEIGHT).pow(2).sum()
    grads = torch.autograd.grad(loss, [WEIGHT], retain_graph=True)
    return x * (WEIGHT - 0.1 * grads[0]), loss


def second_gradient(x: torch.Tensor) -> Any:
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return first * second


def unused_input(x: torch.Tensor) -> Any:
    return torch.autograd.grad((x * 2).sum(), [x, WEIGHT], allow_unused=True)


def two_ways(x: torch.Tensor) -> Any:
    (grad,) = torch.autograd.grad((x.sin() * x).sum(), x)
    return grad * 2


PROGRAMS = [
    gradient_of_an_argument,
    gradient_of_a_result,
    gradient_of_a_parameter,
    second_gradient,
    unused_input,
    two_ways,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_inside(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=program is not two_ways)
    for scale in (1.0, 2.0):
        results = []
        for function in (compiled, program):
            WEIGHT.grad = None
            x = (X * scale).requires_grad_()
            out = function(x)
            total = sum(leaf.sum() for leaf in out if leaf is not None and leaf.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()
            results.append((out, x.grad, WEIGHT.grad))
        assert_same(results[0], results[1])
    assert magneto.stats()["recompiles"] == 0


def test_hooks_run_at_each_call() -> None:
    weight = torch.ones(3, requires_grad=True)
    compiled = magneto.compile(lambda x: torch.autograd.grad((x * weight).sum(), weight)[0] + 1, backend="aot_eager")
    assert_same(compiled(torch.ones(3)), torch.ones(3) * 2)
    handle = weight.register_hook(lambda grad: grad * 10)
    assert_same(compiled(torch.ones(3)), torch.ones(3) * 11)
    handle.remove()
    assert_same(compiled(torch.ones(3)), torch.ones(3) * 2)


def test_errors_are_eagers() -> None:
    def no_graph(x: torch.Tensor) -> Any:
        return torch.autograd.grad(x.sum(), x)

    def used_up(x: torch.Tensor) -> Any:
        y = (x.sin() ** 2).sum()
        torch.autograd.grad(y, x)
        return torch.autograd.grad(y, x)

    for program, x in ((no_graph, X), (used_up, X.clone().requires_grad_())):
        compiled = magneto.compile(program, backend="aot_eager")
        with pytest.raises(RuntimeError) as want:
            program(x)
        with pytest.raises(RuntimeError) as got:
            compiled(x)
        assert str(got.value) == str(want.value)


def test_history_from_outside() -> None:
    """The gradient goes on through what was computed in front of the call."""

    def program(y: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.autograd.grad((y * 3).sum(), x)[0]

    for function in (program, magneto.compile(program, backend="aot_eager")):
        x = X.clone().requires_grad_()
        assert_same(function(x.sin(), x), 3 * X.cos())
