"""Exported programs with data-dependent sizes of 0 and 1, and with numbers that become items of tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import export

import magneto

pytestmark = pytest.mark.usefixtures("installed")


def softmax_of_picked(x: torch.Tensor) -> Any:
    y = x[x > 0]
    return y.sum() / y.shape[0] + torch.softmax(y, 0).sum()


def statistics(x: torch.Tensor) -> Any:
    i = x.nonzero().float()
    return i.mean(0), i.T @ i, torch.cat([i, i]).view(2, -1)


def repeated(x: torch.Tensor) -> Any:
    i = x.nonzero().squeeze(1)
    return i.unsqueeze(0).expand(3, -1).t() + 1, x[i].unsqueeze(-1) * torch.ones(3), i.flip(0).cumsum(0)


EXPERTS = [nn.Linear(1, 2), nn.Linear(1, 2)]


def routed(x: torch.Tensor) -> Any:
    out = x.new_zeros(x.shape[0], 2)
    for number, expert in enumerate(EXPERTS):
        (chosen,) = torch.where((x > 0) == bool(number))
        out = out.index_add(0, chosen, expert(x[chosen].unsqueeze(1)))
    return out


DATA = [[1.0, -1, 2], [1.0, 0, 0], [0.0, 0, 0], [-1.0, -2, -3], [1.0, 2, 3], [0.0, 5, 0]]


@pytest.mark.parametrize("program", [softmax_of_picked, statistics, repeated, routed])
def test_sizes_of_zero_and_one(program: Callable[..., Any]) -> None:
    module = export(program, (torch.tensor(DATA[0]),)).module()
    for data in DATA:
        x = torch.tensor(data)
        assert_same(module(x), program(x))


def items(x: torch.Tensor, n: torch.Tensor) -> Any:
    y = x.clone()
    y[x > 0] = n.item()
    y[:, 0] = x.mean().item()
    z = torch.zeros(3, dtype=torch.int64)
    z[1] = n.item()
    z[z == 0] = n.item() + 1
    return y, z, x.masked_fill(x < 0, n.item())


def test_numbers_that_data_say_as_items() -> None:
    given = torch.linspace(-1, 1, 12).view(3, 4), torch.tensor(2)
    module = export(items, given).module()
    for n in (2, 0, -3):
        own = given[0] + n, torch.tensor(n)
        assert_same(module(*copy.deepcopy(own)), items(*own))
    compiled = magneto.compile(items, fullgraph=True)
    for n in (2, 0, -3):
        assert_same(compiled(given[0] - n, torch.tensor(n)), items(given[0] - n, torch.tensor(n)))
