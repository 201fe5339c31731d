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


def taken_back(net: Net, x: Tensor) -> Tensor:
    """As sharpness-aware optimizers do it: a step, gradients there, back, and the step that they say."""
    net.zero_grad()
    net(x).pow(2).sum().backward()
    before = [p.data.clone() for p in net.parameters()]
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * p.grad)
    net.zero_grad()
    loss = net(x).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        for p, old in zip(net.parameters(), before, strict=True):
            p.data = old
            p.add_(p.grad, alpha=-0.1)
    return loss.detach() + sum(p.sum() for p in before)


def descend_twice(net: Net, x: Tensor) -> list[Tensor]:
    losses = []
    for _ in range(2):
        loss = net(x).pow(2).sum()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        losses.append(loss.detach())
        for p, g in zip(net.parameters(), gradients, strict=True):
            p.data = p.data - 0.1 * g
    return losses


def backward_of_new_data(net: Net, x: Tensor) -> Tensor:
    net.zero_grad()
    for p in net.parameters():
        p.data = p.data * 0.5
    loss = (net(x) * net.second.bias).pow(2).sum()
    loss.backward()
    return loss.detach()


def frozen_average(net: Net, x: Tensor) -> Tensor:
    """Nothing of it has a gradient, but what it is applied to."""
    net.zero_grad()
    y = net.first(x)
    net.average.data = net.average.data * 0.9 + 0.1 * net.first.weight.data
    loss = (y @ net.average).sum()
    loss.backward()
    return loss.detach()


def average_read_before(net: Net, x: Tensor) -> Tensor:
    """A backward reads a leaf as it then is."""
    net.zero_grad()
    y = net.first(x) * net.average
    net.average.data = net.average.data * 2
    loss = y.sum()
    loss.backward()
    return loss.detach()


def set_twice_before_the_backward(net: Net, x: Tensor) -> Tensor:
    net.zero_grad()
    weight = net.first.weight
    weight.data = weight.data * 2
    loss = (weight * weight * x.sum()).sum()
    weight.data = weight.data * 3
    loss.backward()
    return loss.detach()


def loss_of_new_data(net: Net, x: Tensor) -> Tensor:
    weight = net.first.weight
    weight.data = weight.data * 2
    return (weight * weight).sum() * x.sum()


def loss_of_old_data(net: Net, x: Tensor) -> Tensor:
    weight = net.first.weight
    loss = (weight * weight).sum() * x.sum()
    net.zero_grad()
    net.second(x).sum().backward()
    weight.data = weight.data * 2
    return loss


