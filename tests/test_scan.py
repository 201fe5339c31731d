"""torch's scan and map inside captures, with gradients: the step is a graph of its own, or, where there are few, one
after the other is in the caller's graph."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan

import magneto
from magneto._control_flow import SCAN_STACKS_ALONG_DIM

SCAN: Any = scan


def plain_cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def loop(combine: Any, init: Any, xs: Any, dim: int = 0, reverse: bool = False) -> Any:
    """What scan's documentation says that it gives."""
    leaves, structure = pytree.tree_flatten(xs)
    leaves = [leaf.movedim(dim, 0) for leaf in leaves]
    carry, outs = init, []
    count = leaves[0].shape[0]
    for i in reversed(range(count)) if reverse else range(count):
        carry, out = combine(carry, pytree.tree_unflatten([leaf[i] for leaf in leaves], structure))
        outs.append(pytree.tree_flatten(out))
    if reverse:
        outs.reverse()
    stacked = [
        torch.stack([out[0][k] for out in outs]) if outs[0][0][k] is not None else None for k in range(len(outs[0][0]))
    ]
    along = dim if SCAN_STACKS_ALONG_DIM else 0
    return carry, pytree.tree_unflatten([leaf.movedim(0, along) if along else leaf for leaf in stacked], outs[0][1])


def check(function: Any, reference: Any, *args: torch.Tensor, breaks: int = 0, **options: Any) -> None:
    magneto.reset()
    compiled = magneto.compile(function, **options)
    for _ in range(2):
        ours = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        theirs = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
        got, spec = pytree.tree_flatten(compiled(*ours))
        want, wanted = pytree.tree_flatten(reference(*theirs))
        assert spec == wanted
        got = [leaf for leaf in got if leaf is not None]
        want = [leaf for leaf in want if leaf is not None]
        for mine, own in zip(got, want, strict=True):
            assert mine.stride() == own.stride() and mine.requires_grad == own.requires_grad
            torch.testing.assert_close(mine, own)
        if any(leaf.requires_grad for leaf in want):
            sum((leaf.sin().sum() for leaf in got if leaf.requires_grad), torch.zeros(())).backward()
            sum((leaf.sin().sum() for leaf in want if leaf.requires_grad), torch.zeros(())).backward()
            for mine, own in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine.grad, own.grad)
    stats = magneto.stats()
    assert stats["breaks"] == breaks
    assert breaks or stats["graphs"] == 1


