"""Hooks on gradients that change something, or whose handles are used, and retain_grad(), inside a compiled function:
each run registers them on its results."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import Program, ProgramTable

import magneto
from magneto import _test_settings

Tensor = torch.Tensor
captured = CAPTURED = ProgramTable()
left = LEFT = ProgramTable()
SEEN: list[Any] = []
HANDLES: list[Any] = []
SEVERAL: list[Any] = []


def note(gradient: Tensor, name: str = "") -> None:
    SEEN.append((name, gradient.clone()))


class Keeper:
    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.features: list[Tensor] = []

    def keep(self, name: str, gradient: Tensor) -> None:
        self.gradients[name] = gradient.clone()
        SEEN.append((name, gradient.norm()))


KEEPER = Keeper()


# Each is given x and w, both with gradients. What is returned or kept in KEEPER.features shows its `.grad`.


@captured
def retained_result(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    h.retain_grad()
    return h, h.sin().sum()


@captured
def retained_and_kept(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    h.retain_grad()
    KEEPER.features.append(h)
    return h.sin().sum()


@captured
def retained_for_nobody(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    h.retain_grad()
    return h.sin().sum()


@captured
def retained_twice(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    h.retain_grad()
    g = h.cos()
    g.retain_grad()
    h.retain_grad()
    return h, g, (g * 2).sum()


@captured
def retained_then_written(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    h.retain_grad()
    h.mul_(3)
    return h, h.sin().sum()


@captured
def retained_argument(x: Tensor, w: Tensor) -> Any:
    x.retain_grad()
    return (x @ w).sin().sum()


@captured
def by_a_function(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(note)
    return y.sin().sum()


@captured
def by_a_partial(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(functools.partial(note, name="y"))
    return y.sin().sum()


@captured
def by_a_partial_of_a_method(x: Tensor, w: Tensor) -> Any:
    y = (x @ w).tanh()
    y.register_hook(functools.partial(KEEPER.keep, "y"))
    return y.sin().sum()


@captured
def in_a_loop(x: Tensor, w: Tensor) -> Any:
    h = x @ w
    for i in range(3):
        h = h.sin() * 2
        h.register_hook(lambda g, i=i: SEEN.append((i, g.clone())))
    return h.sum()


@captured
def that_changes_and_records(x: Tensor, w: Tensor) -> Any:
    y = x @ w

    def hook(g: Tensor) -> Tensor:
        SEEN.append(g.clone())
        return g * 3

    y.register_hook(hook)
    return (y * y).sum()


@captured
def two_on_one(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(note)
    y.register_hook(lambda g: g * 2)
    y.register_hook(note)
    return y.sin().sum()


@captured
def two_branches(x: Tensor, w: Tensor) -> Any:
    """Of two nodes autograd calls the younger first."""
    a, b = (x * 2).sin(), (w * 3).cos()
    a.register_hook(lambda g: note(g, "a"))
    b.register_hook(lambda g: note(g, "b"))
    return a.sum() + b.sum()


@captured
def of_returned_branches(x: Tensor, w: Tensor) -> Any:
    a = (x * 2).sin()
    a.register_hook(lambda g: note(g, "a"))
    b = (w * 3).cos()
    c = (x * 0.5).exp()
    c.register_hook(lambda g: note(g, "c"))
    b.register_hook(lambda g: note(g, "b"))
    return c, a.sum() + b.sum() + c.sum(), b


@captured
def kept_handle(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    HANDLES.append(y.register_hook(note))
    return y.sin().sum()


@captured
def kept_handle_of_a_pure_hook(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    HANDLES.append(y.register_hook(lambda g: g * 2))
    HANDLES.append(y.register_hook(lambda g: g + 1))
    return y.sin().sum()


@captured
def removed_and_kept(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    HANDLES.append(y.register_hook(note))
    HANDLES[-1].remove()
    HANDLES[-1].remove()
    return y.sum()


@captured
def within_a_block(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    with y.register_hook(note):
        z = y.sin()
    return z.sum()


@captured
def one_of_two_removed(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    first = y.register_hook(lambda g: note(g, "first"))
    y.register_hook(lambda g: note(g, "second"))
    first.remove()
    return y.sum()


@captured
def that_removes_itself(x: Tensor, w: Tensor) -> Any:
    y = x @ w

    def hook(g: Tensor) -> None:
        note(g)
        handle.remove()

    handle = y.register_hook(hook)
    return y.sin().sum()


@captured
def on_an_argument(x: Tensor, w: Tensor) -> Any:
    HANDLES.append(x.register_hook(lambda g: g * 2))
    w.register_hook(note)
    return (x @ w).sum()


@captured
def both_kinds(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(lambda g: g.clamp(-0.5, 0.5))
    z = y.sin()
    z.register_hook(note)
    return z.sum()


@captured
def of_several_tensors(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    z = y.sin()
    torch.autograd.graph.register_multi_grad_hook([y, z, x], lambda gs: SEEN.extend(g.clone() for g in gs))
    return z.sum()


@captured
def of_any_of_several_tensors(x: Tensor, w: Tensor) -> Any:
    y, z = x * 2, w * 3
    torch.autograd.graph.register_multi_grad_hook((y, z), note, mode="any")
    return (y @ z).sum()


@captured
def of_several_with_kept_handles(x: Tensor, w: Tensor) -> Any:
    y, z = x * 2, w * 3
    SEVERAL.append(torch.autograd.graph.register_multi_grad_hook((y, z), note, mode="any"))
    SEVERAL.append(torch.autograd.graph.register_multi_grad_hook([z, x], lambda gs: SEEN.append(len(gs)), mode="all"))
    return (y @ z).sum()


@captured
def of_several_removed_again(x: Tensor, w: Tensor) -> Any:
    y, z = x * 2, w * 3
    first = torch.autograd.graph.register_multi_grad_hook((y, z), note, mode="any")
    second = torch.autograd.graph.register_multi_grad_hook([y, z], lambda gs: SEEN.append(len(gs)))
    with torch.autograd.graph.register_multi_grad_hook([y, z], lambda gs: SEEN.append(gs)):
        result = (y @ z).sum()
    first.remove()
    SEVERAL.append(first)
    return result, isinstance(second, torch.utils.hooks.RemovableHandle)


@left
def handles_of_several(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    handle = torch.autograd.graph.register_multi_grad_hook([y, x], lambda gs: SEEN.append(len(gs)))
    return y.sum(), len(handle.handles)


@left
def of_several_in_another_mode(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    try:
        torch.autograd.graph.register_multi_grad_hook([y, x], note, mode="some")
    except ValueError as error:
        SEEN.append(str(error))
    return y.sum()


@captured
def behind_an_interpreted_one(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(lambda g: g * 2)
    y.register_hook(note)
    return y.sum()


@captured
def a_pure_one_on_a_result(x: Tensor, w: Tensor) -> Any:
    """Hooks of the caller's come behind it."""
    y = x @ w
    y.register_hook(lambda g: g * 10)
    return y


