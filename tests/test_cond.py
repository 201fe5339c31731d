"""torch.cond inside compiled functions: one graph whatever the data say, with the results of the branch that is taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from compare import assert_same

import magneto

BACKENDS = ("eager", "aot_eager", "magneto")


def plain_cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """What torch.cond is equivalent to."""
    return true_fn(*operands) if pred else false_fn(*operands)


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(4, 4)
        self.deep = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.wide, self.deep, (x,)) + x


class Methods(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4))

    def up(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).exp()

    def down(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.mean() > 0, self.up, self.down, (x,)) * self.scale


def simple(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


def closure(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    z = y * 3
    return torch.cond(x.sum() > 0, lambda: y + z, lambda: y - x, ())


def trees(x: torch.Tensor) -> Any:
    found = torch.cond(
        x.sum() > 0,
        lambda d: {"a": d["x"].sin(), "b": [d["x"] + 1, (d["y"], 3)]},
        lambda d: {"a": d["x"].cos(), "b": [d["x"] * 2, (d["y"] * 5, 3)]},
        ({"x": x, "y": x[0]},),
    )
    return found["a"] + found["b"][0], found["b"][1]


def nested(x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 2, lambda x: x * 10, lambda x: x + 10, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: inner(x.abs()) - 1, (x,)).sin()


def views(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.t(), lambda x: (x * 2).t(), (x,)) @ x


def both_given(x: torch.Tensor) -> Any:
    def twice(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y

    return torch.cond(x.sum() > 0, twice, lambda x: (x.sin(), x.cos()), (x,))


def writes_inside(x: torch.Tensor) -> torch.Tensor:
    def fill(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0] = 7
        return y.add_(1)

    return torch.cond(x.sum() > 0, fill, torch.sin, (x,))


def several(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        x = torch.cond(x.sum() > i, lambda x: x * 0.5, lambda x: x - 1, (x,))
    return x


def branch_locals(x: torch.Tensor) -> torch.Tensor:
    def true_fn(x: torch.Tensor) -> torch.Tensor:
        parts = []
        for i in range(3):
            parts.append(x * i)
        names = {"sum": sum(parts)}
        return names["sum"]

    return torch.cond(x.sum() > 0, true_fn, lambda x: x.neg(), (x,))


def constant_results(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x + 1, None, 2), lambda x: (x - 1, None, 2), (x,))


def with_predicate(x: torch.Tensor) -> torch.Tensor:
    positive = x.sum() > 0
    return torch.cond(positive, lambda x: x + positive, lambda x: x - 1, (x,))


PROGRAMS = (
    simple, closure, trees, nested, views, both_given, writes_inside, several, branch_locals, constant_results,
    with_predicate,
)  # fmt: skip
INPUTS = [torch.linspace(-1, 2, 16).view(4, 4), torch.linspace(-2, 1, 16).view(4, 4), torch.full((4, 4), 3.0)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for x in INPUTS:
        with mock.patch("torch.cond", plain_cond):
            expected = program(x.clone())
        assert_same(compiled(x.clone()), expected)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (1, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [simple, closure, nested, several, branch_locals, views], ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True)
    for values in INPUTS:
        x, y = (values.clone().requires_grad_() for _ in range(2))
        with mock.patch("torch.cond", plain_cond):
            expected = program(x)
        found = compiled(y)
        torch.testing.assert_close(found, expected)
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (1, 0, 0)
    assert not magneto.stats()["no_joint"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", [Gate, Methods])
def test_parameters(model: Callable[[], torch.nn.Module], backend: str) -> None:
    """Those of the branch that is not taken get zeros, as from the peer; eager's branch leaves them alone."""
    torch.manual_seed(0)
    eager = model()
    ours = copy.deepcopy(eager)
    compiled = magneto.compile(ours, backend=backend, fullgraph=True)
    for values in INPUTS:
        with mock.patch("torch.cond", plain_cond):
            expected = eager(values)
        found = compiled(values)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
            want = torch.zeros_like(other) if other.grad is None else other.grad
            have = torch.zeros_like(one) if one.grad is None else one.grad
            torch.testing.assert_close(have, want)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (1, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", [simple, closure, nested, branch_locals], ids=lambda program: program.__name__)
def test_dynamic_sizes(program: Callable[..., Any], backend: str, grad: bool) -> None:
    compiled = magneto.compile(program, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5, 4, 7):
        for sign in (1, -1):
            x, y = ((torch.rand(rows, 6) * sign).requires_grad_(grad) for _ in range(2))
            y.data.copy_(x.data)
            with mock.patch("torch.cond", plain_cond):
                expected = program(x)
            found = compiled(y)
            torch.testing.assert_close(found, expected)
            if grad:
                expected.sum().backward()
                found.sum().backward()
                torch.testing.assert_close(y.grad, x.grad)
    assert (magneto.stats()["graphs"], magneto.stats()["breaks"], magneto.stats()["recompiles"]) == (1, 0, 0)


def test_random_numbers_are_those_of_the_branch() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: x + torch.rand(4), lambda x: x * 2, (x,))
        return y + torch.rand(4)

    compiled = magneto.compile(program, fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.manual_seed(1)
        with mock.patch("torch.cond", plain_cond):
            expected = program(x)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x), expected)


class Box:
    def __init__(self) -> None:
        self.seen = 0


BOX = Box()


def appends(x: torch.Tensor) -> Any:
    seen: list[int] = []

    def true_fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return x + 1

    return torch.cond(x.sum() > 0, true_fn, lambda x: x - 1, (x,)), seen