def decayed(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    carry = 0.9 * carry + x
    return carry, carry.tanh()


def lstm(carry: tuple[torch.Tensor, torch.Tensor], x: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    h, c = carry
    c = c * torch.sigmoid(x["gate"]) + torch.tanh(x["value"] + h)
    h = c.tanh()
    return (h, c), {"h": h.clone(), "c": [c * 2]}


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("length", [5, 40])
@pytest.mark.parametrize("dim, reverse", [(0, False), (0, True), (1, False), (-1, True)])
def test_scan(dim: int, reverse: bool, length: int, gradients: bool, backend: str) -> None:
    dims = dim % 3
    shape = [3, 4, 2]
    shape[dims] = length
    x = torch.randn(shape)
    init = torch.randn([size for i, size in enumerate(x.shape) if i != dims])
    check(
        lambda init, x: scan(decayed, init, x, dim=dim, reverse=reverse),
        lambda init, x: loop(decayed, init, x, dims, reverse),
        init.requires_grad_(gradients),
        x.requires_grad_(gradients),
        backend=backend,
        fullgraph=True,
    )


@pytest.mark.parametrize("length", [9, 40])
@pytest.mark.parametrize("gradients", [False, True])
def test_trees_and_closures(gradients: bool, length: int) -> None:
    weight = torch.randn(4, requires_grad=gradients)

    def through(scan_: Any) -> Any:
        def function(h: torch.Tensor, gate: torch.Tensor, value: torch.Tensor) -> Any:
            return scan_(
                lambda carry, x: lstm(carry, {**x, "gate": x["gate"] * weight}),
                (h, h * 2),
                {"gate": gate, "value": value},
            )

        return function

    args = [torch.randn(3, 4), torch.randn(length, 3, 4), torch.randn(length, 3, 4)]
    check(through(scan), through(loop), *[arg.requires_grad_(gradients) for arg in args])


# -- programs: of (scan, x of [steps, 4], w of [4, 4]) --

MATRIX = torch.randn(4, 4, dtype=torch.float64) / 3


def recurrent(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    return scan(lambda h, x: ((h @ w + x).tanh(),) * 2, x.new_zeros(4), x)


def from_constants(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    """What is carried requires gradients from the second step on, or from the third."""
    return scan(lambda c, x: ((c[1], c[0] + w[0]), c[0] * x), (x.new_zeros(4), x.new_ones(4)), x)


def counted(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    return scan(lambda c, x: ((c[0] + 1, c[1] * 0.9 + x), (c[1] * c[0], c[0])), (torch.tensor(0), w[0]), x)


def detached(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    carry, out = scan(lambda c, x: ((c[0].detach() * 0.5, c[1] + c[0] * x), c[0] + x), (w[0], w[1]), x)
    return carry[1], out


def unread(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    return scan(lambda c, x: ((c[0], c[1] + x), c[0] * 2), (w[0], w[1]), x)


def branching(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    def step(c: torch.Tensor, x: torch.Tensor) -> Any:
        cond = torch.cond if scan is SCAN else plain_cond
        taken = cond(x.sum() > 0, lambda c, x: c * 0.5 + x @ w, lambda c, x: (c - x).sin(), (c, x))
        return taken, taken.exp()

    return scan(step, w[0], x)


def nested(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    def step(c: torch.Tensor, x: torch.Tensor) -> Any:
        inner, each = scan(lambda d, y: (d * 0.9 + y, d * x), c, w.repeat(6, 1))
        return inner.tanh(), each.sum(0)

    return scan(step, w[0], x)


def writing(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    def step(c: torch.Tensor, x: torch.Tensor) -> Any:
        new = c * 0.5
        new[0] = 1.5
        new[1:] += x[1:]
        return new, {"none": None, "both": [new * w[1], x.view(2, 2).t()]}

    return scan(step, w[0], x)


def computed_twice(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    first, out = scan(lambda c, x: (c + x, c * x), w[0], x.sin())
    last, more = scan(lambda c, y: (c * 0.5 + y @ MATRIX, c + first), first, out, reverse=True)
    return last * 2, more.cos(), out


def of_a_function(scan: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
    """Exponential moving averages, as a library has them: rates of their own, several widths, half precision."""
    rates = torch.sigmoid(w)

    def step(carry: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        mean = torch.lerp(carry["mean"], x, rates[0])
        power = torch.lerp(carry["power"], x.float().square(), rates[1].float())
        half = carry["half"] * 0.5 + x.bfloat16()
        return {"mean": mean, "power": power, "half": half}, (x - mean) / (power.sqrt() + 1e-3).double()

    init = {"mean": x[0], "power": x[0].float() ** 2 + 1, "half": x[0].bfloat16()}
    return scan(step, init, x[1:])


PROGRAMS = (
    recurrent, from_constants, counted, detached, unread, branching, nested, writing, computed_twice, of_a_function,
)  # fmt: skip


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Any, gradients: bool, backend: str) -> None:
    args = [torch.randn(20, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64) / 3]
    check(
        lambda x, w: program(SCAN, x, w),
        lambda x, w: program(loop, x, w),
        *[arg.requires_grad_(gradients) for arg in args],
        backend=backend,
        fullgraph=True,
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("gradients", [False, True])
def test_any_number_of_steps_in_one_graph(program: Any, gradients: bool) -> None:
    compiled = magneto.compile(lambda x, w: program(SCAN, x, w), dynamic=True, fullgraph=True)
    for length in (20, 33, 3):
        values = torch.randn(length, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64) / 3
        ours = [value.clone().requires_grad_(gradients) for value in values]
        theirs = [value.clone().requires_grad_(gradients) for value in values]
        got = [leaf for leaf in pytree.tree_leaves(compiled(*ours)) if leaf is not None]
        want = [leaf for leaf in pytree.tree_leaves(program(loop, *theirs)) if leaf is not None]
        torch.testing.assert_close(got, want)
        if gradients:
            for leaves in (got, want):
                sum((leaf.sin().sum() for leaf in leaves if leaf.requires_grad), torch.zeros(())).backward()
            near = {"rtol": 1.3e-6, "atol": 1e-5} if program is of_a_function else {}  # float32, in part
            torch.testing.assert_close([leaf.grad for leaf in ours], [leaf.grad for leaf in theirs], **near)
    assert (magneto.stats()["graphs"], magneto.stats()["recompiles"]) == (1, 0)


def test_a_capture_does_not_depend_on_the_number_of_steps() -> None:
    counts = []
    for length in (1000, 20_000):
        magneto.reset()
        x = torch.randn(length, 3, requires_grad=True)
        carry, out = magneto.compile(lambda x: SCAN(decayed, torch.zeros(3), x), fullgraph=True)(x)
        (carry.sum() + out.sum()).backward()
        torch.testing.assert_close(carry, x.detach().flip(0)[:400].mul(0.9 ** torch.arange(400).view(-1, 1)).sum(0))
        counts.append(magneto.stats()["ops"])
    assert counts[0] == counts[1] < 10


def test_gradients_of_gradients() -> None:
    def function(x: torch.Tensor, scan: Any = SCAN) -> torch.Tensor:
        return scan(lambda c, x: (c * x.sin(), c * x), torch.ones(3), x)[1].sum()

    values = torch.rand(20, 3)
    results = []
    for call in (magneto.compile(function), lambda x: function(x, loop)):
        x = values.clone().requires_grad_()
        (first,) = torch.autograd.grad(call(x), x, create_graph=True)
        results.append((first, *torch.autograd.grad(first.square().sum(), x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("gradients", [False, True])
def test_random_numbers(gradients: bool) -> None:
    def function(x: torch.Tensor, scan: Any = SCAN) -> Any:
        return scan(lambda c, x: (torch.nn.functional.dropout(c + x, 0.5), c * 2), torch.zeros(8), x)

    compiled = magneto.compile(function, fullgraph=True)
    for _ in range(2):
        results = []
        for call in (compiled, lambda x: function(x, loop)):
            x = torch.ones(20, 8, requires_grad=gradients)
            torch.manual_seed(5)
            carry, out = call(x)
            if gradients:
                (carry.sum() + out.sum()).backward()
            results.append((carry, out, x.grad) if gradients else (carry, out))
        torch.testing.assert_close(*results)


class Decoder(torch.nn.Module):
    """A cell that is scanned, as in a library: its weights are closed over."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(4, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scan: Any = SCAN) -> torch.Tensor:
        def step(h: torch.Tensor, x: torch.Tensor) -> Any:
            h = self.cell(x, h)
            return h, self.head(h)

        return scan(step, x.new_zeros(x.shape[1], 8), x)[1]


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
def test_a_module(backend: str) -> None:
    torch.manual_seed(1)
    model = Decoder()
    compiled = magneto.compile(model, backend=backend, fullgraph=True)
    for length in (30, 31, 45):
        x = torch.randn(length, 2, 4)
        want = model(x, loop)
        expected = torch.autograd.grad(want.square().sum(), list(model.parameters()))
        got = compiled(x)
        torch.testing.assert_close(got, want)
        found = torch.autograd.grad(got.square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert magneto.stats()["breaks"] == 0


CARRIES = """
import torch, magneto
from torch._higher_order_ops.scan import scan

steps = {
    "grows": lambda c, x: ((c, x), x + 1),
    "dtype": lambda c, x: (c.double(), x),
    "size": lambda c, x: (c.repeat(2), x),
    "number": lambda c, x: (3, x),
    "none": lambda c, x: (None, x),
}
for name, step in steps.items():
    for length in (4, 40):
        try:
            magneto.compile(lambda x: scan(step, torch.zeros(3), x))(torch.randn(length, 3))
        except RuntimeError:  # as in eager
            continue
        raise AssertionError(f"{name} of {length} steps raised nothing")
"""


def test_a_carry_that_is_another_one() -> None:
    """In a process of its own: eager's scan, which raises, runs PyTorch's compiler, which patches all optimizers."""
    subprocess.run([sys.executable, "-P", "-c", CARRIES], check=True, timeout=300)


def test_what_is_no_graph_runs_step_by_step() -> None:
    seen = []

    def step(c: torch.Tensor, x: torch.Tensor) -> Any:
        seen.append(1)
        return c + x, c * x

    check(lambda x: SCAN(step, torch.zeros(3), x), lambda x: loop(step, torch.zeros(3), x), torch.randn(20, 3))


@pytest.mark.parametrize("backend", ["magneto", "eager"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("length", [3, 40])
def test_map(gradients: bool, backend: str, length: int) -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    check(
        lambda x, w: torch_map(layer, x, w),
        lambda x, w: torch.stack([layer(x[i], w) for i in range(x.shape[0])]),
        torch.randn(length, 4, 5, requires_grad=gradients),
        torch.randn(5, 2, requires_grad=gradients),
        backend=backend,
    )


@pytest.mark.parametrize("length", [6, 300])
def test_map_of_trees(length: int) -> None:
    def both(pair: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": pair[0] + pair[1], "product": pair[0] * pair[1]}

    check(
        lambda x, y: torch_map(both, [x, y]),
        lambda x, y: {"sum": x + y, "product": x * y},
        torch.randn(length, 2),
        torch.randn(length, 2),
    )