def written_leaf(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.data = weight.data * 2
    try:
        weight.add_(1)
    except RuntimeError as error:
        return x + 1, str(error)
    return x


def written_in_place(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.data = weight.data * 2
    with torch.no_grad():
        same = weight.add_(1) is weight
        weight.mul_(x.sum())
        weight[0] = 0
        view = weight.view(-1)
        view[3] += 1
    weight.detach().clamp_(-2, 2)
    return same, weight.contiguous() is weight, weight.detach().sum(), view


def turned_in_place(net: Net, x: Tensor) -> Tensor:
    net.average.data = net.average.data * 2
    net.average.t_()
    return net.average + x


def no_leaf_any_more(net: Net, x: Tensor) -> Tensor:
    weight = net.second.bias
    weight.data = weight.data * 2
    with torch.no_grad():
        copy = weight.clone().detach_()
    return copy + x[:, :2]


def counted(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.data = weight.data * 2
    with torch.no_grad():
        weight.add_(1)
        weight.data = weight.data + 1
        weight.add_(1)
    return weight._version, x + 1


def other_strides(net: Net, x: Tensor) -> Any:
    weight = net.first.weight
    weight.data = (weight.data * 2).t()
    return weight.stride(), weight.is_contiguous(), weight.T.contiguous().detach(), (x @ weight.mT).detach()


def shared_memory_written(net: Net, x: Tensor) -> Tensor:
    net.first.weight.data = net.average
    with torch.no_grad():
        net.first.weight.add_(1)
        net.average.mul_(2)
    return net.average + net.first.weight.detach()


def for_a_while(net: Net, x: Tensor) -> Tensor:
    old = {name: p.data for name, p in net.named_parameters()}
    for p in net.parameters():
        p.data = p.data * 0.5
    with torch.no_grad():
        y = net(x)
    for name, p in net.named_parameters():
        p.data = old[name]
    return y + net(x)


def in_lists(net: Net, x: Tensor) -> Tensor:
    parameters = list(net.parameters())
    for p in parameters:
        p.data = p.data * 0.5
    with torch.no_grad():
        torch._foreach_mul_(parameters, 2.0)
        norm = torch.nn.utils.get_total_norm(parameters)
    return norm + x


def gradients_of_gradients(net: Net, x: Tensor) -> Tensor:
    weight = net.first.weight
    weight.data = weight.data * 2
    loss = (weight * weight * weight).sum() * x.sum()
    (first,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), weight)
    return second


def held_under_another_name(net: Net, x: Tensor) -> Any:
    weight, bias = net.second.weight, net.second.bias
    weight.data = weight.data * 2
    bias.data = bias.data + 1
    y = torch.nn.functional.linear(x, weight, bias)
    held = {"weight": weight, "pair": (bias, [weight])}
    y.sum().backward()
    return held["pair"][1][0] is weight, len(net.second.bias), [float(b) * 0 for b in bias.shape], y.detach()


def while_frozen(net: Net, x: Tensor) -> Tensor:
    """Read as what has no gradient, and then as what has one."""
    net.zero_grad()
    for p in net.parameters():
        p.requires_grad_(False)
        p.data = p.data * 0.5
    y = net(x)
    for p in net.parameters():
        p.requires_grad_(True)
    loss = (net(x) * y).sum()
    loss.backward()
    return loss.detach()


def made_inside(net: Net, x: Tensor) -> Tensor:
    """As adversarial attacks move what they add."""
    net.zero_grad()
    moved = torch.zeros_like(x).requires_grad_()
    for _ in range(2):
        net(x + moved * moved).sum().backward()
        moved.data = (moved + 0.1 * moved.grad.sign()).clamp(-0.1, 0.1)
        moved.grad.zero_()
    final = moved.detach()
    net(x + final).sum().backward()
    return final


def made_inside_and_handed_on(net: Net, x: Tensor) -> Any:
    made = torch.zeros_like(x).requires_grad_()
    before = made.detach()
    made.data = x * 2
    return made, before, made.sum().detach(), x


def made_inside_with_an_exit(net: Net, x: Tensor) -> Any:
    made = torch.zeros_like(x)
    made.data = x * 2
    magneto.graph_break()
    return made + 1


def made_inside_and_wrapped(net: Net, x: Tensor) -> Any:
    made = x * 1
    wrapped = torch.nn.Parameter(made, requires_grad=False)
    made.data = x * 2
    return made + 1, wrapped + 1


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
    (taken_back, 0),
    (descend_twice, 0),
    (backward_of_new_data, 0),
    (frozen_average, 0),
    (average_read_before, 1),
    (set_twice_before_the_backward, 1),
    (loss_of_new_data, 1),
    (loss_of_old_data, 0),
    (written_leaf, 1),
    (written_in_place, 0),
    (turned_in_place, 1),
    (no_leaf_any_more, 0),
    (counted, 1),
    (other_strides, 0),
    (shared_memory_written, 0),
    (for_a_while, 1),
    (in_lists, 0),
    (gradients_of_gradients, 1),
    (held_under_another_name, 0),
    (while_frozen, 0),
    (made_inside, 0),
    (made_inside_and_handed_on, 1),
    (made_inside_with_an_exit, 1),
    (made_inside_and_wrapped, 0),
    (in_a_list, 0),
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


DATA_WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "written": lambda p: (d := p.data, d.add_(1))[:1],
    "a part": lambda p: (d := p.data[0], d.add_(1), p.data)[::2],
    "both": lambda p: (y := p * 2, d := y.data, d.mul_(2), d.add_(1), y.add_(1))[:2],
    "the data first": lambda p: (y := p * 2, d := y.data, d.mul_(2), y.add_(1), d[0])[1::3],
    "data of data": lambda p: (d := p.data, e := d.data, e.add_(1), d.add_(1), d[1:])[:2],
}


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("name", DATA_WRITES)
def test_data_that_leaves_has_its_own_version(name: str, backend: str) -> None:
    compiled = magneto.compile(DATA_WRITES[name], backend=backend)
    outcomes = []
    for run in (DATA_WRITES[name], compiled, compiled):
        p = torch.ones(3, 2)
        with torch.no_grad():
            results = run(p)
        outcomes.append(([t._version for t in results], p._version, [t.tolist() for t in results], p.tolist()))
    assert outcomes[0] == outcomes[1] == outcomes[2]
