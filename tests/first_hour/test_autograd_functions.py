"""torch.autograd.Function inside compiled code: forward, backward, contexts, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 30 * x**2 * ctx.scale, None  # ten times too much: it must be this one that runs


class CubeWithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> torch.Tensor:
        return grad * ctx.saved_tensors[0] * 10


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Increment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Parts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, names: list[str]) -> Any:
        ctx.names = names
        index = x.argsort()
        ctx.mark_non_differentiable(index)
        return x * len(names), index, names[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        return grad * len(ctx.names) * 10, None


def apply_cube(x: torch.Tensor) -> torch.Tensor:
    return Cube.apply(x.sin(), 2.0) + 1


def apply_cube_with_setup(x: torch.Tensor) -> torch.Tensor:
    cube, _ = CubeWithSetup.apply(x.sin())
    return cube * 2


def apply_straight(x: torch.Tensor) -> torch.Tensor:
    return Straight.apply(x * 3) * x


def apply_increment(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = Increment.apply(y)
    return z * y


def apply_parts(x: torch.Tensor) -> Any:
    y, index, name = Parts.apply(x.sin(), ["a", "b"])
    return y[index] * len(name)


def apply_twice(x: torch.Tensor) -> torch.Tensor:
    return Cube.apply(Cube.apply(x))


def apply_in_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = Cube.apply(x)
    return y + x


PROGRAMS = [
    apply_cube,
    apply_cube_with_setup,
    apply_straight,
    apply_increment,
    apply_parts,
    apply_twice,
    apply_in_no_grad,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_forward_where_nothing_needs_gradients(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for x in (X, X * 2):
        assert_same(compiled(x), program(x))
    magneto.reset()
    with torch.inference_mode():
        assert_same(compiled(X), program(X))


@pytest.mark.parametrize("program", [apply_cube, apply_straight, apply_twice, apply_in_no_grad])
def test_forward_is_one_graph(program: Callable[..., Any]) -> None:
    assert_same(magneto.compile(program, fullgraph=True)(X), program(X))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program: Callable[..., Any], backend: str) -> None:
    def run(function: Callable[..., Any]) -> Any:
        x = X.clone().requires_grad_()
        y = function(x)
        y.sum().backward()
        return y, x.grad

    compiled = magneto.compile(program, backend=backend)
    for _ in range(2):
        assert_same(run(compiled), run(program))


def test_the_input_is_returned() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 5

    def program(x: torch.Tensor) -> torch.Tensor:
        return Same.apply(x)

    for x in (X.clone(), X.clone().requires_grad_()):
        magneto.reset()
        want, got = program(x), magneto.compile(program)(x)
        assert (got is x, got._is_view(), got.requires_grad) == (want is x, want._is_view(), want.requires_grad)
        assert_same(got, want)


def test_forward_reads_what_the_context_needs() -> None:
    class Conditional(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if ctx.needs_input_grad[0] else x * 3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    def program(x: torch.Tensor) -> torch.Tensor:
        return Conditional.apply(x) + 1

    compiled = magneto.compile(program)
    for x in (X, X.clone().requires_grad_(), X):
        assert_same(compiled(x), program(x))


def test_error_in_forward_is_the_users() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("not today")

    compiled = magneto.compile(lambda x: Failing.apply(x))
    for x in (X, X.clone().requires_grad_()):
        with pytest.raises(LookupError, match="not today"):
            compiled(x)


def test_error_in_backward_is_the_users() -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise LookupError("not today")

    y = magneto.compile(lambda x: Failing.apply(x) + 1)(X.clone().requires_grad_())
    with pytest.raises(LookupError, match="not today"):
        y.sum().backward()


def test_double_backward() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    def second(function: Callable[..., Any]) -> torch.Tensor:
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad((first**3).sum(), x)[0]

    def program(x: torch.Tensor) -> torch.Tensor:
        return Square.apply(x) * 3

    assert_same(second(magneto.compile(program)), second(program))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [apply_cube, apply_straight, apply_increment, apply_twice, apply_in_no_grad])
def test_gradients_are_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for scale in (1.0, 2.0):
        results = []
        for function in (compiled, program):
            x = (X * scale).requires_grad_()
            y = function(x)
            y.sum().backward()
            results.append((y, x.grad))
        assert_same(results[0], results[1])
    assert magneto.stats()["recompiles"] == 0


def test_forward_with_an_effect_is_called_once() -> None:
    seen: list[Any] = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(x.shape))
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append("backward")
            return grad * 3

    compiled = magneto.compile(lambda x: Noting.apply(x * 2) + 1, backend="aot_eager")
    for turn in range(1, 4):
        x = X.clone().requires_grad_()
        compiled(x).sum().backward()
        assert_same(x.grad, torch.full_like(X, 6.0))
        assert seen == [(6,), "backward"] * turn


def test_random_numbers_in_forward() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            mask = torch.rand_like(x) > 0.5
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0]

    def program(x: torch.Tensor) -> Any:
        return Noisy.apply(x) + torch.rand(6)

    compiled = magneto.compile(program, backend="aot_eager", fullgraph=True)
    for seed in range(3):
        results = []
        for function in (compiled, program):
            torch.manual_seed(seed)
            x = X.clone().requires_grad_()
            y = function(x)
            y.sum().backward()
            results.append((y, x.grad, torch.rand(1)))
        assert_same(results[0], results[1])


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("needs", [True, False])
def test_an_argument_given_back(needs: bool, enabled: bool, backend: str) -> None:
    """Autograd makes a view of it, or, with gradients off, a tensor that has nothing to do with it but the memory."""
    compiled = magneto.compile(Same.apply, backend=backend)
    x = X.clone().requires_grad_(needs)
    with torch.set_grad_enabled(enabled):
        for _ in range(2):
            want, got = Same.apply(x), compiled(x)
            assert got is not x and got.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            facts = [(t.requires_grad, t.is_leaf, t._is_view(), t._base is x) for t in (got, want)]
            assert facts[0] == facts[1]
