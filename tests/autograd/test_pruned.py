"""Gradients that nobody asks for are not computed: `inputs=`, torch.autograd.grad, losses that few results lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import magneto

Program = Callable[..., Any]


def layers(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(x @ a) @ b


def heads(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (x @ a).sin(), (x @ b).cos()


def given(rows: int = 5, width: int = 4) -> tuple[Tensor, ...]:
    torch.manual_seed(rows)
    sizes = ((rows, width), (width, width), (width, width))
    return tuple((torch.randn(*size) / width**0.5).requires_grad_() for size in sizes)


def products(run: Callable[[], Any]) -> int:
    """How many matrix products a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    return sum(event.count for event in profiler.key_averages() if event.key == "aten::mm")


def gradients(program: Program, wanted: tuple[int, ...], rows: int = 5, width: int = 4) -> list[Tensor]:
    inputs = given(rows, width)
    return list(torch.autograd.grad(program(*inputs).sum(), [inputs[i] for i in wanted]))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("wanted", "count"), [((0, 1, 2), 4), ((2,), 1), ((1,), 2), ((1, 2), 3), ((0,), 2)])
def test_what_is_asked_for(wanted: tuple[int, ...], count: int, dynamic: bool) -> None:
    compiled = magneto.compile(layers, dynamic=dynamic)
    width = 160  # so large that the library multiplies
    for rows in (200, 200, 200, 250):
        want = gradients(layers, wanted, rows, width)
        torch.testing.assert_close(gradients(compiled, wanted, rows, width), want, rtol=1e-4, atol=1e-4)
    inputs = given(200, width)
    loss = compiled(*inputs).sum()
    assert products(lambda: torch.autograd.grad(loss, [inputs[i] for i in wanted])) == count
    assert magneto.stats()["graphs"] == (1 if dynamic else 2)


def test_backward_with_inputs_and_a_graph_that_is_kept() -> None:
    def both(program: Program) -> list[Tensor | None]:
        inputs = given()
        loss = program(*inputs).sum()
        for _ in range(3):
            loss.backward(inputs=[inputs[1]], retain_graph=True)
        (slope,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
        slope.pow(2).sum().backward(inputs=[inputs[2]])
        loss.backward()
        return [x.grad for x in inputs]

    torch.testing.assert_close(both(magneto.compile(layers)), both(layers))


def test_a_loss_that_one_result_leads_to() -> None:
    def one(program: Program, which: int) -> list[Tensor | None]:
        inputs = given()
        program(*inputs)[which].sum().backward()
        return [x.grad for x in inputs]

    compiled = magneto.compile(heads)
    for which in (0, 1, 0, 1, 0, 1):
        torch.testing.assert_close(one(compiled, which), one(heads, which))


def test_all_subsets() -> None:
    """More than are kept: the others are computed with the rest."""
    compiled = magneto.compile(layers)
    for _ in range(3):
        for bits in range(1, 8):
            wanted = tuple(i for i in range(3) if bits >> i & 1)
            torch.testing.assert_close(gradients(compiled, wanted), gradients(layers, wanted))


def test_gradients_of_gradients_under_autocast() -> None:
    """They run the forward once more, as it ran: where the engine runs there is no autocast."""

    def twice(program: Program) -> Tensor:
        inputs = given()
        with torch.autocast("cpu"):
            result = program(*inputs)
        assert result.dtype == torch.bfloat16
        (slope,) = torch.autograd.grad(result.float().sum(), inputs[0], create_graph=True)
        return torch.autograd.grad(slope.pow(2).sum(), inputs[1])[0]

    torch.testing.assert_close(twice(magneto.compile(layers, backend="aot_eager")), twice(layers))
