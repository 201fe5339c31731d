"""`tensor.data = value` in compiled code: values, shared memory, versions and gradients as in eager, and the exits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

Tensor = torch.Tensor


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 2)
        self.register_buffer("average", torch.arange(16.0).reshape(4, 4) / 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def descend(net: Net, x: Tensor) -> Tensor:
    net.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    for p in net.parameters():
        p.data = p.data - 0.1 * p.grad
    return loss.detach()


def descend_of_what_has_a_history(net: Net, x: Tensor) -> Tensor:
    net.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    for p in net.parameters():
        p.data = p - 0.1 * p.grad
    return loss


def clip_twice(net: Net, x: Tensor) -> list[Tensor]:
    for p in net.parameters():
        p.data = p.data.clamp(-0.1, 0.1)
    for p in net.parameters():
        p.data = p.data * 2
    return [p.data.sum() + x.sum() for p in net.parameters()]


def clip_and_run(net: Net, x: Tensor) -> Tensor:
    for p in net.parameters():
        p.data = p.data.clamp(-0.1, 0.1)
    return net(x)


def from_a_vector(net: Net, x: Tensor) -> Tensor:
    vector = torch.nn.utils.parameters_to_vector(net.parameters()).detach() * 0.5
    torch.nn.utils.vector_to_parameters(vector, net.parameters())
    return vector.add_(x.sum())


def swap(net: Net, x: Tensor) -> Tensor:
    net.first.weight.data, net.average.data = net.average.data, net.first.weight.data
    return net.first.weight.data + 2 * net.average.data + x


def share(net: Net, x: Tensor) -> Tensor:
    net.first.weight.data = net.average
    net.average.data.add_(1)
    return x + 1


def share_what_is_made(net: Net, x: Tensor) -> Tensor:
    made = torch.ones(4, 4) * x.sum()
    net.first.weight.data = made
    made.mul_(2)
    net.first.weight.data.add_(1)
    return made


def put_back(net: Net, x: Tensor) -> Tensor:
    old = net.first.weight.data
    net.first.weight.data = old * 2
    net.first.weight.data = old
    return old + x


def view_of_before(net: Net, x: Tensor) -> Tensor:
    view = net.first.weight.detach().view(-1)
    net.first.weight.data = net.first.weight.data * 2
    return view


def transposed(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.data = (weight.data * 2).t()
    return weight.shape, weight.dtype, weight.requires_grad, x + 1


def average(net: Net, x: Tensor) -> Tensor:
    net.average.data = 0.9 * net.average.data + 0.1 * net.first.weight.data
    return net(x)


def without_gradients(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        for p in net.parameters():
            p.data = p - 0.1 * p
    return x * 2


def backward_behind(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.grad = None
    loss = (weight * weight * weight).sum() + net(x).sum()
    weight.data = weight.data * 2
    loss.backward()
    return weight.grad


def in_a_list(net: Net, x: Tensor) -> Tensor:
    net.average.data = net.average.data * 2
    return torch.stack([net.average, x])


def of_another_size(net: Net, x: Tensor) -> Tensor:
    net.average.data = x[:2]
    return x + 1


PROGRAMS: list[tuple[Callable[[Net, Tensor], Any], int]] = [
    (descend, 0),
    (descend_of_what_has_a_history, 0),
    (clip_twice, 0),
    (clip_and_run, 1),
    (from_a_vector, 0),
    (swap, 0),
    (share, 0),
    (share_what_is_made, 0),
    (put_back, 0),
    (view_of_before, 0),
    (transposed, 0),
    (average, 0),
    (without_gradients, 0),
    (backward_behind, 1),
    (in_a_list, 1),
    (of_another_size, 1),
]


def _steps(program: Callable[[Net, Tensor], Any]) -> list[Any]:
    torch.manual_seed(0)
    net, seen = Net(), []
    for _ in range(3):
        result = program(net, torch.randn(4, 4))
        tensors = [*net.parameters(), net.average]
        results = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        memory = [t.untyped_storage().data_ptr() for t in (*tensors, *results)]
        if any(t.requires_grad for t in results):
            with contextlib.suppress(RuntimeError):  # its own backward has freed that
                sum(t.sum() for t in results).backward()
        copies = [t.detach().clone() for t in (*tensors, *results)]
        gradients = [None if t.grad is None else t.grad.clone() for t in tensors]
        facts = [(t._version, t.stride(), t.requires_grad, t.is_leaf) for t in tensors]
        shared = [[a == b for b in memory] for a in memory]
        seen.append((copies, gradients, facts, shared))
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize(("program", "exits"), PROGRAMS, ids=[program.__name__ for program, _ in PROGRAMS])
def test_data_is_set_as_in_eager(program: Callable[[Net, Tensor], Any], exits: int, backend: str) -> None:
    expected = _steps(program)
    compiled = magneto.compile(program, backend=backend)
    breaks = magneto.stats()["breaks"]
    assert_same(_steps(compiled), expected)
    assert (magneto.stats()["breaks"] > breaks) == (exits > 0)
