"""Hooks on results of which other results consist: they see the whole gradient, and change it, as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import magneto
from magneto import _aot


def features(net: Any, x: Tensor) -> Any:
    hidden = net[0](x)
    return net[2](hidden.tanh()), hidden


def all_layers(net: Any, x: Tensor) -> Any:
    hidden = [net[0](x)]
    for _ in range(3):
        hidden.append(hidden[-1] + (hidden[-1] * 0.5).sin())
    return net[2](hidden[-1]), *hidden


def loss_and_logits(net: Any, x: Tensor) -> Any:
    logits = net(x)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)), logits


def variational(net: Any, x: Tensor) -> Any:
    mean, scale = (part * 1 for part in net[0](x).chunk(2, 1))
    return mean + (0.5 * scale).exp(), mean, scale


def tied(net: Any, x: Tensor) -> Any:
    hidden = net[0](x)
    return hidden * net[0].weight.sum(), hidden


PROGRAMS = [features, all_layers, loss_and_logits, variational, tied]


def retain(results: Any, seen: list[Any]) -> Any:
    for result in results[1:]:
        result.retain_grad()
    results[0].sum().backward()
    seen += [result.grad for result in results[1:]]


def double(results: Any, seen: list[Any]) -> Any:
    results[1].register_hook(lambda gradient: gradient * 2)
    results[0].sum().backward()


def look(results: Any, seen: list[Any]) -> Any:
    results[1].register_hook(lambda gradient: seen.append(gradient.clone()))
    sum(result.cos().sum() for result in results).backward()


def of_result(results: Any, seen: list[Any]) -> Any:
    seen += torch.autograd.grad(results[0].sum(), results[1:], retain_graph=True)
    results[1].sum().backward(retain_graph=True)
    results[0].sum().backward()


def twice(results: Any, seen: list[Any]) -> Any:
    found = torch.autograd.grad(results[0].sum(), results[1:], create_graph=True)
    sum(gradient.sin().sum() for gradient in found).backward()


def once_for_all(results: Any, seen: list[Any]) -> Any:
    """No hook."""
    results[0].sum().backward(create_graph=True)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", [retain, double, look, of_result, twice, once_for_all])
def test_hooks(program: Callable[..., Any], way: Callable[..., Any], backend: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    plain = copy.deepcopy(net)
    compiled = magneto.compile(program, backend=backend)
    for size in (5, 6, 7):
        inputs = torch.randn(size, 4)
        found = []
        for call, own in ((compiled, net), (program, plain)):
            own.zero_grad()
            x = inputs.clone().requires_grad_()
            seen: list[Any] = []
            way(call(own, x), seen)
            found.append([seen, x.grad, [parameter.grad for parameter in own.parameters()]])
        torch.testing.assert_close(*found)
    stats = magneto.stats()
    assert stats["frames"] == 2 and not stats["breaks"] and not stats["no_joint"], stats


def test_a_result_that_others_pass_by() -> None:
    """`b` consists of `a` and of what `a` consists of, which is no result: one backward, in which `a` has no place."""

    def program(x: Tensor, w: Tensor) -> Any:
        h = x * w
        a = h.sin()
        return (a * h).cos(), a

    compiled = magneto.compile(program)
    args = [torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)]
    b, a = compiled(*args)
    a.retain_grad()
    with pytest.raises(RuntimeError, match="has a hook on its gradient"):
        b.sum().backward()
    b, a = compiled(*args)
    a.retain_grad()
    a.sin().sum().backward()
    torch.testing.assert_close(a.grad, a.detach().cos())


def test_hook_of_a_result_inside() -> None:
    """The segment ends in front of a hook that changes something: what was computed before goes on from the result."""

    def program(net: Any, x: Tensor, seen: list[Any]) -> Tensor:
        hidden = net[0](x)
        other = hidden.tanh()
        torch.autograd.graph.register_multi_grad_hook(
            [hidden, other], lambda gradients: seen.append([gradient.clone() for gradient in gradients])
        )
        return net[2](other)

    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
    compiled = magneto.compile(program)
    for _ in range(3):
        x = torch.randn(5, 4)
        found = []
        for call in (compiled, program):
            seen: list[Any] = []
            call(net, x, seen).sum().backward()
            found.append(seen)
        torch.testing.assert_close(*found)


def unlike(x: Tensor) -> Any:
    """Two results that neither consists of the other, and that share what is inside."""
    inside = x.exp()
    return (inside * 2).sin(), (inside * inside).cos()


def three(x: Tensor) -> Any:
    """The second consists of the first, but not of it alone."""
    inside = x.exp()
    first = inside.sin()
    return first, (first * inside).cos(), (inside * inside).tan()


def of_one_node(x: Tensor) -> Any:
    """Results of one node of eager's: it calls the hook of each, with None too."""
    q, r = torch.linalg.qr(x.sin() + 3 * torch.eye(3))
    return q, r, (x.sin() * r).sum()


