"""torch.while_loop inside compiled functions: one graph however often it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch._higher_order_ops
import torch.utils._pytree as pytree
from compare import assert_same
from torch._higher_order_ops.while_loop import while_loop

import magneto

BACKENDS = ("eager", "aot_eager", "magneto")


def plain_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


def documented(x: torch.Tensor) -> Any:
    def cond_fn(iteration: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return iteration.sum() < 10

    def body_fn(iteration: torch.Tensor, x: torch.Tensor) -> Any:
        return iteration + 1, x.sin()

    return while_loop(cond_fn, body_fn, (torch.zeros(1), x))


def until_small(x: torch.Tensor) -> Any:
    limit = x.abs().mean() / 100
    scale = torch.linspace(0.3, 0.9, x.shape[-1])
    return while_loop(lambda a, n: a.abs().max() > limit, lambda a, n: (a * scale, n + 1), (x, torch.tensor(0)))


def never(x: torch.Tensor) -> Any:
    (y,) = while_loop(lambda a: a.sum() > 1e9, lambda a: (a + 1,), (x,))
    return y, y + x


def unchanged(x: torch.Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a), (torch.tensor(0), x))


def swapped(x: torch.Tensor) -> Any:
    return while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a * 2), (torch.tensor(0), x, x + 1))


def with_branch(x: torch.Tensor) -> Any:
    def body_fn(i: torch.Tensor, a: torch.Tensor) -> Any:
        return i + 1, torch.cond(a.sum() > 0.37, lambda a: a - 1, lambda a: a * -2, (a,))

    return while_loop(lambda i, a: i < 7, body_fn, (torch.tensor(0), x))


def nested_loops(x: torch.Tensor) -> Any:
    def body_fn(i: torch.Tensor, a: torch.Tensor) -> Any:
        j, b = while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * 1.5 + x), (i - i, a))
        return i + 1, b

    return while_loop(lambda i, a: i < 4, body_fn, (torch.tensor(0), x))


def trees(x: torch.Tensor) -> Any:
    def body_fn(state: Any, i: torch.Tensor) -> Any:
        return {"a": state["a"] + state["b"][0], "b": [state["b"][0] * 2]}, i + 1

    return while_loop(lambda state, i: i < 3, body_fn, ({"a": x, "b": [x.exp()]}, torch.tensor(0)))


PROGRAMS = (documented, until_small, never, unchanged, swapped, with_branch, nested_loops, trees)
INPUTS = [torch.linspace(-1, 2, 12).view(3, 4), torch.linspace(-9, 1, 12).view(3, 4)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[..., Any], backend: str, dynamic: bool) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    inputs = [*INPUTS, *([torch.rand(5, 6), torch.rand(2, 3)] if dynamic else [])]
    for x in inputs:
        with mock.patch(f"{__name__}.while_loop", plain_loop), mock.patch("torch.cond", plain_cond):
            expected = program(x)
        assert_same(compiled(x), expected)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (1, 0, 0)


def plain_cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def test_a_thousand_steps_are_captured_as_one() -> None:
    def program(x: torch.Tensor) -> Any:
        return while_loop(lambda i, a: i < 1000, lambda i, a: (i + 1, a + 0.5), (torch.tensor(0), x))

    steps, y = magneto.compile(program, fullgraph=True)(torch.zeros(3))
    assert (steps.item(), y.tolist()) == (1000, [500.0] * 3)
    assert magneto.stats()["ops"] < 10


def other_dtype(x: torch.Tensor) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.double()), ((x.sum() * 0).long(), x))


def writes(x: torch.Tensor) -> Any:
    seen = torch.zeros(())
    (a,) = while_loop(lambda a: a.sum() < 20, lambda a: (a + seen.add_(1),), (x,))
    return a, seen


@pytest.mark.parametrize("program", [other_dtype, writes], ids=lambda program: program.__name__)
def test_what_is_no_graph_runs_as_a_loop(program: Callable[..., Any]) -> None:
    with magneto.config.patch(strict=False):
        compiled = magneto.compile(program)
        for x in INPUTS:
            with mock.patch(f"{__name__}.while_loop", plain_loop):
                expected = program(x.clone())
            assert_same(compiled(x.clone()), expected)
    with pytest.raises(magneto.exc.Unsupported, match=r"torch.while_loop, not captured as graphs"):
        magneto.compile(program, fullgraph=True)(INPUTS[0].clone())


def weighted(x: torch.Tensor, w: torch.Tensor) -> Any:
    return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, (a @ w + x).tanh()), (torch.tensor(0), x))


def as_large(x: torch.Tensor, w: torch.Tensor) -> Any:
    """How often it runs depends on the data; what is carried requires gradients from the second turn on."""
    return while_loop(
        lambda a, b: a.abs().max() < 20, lambda a, b: (a * 1.5 + b, b + (w[0] * a).sum(0)), (x + 0.1, x.new_zeros(4))
    )


def runs_never(x: torch.Tensor, w: torch.Tensor) -> Any:
    (y,) = while_loop(lambda a: a.sum() > 1e9, lambda a: (a @ w,), (x * 2,))
    return y, y * w.sum()


def of_loops(x: torch.Tensor, w: torch.Tensor) -> Any:
    def body_fn(i: torch.Tensor, a: torch.Tensor) -> Any:
        j, b = while_loop(lambda j, b: j < i, lambda j, b: (j + 1, (b @ w).sin() + x), (i - i, a))
        return i + 1, b

    return while_loop(lambda i, a: i < 4, body_fn, (torch.tensor(0), x))


def of_loops_without_sizes(x: torch.Tensor, w: torch.Tensor) -> Any:
    """What the inner loop reads has none of the sizes of what it carries."""

    def body_fn(i: torch.Tensor, a: torch.Tensor) -> Any:
        j, b = while_loop(lambda j, b: j < i, lambda j, b: (j + 1, b * 1.1 + w.sum()), (torch.tensor(0), a))
        return i + 1, b * x

    return while_loop(lambda i, a: i < 4, body_fn, (torch.tensor(0), x))


def choosing(x: torch.Tensor, w: torch.Tensor) -> Any:
    def body_fn(i: torch.Tensor, a: torch.Tensor) -> Any:
        return i + 1, torch.cond(a.sum() > 0.37, lambda a: a @ w - 1, lambda a: a * -2, (a,))

    return while_loop(lambda i, a: i < 7, body_fn, (torch.tensor(0), x))


def newton(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Square roots, until nothing changes any more."""
    target = x.square() + w.square().mean() + 1

    def cond_fn(guess: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        return error > 1e-3

    def body_fn(guess: torch.Tensor, error: torch.Tensor) -> Any:
        new = (guess + target / guess) / 2
        return new, (new - guess).detach().abs().max()

    return while_loop(cond_fn, body_fn, (target, x.new_ones(())))[0]


def written(x: torch.Tensor, w: torch.Tensor) -> Any:
    def body_fn(i: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
        new = state["a"].clone()
        new[0] = i
        new[1:] += w[1]
        return i + 1, {"a": new * state["b"], "b": state["b"].cos()}

    return while_loop(lambda i, state: i < 3, body_fn, (torch.tensor(0), {"a": x, "b": w[:3]}))


WITH_GRADIENTS = (weighted, as_large, runs_never, of_loops, of_loops_without_sizes, choosing, newton, written)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", WITH_GRADIENTS, ids=lambda program: program.__name__)
def test_gradients(program: Callable[..., Any], dynamic: bool, backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        values = x.double(), torch.linspace(-0.6, 0.7, 16, dtype=torch.float64).view(4, 4)
        ours, theirs = ([value.clone().requires_grad_() for value in values] for _ in range(2))
        with mock.patch(f"{__name__}.while_loop", plain_loop), mock.patch("torch.cond", plain_cond):
            want = program(*theirs)
        got = compiled(*ours)
        torch.testing.assert_close(got, want)
        for results in (got, want):
            leaves = [leaf for leaf in pytree.tree_leaves(results) if leaf.requires_grad]
            torch.stack([leaf.sin().sum() for leaf in leaves]).sum().backward()
        for mine, own in zip(ours, theirs, strict=True):
            zero = torch.zeros_like(mine)  # where nothing ran, eager has no gradient
            torch.testing.assert_close(zero if mine.grad is None else mine.grad, zero if own.grad is None else own.grad)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["no_joint"]) == (1, 0, {})


def test_gradients_through_random_numbers() -> None:
    def program(x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, a: i < 3, lambda i, a: (i + 1, torch.nn.functional.dropout(a)), (torch.tensor(0), x)
        )

    compiled = magneto.compile(program, fullgraph=True)
    grads = []
    for function in (compiled, program):
        x = torch.ones(64, requires_grad=True)
        torch.manual_seed(3)
        with mock.patch(f"{__name__}.while_loop", plain_loop if function is program else while_loop):
            function(x)[1].sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
