"""Costs of a compile are linear in operators, whatever shape the graph has.

Each program is a chain (or a fan) of `n` operations on 16 x 16 elements. What is emitted for 1,000 of them is at most
what four times 250 take: counted, not timed. Results are eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fresh
import pytest
import torch
import torch.nn.functional as F
from accuracy import assert_accurate, widened
from tiers import some

import magneto

Program = Callable[[torch.Tensor, int], Any]
FLIPPED = torch.arange(16).flip(0)
ROWS = torch.arange(8)

#: name -> one operation of a chain, on a tensor of its own that it may write to and on the number of the operation.
STEPS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cat": lambda x, i: torch.cat((x[:, 4:], x[:, :4] * 2), 1).clamp(-9, 9),
    "cat of halves": lambda x, i: torch.cat((x[:8] * 0.5, x[8:] + 1)),
    "halves that are put together": lambda x, i: torch.cat((x[:, :8] * x[:, 8:].sigmoid(), x[:, 8:]), -1),
    "rotary embedding": lambda x, i: x * 0.6 + torch.cat((-x[:, 8:], x[:, :8]), -1) * 0.8,
    "where": lambda x, i: torch.where(x > i % 5, x * 0.5, x + 1),
    "masked_fill": lambda x, i: x.masked_fill(x > 2, 0.5) * 1.5,
    "index": lambda x, i: x[FLIPPED] + 1,
    "gather": lambda x, i: x.gather(0, FLIPPED.unsqueeze(1).expand(16, 16)) + 1,
    "embedding": lambda x, i: F.embedding(FLIPPED, x) * 0.9,
    "index_put": lambda x, i: x.index_put((ROWS,), x[ROWS + 4] * 0.5),
    "scatter": lambda x, i: x.scatter(0, ROWS.unsqueeze(1).expand(8, 16), x[4:12] * 0.5),
    "scatter_add": lambda x, i: x.scatter_add(0, ROWS.unsqueeze(1).expand(8, 16), x[4:12] * 0.01),
    "diamond": lambda x, i: (x + 1) * 0.5 + x * 0.25,
    "diamond of functions": lambda x, i: x.exp().clamp(max=1) + (x * 0.5 - 1).sigmoid(),
    "diamond of a transpose": lambda x, i: x * 0.5 + x.t() * 0.25,
    "diamond of flips": lambda x, i: x.flip(0) * 0.5 + x.flip(1) * 0.25,
    "diamond of an expand": lambda x, i: x[:, :1].expand(16, 16) * 0.5 + x * 0.4,
    "stack": lambda x, i: torch.stack((x[:8] * 0.5, x[8:] + 1), 1).reshape(16, 16),
    "unbind and stack": lambda x, i: torch.stack((x[1] + 1, x[0] * 0.5)).repeat(8, 1),
    "pad": lambda x, i: F.pad(x * 0.5, (1, 1, 1, 1))[1:-1, 2:],
    "pad of neighbours": lambda x, i: F.pad(x[:, 1:] + x[:, :-1], (0, 1)) * 0.5,
    "roll": lambda x, i: x.roll(i % 5 + 1, 0) * 0.5 + x * 0.4,
    "transpose and permute": lambda x, i: x.t().reshape(2, 8, 16).permute(1, 0, 2).reshape(16, 16) + 1,
    "view": lambda x, i: x.view(4, 4, 16).transpose(0, 1).flip(0).unsqueeze(0).squeeze(0).reshape(16, 16),
    "triangles": lambda x, i: x.tril() + x.triu(1) * 0.5,
    "sum": lambda x, i: x * 0.5 + x.sum(i % 2, keepdim=True) * 0.01,
    "norm": lambda x, i: F.layer_norm(x, (16,)) + 1,
    "softmax": lambda x, i: x.softmax(i % 2) + x * 0.5,
    "scan": lambda x, i: x.cumsum(i % 2) * 0.1,
    "product": lambda x, i: (x @ x) * 0.01 + 0.5,
    "convolution": lambda x, i: F.avg_pool2d(x[None, None], 3, 1, 1)[0, 0].relu(),
    "integer division": lambda x, i: ((x * 8).long() * 3 % 17).float() / 8,
    "one element for all": lambda x, i: x * 0.5 + x[i % 16, 0],
    # In-place.
    "write of a slice": lambda x, i: x[..., i % 7 : i % 7 + 8].copy_(x[..., 7 - i % 7 : 15 - i % 7] * 0.5 + 1),
    "write of a slice with steps": lambda x, i: x[::2].copy_(x[1::2] * 0.5 + x[::2] * 0.4),
    "sum into a slice": lambda x, i: x[:, i % 8 : i % 8 + 4].add_(x[:, :4] * 0.1),
    "write of a row": lambda x, i: x[i % 8].copy_(x[i % 8 + 1] * 0.5 + x[i % 8 + 2] * 0.4),
    "write of a diagonal": lambda x, i: x.diagonal().mul_(0.5).add_(1),
    "write of all": lambda x, i: x.mul_(0.5).add_(1),
    "write of a view of a view": lambda x, i: x.t()[i % 4 :].view(-1, 4, 4)[0, 1:].mul_(0.5),
    "index_put in place": lambda x, i: x.index_put_((ROWS,), x[ROWS + 4] * 0.5),
}


def chain(step: Callable[[torch.Tensor, int], Any]) -> Program:
    def run(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.clone()
        for i in range(n):
            x = step(x, i)
        return x

    return run


def in_place(step: Callable[[torch.Tensor, int], Any]) -> Program:
    def run(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.clone()
        for i in range(n):
            step(x, i)
        return x

    return run


def recurrence_in_place(x: torch.Tensor, n: int) -> torch.Tensor:
    x, h = x.clone(), x[0]
    for i in range(n):
        h = torch.tanh(h * 0.5 + x[i % 16])
        x[i % 16] = h
    return x


def recurrence(x: torch.Tensor, n: int) -> torch.Tensor:
    h, states = x[0], []
    for i in range(n):
        h = torch.sigmoid(h * 0.5 + x[i % 16])
        states.append(h)
    return torch.stack(states)


def fan_in(x: torch.Tensor, n: int) -> torch.Tensor:
    total = x[0]
    for part in [x[i % 16] * i for i in range(n)]:
        total = total + part
    return total


def fan_out(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    y = x.sin() + 1
    return [y * i for i in range(n)]


def fan_out_and_in(x: torch.Tensor, n: int) -> Any:
    y = x.sin()
    return sum([(y * i).sum(-1) for i in range(n)])


WHOLE: dict[str, Program] = {
    "recurrence": recurrence,
    "recurrence in place": recurrence_in_place,
    "fan in": fan_in,
    "fan out": fan_out,
    "fan out and in": fan_out_and_in,
    "one cat": lambda x, n: torch.cat([x * (i + 1) for i in range(n)]),
    "one cat of columns": lambda x, n: torch.cat([x[:, i % 16 : i % 16 + 1] + i for i in range(n)], 1),
    "one stack": lambda x, n: torch.stack([x + i for i in range(n)]),
}

PROGRAMS = WHOLE | {
    name: (in_place if name.startswith(("write", "sum into")) or name.endswith("in place") else chain)(step)
    for name, step in STEPS.items()
}


def emitted(program: Program, n: int, x: torch.Tensor) -> int:
    """Compiles it for `n` operations and gives how many instructions and calls it became."""
    magneto.reset()
    with torch.no_grad():
        actual = magneto.compile(lambda x: program(x, n), fullgraph=True, dynamic=False)(x.clone())
        torch.testing.assert_close(actual, program(x.clone(), n), rtol=1e-3, atol=1e-4)
    stats = magneto.stats()
    assert not stats["uncompiled"] and not stats["fallbacks"]
    return stats["instructions"] + sum(stats["externs"].values())


@pytest.mark.parametrize("name", some(PROGRAMS, every=2))
def test_costs_are_linear_in_operators(name: str) -> None:
    x = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    few, many = emitted(PROGRAMS[name], 250, x), emitted(PROGRAMS[name], 1000, x)
    assert many <= 4.5 * few + 200, f"{few} instructions for 250 operators, {many} for 1,000"
    assert many <= 200_000


@pytest.mark.parametrize("name", PROGRAMS)
def test_long_chains_are_as_accurate_as_eager(name: str) -> None:
    """Against float64: what is not close to eager after many steps may be off as eager is."""
    program, x = PROGRAMS[name], torch.rand(16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        actual = magneto.compile(lambda x: program(x, 100), fullgraph=True, dynamic=False)(x.clone())
        assert_accurate(actual, program(x.clone(), 100), program(widened(x), 100))


def forward_substitution(a: torch.Tensor) -> torch.Tensor:
    """As the delta rule's chunks are solved, row by row."""
    a = a.clone()
    for i in range(1, a.shape[-1]):
        row = a[..., i, :i].clone()
        sub = a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)
    return a


def test_forward_substitution_of_64_rows() -> None:
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)).tril(-1) * 0.1
    few = emitted(lambda x, n: forward_substitution(x[..., :n, :n]), 16, x)
    many = emitted(lambda x, n: forward_substitution(x[..., :n, :n]), 64, x)
    assert many <= 8 * few


def test_what_is_cut_is_counted() -> None:
    x = torch.rand(16, 16)
    emitted(PROGRAMS["cat"], 3, x)
    assert magneto.stats()["cut"] == 0
    emitted(PROGRAMS["cat"], 100, x)
    assert magneto.stats()["cut"] > 0


CUT = """
import warnings, torch, magneto
def chain(x):
    for i in range(60): x = torch.cat((x[:, 4:], x[:, :4] * 2), 1).clamp(-9, 9)
    return x
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for size in (16, 32):
        magneto.compile(chain, dynamic=False)(torch.rand(16, size))
print([str(each.message) for each in caught if "cut kernels of" in str(each.message)])
"""


def test_what_is_cut_is_said_once() -> None:
    said = fresh.python("-c", CUT, check=True).stdout
    assert said.count("cut kernels of") == 1 and "chain" in said
