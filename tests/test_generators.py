"""torch.Generator in captured code: the numbers, the generators' states afterwards, and who else draws from them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same

import magneto

Draw = Callable[[torch.Tensor, torch.Generator], Any]

DRAWS: dict[str, Draw] = {
    "rand": lambda x, g: x + torch.rand(4, generator=g),
    "randn": lambda x, g: x + torch.randn(x.shape, generator=g),
    "randn, an odd number": lambda x, g: (torch.randn(17, generator=g), torch.randn(1, generator=g) + x),
    "randint": lambda x, g: x + torch.randint(10, (4,), generator=g),
    "randint from": lambda x, g: x + torch.randint(3, 10, (4,), generator=g),
    "randperm": lambda x, g: x[torch.randperm(4, generator=g)],
    "multinomial": lambda x, g: torch.multinomial(x.abs() + 1, 2, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(torch.full((4,), 0.5), generator=g) + x,
    "normal": lambda x, g: torch.normal(x, 1.0, generator=g),
    "in place": lambda x, g: x.clone().uniform_(generator=g) + torch.empty(4).normal_(0, 2, generator=g),
    "dropped": lambda x, g: (torch.rand(4, generator=g), x + 1)[1],
    "beside the default one": lambda x, g: torch.rand(4) + torch.rand(4, generator=g) + torch.rand_like(x),
    "seeded inside": lambda x, g: (g.manual_seed(5), x + torch.rand(4, generator=g))[1],
    "seeded by a negative number": lambda x, g: x + torch.rand(4, generator=g.manual_seed(-3)),
    "seeded by a large number": lambda x, g: x + torch.rand(4, generator=g.manual_seed(2**64 - 1)),
    "its state is read": lambda x, g: (torch.rand(2, generator=g), g.get_state(), torch.rand(4, generator=g) + x),
    "its state is set back": lambda x, g: [
        (g.set_state(s), torch.randn(3, generator=g) + x[0]) for s in [g.get_state()] * 3
    ][-1][1],
    "its state is another's": lambda x, g: (
        torch.rand(3, generator=torch.Generator().set_state(g.get_state())) * x[:3],
        torch.rand(3, generator=g),
    ),
    "it is asked for its seed": lambda x, g: (g.manual_seed(-1).initial_seed(), x + torch.rand(4, generator=g)),
    "handed back": lambda x, g: (g.manual_seed(2) is g, g, x + 1)[::2],
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_eager(name: str, backend: str) -> None:
    draw = DRAWS[name]
    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    compiled = magneto.compile(lambda x: draw(x, ours), backend=backend, fullgraph=True)
    for turn in range(3):
        x = torch.arange(4.0) + turn
        torch.manual_seed(turn)
        want = draw(x, theirs), torch.rand(1), theirs.get_state()
        torch.manual_seed(turn)
        assert_same((compiled(x), torch.rand(1), ours.get_state()), want, exact=True, path=f"turn {turn}")
    assert magneto.stats()["recompiles"] == 0


def test_draws_with_gradients() -> None:
    theirs, ours = torch.Generator(), torch.Generator()
    function = lambda x, g: x * torch.rand(4, generator=g)  # noqa: E731
    compiled = magneto.compile(lambda x: function(x, ours), fullgraph=True)
    for _ in range(2):
        a, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        function(a, theirs).sum().backward(), compiled(b).sum().backward()
        assert_same(b.grad, a.grad, exact=True)


def test_another_generator_in_each_call() -> None:
    """The second one ends the segment in front of the draw, from then on."""
    function = lambda x, g: (x + 1) * torch.rand(4, generator=g)  # noqa: E731
    compiled = magneto.compile(function)
    generators = [torch.Generator().manual_seed(i) for i in range(12)]
    for i, generator in enumerate(generators):
        want = function(torch.ones(4), torch.Generator().manual_seed(i))
        assert_same(compiled(torch.ones(4), generator), want, exact=True)
    assert magneto.stats()["recompiles"] <= 2
    again = torch.Generator().manual_seed(0)
    function(torch.ones(4), again)
    assert_same(compiled(torch.ones(4), generators[0]), function(torch.ones(4), again), exact=True)


def test_default_generator_by_name() -> None:
    function = lambda x: x + torch.rand(4, generator=torch.default_generator) + torch.rand(4)  # noqa: E731
    compiled = magneto.compile(function, fullgraph=True)
    for turn in range(2):
        torch.manual_seed(turn)
        want = function(torch.ones(4))
        torch.manual_seed(turn)
        assert_same(compiled(torch.ones(4)), want, exact=True)


def test_generator_made_inside() -> None:
    def function(x: torch.Tensor, seed: int | None) -> torch.Tensor:
        g = torch.Generator()
        first = torch.rand(4, generator=g)
        if seed is not None:
            g.manual_seed(seed)
        return x + first + torch.randn(3, 4, generator=g)

    compiled = magneto.compile(function, fullgraph=True)
    for seed in (None, None, 7, 7):
        assert_same(compiled(torch.ones(4), seed), function(torch.ones(4), seed), exact=True)


def test_generator_made_inside_and_handed_out() -> None:
    def function(x: torch.Tensor, box: list[Any]) -> tuple[torch.Tensor, torch.Generator]:
        g = torch.Generator("cpu").manual_seed(3)
        box.append(g)
        return x + torch.rand(4, generator=g), g

    compiled = magneto.compile(function, fullgraph=True)
    made = []
    for _ in range(3):
        theirs: list[Any] = []
        ours: list[Any] = []
        want, got = function(torch.ones(4), theirs), compiled(torch.ones(4), ours)
        assert_same(got[0], want[0], exact=True)
        assert got[1] is ours[0] and type(got[1]) is torch.Generator
        assert got[1].initial_seed() == want[1].initial_seed() == 3
        assert_same(torch.rand(3, generator=got[1]), torch.rand(3, generator=want[1]), exact=True)
        made.append(got[1])
    assert len({id(g) for g in made}) == 3


def test_generator_made_in_front_of_an_exit() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        g = torch.Generator().manual_seed(11)
        y = x + torch.rand(4, generator=g)
        seed = int(y.sum().item())
        return y * torch.rand(4, generator=g), seed

    compiled = magneto.compile(function)
    for _ in range(4):
        assert_same(compiled(torch.ones(4)), function(torch.ones(4)), exact=True)


def test_undone_run_gives_the_numbers_back() -> None:
    """An operator behind the draw raises: CPython runs the segment, and draws the same numbers."""
    theirs, ours = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)

    def function(x: torch.Tensor, index: torch.Tensor, g: torch.Generator) -> torch.Tensor:
        x = x * torch.rand(4, generator=g)
        return x[index]

    compiled = magneto.compile(lambda x, i: function(x, i, ours))
    for index in (1, 9, 2):
        if index == 9:
            for run in (lambda i: function(torch.ones(4), i, theirs), lambda i: compiled(torch.ones(4), i)):
                with pytest.raises(IndexError):
                    run(torch.tensor([index]))
        else:
            got = compiled(torch.ones(4), torch.tensor([index]))
            assert_same(got, function(torch.ones(4), torch.tensor([index]), theirs), exact=True)
        assert_same(ours.get_state(), theirs.get_state(), exact=True)


def test_plan_with_a_generator_of_its_own_on_several_threads() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        g = torch.Generator().manual_seed(3)
        for _ in range(20):
            x = x + torch.randn(1000, generator=g)
        return x

    compiled = magneto.compile(function, backend="eager")
    want = function(torch.ones(1000))
    compiled(torch.ones(1000))
    wrong: list[int] = []

    def work() -> None:
        for i in range(20):
            if not torch.equal(compiled(torch.ones(1000)), want):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_generators_compared_and_hashed() -> None:
    def function(x: torch.Tensor, a: torch.Generator, b: torch.Generator) -> tuple[torch.Tensor, bool, bool, bool]:
        return x + 1, a == b, a is b, hash(a) == hash(b)

    compiled = magneto.compile(function)
    one, other = torch.Generator(), torch.Generator()
    for pair in [(one, other), (one, one), (other, one), (other, other)] * 2:
        assert_same(compiled(torch.ones(2), *pair), function(torch.ones(2), *pair), exact=True)


@pytest.mark.threads
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
def test_thread_that_draws_while_a_graph_runs(backend: str) -> None:
    """As in eager, each number of the stream is drawn once, by one of the two."""
    compiled = magneto.compile(lambda: (torch.rand(16) * 1.0, torch.rand(8)), backend=backend)
    compiled()
    torch.manual_seed(0)
    stream = torch.rand(8 * 6000).tolist()
    torch.manual_seed(0)
    drawn: list[torch.Tensor] = []
    drawn_there: list[torch.Tensor] = []
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set() and len(drawn_there) < 3000:
            drawn_there.append(torch.rand(8))

    thread = threading.Thread(target=draw)
    thread.start()
    for _ in range(300):
        drawn += compiled()
    stop.set()
    thread.join()
    numbers = torch.cat(drawn + drawn_there).tolist()
    assert sorted(numbers) == sorted(stream[: len(numbers)])


def test_python_generators_that_die_while_c_code_is_called() -> None:
    """`any` stops early: the generators below it are closed one after the other, in the middle of the call."""

    def numbers(count: int) -> Any:
        yield from range(count)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, bool, int]:
        found = any(value > 1 for value in (number for number in numbers(5)))
        first = next(value for value in (number + 1 for number in numbers(5)) if value > 2)
        return x + first, found, len([*zip((n for n in numbers(9)), (n for n in numbers(2)), strict=False)])

    for backend in ("eager", "magneto"):
        x = torch.ones(2)
        assert_same(magneto.compile(function, backend=backend)(x), function(x))


def replays(x: torch.Tensor) -> list[torch.Tensor]:
    state = torch.get_rng_state()
    drawn = []
    for _ in range(3):
        torch.set_rng_state(state)
        drawn.append(torch.nn.functional.dropout(x, 0.3))
    return [*drawn, torch.rand(2)]


def forks(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            a = torch.rand(4)
        b = torch.rand(4) * x
    return a, b, torch.rand(4), torch.get_rng_state()


def forks_and_raises(x: torch.Tensor) -> torch.Tensor:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            raise ValueError
    except ValueError:
        return torch.rand(4) + x


def sets_what_it_is_given(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    torch.set_rng_state(torch.Generator().manual_seed(4).get_state().clone())
    a = torch.rand(4) * x
    torch.manual_seed(9)
    return a, torch.initial_seed()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("function", [replays, forks, forks_and_raises, sets_what_it_is_given])
def test_state_of_the_default_generator(function: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = magneto.compile(function, backend=backend, fullgraph=True)
    for seed in range(3):
        x = torch.arange(4.0) + seed
        torch.manual_seed(seed)
        want = function(x), torch.get_rng_state()
        torch.manual_seed(seed)
        assert_same((compiled(x), torch.get_rng_state()), want, exact=True)
    assert magneto.stats()["recompiles"] == 0


def test_state_with_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        y = torch.nn.functional.dropout(x.sin(), 0.5)
        torch.set_rng_state(state)
        return (y * torch.nn.functional.dropout(x, 0.5)).sum()

    compiled = magneto.compile(function, fullgraph=True)
    for seed in range(3):
        a, b = torch.ones(8, requires_grad=True), torch.ones(8, requires_grad=True)
        torch.manual_seed(seed)
        function(a).backward()
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        compiled(b).backward()
        assert_same((b.grad, torch.get_rng_state()), (a.grad, after))


@pytest.mark.parametrize("state", [torch.zeros(10, dtype=torch.uint8), torch.zeros(10)])
def test_what_is_no_state_raises(state: torch.Tensor) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand(2)
        torch.set_rng_state(state)
        return x

    def outcome(call: Callable[[torch.Tensor], Any]) -> Any:
        torch.manual_seed(0)
        with pytest.raises((RuntimeError, TypeError)) as raised:
            call(torch.ones(2))
        return str(raised.value), torch.rand(1)

    compiled = magneto.compile(function)
    for _ in range(2):
        assert_same(outcome(compiled), outcome(function))
