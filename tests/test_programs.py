"""Small Python programs around tensors: each must do the same compiled as in eager, call after call."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scenario import BACKENDS, Registry

scenario = Registry()
Start = Callable[..., Any]


def vector(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(1.0, 7.0) * scale


# -- containers --------------------------------------------------------------------------------------------------------


@scenario
def list_argument(start: Start) -> None:
    call = start(lambda xs: [x + len(xs) for x in xs])
    call([vector(), vector(2)])
    call.hits([vector(), vector(2)])
    call.recompiles([vector()])
    call.hits([vector(3), vector(2)])


@scenario
def nested_containers(start: Start) -> None:
    def program(data: dict[str, Any]) -> Any:
        a, (b, *rest) = data["pair"]
        return {"sum": a + b, "rest": [r * 2 for r in rest], "keys": list(data), "same": data["pair"]}

    call = start(program)
    data = {"pair": (vector(), [vector(2), vector(3), vector(4)]), "other": 1}
    call(data)
    call.hits(data)
    data["pair"][1].append(vector(5))  # type: ignore[index, union-attr]
    call.recompiles(data)


@scenario
def outside_list_is_appended_to(start: Start) -> None:
    log: list[torch.Tensor] = []

    def program(x: torch.Tensor) -> int:
        log.append(x + 1)
        return len(log)

    call = start(program, log)
    for _ in range(3):
        call(vector())


@scenario
def outside_list_is_changed_in_many_ways(start: Start) -> None:
    def program(items: list[Any], x: torch.Tensor) -> Any:
        items[0] = x * 2
        items.insert(1, items[0] + 1)
        items.extend((1, 2))
        last = items.pop()
        items += [last, "end"]
        del items[2]
        items.reverse()
        return items, len(items)

    call = start(program)
    call([vector(), 3], vector())
    call.hits([vector(), 3], vector())
    call([vector(), 3, 4], vector())


@scenario
def outside_dict_is_changed_in_many_ways(start: Start) -> None:
    def program(d: dict[str, Any], x: torch.Tensor) -> Any:
        d["new"] = x + 1
        d["a"] = d["a"] * 2
        keys = list(d)
        d.update(b=5)
        gone = d.pop("gone")
        d.setdefault("c", []).append(x)
        return keys, gone, sorted(d), d.get("nothing"), d

    call = start(program)
    call({"a": 1, "gone": vector()}, vector())
    call.hits({"a": 1, "gone": vector()}, vector())
    call({"a": 2, "gone": vector(), "c": [1]}, vector())


@scenario
def dict_entry_written_then_iterated(start: Start) -> None:
    def program(d: dict[str, Any], x: torch.Tensor) -> Any:
        d["k"] = x + 1
        return [(name, value) for name, value in d.items()], len(d), "k" in d, d.get("k")

    call = start(program)
    call({"a": 1}, vector())
    call({"a": 1, "k": 2}, vector())


@scenario
def dict_entry_deleted(start: Start) -> None:
    def program(d: dict[str, Any], x: torch.Tensor) -> Any:
        del d["a"]
        d["a"] = x
        del d["b"]
        return list(d), "b" in d

    call = start(program)
    call({"a": 1, "b": 2, "c": 3}, vector())
    call({"b": 1, "a": 2}, vector())


@scenario
def dict_views_and_methods(start: Start) -> None:
    def program(d: dict[str, Any], x: torch.Tensor) -> Any:
        merged = d | {"z": x.sum()}
        inverted = {v: k for k, v in d.items() if isinstance(v, int)}
        copied = d.copy()
        copied["a"] = 0
        return merged, inverted, copied, list(d.keys()), tuple(d.values()), dict.fromkeys(d, 1), d.keys() & {"a"}

    call = start(program)
    call({"a": 1, "b": 2}, vector())
    call({"b": 1, "q": vector()}, vector())


@scenario
def sets(start: Start) -> None:
    def program(names: set[str], x: torch.Tensor) -> Any:
        extra = {"a", "b"} | names
        if "c" in names:
            x = x + 1
        names.add("new")
        return extra - {"a"}, x * len(extra), extra >= {"a"}, frozenset(names), names

    call = start(program)
    call({"c"}, vector())
    call({"d"}, vector())


@scenario
def comprehensions(start: Start) -> None:
    def program(n: int, x: torch.Tensor) -> Any:
        rows = [[x * i + j for j in range(2)] for i in range(n) if i % 2 == 0]
        return rows, {i: x + i for i in range(n)}, {i % 2 for i in range(n)}, sum(i * x for i in range(n))

    call = start(program)
    call(3, vector())
    call(4, vector())


@scenario
def deque_and_ordered_dict(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        window: Any = collections.deque([x], maxlen=2)
        for i in range(3):
            window.append(window[-1] * i)
        named: Any = collections.OrderedDict(a=x, b=window[0])
        named.move_to_end("a")
        counts = collections.defaultdict(list)
        counts["q"].append(x + 1)
        return window, named, counts, list(named)

    call = start(program)
    call(vector())
    call(vector(2))


@scenario(breaks=True)
def counter(start: Start) -> None:
    def program(x: torch.Tensor, text: str) -> Any:
        counts = collections.Counter(text)
        return x * counts["a"], counts["z"], sorted(counts)

    call = start(program)
    call(vector(), "banana")
    call(vector(), "abc")


@scenario
def slices_of_python_sequences(start: Start) -> None:
    def program(xs: list[torch.Tensor], t: tuple[int, ...]) -> Any:
        return xs[1:], xs[::-1], t[-2:], xs[-1] + t[0], xs + [1], t * 2

    call = start(program)
    call([vector(), vector(2)], (1, 2, 3))
    call([vector(), vector(2), vector(3)], (4, 2, 3))


@scenario
def sorting(start: Start) -> None:
    def program(xs: list[torch.Tensor], order: list[int]) -> Any:
        pairs = sorted(zip(order, xs, strict=True), key=lambda pair: -pair[0])
        order.sort(reverse=True)
        return [x * k for k, x in pairs], min(order), max(order, key=lambda v: -v), order

    call = start(program)
    call([vector(), vector(2)], [1, 2])
    call([vector(), vector(2)], [2, 1])


@scenario
def multiple_targets_and_swaps(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x, y = y, x
        a = b = [x]
        a.append(y)
        first, *middle, last = (x, 1, 2, y)
        return a is b, a, middle, first - last

    call = start(program)
    call(vector(), vector(2))
    call(vector(), vector(2))


# -- functions ---------------------------------------------------------------------------------------------------------


@scenario
def args_and_kwargs(start: Start) -> None:
    def inner(*args: Any, scale: float = 2.0, **kwargs: Any) -> Any:
        return sum(args) * scale, kwargs

    def program(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs), len(args), sorted(kwargs)

    call = start(program)
    call(vector(), vector(2))
    call(vector(), vector(2), scale=3.0)
    call(vector(), other=vector(), scale=1.0)
    call(vector(), scale=1.0, other=vector())


@scenario
def defaults(start: Start) -> None:
    def program(x: torch.Tensor, n: int = 2, *, flag: bool = False, bias: Any = None) -> Any:
        y = x * n
        return (y if not flag else -y) if bias is None else y + bias

    call = start(program)
    call(vector())
    call(vector(), 3)
    call(vector(), flag=True)
    call(vector(), n=2, bias=vector(2))
    call(vector(), 3)


@scenario
def wrong_arguments(start: Start) -> None:
    def inner(x: torch.Tensor, y: int) -> torch.Tensor:
        return x + y

    def program(x: torch.Tensor, *args: Any) -> Any:
        return inner(x, *args)

    call = start(program)
    call(vector(), 1)
    call(vector(), 1, 2)
    call(vector())
    call(vector(), 1)


@scenario
def mutated_default_of_an_inner_function(start: Start) -> None:
    def inner(x: torch.Tensor, seen: list[Any] = []) -> int:  # noqa: B006
        seen.append(x.sum())
        return len(seen)

    def program(x: torch.Tensor) -> int:
        return inner(x)

    call = start(program, inner.__defaults__)
    for _ in range(3):
        call(vector())


@scenario
def mutated_default_of_the_function(start: Start) -> None:
    def program(x: torch.Tensor, seen: list[Any] = []) -> int:  # noqa: B006
        seen.append(x.sum())
        return len(seen)

    call = start(program, program.__defaults__)
    for _ in range(3):
        call(vector())


@scenario(breaks=True)
def closure_with_nonlocal(start: Start) -> None:
    count = 0

    def program(x: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        return x * count

    def read() -> int:
        return count

    call = start(program, read.__closure__[0].cell_contents)  # type: ignore[index]
    call(vector())
    call(vector())
    start(lambda: read())()
    count = 10
    call(vector())


@scenario
def closure_made_inside(start: Start) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        total = x

        def add(k: int) -> torch.Tensor:
            nonlocal total
            total = total + k
            return total

        for i in range(n):
            add(i)
        return total, add(5)

    call = start(program)
    call(vector(), 3)
    call(vector(), 2)


@scenario
def function_returned(start: Start) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        y = x * n

        def later(z: torch.Tensor, k: int = n) -> torch.Tensor:
            return z + y + k

        return later

    call = start(program)
    for n in (1, 2, 1):
        later = call(vector(), n)
        start(lambda later=later: later(vector()))()


@scenario
def recursion(start: Start) -> None:
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 1 else x * power(x, n - 1)

    call = start(lambda x, n: power(x, n))
    call(vector(), 4)
    call(vector(), 2)


@scenario(breaks=True)
def recursion_without_end(start: Start) -> None:
    def forever(x: torch.Tensor) -> torch.Tensor:
        return forever(x + 1)

    def program(x: torch.Tensor) -> Any:
        try:
            return forever(x)
        except RecursionError as error:
            return str(error), x * 2

    start(program)(vector())


@scenario
def partials(start: Start) -> None:
    def scale(x: torch.Tensor, factor: float, *, bias: float = 0.0) -> torch.Tensor:
        return x * factor + bias

    outside = functools.partial(scale, bias=1.0)

    def program(x: torch.Tensor) -> Any:
        inside = functools.partial(scale, factor=3.0)
        return outside(x, 2.0), inside(x), functools.partial(outside, factor=1.0)(x, bias=0.5)

    call = start(program)
    call(vector())
    call(vector())


@scenario
def lru_cached_function_of_numbers(start: Start) -> None:
    @functools.lru_cache
    def factor(n: int) -> int:
        return n * n

    call = start(lambda x, n: x * factor(n))
    call(vector(), 3)
    call(vector(), 4)
    call(vector(), 3)


@scenario
def wrapped_function(start: Start) -> None:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(function(*args, **kwargs))

        return wrapper

    @twice
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    call = start(lambda x: (twice(step)(x), step.__name__))
    call(vector())
    call(vector())


@scenario
def reduce_map_filter(start: Start) -> None:
    def program(xs: list[torch.Tensor], n: int) -> Any:
        total = functools.reduce(lambda a, b: a + b, xs)
        scaled = list(map(lambda x: x * n, xs))
        kept = list(filter(lambda i: i > 1, range(n)))
        return total, scaled, kept, functools.reduce(operator.mul, xs, 2)

    call = start(program)
    call([vector(), vector(2)], 3)
    call([vector(), vector(2), vector(3)], 4)


@scenario
def iteration_tools(start: Start) -> None:
    def program(xs: list[torch.Tensor], n: int) -> Any:
        chained = list(itertools.chain(xs, [n]))
        product = [a * b for a, b in itertools.product(xs, repeat=2)]
        pairs = [b - a for a, b in itertools.pairwise(xs)]
        limited = list(itertools.islice(itertools.count(n), 3))
        sums = list(itertools.accumulate(range(n)))
        return chained, product, pairs, limited, sums, list(zip(xs, itertools.repeat(1)))

    call = start(program)
    call([vector(), vector(2)], 3)
    call([vector()], 4)


@scenario
def enumerate_zip_reversed(start: Start) -> None:
    def program(xs: tuple[torch.Tensor, ...]) -> Any:
        return [i * x for i, x in enumerate(xs, 1)], [a + b for a, b in zip(xs, reversed(xs), strict=True)]

    call = start(program)
    call((vector(), vector(2)))
    call((vector(), vector(2), vector(3)))


@scenario
def generator_consumed_inside(start: Start) -> None:
    def steps(x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
        for i in range(n):
            x = x + i
            yield x

    def both(x: torch.Tensor) -> Any:
        yield from steps(x, 2)
        got = yield x
        return got

    def program(x: torch.Tensor, n: int) -> Any:
        total = sum(s for s in steps(x, n))
        return total, list(both(x)), next(steps(x, 1)), any(i > 1 for i in range(n))

    call = start(program)
    call(vector(), 3)
    call(vector(), 2)


@scenario
def generator_send_and_close(start: Start) -> None:
    def averages(log: list[str]) -> Any:
        total = None
        try:
            while True:
                value = yield total
                total = value if total is None else total + value
        finally:
            log.append("closed")

    def program(x: torch.Tensor) -> Any:
        log: list[str] = []
        run = averages(log)
        next(run)
        first = run.send(x)
        second = run.send(x * 2)
        run.close()
        return first, second, log

    call = start(program)
    call(vector())
    call(vector())


# -- exceptions and context managers -------------------------------------------------------------------------------------


@scenario
def try_except_finally(start: Start) -> None:
    def program(x: torch.Tensor, d: dict[str, int]) -> Any:
        log = []
        try:
            x = x * d["key"]
        except KeyError as error:
            log.append(repr(error))
            x = x - 1
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x, log

    call = start(program)
    call(vector(), {"key": 2})
    call(vector(), {})
    call(vector(), {"key": 3})


@scenario
def raise_and_reraise(start: Start) -> None:
    class Problem(ValueError):
        def __init__(self, text: str, code: int) -> None:
            super().__init__(text)
            self.code = code

    def inner(n: int) -> None:
        if n > 2:
            raise Problem(f"too big: {n}", n)

    def program(x: torch.Tensor, n: int) -> Any:
        try:
            inner(n)
        except Problem as error:
            if error.code > 5:
                raise RuntimeError("really") from error
            return x * error.code, str(error), error
        return x

    call = start(program)
    for n in (1, 3, 9, 1):
        call(vector(), n)


@scenario
def error_leaves_with_changes_made(start: Start) -> None:
    log: list[Any] = []

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        log.append(n)
        x.add_(1)
        if n > 1:
            raise ValueError(f"no: {n}")
        return x

    call = start(program, log)
    for n in (1, 2, 2, 1):
        call(vector(), n)


@scenario
def shape_error(start: Start) -> None:
    call = start(lambda x, y: (x + 1) + y)
    call(vector(), vector())
    call(vector(), torch.ones(4))
    call(vector(), vector())


@scenario
def torch_error_caught_inside(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        try:
            return x @ y
        except RuntimeError as error:
            return str(error), x + 1

    call = start(program)
    call(vector(), vector())
    call(vector(), torch.ones(4))


@scenario
def assertion_and_lookup_errors(start: Start) -> None:
    def program(x: torch.Tensor, what: int) -> Any:
        y = x + 1
        if what == 0:
            raise AssertionError(f"bad size {x.shape[0]}")  # pytest would rewrite an assert
        if what == 1:
            return [y][3]
        if what == 2:
            return {"a": y}["b"]
        if what == 3:
            return y.nothing  # type: ignore[attr-defined]
        if what == 4:
            return y + int("four")
        if what == 5:
            a, b = (y,)
        if what == 6:
            return undefined_name  # type: ignore[name-defined] # noqa: F821
        if what == 7:
            return 1 / (what - 7)
        if what == 8:
            return None + y  # type: ignore[operator]
        return y

    call = start(program)
    for what in range(10):
        call(vector(), what)


@scenario
def no_grad_inside(start: Start) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.no_grad():
            a = x * w
        with torch.enable_grad():
            b = x * w
        return a, a.requires_grad, torch.is_grad_enabled(), b.requires_grad

    call = start(program)
    call(vector(), vector(2))
    with torch.no_grad():
        call(vector(), vector(2).requires_grad_())
        call(vector(), vector(2))


@scenario
def no_grad_decorator(start: Start) -> None:
    @torch.no_grad()
    def inner(x: torch.Tensor) -> Any:
        return x * 2, torch.is_grad_enabled()

    call = start(lambda x: (inner(x), torch.is_grad_enabled()))
    call(vector())
    call(vector())


@scenario
def grad_mode_left_changed(start: Start) -> None:
    def program(x: torch.Tensor, mode: bool) -> torch.Tensor:
        torch.set_grad_enabled(mode)
        return x + 1

    call = start(program)
    try:
        call(vector(), False)
        call(vector(), True)
        call(vector(), False)
        call(vector(), True)
    finally:
        torch.set_grad_enabled(True)


@scenario
def autocast_inside(start: Start) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, (x @ w).dtype, y.dtype, torch.is_autocast_enabled("cpu")

    call = start(program)
    call(torch.ones(2, 3), torch.ones(3, 2))
    call(torch.ones(2, 3), torch.ones(3, 2))


@scenario
def context_managers_of_the_user(start: Start) -> None:
    log: list[str] = []

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[str]:
        log.append(f"enter {name}")
        try:
            yield name.upper()
        finally:
            log.append(f"leave {name}")

    class Suppress:
        def __enter__(self) -> Suppress:
            return self

        def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
            log.append(f"exit {kind.__name__ if kind else None}: {value}")
            return kind is ValueError

    def program(x: torch.Tensor, fail: bool) -> Any:
        with noted("a") as name, Suppress():
            x = x + len(name)
            if fail:
                raise ValueError("inside")
            x = x * 2
        return x

    call = start(program, log)
    call(vector(), False)
    call(vector(), True)
    call(vector(), False)


@scenario
def suppress_and_null_context(start: Start) -> None:
    def program(x: torch.Tensor, d: dict[str, Any]) -> Any:
        with contextlib.suppress(KeyError):
            x = x + d["k"]
        with contextlib.nullcontext(3) as n:
            x = x * n
        return x

    call = start(program)
    call(vector(), {"k": 1})
    call(vector(), {})


@scenario
def return_in_finally_and_loops(start: Start) -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        out = []
        for i in range(10):
            try:
                if i == n:
                    continue
                if i > n + 1:
                    break
                out.append(x + i)
            finally:
                out.append(i)
        else:
            out.append("never")
        while n > 0:
            n -= 1
        else:
            out.append("done")
        return out

    call = start(program)
    call(vector(), 1)
    call(vector(), 2)


@scenario
def membership_in_a_set_of_classes(start: Start) -> None:
    kinds = {int, float}

    def program(x: torch.Tensor, n: object) -> torch.Tensor:
        return x * 2 if type(n) in kinds else x

    call = start(program, kinds)
    call(vector(), 1)
    call.hits(vector(2), 1)
    call(vector(), "text")
    kinds.discard(int)
    call(vector(), 1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", scenario.scenarios)
def test_program(name: str, backend: str) -> None:
    scenario.check(name, backend)
