"""Python's random numbers inside a compiled function: eager's numbers in eager's order, and its state afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import compare
import pytest
import torch

import magneto
from magneto import _test_settings

OWN = random.Random(3)


def factor(x: torch.Tensor) -> Any:
    return x * random.random() + random.uniform(-1, 1)


def returned(x: torch.Tensor) -> Any:
    a = random.random()
    b = random.random()
    return x + 1, a, b, a + b, [b]


def unused(x: torch.Tensor) -> Any:
    probability = random.uniform(0, 1)
    return x * 2 if x is not None else probability


def own_generator(x: torch.Tensor) -> Any:
    return x * OWN.random() - random.random() + OWN.random()


def decides(x: torch.Tensor) -> Any:
    if random.random() < 0.5:
        return x + random.random()
    return x - 1


def layers(x: torch.Tensor) -> Any:
    for i in range(6):
        if random.random() < 0.5:
            continue
        x = x * (i + 2)
    return x, random.random()


def text(x: torch.Tensor) -> Any:
    return x + 1, f"{random.random():.6f}", round(random.random(), 3), int(random.random() * 10)


def other_draws(x: torch.Tensor) -> Any:
    a = random.random()
    b = random.randint(0, 9)
    items = [1, 2, 3, 4]
    random.shuffle(items)
    c = random.random()
    random.seed(b)
    return x * a + b * c, items, random.random(), random.choice(items)


def around_an_exit(x: torch.Tensor) -> Any:
    a = random.random()
    y = x * a
    size = y.sum().item()
    return y + random.random(), size, a


def raises(x: torch.Tensor) -> Any:
    a = random.random()
    if x.shape[0] == 3:
        raise ValueError(a)
    return x + a


def undone(x: torch.Tensor) -> Any:
    """The operator raises when the graph runs: what was drawn is drawn once."""
    a = random.random()
    y = x[torch.tensor([int(x.numel())]) - 1] * a
    return torch.linalg.cholesky(x.outer(x) * -1) + y


def many(x: torch.Tensor) -> Any:
    for _ in range(40):
        x = x + random.random()
    return x


def seeded(x: torch.Tensor) -> Any:
    random.seed(3)
    a = random.random()
    OWN.seed(len(x))
    b = OWN.gauss(0, 1)
    random.seed(3)
    return x * a, b, OWN.gauss(0, 1), random.randint(0, 99), a


def seeded_between(x: torch.Tensor) -> Any:
    before = random.gauss(0, 1)
    random.seed(7)
    return x * random.gauss(0, 1), before


PROGRAMS = [seeded, seeded_between, factor, returned, unused, own_generator, decides, layers, text, other_draws, around_an_exit, raises, undone, many]  # fmt: skip


def observe(function: Callable[..., Any], turns: int = 6) -> list[Any]:
    seen: list[Any] = []
    random.seed(1)
    OWN.seed(2)
    for turn in range(turns):
        try:
            seen.append(function(torch.arange(2.0 + turn % 2) + 1))
        except Exception as error:
            seen.append((type(error), str(error)[:40]))
        seen.append((random.getstate(), OWN.getstate()))
    return [str(each) if isinstance(each, tuple) and isinstance(each[0], torch.Tensor) else each for each in seen]


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[..., Any], backend: str, every: int) -> None:
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=100):
        got = observe(magneto.compile(program, backend=backend))
    for turn, (left, right) in enumerate(zip(got, observe(program), strict=True)):
        if isinstance(left, torch.Tensor):
            torch.testing.assert_close(left, right, msg=f"turn {turn}")
        elif backend != "magneto" or not isinstance(left, str):
            assert left == right, f"turn {turn}"


@pytest.mark.parametrize("program", [factor, returned, unused, own_generator, decides], ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = magneto.compile(program, backend="eager", fullgraph=True, dynamic=False)
    x = torch.ones(2)
    for _ in range(12):
        compiled(x)
    assert magneto.stats()["breaks"] == 0
    assert magneto.stats()["recompiles"] <= (program is decides)


SCALES = (1, 2, 3)


def randint(x: torch.Tensor) -> Any:
    return x * random.randint(1, 1000), random.randrange(10), random.randrange(5, 50, 5), random.getrandbits(12)


def crop(x: torch.Tensor) -> Any:
    y = x.repeat(8)
    begin = random.randint(0, 6)
    return y[begin : begin + 4] * random.uniform(1, 2)


def choice(x: torch.Tensor) -> Any:
    return x * random.choice(SCALES) + random.choice(range(4, 40, 3))


def choice_of_functions(x: torch.Tensor) -> Any:
    return random.choice([torch.sin, torch.cos, lambda t: t * OWN.randint(0, 5)])(x)


def shuffle(x: torch.Tensor) -> Any:
    order = [0, 1, 2]
    random.shuffle(order)
    for i in order:
        x = x * (i + 1) + i
    return x, order


def sample(x: torch.Tensor) -> Any:
    first, second = random.sample([torch.sin, torch.cos, torch.tanh], 2)
    return first(second(x)), random.random()


def coin(x: torch.Tensor) -> Any:
    if random.randint(0, 1):
        x = -x
    return x + random.randint(0, 3) * random.random()


WITHOUT_EXITS = [randint, crop, choice, choice_of_functions, shuffle, sample, coin]


@pytest.mark.parametrize("program", WITHOUT_EXITS, ids=lambda program: program.__name__)
def test_whole_numbers(program: Callable[..., Any]) -> None:
    """A capture for each outcome, where there are few and the program goes by them: no exits."""
    with magneto.config.patch(cache_size_limit=100):
        compiled = magneto.compile(program)
        for turn, (left, right) in enumerate(zip(observe(compiled, 40), observe(program, 40), strict=True)):
            if turn % 2:
                assert left == right, f"turn {turn}"
            else:
                compare.assert_same(left, right, path=f"turn {turn}")
    assert magneto.stats()["breaks"] == 0
    assert magneto.stats()["recompiles"] < 16, magneto.stats()["recompiles"]


class Counting(random.Random):
    """Draws in its own way."""

    def getrandbits(self, k: int) -> int:
        self.drawn = getattr(self, "drawn", 0) + 1
        return super().getrandbits(k)


def test_own_bits() -> None:
    def program(x: torch.Tensor, numbers: Counting) -> Any:
        return x * numbers.randint(0, 9), numbers.choice([1, 2]), numbers.drawn

    compiled = magneto.compile(program)
    numbers, others = Counting(5), Counting(5)
    for _ in range(5):
        assert str(compiled(torch.ones(2), numbers)) == str(program(torch.ones(2), others))
        assert numbers.getstate() == others.getstate()


def whole_functions(x: torch.Tensor) -> Any:
    items = list(range(50))
    random.shuffle(items)
    return x + random.choice(items), items, random.sample(items, 3), random.random()


def many_ways(x: torch.Tensor) -> Any:
    for _ in range(6):
        x = x * random.choice([1, 2, 3]) + 1
        if random.randint(0, 1):
            x = -x
    return x


def test_one_exit_a_call() -> None:
    assert observe(magneto.compile(whole_functions, backend="eager")) == observe(whole_functions)
    assert set(magneto.stats()["break_reasons"]) == {
        f"OpaqueCall: call of magneto._polyfills.{name}_as_written" for name in ("shuffle", "choice", "sample")
    }


def test_many_ways() -> None:
    assert str(observe(magneto.compile(many_ways), 30)) == str(observe(many_ways, 30))


def test_threads_draw_from_one_generator() -> None:
    compiled = magneto.compile(returned, backend="eager")
    seen: list[float] = []

    def work() -> None:
        for _ in range(50):
            seen.extend(compiled(torch.ones(2))[1:3])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 400
