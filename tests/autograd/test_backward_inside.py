"""`loss.backward()` inside a compiled function is a part of the graph: a training step is one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch import Tensor, nn

import magneto

TABLE = ProgramTable()
EXITS = ProgramTable()  # CPython runs their backward
functional = nn.functional


class State:
    """What a program works on: a net, and what else a training loop has."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
        self.other = nn.Linear(3, 1)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.other_opt = torch.optim.SGD(self.other.parameters(), lr=0.1, momentum=0.9)
        self.wide = torch.ones(3, 4, requires_grad=True)
        self.turned = torch.ones(4, 3).t().requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [*self.net.parameters(), *self.other.parameters(), self.wide, self.turned]


def loss_of(s: State, x: Tensor) -> Tensor:
    return s.net(x).square().mean()


@TABLE
def plain(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    loss = loss_of(s, x)
    loss.backward()
    s.opt.step()
    return loss.detach()


@TABLE
def zeros_kept(s: State, x: Tensor) -> Any:
    s.opt.zero_grad(set_to_none=False)
    loss = loss_of(s, x)
    loss.backward()
    s.opt.step()
    return loss.detach()


@TABLE
def clipped(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    loss = loss_of(s, x)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(s.net.parameters(), 0.1)
    s.opt.step()
    return loss.detach(), norm


@TABLE
def loss_with_history(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    loss = loss_of(s, x)
    loss.backward()
    s.opt.step()
    return loss


@TABLE
def loss_and_output(s: State, x: Tensor) -> Any:
    output = s.net(x)
    loss = output.abs().sum()
    loss.backward()
    return {"loss": loss, "output": output}


@TABLE
def gradients_alone(s: State, x: Tensor) -> Any:
    torch.autograd.backward(loss_of(s, x))


@TABLE
def never_cleared(s: State, x: Tensor) -> Any:
    loss_of(s, x).backward()
    return s.net[0].weight.grad.sum()


@TABLE
def several_roots(s: State, x: Tensor) -> Any:
    y = s.net(x)
    torch.autograd.backward([y.mean(), y[0]], [None, torch.ones(3)])


@TABLE
def with_gradient(s: State, x: Tensor) -> Any:
    y = s.net(x)
    y.backward(torch.ones_like(y) * x.mean())
    return y.detach()


@TABLE
def for_some_inputs(s: State, x: Tensor) -> Any:
    loss = loss_of(s, x)
    loss.backward(inputs=[s.net[0].weight, s.net[3].bias])


@TABLE
def twice_retained(s: State, x: Tensor) -> Any:
    loss = loss_of(s, x)
    loss.backward(retain_graph=True)
    (2 * loss).backward()


@TABLE
def retained(s: State, x: Tensor) -> Any:
    loss = loss_of(s, x)
    loss.backward(retain_graph=True)
    return loss


@TABLE
def micro_batches(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    total = torch.zeros(())
    for part in x.chunk(3):
        loss = loss_of(s, part) / 3
        loss.backward()
        total += loss.detach()
    s.opt.step()
    return total


@TABLE
def two_optimizers(s: State, x: Tensor) -> Any:
    s.other_opt.zero_grad()
    fake = s.net(x)
    d_loss = functional.softplus(-s.other(fake.detach())).mean()
    d_loss.backward()
    s.other_opt.step()
    s.opt.zero_grad()
    g_loss = functional.softplus(s.other(s.net(x))).mean()
    g_loss.backward()
    s.opt.step()
    return d_loss.detach(), g_loss.detach()


@TABLE
def closure(s: State, x: Tensor) -> Any:
    def evaluate() -> Tensor:
        s.opt.zero_grad()
        loss = loss_of(s, x)
        loss.backward()
        return loss

    return s.opt.step(evaluate)


@TABLE
def shared_and_turned(s: State, x: Tensor) -> Any:
    """Gradients that are one tensor, that lie otherwise than their leaves, and the leaf itself as a root."""
    (s.wide + s.turned.t()).sum().backward()
    (s.wide * s.turned.t()).sum().backward(inputs=[s.turned])
    s.wide.backward(x[:3])
    return s.wide.grad.is_contiguous(), s.turned.grad.is_contiguous()


@TABLE
def cut(s: State, x: Tensor) -> Any:
    first, second = torch.cat([s.wide, s.wide * 2]).chunk(2)
    (first * 3 + second * x[:3]).sum().backward()
    (s.turned.expand(2, 3, 4) * 2).sum().backward()


@TABLE
def without_recording(s: State, x: Tensor) -> Any:
    loss = loss_of(s, x)
    with torch.no_grad():
        loss.backward()
        for parameter in s.net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


@TABLE
def half_precision(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(s, x)
    loss.backward()
    s.opt.step()
    return loss.detach()


@TABLE
def penalty(s: State, x: Tensor) -> Any:
    y = s.net(x).mean()
    weight = s.net[0].weight
    (gradient,) = torch.autograd.grad(y, weight, create_graph=True)
    (y + gradient.square().sum()).backward()


@TABLE
def one_of_two_is_retained(s: State, x: Tensor) -> Any:
    """What each of the losses raises when it is asked for again: the head has been written, or all is freed."""
    hidden = s.net(x)
    first, second = s.other(hidden).square().mean(), hidden.square().mean()
    first.backward(retain_graph=True)
    second.backward()
    s.other_opt.step()
    return second


@TABLE
def attack(s: State, x: Tensor) -> Any:
    y = x.detach().requires_grad_()
    loss_of(s, y).backward()
    return x + y.grad.sign()


@TABLE
def gradient_penalty(s: State, x: Tensor) -> Any:
    y = (x * 2).requires_grad_()
    loss = loss_of(s, y)
    (gradient,) = torch.autograd.grad(loss, y, create_graph=True)
    (loss + gradient.square().sum()).backward()
    return y.grad.sum()


@TABLE
def twice_into_one_made_inside(s: State, x: Tensor) -> Any:
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    (y * 3).sum().backward()
    return y.grad


@TABLE
def gradients_of_gradients(s: State, x: Tensor) -> Any:
    """With create_graph=True they are copies, which have a history."""
    s.opt.zero_grad()
    s.wide.grad = None
    loss = loss_of(s, x) + (s.wide * s.turned.t()).exp().sum()
    loss.backward(create_graph=True)
    return s.net[0].weight.grad.square().sum()


@TABLE
def that_are_kept(s: State, x: Tensor) -> Any:
    """The second backward adds to what has a history, in place, and frees that."""
    s.opt.zero_grad()
    loss_of(s, x).backward(create_graph=True)
    penalty = sum((p.grad.square().sum() for p in s.net.parameters()), torch.zeros(()))
    penalty.backward()
    s.opt.step()
    return penalty.detach(), s.net[0].weight.grad.requires_grad


@TABLE
def that_are_added(s: State, x: Tensor) -> Any:
    """Where autograd records, they are added out of place."""
    s.wide.grad = torch.ones(3, 4)
    (s.wide * x[:3]).sin().sum().backward(create_graph=True)
    (s.wide * x[:3]).cos().sum().backward(create_graph=True)
    (gradient,) = torch.autograd.grad(s.wide.grad.square().sum(), s.wide)
    s.wide.grad = None
    return gradient


@TABLE
def curvature(s: State, x: Tensor) -> Any:
    """As second-order optimizers estimate it."""
    s.opt.zero_grad()
    parameters = list(s.net.parameters())
    loss_of(s, x).backward(create_graph=True)
    gradients = [p.grad for p in parameters]
    signs = [torch.ones_like(g) for g in gradients]
    products = torch.autograd.grad(gradients, parameters, signs)
    s.opt.zero_grad()
    return [product.sum() for product in products]


@TABLE
def curvature_with_gradients_kept(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    parameters = list(s.net.parameters())
    loss_of(s, x).backward(create_graph=True)
    torch.autograd.grad([p.grad for p in parameters], parameters, [torch.ones_like(p) for p in parameters])
    s.opt.step()


@TABLE
def of_a_retained_one(s: State, x: Tensor) -> Any:
    """As maps of what a class looks at are made."""
    s.opt.zero_grad()
    hidden = s.net[0](x)
    hidden.retain_grad()
    output = s.net[1:](hidden)
    output[:, 0].sum().backward()
    return (hidden * hidden.grad).detach(), hidden.grad.stride()


@TABLE
def of_retained_ones_handed_on(s: State, x: Tensor) -> Any:
    hidden = s.net[0](x)
    hidden.retain_grad()
    other = (hidden * 2).tanh()
    other.retain_grad()
    unused = x * s.wide[0]
    unused.retain_grad()
    other.sin().sum().backward(retain_graph=True)
    hidden.sum().backward()
    return hidden.grad + other.grad, unused.grad is None, hidden, other


@TABLE
def whose_gradient_is_a_leafs(s: State, x: Tensor) -> Any:
    """Each of the two has a tensor of its own."""
    total = s.wide + x[:3]
    total.retain_grad()
    total.sin().sum().backward()
    s.wide.grad.mul_(2)
    return total.grad


@TABLE
def of_an_inner_tensor(s: State, x: Tensor) -> Any:
    y = s.net[0](x)
    y.square().sum().backward(inputs=[y])
    return y, y.grad


@TABLE
def of_inner_tensors_and_leaves(s: State, x: Tensor) -> Any:
    y = s.net[0](x)
    z = s.net[1](y).sin()
    z.sum().backward(inputs=[y, z, s.net[1].weight])
    return y.grad, z.grad


@TABLE
def of_an_inner_tensor_that_is_kept(s: State, x: Tensor) -> Any:
    """It keeps what comes later, too."""
    y = s.net[0](x) * 2
    y.sin().sum().backward(inputs=[y], retain_graph=True)
    first = y.grad.clone()
    y.cos().sum().backward()
    return first, y.grad


@TABLE
def saliency(s: State, x: Tensor) -> Any:
    features = s.net[:2](x)
    score = s.net[2:](features)
    score[:, 0].sum().backward(inputs=[features])
    weights = features.grad.mean(0, keepdim=True)
    return (weights * features).relu().detach()


@EXITS
def retained_beside_inputs(s: State, x: Tensor, h: Tensor) -> Any:
    hidden = s.net[0](x)
    hidden.retain_grad()
    hidden.sum().backward(inputs=[s.net[0].weight])
    return hidden.grad * 2


@EXITS
def retained_and_written(s: State, x: Tensor, h: Tensor) -> Any:
    hidden = s.net[0](x) * 2
    hidden.retain_grad()
    hidden.mul_(2)
    hidden.sum().backward()
    return hidden.grad * 2


@EXITS
def retained_view(s: State, x: Tensor, h: Tensor) -> Any:
    hidden = (s.net[0](x) * 2).t()
    hidden.retain_grad()
    hidden.sum().backward()
    return hidden.grad * 2


@EXITS
def retained_and_hooked(s: State, x: Tensor, h: Tensor) -> Any:
    hidden = s.net[0](x)
    hidden.retain_grad()
    hidden.register_hook(lambda gradient: setattr(s, "seen", gradient.clone()) or gradient * 2)
    hidden.sum().backward()
    return hidden.grad * 2, s.seen  # type: ignore[attr-defined]


@EXITS
def with_history_unrecorded(s: State, x: Tensor, h: Tensor) -> Any:
    loss = loss_of(s, x)
    with torch.no_grad():
        loss.backward(create_graph=True)
    return s.net[0].weight.grad.square().sum()


@EXITS
def passes_history(s: State, x: Tensor, h: Tensor) -> Any:
    (h * s.wide).sum().backward()


@EXITS
def not_required(s: State, x: Tensor, h: Tensor) -> Any:
    x.sum().backward()


@EXITS
def no_scalar(s: State, x: Tensor, h: Tensor) -> Any:
    s.net(x).backward()


@EXITS
def second_backward(s: State, x: Tensor, h: Tensor) -> Any:
    loss = loss_of(s, x)
    loss.backward()
    loss.backward()


@EXITS
def of_what_has_a_history(s: State, x: Tensor, h: Tensor) -> Any:
    h.square().sum().backward(inputs=[h])
    return h.grad


@EXITS
def of_an_inner_view(s: State, x: Tensor, h: Tensor) -> Any:
    y = s.net[0](x).t()
    y.square().sum().backward(inputs=[y])
    return y.grad


@EXITS
def of_an_inner_tensor_twice(s: State, x: Tensor, h: Tensor) -> Any:
    y = s.net[0](x)
    y.square().sum().backward(inputs=[y, y])
    return y.grad


@EXITS
def sparse(s: State, x: Tensor, h: Tensor) -> Any:
    functional.embedding(torch.tensor([0, 2]), s.wide, sparse=True).sum().backward()


@EXITS
def sum_to_sparse(s: State, x: Tensor, h: Tensor) -> Any:
    s.wide.grad = torch.eye(3, 4).to_sparse()
    (s.wide * 2).sum().backward()


@EXITS
def another_grad_dtype(s: State, x: Tensor, h: Tensor) -> Any:
    s.wide.grad_dtype = torch.bfloat16
    s.wide.grad = None
    (s.wide * 2).sum().backward()


def outcome(program: Callable[..., Any], s: State, *args: Tensor) -> Any:
    """What it gives or raises, and what tensors are then."""
    raised, given, again = "", None, []
    try:
        given = program(s, *args)
    except RuntimeError as error:
        raised = str(error)
    results = given.values() if isinstance(given, dict) else given if isinstance(given, tuple) else [given]
    tensors = [result for result in results if isinstance(result, Tensor)]
    gradients = [parameter.grad for parameter in s.parameters()]
    shared = [a is not None and a is b for a in gradients for b in gradients]
    forms = [g if g is None or g.layout != torch.strided else (g.stride(), g.requires_grad) for g in gradients]
    memory = [copy.deepcopy(g if g is None else g.detach()) for g in gradients]
    values = [tensor.detach().clone() for tensor in [*s.parameters(), *tensors]]
    for tensor in tensors:
        if tensor.requires_grad:
            try:
                tensor.sum().backward()
            except RuntimeError as error:
                again.append(str(error))
    after = [copy.deepcopy(g if g is None else g.detach()) for g in (p.grad for p in s.parameters())]
    histories = [tensor.requires_grad for tensor in tensors]
    states = copy.deepcopy([s.opt.state_dict(), s.other_opt.state_dict()])
    return raised, values, memory, forms, shared, again, after, histories, states


def inputs() -> list[Tensor]:
    return [torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


# Generated kernels round half precision less often than eager does.
CASES = [(name, backend) for name in TABLE for backend in ("aot_eager", "magneto")]
CASES.remove(("half_precision", "magneto"))


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_one_graph(name: str, backend: str) -> None:
    state, plain = State(), State()
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=True)
    compiled.__name__ = name
    for x in inputs():
        assert_same(outcome(compiled, state, x), outcome(TABLE[name], plain, x))
    assert magneto.stats()["frames"] <= 3, magneto.stats()["frames"]
    assert not magneto.stats()["no_joint"]


@pytest.mark.lenient
@pytest.mark.parametrize("name", EXITS)
def test_cpython_runs_what_is_none(name: str) -> None:
    state, plain = State(), State()
    compiled = magneto.compile(EXITS[name])
    for x in inputs()[:3]:
        histories = [(s.wide * 2).exp() for s in (state, plain)]
        assert_same(outcome(compiled, state, x, histories[0]), outcome(EXITS[name], plain, x, histories[1]))
    assert magneto.stats()["breaks"]


@pytest.mark.lenient
@pytest.mark.parametrize("backend", ["eager", "magneto"])
def test_leaves_that_are_made_inside_are_handed_out_with_their_gradients(backend: str) -> None:
    def program(x: Tensor) -> Any:
        y = x.clone().requires_grad_()
        (y * y).sum().backward()
        return y

    x = torch.arange(3.0)
    given = magneto.compile(program, backend=backend)(x)
    assert given.is_leaf and given.requires_grad and given.grad.tolist() == [0, 2, 4]


def hooked(leaf: Tensor, kind: str, calls: list[Tensor]) -> None:
    if kind == "tensor":
        leaf.register_hook(lambda gradient: calls.append(gradient) or gradient * 2)
    elif kind == "behind":
        leaf.register_post_accumulate_grad_hook(lambda tensor: calls.append(tensor.grad.clone()))
    else:
        node = torch.autograd.graph.get_gradient_edge(leaf).node
        node.register_hook(lambda *_: calls.append(torch.ones(())))
        leaf.kept = node  # type: ignore[attr-defined]


@pytest.mark.lenient
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("kind", ["tensor", "behind", "node"])
def test_hooks_of_leaves_are_called(kind: str, backend: str, late: bool) -> None:
    def run(wrap: Callable[[Any], Any]) -> Any:
        w, calls = torch.arange(3.0).requires_grad_(), []

        def program(x: Tensor) -> Any:
            (w * x).sum().backward()
            return w.grad * 1

        compiled = wrap(program)
        if not late:
            hooked(w, kind, calls)
        given = [compiled(torch.ones(3)) for _ in range(3)]
        if late:
            hooked(w, kind, calls)
        return given + [compiled(torch.ones(3)) for _ in range(2)], w.grad, calls

    assert_same(run(lambda program: magneto.compile(program, backend=backend)), run(lambda program: program))


def test_gradients_are_kept_where_they_are() -> None:
    """What was there is added to in place: the same tensor, one version on."""
    w = torch.ones(3, requires_grad=True)
    compiled = magneto.compile(lambda x: (w * x).sum().backward(), fullgraph=True)
    compiled(torch.ones(3))
    kept = w.grad
    assert kept is not None
    version = kept._version
    compiled(torch.ones(3))
    assert w.grad is kept and kept._version == version + 1 and kept.tolist() == [2, 2, 2]
