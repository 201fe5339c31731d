"""torch.func inside compiled functions: each program in one graph, with eager's results, in each backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    jacrev,
    stack_module_state,
    vjp,
    vmap,
)

import magneto

BACKENDS = ("eager", "aot_eager", "magneto")
X = torch.linspace(-1, 1, 12).view(3, 4)
Y = torch.linspace(0.5, 2, 12).view(3, 4)
V = X[0].clone()
torch.manual_seed(0)
LINEAR = torch.nn.Linear(4, 3)
MODELS = [torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)) for _ in range(3)]
PARAMETERS, BUFFERS = stack_module_state(MODELS)  # type: ignore[arg-type]


def written(row: torch.Tensor) -> torch.Tensor:
    copy = torch.zeros_like(row)
    copy.add_(row)
    copy[0] = 1
    return copy


def per_sample(x: torch.Tensor, y: torch.Tensor) -> Any:
    parameters = {name: value.detach() for name, value in LINEAR.named_parameters()}

    def loss(parameters: Any, row: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        answer = functional_call(LINEAR, parameters, (row.unsqueeze(0),)).squeeze(0)
        return ((answer - target[:3]) ** 2).mean()

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)


def ensemble(x: torch.Tensor) -> Any:
    def one(parameters: Any, buffers: Any, x: torch.Tensor) -> Any:
        return functional_call(MODELS[0], (parameters, buffers), (x,))

    return vmap(one, in_dims=(0, 0, None))(PARAMETERS, BUFFERS, x)


def pulled_back(x: torch.Tensor) -> Any:
    value, pull = vjp(lambda a: a.sin() * 2, x)
    return value, pull(torch.ones_like(value))[0]


def inner_step(x: torch.Tensor) -> torch.Tensor:
    def inner(w: torch.Tensor) -> torch.Tensor:
        return ((w - 1) ** 2).sum()

    return grad(lambda w: inner(w - 0.1 * grad(inner)(w)))(x)


def without_grad_inside(x: torch.Tensor) -> Any:
    def square(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            kept = a**2
        return (a * kept).sum()

    return grad(square)(x)


def under_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return grad(lambda a: (a**3).sum())(x)


def random_refused(x: torch.Tensor) -> torch.Tensor:
    try:
        return vmap(lambda row: row + torch.rand(4))(x)
    except RuntimeError:
        return x + 1


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "two arguments": (lambda x, y: vmap(torch.dot)(x, y), (X, Y)),
    "in_dims": (lambda x, y: vmap(lambda a, b: (a @ b).sin(), in_dims=(0, None))(x, y.t()), (X, Y)),
    "out_dims": (lambda x, y: vmap(lambda a, b: a * b.sum(), in_dims=(0, 0), out_dims=1)(x, y), (X, Y)),
    "nested": (lambda x, y: vmap(lambda a: vmap(lambda b: (a * b).sum())(y))(x), (X, Y)),
    "chunks": (lambda x: vmap(lambda a: a.softmax(0).sum(), chunk_size=2)(x), (X,)),
    "random, different": (lambda x: vmap(lambda a: a + torch.rand(4), randomness="different")(x), (X,)),
    "random, same": (lambda x: vmap(lambda a: a + torch.rand(4), randomness="same")(x), (X,)),
    "random, refused": (random_refused, (X,)),
    "dicts": (lambda x: vmap(lambda d: {"s": d["a"] + 1, "t": (d["a"].sum(),)})({"a": x}), (X,)),
    "views and choices": (lambda x: vmap(lambda a: torch.where(a > 0, a, a * 0.1)[1:].cumsum(0))(x), (X,)),
    "writes": (lambda x: vmap(written)(x), (X,)),
    "layers": (lambda x: vmap(LINEAR)(x), (X,)),
    "and on": (lambda x: vmap(lambda a: a.sin().sum())(x).relu().unsqueeze(1) * x, (X,)),
    "grad": (lambda x: grad(lambda a: a.sin().sum())(x), (V,)),
    "grad of grad": (lambda x: vmap(grad(grad(torch.sin)))(x), (V,)),
    "argnums": (lambda x, y: grad(lambda a, b: (a * b).sum().exp(), argnums=(0, 1))(x, y), (V, V + 1)),
    "aux": (lambda x: grad(lambda a: ((a**2).sum(), a.cos()), has_aux=True)(x), (V,)),
    "grad and value": (lambda x: grad_and_value(lambda a: a.tanh().sum())(x), (V,)),
    "grad of detached": (lambda x: grad(lambda a: (a.detach() * a).sum())(x), (V,)),
    "no_grad inside": (without_grad_inside, (V,)),
    "no_grad outside": (under_no_grad, (V,)),
    "inner step": (inner_step, (V,)),
    "vjp": (pulled_back, (V,)),
    "jacrev": (lambda x: jacrev(lambda a: a.sin() * a.sum())(x), (V,)),
    "jacrev of jacrev": (lambda x: jacrev(jacrev(lambda a: (a**3).sum() * a.sum()))(x), (V,)),
    "per-sample gradients": (per_sample, (X, Y)),
    "ensemble": (ensemble, (X,)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    program, given = PROGRAMS[name]
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for scale in (1, 2):
        args = [tensor * scale for tensor in given]
        torch.manual_seed(7)
        expected = program(*args)
        torch.manual_seed(7)
        assert_same(compiled(*args), expected)
    assert torch._C._functorch.maybe_current_level() is None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["in_dims", "nested", "writes", "grad", "no_grad inside", "no_grad outside", "vjp"])
def test_gradients_through_transforms(name: str, backend: str) -> None:
    program, given = PROGRAMS[name]

    def gradients(function: Callable[..., Any]) -> Any:
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        results = torch.utils._pytree.tree_leaves(function(*leaves))
        needs = [result.requires_grad for result in results]
        total = sum(result.sin().sum() for result in results)
        return needs, torch.autograd.grad(total, leaves, allow_unused=True) if any(needs) else None

    assert_same(gradients(magneto.compile(program, backend=backend, fullgraph=True)), gradients(program))


def squared(factor: float, a: torch.Tensor) -> torch.Tensor:
    return factor * a**2


def test_what_the_function_reads_is_guarded() -> None:
    factors = [2.0]
    compiled = magneto.compile(lambda x: vmap(functools.partial(squared, factors[0]))(x), fullgraph=True)
    for factor in (2.0, 3.0):
        factors[0] = factor
        assert_same(compiled(X), factor * X**2)


def reads_data(a: torch.Tensor) -> torch.Tensor:
    return a * 2 if a.sum().item() > 0 else a


def test_an_exit_inside_ends_the_segment_in_front() -> None:
    compiled = magneto.compile(lambda x: grad(lambda a: reads_data(a).sum())(x.sin()) + 1)
    for x in (V.abs(), -V.abs()):
        assert_same(compiled(x), grad(lambda a: reads_data(a).sum())(x.sin()) + 1)
    assert torch._C._functorch.maybe_current_level() is None


@pytest.mark.lenient  # a call under a transform is left to CPython
def test_compiled_under_a_transform() -> None:
    compiled = magneto.compile(lambda a: a.sin() * 2 + V)
    compiled(V)
    for _ in range(2):
        assert_same(vmap(compiled)(X), vmap(lambda a: a.sin() * 2 + V)(X))
        assert_same(vmap(lambda a: a + compiled(V))(X), X + (V.sin() * 2 + V))
        assert_same(grad(lambda a: compiled(a).sum())(V), V.cos() * 2)
