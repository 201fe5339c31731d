"""Custom operators whose results are as large as the data says: their fake kernels ask torch.library.get_ctx() for a
size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_same
from torch import Tensor

import magneto


@torch.library.custom_op("custom_sizes::places", mutates_args=())
def places(x: Tensor) -> Tensor:
    return torch.from_numpy(np.stack(np.nonzero(x.numpy()), axis=1))


@places.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size(), x.dim()], dtype=torch.int64)


@torch.library.custom_op("custom_sizes::positive", mutates_args=())
def positive(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x.flatten() > 0).nonzero().flatten(), x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size(min=0, max=x.numel())
    return x.new_empty([size], dtype=torch.int64), x.new_empty([size])


@torch.library.custom_op("custom_sizes::packed", mutates_args=())
def packed(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@packed.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


packed.register_autograd(
    lambda ctx, gradient: torch.zeros_like(ctx.saved_tensors[0]).masked_scatter(ctx.saved_tensors[0] > 0, gradient),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@torch.library.custom_op("custom_sizes::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return torch.cat([x[x > 0], x[x > 0]])


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty([2 * torch.library.get_ctx().new_dynamic_size()])


def computed_with(x: Tensor) -> Any:
    return places(x) + 1, torch.cat([places(x), places(x)])


def several_results(x: Tensor) -> Any:
    where, values = positive(x)
    return values * 2, where.sum(), values.sin().sum(), x.flatten()[where]


def size_handed_on(x: Tensor) -> Any:
    found = places(x)
    return found.shape[0], found


def trained(x: Tensor) -> Any:
    y = x.clone().requires_grad_()
    return torch.autograd.grad(packed(y).pow(2).sum(), y)


def size_computed_with(x: Tensor) -> Any:
    return twice(x) * 2


def run(function: Callable[[Tensor], Any]) -> Any:
    given = torch.arange(6.0).view(2, 3) - 2, torch.ones(2, 3), torch.zeros(2, 3), torch.arange(15.0).view(5, 3).sin()
    return [function(x) for x in given]


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", [computed_with, several_results, size_handed_on, trained])
def test_sizes_that_fake_kernels_ask_for(program: Callable[[Tensor], Any], backend: str) -> None:
    assert_same(run(magneto.compile(program, backend=backend)), run(program))
    assert not magneto.stats()["break_reasons"]


def test_what_is_computed_from_such_a_size_is_an_exit() -> None:
    assert_same(run(magneto.compile(size_computed_with)), run(size_computed_with))
    assert "get_ctx" in next(iter(magneto.stats()["break_reasons"]))
