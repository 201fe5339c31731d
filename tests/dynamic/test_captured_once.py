"""Uses of sizes and of ints that differ from call to call: the second capture serves all that follow."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_sizes import assert_same

import magneto


def checked_size(n: int, **limits: int) -> torch.Tensor:
    with_warning: Any = torch._check_is_size
    with_warning(n, **limits)
    return torch.ones(n)


def entry_of(d: dict[str, int], n: int) -> int:
    return d.get("missing", n) + d.pop("gone", n) + getattr(d, "none", n) + next(iter(()), n)


#: Of a number n >= 7, which is a size or an int.
OF_A_NUMBER: dict[str, Callable[[Any], Any]] = {
    "divmod": lambda n: divmod(n, 4),
    "divmod_by_it": lambda n: divmod(100, n),
    "divmod_of_negatives": lambda n: divmod(-n, 4) + divmod(n, -4),
    "pow": lambda n: pow(n, 2) + n**2,
    "signs": lambda n: (-n, +n, ~n, abs(-n)),
    "bits": lambda n: (n & 7, n | 1, n ^ 3, n << 1, n >> 1),
    "operators": lambda n: (operator.add(n, 1), operator.floordiv(n, 2), operator.mod(n, 3), operator.neg(n)),
    "operator_index": lambda n: (operator.index(n), operator.invert(n), operator.pos(n)),
    "operator_questions": lambda n: operator.lt(n, 5000) and operator.ne(n, 5000),
    "sum": lambda n: sum([n, 1, 2]) + sum((n, n), 3) + sum((n * i for i in range(3)), start=n),
    "reduce": lambda n: functools.reduce(operator.mul, (n, 2)) + functools.reduce(lambda a, b: a + b, (n, 2)),
    "accumulate": lambda n: list(itertools.accumulate((n, n, 1)))[-1],
    "among": lambda n: n in (1, 2, 3) or n in [1, 2] or n in {1, 2},
    "not_among": lambda n: n not in (1, 2, 3),
    "bound": lambda n: (min(n, 5), max(n, 5), *range(min(n, 5))),
    "kept": lambda n: entry_of({"there": 1}, n),
    "checked": lambda n: checked_size(n),
    "checked_below": lambda n: checked_size(n, max=1000),
    "rounded": lambda n: (round(n), int(n), math.floor(n / 2), math.prod([n, 2])),
}
#: Of a list of ints, from outside.
OF_A_LIST: dict[str, Callable[[Any], Any]] = {
    "sum": lambda ns: sum(ns),
    "item": lambda ns: ns[0] + ns[-1],
    "loop": lambda ns: [n + 1 for n in ns][1],
    "extremes": lambda ns: max(ns) + min(*ns),
    "unpacked": lambda ns: (lambda a, *b: a + b[0])(*ns),
    "sorted": lambda ns: sorted(ns)[0],
    "product": lambda ns: math.prod(ns),
    "zipped": lambda ns: sum(a * b for a, b in zip(ns, [1, 2, 3], strict=True)),
    "mapped": lambda ns: sum(map(lambda n: n + 1, ns)),
    "copied": lambda ns: list(ns)[0] + tuple(ns)[1] + list(reversed(ns))[0] + ns[1:][1] + (ns + [1])[0] + (ns * 2)[4],
    "shape": lambda ns: torch.ones(ns).shape,
    "tensor": lambda ns: torch.tensor(ns),
    "any": lambda ns: any(n > 1000 for n in ns),
    "in_a_dict": lambda ns: sum({"a": ns[0], "b": 2}.values()),
}


def use(x: torch.Tensor, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return x.sum() + value
    return [x * item for item in value] if isinstance(value, (tuple, list)) else x * value


def check(function: Callable[..., Any], inputs: list[tuple[Any, ...]], backend: str, most: int = 2) -> None:
    compiled = magneto.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for args in inputs:
            assert_same(compiled(*args), function(*args))
    stats = magneto.stats()
    assert stats["breaks"] == 0, stats["break_reasons"]
    assert stats["frames"] <= most


NUMBERS = (7, 9, 11, 13, 24, 48)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_sizes(name: str, backend: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return use(x, OF_A_NUMBER[name](x.shape[0]))

    check(function, [(torch.rand(n),) for n in NUMBERS], backend)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_ints(name: str, backend: str) -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return use(x, OF_A_NUMBER[name](n))

    check(function, [(torch.rand(3), n) for n in NUMBERS], backend, most=3)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", OF_A_LIST)
def test_lists_of_ints(name: str, backend: str) -> None:
    def function(x: torch.Tensor, numbers: list[int]) -> Any:
        return use(x, OF_A_LIST[name](numbers))

    check(function, [(torch.rand(3), [i + 4, 2, i + 9]) for i in range(6)], backend)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", ["item", "loop", "unpacked", "copied", "any"])
def test_tuples_of_floats(name: str, backend: str) -> None:
    def function(x: torch.Tensor, numbers: tuple[float, ...]) -> Any:
        if name == "copied":
            return use(x, [*numbers, *list(numbers)[1:], *(numbers + (1.0,)), *reversed(numbers)])
        return use(x, OF_A_LIST[name](numbers))

    check(function, [(torch.rand(3), (i + 0.5, 2.0, 1 / (i + 9))) for i in range(6)], backend)


@pytest.mark.parametrize("name", [*sorted(OF_A_LIST.keys() - {"shape", "copied", "zipped"}), "text"])
def test_what_needs_the_floats_of_a_tuple(name: str) -> None:
    """The values decide, or are read by C code: a capture each, or a number that each run computes."""

    def function(x: torch.Tensor, numbers: tuple[float, ...]) -> Any:
        if name == "text":
            return f"{numbers}", str(numbers), repr((numbers, 1)), hash(numbers), {*numbers}, numbers == (0.5, 2.0)
        return use(x, OF_A_LIST[name](numbers))

    compiled = magneto.compile(function, backend="aot_eager")
    for i in range(5):
        args = torch.ones(2), (i + 0.5, 2.0, -1 / (i + 9), 1e300, float(i))
        assert_same(compiled(*args), function(*args))


def test_a_float_crosses_a_break_in_a_module() -> None:
    """Its call hands on `*args`: a tuple from outside, which C code takes to pieces."""

    class Block(torch.nn.Module):
        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            torch._dynamo.graph_break()
            return x * scale

    block = Block()
    compiled = magneto.compile(block)
    for i in range(8):
        x = torch.rand(3)
        assert_same(compiled(x, 1 / (i + 2)), block(x, 1 / (i + 2)))
    assert magneto.stats()["recompiles"] <= 2  # in front of the break and behind it


def test_a_list_of_ints_in_a_module() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = [1, 2, 3]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(self.sizes)

    module = Module()
    compiled = magneto.compile(module, backend="aot_eager")
    for i in range(6):
        module.sizes[1] = 10 + i
        assert_same(compiled(torch.ones(3)), torch.ones(3) + 14 + i)
    assert magneto.stats()["frames"] == 2


def test_what_c_code_reads_of_a_list_is_guarded() -> None:
    """C code that reads the list itself, and not what stands for it, sees numbers that no run may differ in."""

    def function(x: torch.Tensor, numbers: list[int]) -> Any:
        return (
            x + 1,
            f"{numbers}",
            "%s" % (numbers,),  # noqa: UP031
            str(numbers),
            repr((numbers, 1)),
            hash(tuple(numbers)),
            {*numbers},
        )

    compiled = magneto.compile(function, backend="aot_eager")
    for i in range(5):
        args = torch.ones(2), [i, 5, 2 * i]
        assert_same(compiled(*args), function(*args))


@pytest.mark.parametrize("error", [ZeroDivisionError])
def test_division_by_zero_is_worded_by_python(error: type[Exception]) -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return x + divmod(5, n)[0]

    compiled = magneto.compile(function, backend="aot_eager")
    for n in (3, 4, 5):
        assert_same(compiled(torch.ones(2), n), function(torch.ones(2), n))
    with pytest.raises(error) as found:
        compiled(torch.ones(2), 0)
    with pytest.raises(error) as expected:
        function(torch.ones(2), 0)
    assert str(found.value) == str(expected.value)
