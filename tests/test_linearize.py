"""torch.func.linearize inside compiled functions: one graph where the function has no effects, else a side exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch.func import linearize

import magneto
from magneto import _test_settings

ONE_GRAPH, SIDE_EXITS = ProgramTable(), ProgramTable()
LINEAR = torch.nn.Linear(6, 3).requires_grad_(False)
TRAINED = torch.nn.Linear(6, 3)


@ONE_GRAPH
def called_several_times(x: torch.Tensor) -> Any:
    y, push = linearize(lambda z: z.sin() * z[0], x)
    return y, push(x), torch.stack([push(row) for row in torch.eye(6)])


@ONE_GRAPH
def of_a_layer(x: torch.Tensor) -> Any:
    y, push = linearize(lambda z: torch.tanh(LINEAR(z)), x)
    return y, push(x), push(torch.ones(6))


@ONE_GRAPH
def of_several_arguments(x: torch.Tensor) -> Any:
    y, push = linearize(lambda a, b: {"s": a * b["z"], "t": (a.exp(), 3)}, x, {"z": x + 1})
    return y, push(x, {"z": x * 2})


@ONE_GRAPH
def with_gradients_of_tangents(x: torch.Tensor) -> Any:
    tangent = x.clone().requires_grad_()
    y, push = linearize(lambda z: z.sin(), x)
    return y, torch.autograd.grad(push(tangent).sum(), tangent)


@ONE_GRAPH
def conjugate_gradients(x: torch.Tensor) -> Any:
    _, push = linearize(lambda z: z**3 + z, x)
    solution, rest = torch.zeros(6), x.clone()
    step = rest
    for _ in range(3):
        moved = push(step)
        length = (rest @ rest) / (step @ moved)
        solution, before = solution + length * step, rest
        rest = rest - length * moved
        step = rest + (rest @ rest) / (before @ before) * step
    return solution


@ONE_GRAPH
def that_writes_what_it_makes(x: torch.Tensor) -> Any:
    def function(z: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(6)
        made.add_(z.sin())
        made[0] = 0
        return made

    y, push = linearize(function, x)
    return y, push(x)


@ONE_GRAPH
def results_are_no_views(x: torch.Tensor) -> Any:
    tangent = torch.ones(6)
    y, push = linearize(lambda z: z + 1, x)
    moved = push(tangent)
    moved.add_(1)
    rows, turned = linearize(torch.sin, x.view(2, 3))
    return y, moved, tangent, turned(x.view(3, 2).t()).stride(), rows


@ONE_GRAPH
def wrong_tangents(x: torch.Tensor) -> Any:
    _, push = linearize(torch.sin, x)
    said = []
    for tangents in ((torch.ones(3),), (x.double(),), (x, x), ([x],)):
        try:
            push(*tangents)
        except RuntimeError as error:
            said.append(str(error))
    return said


@SIDE_EXITS
def with_effects(x: torch.Tensor) -> Any:
    seen = []

    def function(z: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return z.sin()

    y, push = linearize(function, x)
    return y, push(x), push(x), len(seen)


@SIDE_EXITS
def object_is_changed_later(x: torch.Tensor) -> Any:
    scale, factor = [2.0], 3.0

    def function(z: torch.Tensor) -> torch.Tensor:
        return z.sin() * scale[0] * factor

    y, push = linearize(function, x)
    scale[0] = factor = 5.0
    return y, push(x), factor


@SIDE_EXITS
def tensor_is_changed_later(x: torch.Tensor) -> Any:
    at = x.clone()
    y, push = linearize(torch.sin, at)
    first = push(x)
    at.mul_(0)
    return y, first, push(x)


@SIDE_EXITS
def draws_numbers(x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    y, push = linearize(lambda z: torch.nn.functional.dropout(z, 0.5) * z, x)
    return y, push(x)


@SIDE_EXITS
def needs_gradients(x: torch.Tensor) -> Any:
    y, push = linearize(lambda z: torch.tanh(TRAINED(z)), x)
    return y.detach(), push(x).detach(), push(x).requires_grad


@SIDE_EXITS
def does_not_depend_on_it(x: torch.Tensor) -> Any:
    y, push = linearize(lambda z: torch.ones(6), x)
    return y, push(x)


@SIDE_EXITS
def results_are_one_tensor(x: torch.Tensor) -> Any:
    def function(z: torch.Tensor) -> Any:
        doubled = z * 2
        return doubled, doubled

    _, push = linearize(function, x)
    first, second = push(x)
    first.add_(1)
    return first, second


@SIDE_EXITS
def under_autocast(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y, push = linearize(lambda z: z @ LINEAR.weight.t(), x)
    return y, push(x)


def run(function: Callable[..., Any], sizes: tuple[int, ...] = (6, 6)) -> list[Any]:
    return [function(torch.linspace(-1, 1, size)) for size in sizes]


@pytest.mark.parametrize("backend", ("magneto", "eager", "aot_eager"))
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str, backend: str) -> None:
    program = ONE_GRAPH[name]
    assert_same(run(magneto.compile(program, backend=backend, fullgraph=True)), run(program))


@pytest.mark.parametrize("name", SIDE_EXITS)
def test_side_exits(name: str) -> None:
    program = SIDE_EXITS[name]
    assert_same(run(magneto.compile(program)), run(program))
    assert magneto.stats()["break_reasons"]


@pytest.mark.parametrize("name", [*ONE_GRAPH, *SIDE_EXITS])
@pytest.mark.parametrize("every", (2, 3, 7))
def test_forced_exits(name: str, every: int) -> None:
    program = (ONE_GRAPH | SIDE_EXITS)[name]
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
        assert_same(run(magneto.compile(program, backend="aot_eager")), run(program))


def test_sizes() -> None:
    def program(x: torch.Tensor) -> Any:
        y, push = linearize(lambda z: z.sin() * z.shape[0], x)
        return y, push(x)

    assert_same(run(magneto.compile(program, fullgraph=True), (3, 4, 5, 6)), run(program, (3, 4, 5, 6)))


def test_maps_that_are_kept() -> None:
    """The map of an earlier call is called in a later one, and outside."""

    def program(kept: dict[str, Any], x: torch.Tensor) -> Any:
        if "push" in kept:
            return kept["push"](x * 2)
        y, kept["push"] = linearize(torch.sin, x)
        return y

    results = []
    for function in (magneto.compile(program), program):
        kept: dict[str, Any] = {}
        x = torch.linspace(-1, 1, 6)
        results.append([function(kept, x), function(kept, x), kept["push"](x)])
    assert_same(*results)


def test_in_vmap() -> None:
    def program(x: torch.Tensor) -> Any:
        _, push = linearize(torch.sin, x)
        return torch.vmap(push)(torch.eye(6))

    assert_same(run(magneto.compile(program)), run(program))
