"""torch.cond, while_loop, scan and map called eagerly under `magneto.install()`: what the same program in Python gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from compare import assert_same
from torch._higher_order_ops import map as map_slices
from torch._higher_order_ops import scan, while_loop

from magneto._control_flow import SCAN_STACKS_ALONG_DIM

X = torch.arange(12.0).view(4, 3).sin().requires_grad_()
W = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)


def taken(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    return (true_fn if pred else false_fn)(*operands)


def looped(condition: Callable[..., Any], body: Callable[..., Any], carried: Any) -> Any:
    while condition(*carried):
        carried = body(*carried)
    return carried


def stepped(step: Callable[..., Any], carry: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    leaves, structure = pytree.tree_flatten(xs)
    order = range(leaves[0].shape[dim])
    outs = []
    for i in reversed(order) if reverse else order:
        carry, out = step(carry, pytree.tree_unflatten([leaf.select(dim, i) for leaf in leaves], structure))
        outs.append(out)
    stacked = pytree.tree_map(lambda *column: torch.stack(column), *(outs[::-1] if reverse else outs))
    along = dim if SCAN_STACKS_ALONG_DIM else 0
    return carry, pytree.tree_map(lambda leaf: leaf.movedim(0, along) if along < leaf.dim() else leaf, stacked)


def mapped(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    return stepped(lambda carry, x: (carry, f(x, *args)), (), xs)[1]


# Of torch.cond.
def one_result(cond: Any) -> Any:
    return cond(X.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (X,))


def pytrees(cond: Any) -> Any:
    return cond(X.sum() < 0, lambda x: {"a": x.cos(), "b": (x * 2,)}, lambda x: {"a": x.sin(), "b": (x * 3,)}, (X,))


def closures(cond: Any) -> Any:
    return cond(X.sum() > 0, lambda: X * W, lambda: X - W), cond(True, lambda: W * 2, lambda: W)


def nested(cond: Any) -> Any:
    def inner(x: torch.Tensor) -> Any:
        return cond(x.max() > 0.1, lambda y: y * W, lambda y: y + W, (x,))

    return cond(X.sum() > -100, inner, lambda x: x * 2, (X,))


def on_shapes(cond: Any) -> Any:
    return [cond(x.shape[0] > 2, torch.cos, torch.sin, (x,)) for x in (X, X[:2])]


def layers(cond: Any) -> Any:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    return cond(X.sum() > 0, first, second, (X,)), first, second


# Of while_loop.
def counted(loop: Any) -> Any:
    return loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), X))


def with_weights(loop: Any) -> Any:
    return loop(lambda i, x: i.sum() > 0, lambda i, x: (i - 1, (x * W).sin()), (torch.tensor([3]), X))


def numbers_and_pytrees(loop: Any) -> Any:
    def body(i: Any, state: dict[str, Any]) -> Any:
        return i + 1, {"x": state["x"] * 2, "n": state["n"] + 1}

    return [loop(lambda i, state, n=n: i < n, body, (0, {"x": X, "n": torch.tensor(0)})) for n in (3, 1)]


# Of scan and map.
def sums(scanned: Any) -> Any:
    return scanned(lambda c, x: (c + x, (c + x) * 1), torch.zeros(3), X)


def trees(scanned: Any) -> Any:
    def step(c: Any, x: Any) -> Any:
        return {"a": c["a"] * 0.9 + x["u"], "n": c["n"] + 1.0}, (x["v"] * c["a"], c["n"] * 1)

    return scanned(step, {"a": torch.zeros(3), "n": torch.tensor(0.0)}, {"u": X, "v": X * 2})


def backwards(scanned: Any) -> Any:
    return scanned(lambda c, x: (c + x * W[0], {"y": c * x}), torch.zeros(4), X, dim=1, reverse=True)


def slices(over: Any) -> Any:
    return over(lambda x: x.sin(), X), over(lambda x, w: {"r": x * w}, X, W), over(lambda x: x * W, X)


def slices_of_trees(over: Any) -> Any:
    return over(lambda d, w: (d["a"] + w[0], d["b"] * w[1]), {"a": X, "b": X * 2}, (W, W * 3))


PROGRAMS = (
    *((program, torch.cond, taken) for program in (one_result, pytrees, closures, nested, on_shapes, layers)),
    *((program, while_loop, looped) for program in (counted, with_weights, numbers_and_pytrees)),
    *((program, scan, stepped) for program in (sums, trees, backwards)),
    *((program, map_slices, mapped) for program in (slices, slices_of_trees)),
)


def with_gradients(result: Any) -> Any:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    gradients = torch.autograd.grad(sum(leaf.sum() for leaf in leaves), (X, W), allow_unused=True)
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, [leaves, *gradients])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("program", "operator", "plain"), PROGRAMS, ids=lambda value: value.__name__)
def test_operators_run_eagerly_with_gradients(program: Any, operator: Any, plain: Any) -> None:
    got, want = program(operator), program(plain)
    drop = torch.nn.Module
    keep = (lambda r: r[0]) if any(isinstance(part, drop) for part in pytree.tree_leaves(want)) else (lambda r: r)
    assert_same(with_gradients(keep(got)), with_gradients(keep(want)))


@pytest.mark.usefixtures("installed")
def test_results_are_no_operands_and_carries_keep_their_shape() -> None:
    x = torch.ones(3)
    assert torch.cond(x.sum() > 0, lambda x: x, lambda x: x * 2, (x,)) is not x
    count, same = while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))
    assert same is not x and torch.equal(same, x) and count == 0
    with pytest.raises(RuntimeError, match="shape"):
        while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x.sum()), (torch.tensor(0), x))
    with pytest.raises(RuntimeError, match="shape"):
        scan(lambda c, x: (c.sum(), c * x), torch.zeros(2), torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="leaves"):
        while_loop(lambda i, x: i < 2, lambda i, x: (i + 1,), (torch.tensor(0), x))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("holds", [True, False])
def test_gradients_of_what_the_other_branch_reads_are_zeros(holds: bool) -> None:
    a, b = (torch.linspace(start, 3, 4, requires_grad=True) for start in (1, 2))
    torch.cond(torch.tensor(holds), lambda x: x * a, lambda x: x * b, (torch.ones(4),)).sum().backward()
    assert_same((a.grad, b.grad), (torch.full((4,), float(holds)), torch.full((4,), float(not holds))))
    a.grad = b.grad = None
    torch.cond(torch.tensor(holds), lambda x, y: x * 2, lambda x, y: y * 3, (a, b)).sum().backward()
    assert_same((a.grad, b.grad), (torch.full((4,), 2.0 * holds), torch.full((4,), 3.0 * (not holds))))


MISMATCHED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sizes": (lambda x: x[:1] * 1, lambda x: x * 2),
    "dtypes": (lambda x: x.int(), lambda x: x * 2),
    "structures": (lambda x: (x * 1,), lambda x: x * 2),
    "counts": (lambda x: (x * 1, x * 2), lambda x: (x * 1,)),
    "texts": (lambda x: "a", lambda x: "b"),
    "writes": (lambda x: x.add_(1), lambda x: x.sin()),
}


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", MISMATCHED)
def test_branches_that_do_not_fit(kind: str) -> None:
    x = torch.ones(3)
    for pred in (torch.tensor(True), torch.tensor(False)):
        with pytest.raises(torch._dynamo.exc.UncapturedHigherOrderOpError):
            torch.cond(pred, *MISMATCHED[kind], (x,))
    assert torch.equal(x, torch.ones(3))
    assert_same(torch.cond(torch.tensor(True), lambda x: x * 2, lambda x: x, (x,)), x * 2)  # of others it says nothing


def choice(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 4, lambda x: (x * 2).sum(), lambda x: (x + 1).sum(), (x,))


@pytest.mark.usefixtures("installed")
def test_inside_transforms() -> None:
    xs = torch.arange(6.0).view(2, 3)
    assert_same(torch.vmap(choice)(xs), torch.stack([(xs[0] + 1).sum(), (xs[1] * 2).sum()]))
    assert_same(torch.func.grad(choice)(xs[1]), torch.full((3,), 2.0))
    assert_same(torch.vmap(torch.func.grad(choice))(xs), torch.tensor([[1.0], [2.0]]).expand(2, 3))
    assert_same(torch.func.jvp(choice, (xs[0],), (torch.ones(3),))[1], torch.tensor(3.0))
    step = torch.vmap(lambda row: scan(lambda c, x: (c + x, c * x), torch.zeros(()), row))
    assert_same(step(xs), (xs.sum(1), torch.tensor([[0.0, 0.0, 2.0], [0.0, 12.0, 35.0]])))
    assert_same(torch.vmap(lambda row: map_slices(torch.sin, row))(xs), xs.sin())
