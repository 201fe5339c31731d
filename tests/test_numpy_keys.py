"""Tensors indexed by arrays of NumPy inside compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from compare import assert_same

import magneto

PLACES, SHORT, MASK = np.array([2, 0]), np.array([1, 1, 0], dtype=np.int32), np.array([True, False, True])
TABLE, LONG = np.array([[0, 1], [2, 0]]), np.arange(40).reshape(40, 1) % 3


def rows_and_columns(x: torch.Tensor) -> Any:
    return x[PLACES], x[SHORT], x[:, PLACES], x[PLACES, PLACES], x[..., SHORT], x[None, PLACES], x[:, TABLE], x[LONG]


def masks(x: torch.Tensor) -> Any:
    return x[MASK], x[:, MASK[:]]


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[PLACES] = 1.0
    y[:, SHORT] += 2
    return y


def drawn_and_computed(x: torch.Tensor) -> Any:
    order = np.random.permutation(3)
    return x[order], x[order[:2]], x[:, np.argsort(order)], x[np.argsort(x.numpy()[:, 0])], (x * 1)[np.arange(2)]


def gradients(x: torch.Tensor) -> Any:
    y = x.clone().requires_grad_()
    y[PLACES].sin().sum().backward()
    return y.grad


def rows_of_a_table(x: torch.Tensor) -> Any:
    return x[TABLE]  # which is x[TABLE[0], TABLE[1]]


def other_arrays(x: torch.Tensor) -> Any:
    return x[np.array(1)], x[np.array([], dtype=np.int64)], x[np.array([1, 0, 1], dtype=np.uint8)]


def run(function: Callable[[torch.Tensor], Any]) -> Any:
    np.random.seed(0)
    return [function(torch.arange(9.0).view(3, 3).add(call).sin()) for call in range(4)]


@pytest.mark.parametrize("program", [rows_and_columns, masks, written, drawn_and_computed, gradients])
def test_arrays_are_keys(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program, fullgraph=True)), run(program))


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("program", [rows_of_a_table, other_arrays])
def test_arrays_that_are_read_in_other_ways(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program)), run(program))
    assert magneto.stats()["break_reasons"]