@captured
def that_is_passed_by(x: Tensor, w: Tensor) -> Any:
    h = x.sin()
    y = (h * 2).cos()
    y.register_hook(note)
    return h + y


@captured
def passed_by_twice(x: Tensor, w: Tensor) -> Any:
    h = (x @ w).sin()
    for _ in range(2):
        y = (h * 2).cos()
        y.register_hook(note)
        h = h + y
    return h.sum()


@left
def passed_by_from_within(x: Tensor, w: Tensor) -> Any:
    """Nothing at hand has all of the gradient: what `h` is computed from is known in `steps` alone."""
    h, steps = x.sin(), []
    steps.append(h.exp())
    y = (steps[0] * 2).cos()
    del h
    y.register_hook(note)
    return steps[0] * y


@left
def then_written(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    y.register_hook(note)
    y.add_(1)
    return (y @ w).sum()


@left
def without_gradient(x: Tensor, w: Tensor) -> Any:
    (x @ w).detach().register_hook(note)
    return x.sum()


@left
def retained_without_gradient(x: Tensor, w: Tensor) -> Any:
    (x @ w).detach().retain_grad()
    return x.sum()


@left
def of_a_view(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    part = y[0]
    part.register_hook(note)
    return y, part.sum() + y.sum()


@left
def in_front_of_a_gradient(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(note)
    (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    return y.sum() * g.sum()


@left
def in_front_of_a_backward(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.register_hook(note)
    y.retain_grad()
    y.sum().backward(retain_graph=True)
    return y, y.grad * 2


@left
def id_of_a_handle(x: Tensor, w: Tensor) -> Any:
    handle = x.register_hook(note)
    return (x @ w).sum(), isinstance(handle.id, int)


PROGRAMS = CAPTURED | LEFT


def outcome(program: Program, scale: float) -> Any:
    x = (torch.arange(6.0, dtype=torch.float64).reshape(2, 3) * scale - 1).requires_grad_()
    w = (torch.arange(12.0, dtype=torch.float64).reshape(3, 4).cos() * scale).requires_grad_()
    SEEN.clear()
    HANDLES.clear()
    KEEPER.__init__()  # type: ignore[misc]
    found = []
    try:
        results = program(x, w)
        results = [r for r in (results if isinstance(results, tuple) else (results,)) if isinstance(r, Tensor)]
        results[0].register_hook(note)
        results[0].retain_grad()
        for _ in range(2):
            sum(((r * r.detach().sin()).sum() for r in results), torch.zeros(())).backward(retain_graph=True)
            kept = [r.grad for r in (*results, *KEEPER.features) if r.retains_grad]
            found.append([x.grad, w.grad, *kept, *SEEN, dict(KEEPER.gradients)])
            for handle in SEVERAL:
                assert type(handle) is torch.autograd.graph._MultiHandle
                handle.remove()
            SEVERAL.clear()
            for handle in HANDLES:
                assert type(handle) is torch.utils.hooks.RemovableHandle and isinstance(handle.id, int)
                handle.remove()
        for r in results:
            r.sum().backward(retain_graph=True)
    except RuntimeError as error:
        return type(error)
    return results, found, x.grad, w.grad, list(SEEN)


def check(program: Program, **options: Any) -> None:
    compiled = magneto.compile(program, **options)
    for scale in (1.0, -0.5, 2.0):
        assert_same(outcome(compiled, scale), outcome(program, scale))


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager"])
@pytest.mark.parametrize("name", CAPTURED)
def test_is_one_graph(name: str, backend: str) -> None:
    check(CAPTURED[name], backend=backend, fullgraph=True)
    assert magneto.stats()["breaks"] == 0
    assert backend == "eager" or magneto.stats()["no_joint"] == {}


@pytest.mark.parametrize("name", LEFT)
def test_is_an_exit(name: str) -> None:
    check(LEFT[name])
    assert magneto.stats()["breaks"] > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_exits_anywhere(name: str) -> None:
    with _test_settings.patch(exit_every=3):
        check(PROGRAMS[name])


def test_without_joint_graphs() -> None:
    for program in PROGRAMS.values():
        magneto.reset()
        with magneto.config.patch(joint_graph=False):
            check(program)


def test_an_argument_with_a_history() -> None:
    def program(x: Tensor) -> Tensor:
        HANDLES.append(x.register_hook(lambda g: g * 2))
        x.retain_grad()
        return x.sin().sum()

    def both(function: Program) -> Any:
        leaf = torch.arange(3.0).requires_grad_()
        x = leaf * 3
        function(x).backward()
        return leaf.grad, x.grad

    compiled = magneto.compile(program, fullgraph=True)
    for _ in range(3):
        assert_same(both(compiled), both(program))


def test_an_argument_that_is_written() -> None:
    """A backward of two results: the second leads to the argument, the first not."""

    def program(x: Tensor, w: Tensor) -> Any:
        y = (x + w).cos()
        x.mul_(2)
        x.register_hook(note)
        x.retain_grad()
        return y.sum(), x.sin().sum()

    def both(function: Program) -> Any:
        SEEN.clear()
        leaf, w = torch.arange(3.0).requires_grad_(), torch.ones(3).requires_grad_()
        x = leaf * 3
        first, second = function(x, w)
        first.backward(retain_graph=True)
        found = [list(SEEN), x.grad]
        second.backward()
        return found, SEEN, leaf.grad, w.grad, x.grad

    compiled = magneto.compile(program)
    for _ in range(3):
        assert_same(both(compiled), both(program))
