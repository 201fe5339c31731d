"""NumPy's random numbers inside a compiled function: eager's numbers in eager's order, and its states afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from fresh import python

import magneto
from magneto import _test_settings

OWN = np.random.RandomState(5)
PCG = np.random.default_rng(6)
torch.manual_seed(0)
HEAD = torch.nn.Linear(4, 2)
LAYERS = [torch.nn.Linear(4, 4) for _ in range(3)]
LABELS = torch.tensor([0, 1, 1])


def scalars(x: torch.Tensor) -> Any:
    noise = x * np.random.rand() + np.random.uniform(-1, 1) + np.random.normal(0, scale=0.1)
    return noise, np.random.beta(0.2, 0.2), np.random.random_sample()


def normal_numbers_come_in_pairs(x: torch.Tensor) -> Any:
    return x + np.random.randn(), np.random.standard_normal(), np.random.randn()


def decides(x: torch.Tensor) -> torch.Tensor:
    scale = np.random.random()
    return x.flip(0) * scale if np.random.rand() < 0.5 else x


def mixup(x: torch.Tensor) -> torch.Tensor:
    share = np.random.beta(1.0, 1.0)
    mixed = share * x + (1 - share) * x.roll(1, 0)
    return share * F.cross_entropy(HEAD(mixed), LABELS) + (1 - share) * F.cross_entropy(HEAD(mixed), LABELS.roll(1))


def ints(x: torch.Tensor) -> Any:
    length = np.random.randint(1, 4)
    return x[:, :length], length, x.roll(np.random.randint(3), 0)


def layer_drop(x: torch.Tensor) -> torch.Tensor:
    for layer in LAYERS:
        if np.random.uniform() < 0.3:
            continue
        x = layer(x)
    return x


def own_generators(x: torch.Tensor) -> Any:
    return x * OWN.uniform() + PCG.normal(), OWN.randn(), PCG.random(), PCG.exponential(2.0)


def beside_python(x: torch.Tensor) -> Any:
    kept = [np.random.rand() for _ in range(3)]
    return x * kept[0], kept, f"{np.random.rand():.6f}"


def arrays(x: torch.Tensor) -> Any:
    noise = np.random.normal(0, 1, size=x.shape)
    scale = torch.from_numpy(np.random.rand(4)).float()
    return x + torch.tensor(noise, dtype=x.dtype), x * scale, noise


def arrays_between(x: torch.Tensor) -> Any:
    before, several, behind = np.random.rand(), np.random.rand(3), np.random.normal()
    return x * before * behind, several


def arrays_are_written_and_given(x: torch.Tensor) -> Any:
    ours = np.random.randn(3)
    ours += 1
    theirs = PCG.integers(0, 5, size=[2, 2])
    return ours, theirs, theirs.sum(), x + torch.from_numpy(ours)[:, None]


def orders(x: torch.Tensor) -> Any:
    order = torch.from_numpy(np.random.permutation(3))
    chosen = PCG.choice(3, size=2, replace=False)
    weighted = OWN.choice(4, size=5, p=[0.1, 0.2, 0.3, 0.4])
    return x[order], x[torch.as_tensor(chosen)], weighted, PCG.permutation(5)


def dtypes(x: torch.Tensor) -> Any:
    drawn = PCG.random(4, dtype=np.float32), PCG.standard_normal(size=(1, 4), dtype=np.float32)
    return x * torch.from_numpy(drawn[0]) + torch.from_numpy(drawn[1]), np.random.randint(0, 2, 3, dtype=bool)


def seeded_inside(x: torch.Tensor) -> Any:
    first = np.random.rand()
    np.random.seed(4)
    return x * first * np.random.rand(), np.random.randint(10), np.random.rand(2)


def seeded_last(x: torch.Tensor) -> Any:
    OWN.seed(3)
    noise = OWN.randn(1)
    np.random.seed(7)
    return x + torch.from_numpy(noise), np.random.rand


def seeded_twice(x: torch.Tensor) -> Any:
    np.random.seed(1)
    first = np.random.standard_normal()
    np.random.seed(1)
    return x, first, np.random.standard_normal(), np.random.standard_normal()


def made_inside(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(4)
    noise = rng.normal(scale=0.5, size=x.shape)
    return (
        x + rng.random(),
        rng.integers(5),
        x + torch.from_numpy(noise).float(),
        x[torch.from_numpy(rng.permutation(3))],
    )


def made_of_older_kind(x: torch.Tensor) -> Any:
    rng = np.random.RandomState(seed=3)
    pairs = rng.randn(), rng.randn(3), rng.randn()
    return x * rng.randint(1, 5), pairs, rng.choice([1.5, 2.5]), rng.uniform(size=(2, 2)), np.random.rand()


def made_and_handed_on(x: torch.Tensor) -> Any:
    rng, other = np.random.default_rng(5), np.random.RandomState(6)
    drawn = x + rng.random() + other.rand()
    again = np.random.default_rng(rng)
    return drawn, again is rng, HANDED.update(rng=rng, other=other)


HANDED: dict[str, Any] = {}


def made_and_drawn_often(x: torch.Tensor) -> Any:
    rng = np.random.RandomState(1)
    views = [x * rng.uniform(0.5, 1.5) + torch.from_numpy(rng.normal(size=4)).float() for _ in range(20)]
    return torch.stack(views), torch.from_numpy(rng.standard_normal((100, 100))).sum()


def made_and_shuffles(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(2)
    names, order = ["a", "b", "c", "d"], np.arange(3)
    rng.shuffle(names)
    rng.shuffle(order)
    return names, x[torch.from_numpy(order)], rng.permutation(order * 2), rng.random()


def made_raises(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(2)
    try:
        rng.normal(scale=-1)
    except ValueError as error:
        return x, str(error), rng.random()


def made_with_gradients(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(8)
    kept = torch.from_numpy(rng.random((3, 4)) > 0.3)
    loss = F.cross_entropy(HEAD(x * kept + rng.normal()), LABELS)
    return torch.autograd.grad(loss, HEAD.weight)


def arrays_are_shuffled(x: torch.Tensor) -> Any:
    order, table = np.arange(3), np.arange(12.0).reshape(3, 4) * 2
    np.random.shuffle(order)
    OWN.shuffle(table)
    PCG.shuffle(table)
    return x[torch.from_numpy(order)], x + torch.from_numpy(table), table, np.random.rand()


def argument_is_shuffled(x: torch.Tensor) -> Any:
    array = x.numpy()
    np.random.shuffle(array)
    return x * 2, array


ONE_GRAPH = (
    made_inside,
    made_of_older_kind,
    made_and_handed_on,
    made_and_drawn_often,
    made_and_shuffles,
    made_raises,
    made_with_gradients,
    arrays_are_shuffled,
    argument_is_shuffled,
    scalars,
    normal_numbers_come_in_pairs,
    decides,
    mixup,
    ints,
    own_generators,
    beside_python,
    arrays,
    arrays_between,
    arrays_are_written_and_given,
    orders,
    dtypes,
    seeded_inside,
    seeded_last,
    seeded_twice,
)


def many(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = x + np.random.normal()
    return x


def made_without_a_seed(x: torch.Tensor) -> Any:
    rng = np.random.default_rng()
    return x, 0 <= rng.random() < 1


def array_is_chosen_from(x: torch.Tensor) -> Any:
    rng = np.random.default_rng(3)
    return x + rng.choice(np.arange(3) + 1), rng.random()


def raises(x: torch.Tensor) -> torch.Tensor:
    try:
        return x + np.random.randint(5, 2)
    except ValueError:
        return x - np.random.rand()


def raises_for_arrays(x: torch.Tensor) -> Any:
    try:
        return x + np.random.choice(3, size=5, replace=False)
    except ValueError as error:
        return x - np.random.rand(), str(error)


def large(x: torch.Tensor) -> Any:
    return np.random.rand(100, 100), x + np.random.rand()


def numbers_of_numpy(x: torch.Tensor) -> Any:
    return x + PCG.integers(5), np.random.choice(3)


def wrong_seeds(x: torch.Tensor) -> Any:
    try:
        np.random.seed(-1)
    except ValueError as error:
        return x, str(error), np.random.rand()


def shuffles(x: torch.Tensor) -> Any:
    order = [0, 1, 2]
    np.random.shuffle(order)
    return x[order], np.random.choice(3), np.random.rand()


SIDE_EXITS = (
    many,
    made_without_a_seed,
    array_is_chosen_from,
    raises,
    raises_for_arrays,
    large,
    numbers_of_numpy,
    wrong_seeds,
    shuffles,
)


def states() -> Any:
    drawn = np.random.get_state(legacy=False), OWN.get_state(legacy=False), PCG.bit_generator.state
    return [repr(sorted(state.items(), key=lambda item: item[0])) for state in drawn], np.random.get_state()[1].tolist()


def run(function: Callable[[torch.Tensor], Any]) -> Any:
    np.random.seed(1)
    OWN.seed(2)
    PCG.bit_generator.state = np.random.default_rng(6).bit_generator.state
    seen = []
    for call in range(12):
        result = function(torch.arange(12.0).view(3, 4) + call)
        parts = result if isinstance(result, tuple) else (result,)
        detached = [part.detach() if isinstance(part, torch.Tensor) else part for part in parts]
        seen.append((detached, states()))
    return seen


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_numbers_are_drawn_by_each_run(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program, fullgraph=True)), run(program))
    assert not magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


@pytest.mark.parametrize("program", SIDE_EXITS, ids=lambda program: program.__name__)
def test_what_else_draws_runs_under_cpython(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same(run(magneto.compile(program)), run(program))
    assert magneto.stats()["break_reasons"]


def test_generators_that_are_handed_on_are_those_of_each_run() -> None:
    compiled = magneto.compile(made_and_handed_on)
    seen = []
    for function in (compiled, compiled, made_and_handed_on):
        function(torch.ones(2))
        seen.append([HANDED["rng"].random(), HANDED["other"].rand(), HANDED["rng"].integers(100, size=4)])
    assert_same(seen[0], seen[2])
    assert_same(seen[1], seen[2])
    HANDED.clear()


@pytest.mark.parametrize("program", (made_inside, made_and_shuffles, made_and_drawn_often, arrays_are_shuffled))
@pytest.mark.parametrize("every", (1, 2, 5))
def test_made_generators_survive_exits(program: Callable[[torch.Tensor], Any], every: int) -> None:
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
        assert_same(run(magneto.compile(program)), run(program))


def test_draws_of_a_branch_are_its_own() -> None:
    def program(x: torch.Tensor, cond: Any) -> Any:
        rng = np.random.default_rng(1)
        y = cond(x.sum() > 0, lambda x: x + rng.random(), lambda x: x * 2, (x,))
        return y, rng.random()

    def chosen(taken: torch.Tensor, yes: Any, no: Any, operands: Any) -> Any:
        return yes(*operands) if taken else no(*operands)

    compiled = magneto.compile(lambda x: program(x, torch.cond))
    for sign in (1.0, -1.0, 1.0):
        assert_same(compiled(torch.full((3,), sign)), program(torch.full((3,), sign), chosen))


def test_numbers_that_decide_have_few_captures() -> None:
    assert_same(run(magneto.compile(layer_drop)), run(layer_drop))
    assert not magneto.stats()["fallbacks"]


def test_a_scale_that_changes_is_no_capture_for_each() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x + np.random.normal(0, scale)

    compiled = magneto.compile(program)
    for call in range(12):
        results = []
        for function in (compiled, program):
            np.random.seed(call)
            results.append(function(torch.ones(3), 0.1 * call))
        assert_same(*results)
    assert not magneto.stats()["fallbacks"]


def test_draws_of_other_threads_are_not_undone() -> None:
    rng = np.random.RandomState(0)
    compiled = magneto.compile(lambda x: (x + 1, rng.randint(1 << 30)))
    seen: list[int] = []

    def draw() -> None:
        for _ in range(200):
            seen.append(int(rng.randint(1 << 30)))

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    seen += [compiled(torch.ones(2))[1] for _ in range(200)]
    for thread in threads:
        thread.join()
    expected = np.random.RandomState(0).randint(1 << 30, size=600)
    assert sorted(expected.tolist()) == sorted(seen)


def test_other_programs_do_not_import_it() -> None:
    program = (
        "import sys, torch, magneto; magneto.compile(torch.sin)(torch.ones(3)); print('numpy.random' in sys.modules)"
    )
    assert python("-c", program).stdout == "False\n"
