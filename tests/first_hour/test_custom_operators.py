"""Operators of the user's own (torch.library): with and without fake kernels, writing their arguments, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

BACKENDS = ("magneto", "aot_eager", "eager")
X = torch.linspace(-1, 1, 6)


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library("first_hour", "FRAGMENT") as fragment:
        yield fragment


@torch.library.custom_op("first_hour::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float, shift: int = 0) -> torch.Tensor:
    return x * by + shift


@scaled.register_fake
def _(x: torch.Tensor, by: float, shift: int = 0) -> torch.Tensor:
    return torch.empty_like(x)


def _scaled_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.by = inputs[1]


scaled.register_autograd(lambda ctx, grad: (grad * ctx.by, None, None), setup_context=_scaled_setup)


@torch.library.custom_op("first_hour::pair", mutates_args=())
def pair(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x.sin(), [x.cos(), x.tan()]


@pair.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.empty_like(x), [torch.empty_like(x), torch.empty_like(x)]


@torch.library.custom_op("first_hour::add_in_place", mutates_args=("x",))
def add_in_place(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("first_hour::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0) * 2


@torch.library.custom_op("first_hour::evens", mutates_args=())
def evens(x: torch.Tensor) -> torch.Tensor:
    """The shape of its result follows from the data."""
    return x[x.round() % 2 == 0].clone()


@evens.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def agree(program: Callable[..., Any], *arguments: torch.Tensor, backend: str, runs: int = 2) -> None:
    compiled = magneto.compile(program, backend=backend)
    for _ in range(runs):
        theirs, ours = [x.clone() for x in arguments], [x.clone() for x in arguments]
        assert_same(compiled(*ours), program(*theirs))
        assert_same(ours, theirs, path="arguments")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", [scaled, torch.ops.first_hour.scaled, torch.ops.first_hour.scaled.default])
def test_operator_with_a_fake_kernel_is_in_the_graph(call: Callable[..., Any], backend: str) -> None:
    agree(lambda x: call(x + 1, 2.0, shift=3).relu() - 1, X, backend=backend)
    stats = magneto.stats()
    assert (stats["graphs"], stats["breaks"]) == (1, 0), stats["break_reasons"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_with_several_results(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        first, (second, third) = pair(x * 2)
        return first + second, third

    agree(program, X, backend=backend)
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_that_writes_its_argument(backend: str) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x * 2
        add_in_place(z, y)
        add_in_place(x, z)
        return z + x

    agree(program, X, X + 1, backend=backend)
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_without_a_fake_kernel_is_a_side_exit(backend: str) -> None:
    agree(lambda x: without_fake(x.sin()).cos() + without_fake(x), X, backend=backend)
    reasons = magneto.stats()["break_reasons"]
    assert reasons and all("first_hour.without_fake" in reason for reason in reasons), reasons


def test_operator_without_a_fake_kernel_under_fullgraph() -> None:
    compiled = magneto.compile(lambda x: without_fake(x), fullgraph=True)
    with pytest.raises(magneto.exc.Unsupported, match=r"first_hour.without_fake(.|\n)*register_fake"):
        compiled(X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_result_whose_shape_follows_from_data(backend: str) -> None:
    agree(lambda x: evens(x * 4).sum() + x, X, backend=backend)
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_a_custom_operator(backend: str) -> None:
    def gradient(function: Callable[..., Any]) -> torch.Tensor:
        x = X.clone().requires_grad_()
        function(x).sum().backward()
        assert x.grad is not None
        return x.grad

    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(x.sin(), 3.0) * x

    assert_same(gradient(magneto.compile(program, backend=backend)), gradient(program))


def test_fake_kernel_that_raises_is_the_users_error() -> None:
    @torch.library.custom_op("first_hour::picky", mutates_args=())
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 1:
            raise ValueError("picky wants vectors")
        return x.clone()

    @picky.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 1:
            raise ValueError("picky wants vectors")
        return torch.empty_like(x)

    def program(x: torch.Tensor) -> torch.Tensor:
        return picky(x + 1)

    compiled = magneto.compile(program)
    for _ in range(2):
        with pytest.raises(ValueError, match="picky wants vectors"):
            compiled(X.reshape(2, 3))
        assert torch.equal(compiled(X), X + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_kernels_registered_with_a_library(library: torch.library.Library, backend: str) -> None:
    name = f"doubled_{backend}"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2, "CPU")
    doubled = getattr(torch.ops.first_hour, name)
    agree(lambda x: doubled(x + 1) - 1, X, backend=backend)
    assert magneto.stats()["breaks"] > 0
    magneto.reset()
    library.impl(name, lambda x: torch.empty_like(x), "Meta")
    agree(lambda x: doubled(x + 1) - 1, X, backend=backend)
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_composite_operator_is_taken_apart(library: torch.library.Library, backend: str) -> None:
    name = f"composite_{backend}"
    library.define(f"{name}(Tensor x, int times) -> Tensor")

    def kernel(x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = x.sin()
        return x

    library.impl(name, kernel, "CompositeImplicitAutograd")
    operator = getattr(torch.ops.first_hour, name)
    agree(lambda x: operator(x, 3) + 1, X, backend=backend)
    assert magneto.stats()["breaks"] == 0


def test_side_effects_of_a_custom_operator_happen_at_each_call() -> None:
    calls: list[int] = []

    @torch.library.custom_op("first_hour::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        return x + 1

    @counted.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    compiled = magneto.compile(lambda x: counted(x) * 2)
    for turn in range(3):
        assert torch.equal(compiled(X), (X + 1) * 2)
        assert calls == list(range(turn + 1))


@pytest.mark.parametrize("overload", [True, False])
def test_an_operator_that_nobody_has_asked_for_yet(overload: bool) -> None:
    """torch.ops makes operators when they are first asked for."""
    name = f"magneto_unasked_{overload}"

    def program(x: torch.Tensor) -> Any:
        namespace = getattr(torch.ops, name)
        return namespace.next.default(x) if overload else namespace.next(x)

    with torch.library._scoped_library(name, "DEF") as library:
        library.define("next(Tensor x) -> Tensor")
        library.impl("next", lambda x: x + 1, "CPU")
        library.impl("next", torch.empty_like, "Meta")
        vars(torch.ops).pop(name, None)
        compiled = magneto.compile(program, backend="eager", fullgraph=True)
        assert_same(compiled(X), X + 1)
        assert_same(compiled(X), X + 1)
        assert magneto.stats()["recompiles"] == 0
        with pytest.raises(AttributeError, match="other"):
            magneto.compile(lambda: getattr(torch.ops, name).other)()


@pytest.mark.parametrize("backend", BACKENDS)
def test_branches_with_an_operator_of_the_user(backend: str) -> None:
    operator = scaled  # a closure of the branches, like that of a function that makes operators

    def program(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda t: operator(t, 2.0) + 1, lambda t: operator(t, 3.0), (x,))

    def plain(x: torch.Tensor) -> Any:  # eager's `cond` runs PyTorch's own compiler, which changes nn.Module for good
        return operator(x, 2.0) + 1 if x.sum() > 0 else operator(x, 3.0)

    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for sign in (1, -1):
        assert_same(compiled((X + 1) * sign), plain((X + 1) * sign))
