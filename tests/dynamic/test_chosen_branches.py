"""`if` on a tensor: part of the graph where the tensors that its body leaves behind can be chosen."""

from __future__ import annotations

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


# Each is given x (rows, 4), a bool, and zeros.


@captured
def writes_by_mask(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    counts = (x * 2).long().clamp(min=0)
    if counts.sum() == 0:
        counts[counts.sum(dim=1).eq(0)] = 1
    return counts * 3


@captured
def if_not(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    if not flag:
        y.mul_(3)
    return y.cos(), y


@captured
def rebinds(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    h = x @ x.T
    if torch.isinf(h).any():
        h = torch.clamp(h, -100, 100)
    return h


@captured
def in_a_loop(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    for i in range(3):
        if y.sum() > i - 1:
            y += i
        y = y * 2
    return y


@left
def computes_much(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    """A run that does not want it need not wait for it."""
    y = x.repeat(1, 64).T @ x.repeat(1, 64)
    if flag:
        y = y @ y
    return y


@captured
def last_in_a_loop(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    for i in range(3):
        y = y + 1
        if y.sum() > i:
            y = y * 0.5
    return y


@captured
def last_in_two_loops(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    for i in range(2):
        for j in range(2):
            if not flag:
                y = y + i
                y.mul_(j + 2)
        if y.sum() > i:
            y = y * 0.5
    i = 0
    while i < 2:
        i += 1
        if flag:
            y = y - 1
    return y


@captured
def one_in_another(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        if y.sum() > 0:
            y *= 2
        y += 1
    return y


@captured
def writes_the_condition(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    some = (y > 1).any()
    if some:
        some.fill_(False)
        y += 1
    return y, some


@captured
def through_a_view(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    view = y[1:]
    if flag.long():
        view.add_(1)
    return y, view


@captured
def in_a_function(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    def turned(t: Tensor) -> Tensor:
        if t.mean() < 0:
            t.neg_()
        return t

    return turned(x * 2) + turned(x.cos())


@captured
def under_no_grad(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x.detach() * 2
    with torch.no_grad():
        if flag:
            y += 1
    return y * x


@captured
def saved_for_a_backward(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x.detach() * 2
    z = y * x
    if flag:
        y += 1
    return z


@captured
def result_under_no_grad(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x.exp()
    with torch.no_grad():
        if flag:
            y += 1
    return y


@captured
def has_an_else(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        y *= 3
    else:
        y *= 4
    return y


@captured
def sets_on_both_sides(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if x.mean() > 0:
        y = x.sin()
        z = y + 1
        name = "one"
    else:
        y = x.cos()
        z = y - 1
        name = "one"
    return y * z * len(name)


@captured
def an_expression(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x.sin() if flag else x.cos()
    return torch.stack([y, x * 2 if not flag else x * 3])


@captured
def returns_on_both_sides(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sin()
    y = x.cos()
    return y * 2


@captured
def returns_on_more_sides(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 3
    if x.sum() > 0:
        if len(zeros) > 2:
            return y + 1
        return y
    if flag:
        for i in range(2):
            y = y * i
        return y
    return x.cos() if len(zeros) > 2 else y


@captured
def returns_in_a_function(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    def scaled(t: Tensor) -> Tensor:
        norm = t.norm()
        if norm > 1:
            return t / norm
        return t * 2

    return scaled(x + 1) - scaled(x * 0.01)


@captured
def one_of_three(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    total = x.sum()
    if total > 10:
        y = x.sin()
    elif total > -3:
        y = x.cos()
    else:
        y = x * 3
    return y + 1


@captured
def else_in_loops(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    for i in range(3):
        if y.sum() > i:
            y = y * 0.5
        else:
            y = y + i
            y.mul_(2)
    i = 0
    while i < 2:
        i += 1
        if flag:
            z = y - 1
        else:
            z = y + 1
        y = z * 2
    return y


@captured
def else_in_else(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        if y.sum() > 0:
            y *= 2
        else:
            y += 3
    else:
        y += 1
        if y.mean() > 1:
            y *= 5
    return y


@captured
def one_side_leaves_it(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        unused = y + 1
        unused += 1
    else:
        y = y.exp()
    return y


@left
def rebinds_an_argument(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if flag:
        x = x + 1
    return x


@left
def writes_an_argument(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if flag:
        zeros += 1
    return zeros * 2


@left
def another_name(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y
    if flag:
        y = y + 1
    return y, z


@left
def appends(x: Tensor, flag: Tensor, zeros: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    if flag:
        found.append(x * 2)
    return found


@left
def other_sizes(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        y = y.sum(0)
    return y


@captured
def counts(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, int]:
    y, turns = x * 2, 0
    if flag:
        turns += 1
        y -= 1
    return y, turns


@left
def draws(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        y += torch.rand(4, dtype=torch.float64)
    return y


@left
def raises(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    try:
        if flag:
            y += 1
            [][len(y)]
    except IndexError:
        y = y - 1
    return y


@left
def raises_where_it_runs(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        y[int(y.sum() * 0) + 9] = 1
    return y


@left
def leaves_a_value(x: Tensor, flag: Tensor, zeros: Tensor) -> list[Any]:
    return [x * 2, flag and x.sum()]


@left
def an_else_of_other_sizes(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if flag:
        y = x * 2
    else:
        y = x.sum(0)
    return y


@left
def an_else_that_gives_an_argument(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    return x.sin() if flag else zeros


@captured
def an_else_that_counts(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, int]:
    if flag:
        y, turns = x * 2, 1
    else:
        y, turns = x * 3, 2
    return y, turns


@captured
def tuples_returned(x: Tensor, flag: Tensor, zeros: Tensor) -> Any:
    if flag:
        y = x * 2
        return y, 1, (y + 1, 0.5)
    z = x * 3
    return z, 2, (z.sin() + 1, 0.25)


@captured
def numbers(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Any, ...]:
    scale = 1.5 if flag else 3.0
    if x.sum() > 0:
        step = 0.1
    elif x.sum() > -20:
        step = 0.01
    else:
        step = 0.001
    power = 2
    if flag:
        power = 3
    return x * scale - step, scale / 2 + step, x + power, power, zeros.long() + power


@captured
def a_number_that_says_a_size(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    rows = 2 if flag else 3
    return x[:rows].sin()


@left
def a_number_that_is_asked(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    scale = 1.5 if flag else 3.0
    return x * 2 if scale > 2 else x


@left
def numbers_of_two_types(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, float]:
    scale = 2 if flag else 3.0
    return x * scale, scale


@left
def one_side_draws(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    if flag:
        y = x * 2
    else:
        y = x + torch.rand(4, dtype=torch.float64)
    return y


@left
def one_tensor_on_both_sides(x: Tensor, flag: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x * 2, x * 3
    y = one if flag else other
    y += 1
    return y, one


@left
def one_side_raises(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    try:
        if flag:
            y = x * 2
        else:
            y = [x][2]
    except IndexError:
        y = x - 1
    return y


@left
def of_many_operators(x: Tensor, flag: Tensor, zeros: Tensor) -> Tensor:
    y = x * 2
    if flag:
        for i in range(20):
            y = y.sin() + i
    return y


PROGRAMS = CAPTURED | LEFT


def outcome(program: Program, seed: int, gradients: bool) -> Any:
    """What it gives or raises, what it leaves of its arguments, and what comes next of the generator."""
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(5, 4, generator=draw, dtype=torch.float64) - seed % 3).requires_grad_(gradients)
    flag, zeros = torch.tensor(seed % 2 == 0), torch.zeros(3)
    torch.manual_seed(seed)
    try:
        result = program(x, flag, zeros)
        tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor)]
        same = [[a is b for a in tensors] for b in tensors]
        needing = [t for t in tensors if t.requires_grad]
        if needing:
            sum((t * t.detach().cos()).sum() for t in needing).backward()
    except Exception as error:
        return type(error), str(error)[:60]
    return result, same, x.grad, flag, zeros, torch.rand(())


def check(program: Program, gradients: bool, **options: Any) -> None:
    compiled = magneto.compile(program, **options)
    with magneto.config.patch(cache_size_limit=100, accumulated_cache_size_limit=1000):
        for seed in range(12):
            assert_same(outcome(compiled, seed, gradients), outcome(program, seed, gradients))


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", CAPTURED)
def test_is_one_graph(name: str, backend: str) -> None:
    check(CAPTURED[name], False, backend=backend, fullgraph=True)
    assert (magneto.stats()["breaks"], magneto.stats()["undone"]) == (0, {})


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_is_as_eager(name: str, gradients: bool) -> None:
    check(PROGRAMS[name], gradients)


@pytest.mark.parametrize("name", LEFT)
def test_goes_by_the_data(name: str) -> None:
    check(LEFT[name], False)
    assert magneto.stats()["breaks"] > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_exits_anywhere(name: str) -> None:
    with _test_settings.patch(exit_every=4):
        check(PROGRAMS[name], False)