def counts(x: torch.Tensor) -> Any:
    def true_fn(x: torch.Tensor) -> torch.Tensor:
        BOX.seen += 1
        return x + 1

    return torch.cond(x.sum() > 0, true_fn, lambda x: x - 1, (x,))


def rebinds(x: torch.Tensor) -> Any:
    last = 0

    def true_fn(x: torch.Tensor) -> torch.Tensor:
        nonlocal last
        last = 5
        return x + 1

    return torch.cond(x.sum() > 0, true_fn, lambda x: x - 1, (x,)), last


def advances(x: torch.Tensor) -> Any:
    numbers = iter([1, 2, 3])
    return torch.cond(x.sum() > 0, lambda x: x + next(numbers), lambda x: x - 1, (x,)), next(numbers)


def writes_operand(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.add_(1) * 2, lambda x: x - 1, (x,)) + x


def other_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x[:2], lambda x: x[:3], (x,)).sum()


def other_dtypes(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.double(), lambda x: x - 1, (x,))


def other_trees(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x + 1,), lambda x: [x - 1], (x,))


def prints(x: torch.Tensor) -> torch.Tensor:
    def true_fn(x: torch.Tensor) -> torch.Tensor:
        print("taken")
        return x + 1

    return torch.cond(x.sum() > 0, true_fn, lambda x: x - 1, (x,))


def raises(x: torch.Tensor) -> torch.Tensor:
    def true_fn(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not this one")

    return torch.cond(x.sum() > 100, true_fn, lambda x: x - 1, (x,))


NO_GRAPHS = {
    appends: "it changes an object that was made before it (list)",
    counts: "it changes an object from outside",
    rebinds: "it changes an object that was made before it (cell)",
    advances: "it can reach an iterator (list_iterator)",
    writes_operand: "aten.add_.Scalar writes to a tensor that was there before it",
    other_sizes: "result 0 of the branches: sizes [2, 4] and [3, 4]",
    other_dtypes: "result 0 of the branches: Double and Float",
    other_trees: "the branches give different structures",
    prints: "call of builtins.print",
    raises: "it raises ValueError",
}


@pytest.mark.parametrize("program", NO_GRAPHS, ids=lambda program: program.__name__)
def test_what_is_no_graph_breaks_where_the_data_decide(program: Callable[..., Any]) -> None:
    with magneto.config.patch(strict=False):
        compiled = magneto.compile(program)
        for x in (*INPUTS, -INPUTS[2]):
            BOX.seen = 0
            with mock.patch("torch.cond", plain_cond):
                expected = program(x.clone())
            seen, BOX.seen = BOX.seen, 0
            assert_same(compiled(x.clone()), expected)
            assert BOX.seen == seen
    with pytest.raises(magneto.exc.Unsupported) as error:
        magneto.compile(program, fullgraph=True)(INPUTS[0].clone())
    assert NO_GRAPHS[program] in str(error.value)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


def with_custom_function(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, Cubed.apply, lambda x: x * 2, (x,))


def with_dropout(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x * 2, (x,))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program, why",
    [
        (with_custom_function, "a custom autograd.Function in a branch"),
        (with_dropout, "a branch draws random numbers, which its backward repeats"),
    ],
    ids=["custom function", "dropout"],
)
def test_what_has_no_backward_runs_under_autograd(program: Callable[..., Any], why: str, backend: str) -> None:
    with magneto.config.patch(strict=False):
        compiled = magneto.compile(program, backend=backend, fullgraph=True)
        for values in INPUTS:
            x, y = (values.clone().requires_grad_() for _ in range(2))
            torch.manual_seed(0)
            with mock.patch("torch.cond", plain_cond):
                expected = program(x)
            torch.manual_seed(0)
            found = compiled(y)
            torch.testing.assert_close(found, expected)
            expected.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
        if backend != "eager":
            assert any(why in reason for reason in magneto.stats()["no_joint"])


def test_graphs_for_backends() -> None:
    texts = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        texts.append(gm.code)
        assert isinstance(gm.cond_true_0, torch.fx.GraphModule)
        targets = [node.target for node in gm.graph.nodes]
        assert torch.ops.higher_order.cond in targets
        return gm.forward

    compiled = magneto.compile(simple, backend=backend, fullgraph=True)
    for x in INPUTS:
        torch.testing.assert_close(compiled(x), x + 1 if x.sum() > 0 else x - 1)
    assert len(texts) == 1


def test_the_branches_are_generated_code() -> None:
    compiled = magneto.compile(nested, fullgraph=True)
    compiled(INPUTS[0])
    stats = magneto.stats()
    assert stats["kernels"] >= 4
    assert set(stats["externs"]) == {"magneto::cond"}


def summed(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (x,)).sum()


def turned(x: torch.Tensor) -> torch.Tensor:
    a, b = torch.cond(x.sum() > 0, lambda x: (x.t() * 2, x.sin()), lambda x: (x.t() * 3, x.cos()), (x,))
    return a.sum() + (a.t() * x).sum() + b.mean()


@pytest.mark.usefixtures("ours_alone")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [summed, turned])
def test_gradients_of_sums_of_branches(program: Callable[[torch.Tensor], torch.Tensor], dynamic: bool | None) -> None:
    """The gradient of a sum is one element, expanded: the backward's branches read as many as there are."""

    def inside(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(program(x), x)[0]

    outer, inner = magneto.compile(program, dynamic=dynamic), magneto.compile(inside, dynamic=dynamic)
    for rows in (3, 5):
        for sign in (1.0, -1.0):
            x = (torch.arange(4.0 * rows).view(rows, 4).sin() + sign).requires_grad_()
            torch.testing.assert_close(torch.autograd.grad(outer(x), x)[0], inside(x))
            torch.testing.assert_close(inner(x), inside(x))
