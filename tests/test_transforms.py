"""torch.func inside compiled functions: each program in one graph, with eager's results, in each backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.autograd.functional as functional
from compare import assert_same
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
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


def classes_loss(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """PyTorch decomposes its gradient, in Python that reads an enum, where vmap asks for it."""
    return torch.nn.functional.cross_entropy(x, scores.argmax(1))


def without_grad_inside(x: torch.Tensor) -> Any:
    def square(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            kept = a**2
        return (a * kept).sum()

    return grad(square)(x)


def under_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return grad(lambda a: (a**3).sum())(x)


def pushed_forward(x: torch.Tensor, tangent: torch.Tensor) -> Any:
    return jvp(lambda a: (a.sin() * a, {"sum": a.exp().sum()}), (x,), (tangent,))


def rows_pushed_forward(x: torch.Tensor, tangents: torch.Tensor) -> Any:
    return vmap(lambda a, t: jvp(lambda b: b.softmax(0) * b[0], (a,), (t,)))(x, tangents)


def products(x: torch.Tensor) -> Any:
    """With a vector, by reverse over forward mode."""
    return vjp(lambda a: jvp(lambda b: (b**3).sum(), (a,), (torch.ones_like(a),))[1], x)[1](torch.ones(()))


def with_aux(x: torch.Tensor) -> Any:
    return jvp(lambda a: (a.tanh(), a.detach() + 1), (x,), (x.cos(),), has_aux=True)


def infinite_factor(x: torch.Tensor, y: torch.Tensor) -> Any:
    """A tangent that is zero stays so beside infinity."""
    return jvp(lambda a: a.sum() * (y / 0) + (a * 0).detach(), (x,), (x,)), hessian(lambda a: (a / 0 * y).sum())(x)


def with_level(x: torch.Tensor, tangent: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        primal, pushed = forward_ad.unpack_dual(dual.sin() * dual[0])
        without = forward_ad.unpack_dual(x.exp())
    return primal + 1, pushed, without, forward_ad.unpack_dual(dual)


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
    "jvp": (pushed_forward, (V, V + 1)),
    "jvp, aux": (with_aux, (V,)),
    "jvp of vmap": (lambda x, t: jvp(vmap(lambda a: a.sin().cumsum(0) * a), (x,), (t,)), (X, Y)),
    "vmap of jvp": (rows_pushed_forward, (X, Y)),
    "jvp of grad": (lambda x, t: jvp(grad(lambda a: (a**3).sum() * a[0]), (x,), (t,)), (V, V + 1)),
    "jvp of jvp": (lambda x: jvp(lambda a: jvp(torch.sin, (a,), (a * 2,))[1], (x,), (x.cos(),)), (V,)),
    "grad of jvp": (products, (V,)),
    "jacfwd": (lambda x: jacfwd(lambda a: a.sin() * a.sum())(x), (V,)),
    "jacfwd, argnums": (lambda x, y: jacfwd(lambda a, b: a * b.exp(), argnums=(0, 1))(x, y), (V, V + 1)),
    "jacfwd of jacfwd": (lambda x: jacfwd(jacfwd(lambda a: (a**3).sum() * a.sum()))(x), (V,)),
    "hessian": (lambda x: hessian(lambda a: (a**3).sum() * a.sum())(x), (V,)),
    "hessian of a loss": (lambda x: hessian(lambda a: LINEAR(a).log_softmax(-1)[0])(x), (V,)),
    "vmap of hessian": (lambda x: vmap(hessian(lambda a: (a.sin() * a).sum().exp()))(x), (X,)),
    "jacrev of a loss of classes": (lambda x, y: jacrev(lambda a: classes_loss(a, y))(x), (X, Y)),
    "hessian of a loss of classes": (lambda x, y: hessian(lambda a: classes_loss(a, y))(x), (X, Y)),
    "dual_level": (with_level, (V, V + 1)),
    "functional.jvp": (lambda x, t: functional.jvp(torch.tanh, x, t), (V, V + 1)),
    "functional.vjp": (lambda x, t: functional.vjp(torch.tanh, x, t), (V, V + 1)),
    "functional.hvp": (lambda x, t: functional.hvp(lambda a: (a**3).sum() * a[0], x, t), (V, V + 1)),
    "functional.vhp": (lambda x, t: functional.vhp(lambda a: (a**3).sum() * a[0], x, t), (V, V + 1)),
    "functional.jacobian": (lambda x: functional.jacobian(lambda a: a.sin() * a.sum(), x), (V,)),
    "functional.jacobian, vectorized": (
        lambda x: functional.jacobian(lambda a: a.sin() * a.sum(), x, vectorize=True),
        (V,),
    ),
    "functional.hessian, vectorized": (
        lambda x: functional.hessian(lambda a: (a**3).sum() * a[0], x, vectorize=True),
        (V,),
    ),
    "functional.jacobian, forward": (
        lambda x: functional.jacobian(lambda a: a.sin() * a[0], x, vectorize=True, strategy="forward-mode"),
        (V,),
    ),
    "functional.hessian": (lambda x: functional.hessian(lambda a: (a**3).sum() * a[0], x), (V,)),
    "zero tangents": (infinite_factor, (V, V + 1)),
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
@pytest.mark.parametrize(
    "name",
    [
        "in_dims",
        "nested",
        "writes",
        "grad",
        "no_grad inside",
        "no_grad outside",
        "vjp",
        "jvp",
        "vmap of jvp",
        "hessian",
    ],
)
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


def level_with_exit(x: torch.Tensor, scale: float) -> Any:
    before = x.exp()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, before)
        if before.sum().item() > 3:
            dual = dual * scale
        pushed = forward_ad.unpack_dual(dual.sin()).tangent
    return pushed, before + 1


@pytest.mark.lenient  # frames under a level of forward-mode AD are left to CPython
def test_an_exit_in_a_level_ends_the_segment_in_front() -> None:
    compiled = magneto.compile(level_with_exit)
    for x in (V, V + 3, V):
        assert_same(compiled(x, 2.0), level_with_exit(x, 2.0))


@pytest.mark.lenient  # likewise
def test_a_level_that_is_left_open() -> None:
    def opens(x: torch.Tensor) -> torch.Tensor:
        forward_ad.enter_dual_level()
        return forward_ad.make_dual(x, x.cos())

    compiled = magneto.compile(opens)
    for _ in range(2):
        assert_same(forward_ad.unpack_dual(compiled(V)).tangent, V.cos())
        forward_ad.exit_dual_level()


OF_ONE_SIZE = ("in_dims", "layers", "hessian of a loss", "per-sample gradients", "ensemble")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in OF_ONE_SIZE])
def test_sizes_change(name: str, backend: str) -> None:
    """Three sizes: from the second call on they are symbols, where PyTorch's own rules leave them so. (The vmap inside
    torch.autograd.grad knows none: a vectorized jacobian is a graph for each size.)"""
    program, given = PROGRAMS[name]
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for length in (3, 4, 5):
        args = [torch.cat([tensor, tensor])[:length] for tensor in given]
        torch.manual_seed(7)
        expected = program(*args)
        torch.manual_seed(7)
        assert_same(compiled(*args), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_zeros_without_memory(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        zeros = torch._efficientzerotensor([4])
        pair = zeros.view(2, 2)
        return (
            (zeros * x, zeros + x, x - zeros, zeros - x, zeros + zeros, pair * x.view(2, 2), zeros / x, x / zeros),
            (zeros.exp(), torch.cat([zeros, x]), zeros[1:] + x[:3], pair),
        )

    x = torch.tensor([1.0, torch.inf, torch.nan, -2.0])
    expected, results = program(x), magneto.compile(program, backend=backend, fullgraph=True)(x)
    assert_same(results, expected)
    assert [each._is_zerotensor() for each in sum(results, ())] == [each._is_zerotensor() for each in sum(expected, ())]
    with pytest.raises(RuntimeError, match="immutable"):
        magneto.compile(lambda: torch._efficientzerotensor([4]).add_(1), backend=backend)()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.group_norm(x, 2),
        lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.nn.functional.interpolate(x, scale_factor=2.0),
    ],
)
def test_operators_that_ask_tensors_of_a_transform_for_plain_sizes(function: Any) -> None:
    """With symbols for sizes PyTorch raised an internal assertion: one graph for each size takes their place."""
    compiled = magneto.compile(lambda x: jvp(function, (x,), (x.sin(),)), dynamic=True, fullgraph=True)
    for batch in (2, 3, 5):
        x = torch.linspace(-1, 2, batch * 20).view(batch, 4, 5)
        for ours, eager in zip(compiled(x), jvp(function, (x,), (x.sin(),)), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