def written(x: Tensor) -> Any:
    inside = x.exp()
    first, second = inside.sin(), (inside * inside).cos()
    first.mul_(2)
    return first, second


@pytest.mark.parametrize("backend", ["aot_eager", "magneto", "eager"])
@pytest.mark.parametrize("program", [unlike, three, of_one_node, written])
def test_hooks_are_called_where_there_is_a_gradient(program: Callable[..., Any], backend: str) -> None:
    """Each of the results has hooks, and each set of them is differentiated."""
    count = {three: 3, of_one_node: 3}.get(program, 2)

    def outcome(call: Callable[..., Any], hooked: int, roots: list[int]) -> Any:
        x = (torch.arange(9.0).reshape(3, 3) * 0.3 - 1).requires_grad_()
        results = call(x)
        seen: list[Any] = []
        results[hooked].register_hook(lambda gradient: seen.append(gradient if gradient is None else gradient.clone()))
        sum((results[i] * (i + 1)).sum() for i in roots).backward()  # type: ignore[union-attr]
        return seen, x.grad

    compiled = magneto.compile(program, backend=backend)
    for hooked in range(count):
        for some in range(1, 2**count):
            roots = [i for i in range(count) if some >> i & 1]
            if program is three and hooked == 0 and 1 in roots and backend != "eager":
                with pytest.raises(RuntimeError, match="has a hook on its gradient"):
                    outcome(compiled, hooked, roots)
            else:
                torch.testing.assert_close(outcome(compiled, hooked, roots), outcome(program, hooked, roots))


def test_hooks_of_results_that_are_dropped() -> None:
    """Their nodes live on where others consist of them, and where not, it is known that they had hooks."""
    compiled = magneto.compile(three)
    x = torch.ones(3, requires_grad=True)
    first, second, third = compiled(x)
    calls: list[Tensor] = []
    first.register_hook(calls.append)
    outer = first * 2
    del first
    (outer.sum() + third.sum()).backward(retain_graph=True)
    assert [call.tolist() for call in calls] == [[2, 2, 2]]
    del outer
    with pytest.raises(RuntimeError, match="has a hook on its gradient"):
        second.sum().backward()


def test_hooks_of_results_with_compilers_of_the_programs_own() -> None:
    """They are given one backward: what comes through other results is no part of what a hook would see."""

    def program(x: Tensor) -> Any:
        hidden = x.exp()
        return hidden.sin() * 2, hidden

    def as_it_is(graph: Any, inputs: Any) -> Any:
        return graph

    compiled = magneto.compile(program, backend=_aot.aot_autograd(fw_compiler=as_it_is, bw_compiler=as_it_is))
    x = torch.ones(3, requires_grad=True)
    calls: list[Tensor] = []
    outer, hidden = compiled(x)
    hidden.register_hook(calls.append)
    hidden.sum().backward(retain_graph=True)
    assert [call.tolist() for call in calls] == [[1, 1, 1]]
    with pytest.raises(RuntimeError, match="has a hook on its gradient"):
        outer.sum().backward()
