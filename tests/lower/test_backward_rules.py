"""Gradients' operators as kernels: eager's results, with fixed sizes and with dynamic ones, and nothing called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager_support import hostile

import magneto

aten = torch.ops.aten
Program = Callable[..., Any]


def made(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def like_layer_norm(x: torch.Tensor, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, mean, scale = torch.native_layer_norm(x, x.shape[-inner:], None, None, 1e-5)
    return mean, scale


# name -> (program, arguments by the number of rows). Each program is one operator with arithmetic on both sides.
POINTWISE: dict[str, Program] = {
    "threshold": lambda grad, x: aten.threshold_backward(grad, x, 0.25),
    "gelu": lambda grad, x: aten.gelu_backward(grad, x),
    "gelu_tanh": lambda grad, x: aten.gelu_backward(grad, x, approximate="tanh"),
    "silu": lambda grad, x: aten.silu_backward(grad, x),
    "sigmoid": lambda grad, x: aten.sigmoid_backward(grad, x),
    "tanh": lambda grad, x: aten.tanh_backward(grad, x),
    "leaky_relu": lambda grad, x: aten.leaky_relu_backward(grad, x, 0.1, False),
    "elu": lambda grad, x: aten.elu_backward(grad, 1.5, 1.1, 0.7, False, x),
    "elu_of_result": lambda grad, x: aten.elu_backward(grad, 1.5, 1.1, 0.7, True, x),
    "hardtanh": lambda grad, x: aten.hardtanh_backward(grad, x, -0.5, 0.75),
    "hardsigmoid": lambda grad, x: aten.hardsigmoid_backward(grad, x),
    "softplus": lambda grad, x: aten.softplus_backward(grad, x, 1.5, 20.0),
    "mse_mean": lambda grad, x: aten.mse_loss_backward(grad, x, x * 0.5, 1),
    "mse_sum": lambda grad, x: aten.mse_loss_backward(grad, x, x * 0.5, 2),
    "dropout": lambda grad, x: aten.native_dropout_backward(grad, x > 0, 1.25),
    "softmax": lambda grad, x: aten._softmax_backward_data(grad, x, -1, x.dtype),
    "softmax_first": lambda grad, x: aten._softmax_backward_data(grad, x, 0, x.dtype),
    "log_softmax": lambda grad, x: aten._log_softmax_backward_data(grad, x, -1, x.dtype),
    "select": lambda grad, x: aten.select_backward(grad, [grad.shape[0], 5, grad.shape[1]], 1, -2),
    "slice": lambda grad, x: aten.slice_backward(grad, [grad.shape[0], 40], 1, 3, 3 + grad.shape[1], 1),
    "slice_rows": lambda grad, x: aten.slice_backward(grad[2:], [grad.shape[0], 16], 0, 2, 9223372036854775807, 1),
    "slice_last": lambda grad, x: aten.slice_backward(grad[:4], [grad.shape[0], 16], 0, -4, 9223372036854775807, 1),
    "diagonal": lambda grad, x: aten.diagonal_backward(grad, [grad.shape[0], 16, 18], 2, 1, 2),
    "slice_step": lambda grad, x: aten.slice_backward(grad, [grad.shape[0], 50], 1, -49, 49, 3),
}


def norm(program: Program) -> Program:
    return lambda grad, x, weight: program(grad * 1.5, x, weight)


ALL = [True, True, True]
NORMS: dict[str, Program] = {
    "layer_norm": lambda grad, x, w: aten.native_layer_norm_backward(grad, x, [16], *like_layer_norm(x, 1), w, w, ALL),
    "layer_norm_plain": lambda grad, x, w: aten.native_layer_norm_backward(
        grad, x, [16], *like_layer_norm(x, 1), None, None, [True, False, False]
    ),
    "layer_norm_weights_only": lambda grad, x, w: aten.native_layer_norm_backward(
        grad, x, [16], *like_layer_norm(x, 1), w, w, [False, True, True]
    ),
    "group_norm": lambda grad, x, w: aten.native_group_norm_backward(
        grad.reshape(x.shape[0], 4, 4),
        x.reshape(x.shape[0], 4, 4),
        x.reshape(x.shape[0], 2, 8).mean(-1),
        torch.rsqrt(x.reshape(x.shape[0], 2, 8).var(-1, correction=0) + 1e-5),
        w[:4],
        x.shape[0],
        4,
        4,
        2,
        ALL,
    ),
    "batch_norm": lambda grad, x, w: aten.native_batch_norm_backward(
        grad, x, w, None, None, x.mean(0), torch.rsqrt(x.var(0, correction=0) + 1e-5), True, 1e-5, ALL
    ),
    "batch_norm_eval": lambda grad, x, w: aten.native_batch_norm_backward(
        grad, x, w, x.mean(0), x.var(0), None, None, False, 1e-5, ALL
    ),
}


def check(
    program: Program, rows: list[int], arguments: Callable[[int], tuple[torch.Tensor, ...]], **close: float
) -> None:
    compiled = magneto.compile(program, fullgraph=True, dynamic=len(rows) > 1)
    for count in rows:
        given = arguments(count)
        with torch.no_grad():
            actual, expected = compiled(*given), program(*given)
        for left, right in zip(as_list(actual), as_list(expected), strict=True):
            if right is None or left is None:
                assert left is None and right is None
                continue
            assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
            torch.testing.assert_close(left, right, equal_nan=True, **close)
    assert magneto.stats()["graphs"] == 1
    assert "backward" not in "".join(magneto.stats()["externs"])


def as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    close = {"rtol": 2e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    check(
        lambda grad, x: POINTWISE[name](grad * 2, x) + 1,
        [7, 9, 4] if dynamic else [7],
        lambda rows: (made(rows, 16, dtype=dtype), made(rows, 16, dtype=dtype, seed=1)),
        **close,
    )


@pytest.mark.parametrize("name", [name for name in POINTWISE if "softmax" not in name])
def test_special_values(name: str) -> None:
    check(
        POINTWISE[name],
        [16],
        lambda rows: (hostile(rows, 16).t().contiguous(), hostile(rows, 16)),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(
        norm(NORMS[name]),
        [7, 9, 4] if dynamic else [7],
        lambda rows: (made(rows, 16, dtype=dtype), made(rows, 16, dtype=dtype, seed=1), made(16, dtype=dtype, seed=2)),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_nll_loss(reduction: int, dynamic: bool) -> None:
    def program(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = (target != 3).sum().to(x.dtype)
        return aten.nll_loss_backward(grad, x * 2, target, None, reduction, 3, total) + 1

    def arguments(rows: int) -> tuple[torch.Tensor, ...]:
        grad = made(rows) if reduction == 0 else torch.tensor(1.5)
        return grad, made(rows, 6), torch.arange(rows) % 6

    check(program, [7, 9, 4] if dynamic else [7], arguments, rtol=1e-6, atol=1e-6)


def test_batch_norm_adds_in_double() -> None:
    grad, x = made(4, 3, 128, 128) + 3, made(4, 3, 128, 128, seed=1) * 0.01 + 100

    def program(grad: torch.Tensor, x: torch.Tensor) -> Any:
        mean, scale = x.mean((0, 2, 3)), torch.rsqrt(x.var((0, 2, 3), correction=0) + 1e-5)
        return aten.native_batch_norm_backward(
            grad, x, None, None, None, mean, scale, True, 1e-5, [True, False, False]
        )[0]

    exact = program(grad.double(), x.double())
    ours, eager = magneto.compile(program)(grad, x), program(grad, x)
    assert float((ours - exact).abs().max()) <= 2 * float((eager - exact).abs().max()) + math.ulp(1.0)
