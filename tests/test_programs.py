"""Small Python programs around tensors: each must do the same compiled as in eager, call after call."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing
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


# -- classes -------------------------------------------------------------------------------------------------------------


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance, self.name, 1) * 2

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


class Thing:
    factor = 2
    described = Descriptor()

    def __init__(self, weight: Any) -> None:
        self.weight = weight
        self.calls = 0

    @property
    def double(self) -> Any:
        return self.weight * 2

    @double.setter
    def double(self, value: Any) -> None:
        self.weight = value / 2

    @classmethod
    def of(cls, n: int) -> Thing:
        return cls(torch.full((6,), float(n)))

    @staticmethod
    def shift(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.weight * self.factor

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: int) -> Any:
        return self.weight[key]

    def __contains__(self, key: Any) -> bool:
        return key == "magic"

    def __iter__(self) -> Iterator[Any]:
        return iter([self.weight, 1])

    def __add__(self, other: Any) -> Thing:
        return Thing(self.weight + (other.weight if isinstance(other, Thing) else other))

    def __radd__(self, other: Any) -> Thing:
        return self + other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.calls == other.calls

    def __hash__(self) -> int:
        return 7


@scenario
def attributes_are_written(start: Start) -> None:
    def program(thing: Thing, x: torch.Tensor) -> Any:
        y = thing(x)
        thing.last = y  # type: ignore[attr-defined]
        thing.weight = thing.weight + 1
        return y, thing.last is y, thing.calls  # type: ignore[attr-defined]

    call = start(program)
    thing = Thing(vector())
    for _ in range(3):
        call(thing, vector())


@scenario
def attributes_are_deleted(start: Start) -> None:
    def program(thing: Thing, x: torch.Tensor) -> Any:
        kept = thing.weight
        del thing.weight
        missing = hasattr(thing, "weight")
        thing.new = kept * x  # type: ignore[attr-defined]
        del thing.calls
        return kept, missing, getattr(thing, "calls", "none")

    call = start(program)
    call(Thing(vector()), vector())
    call(Thing(vector()), vector())
    thing = Thing(vector())
    del thing.calls
    call(thing, vector())


@scenario
def properties_and_descriptors(start: Start) -> None:
    def program(thing: Thing, x: torch.Tensor) -> Any:
        thing.double = x
        thing.described = 5
        return thing.double, thing.described, Thing.shift(x), thing.of(3), thing.weight, Thing.described

    call = start(program)
    call(Thing(vector()), vector())
    call(Thing(vector()), vector())


@scenario
def special_methods(start: Start) -> None:
    def program(thing: Thing, x: torch.Tensor) -> Any:
        made = thing + 1
        other = x + 2
        return len(thing), thing[0], "magic" in thing, [*thing], made, made == thing, bool(thing), other, 2 + thing

    call = start(program)
    call(Thing(vector()), vector())
    call(Thing(vector()), vector())


@scenario
def class_attribute_changes_between_calls(start: Start) -> None:
    class Local(Thing):
        pass

    call = start(lambda thing, x: thing(x))
    thing = Local(vector())
    call(thing, vector())
    Local.factor = 5
    call(thing, vector())
    thing.factor = 7
    call(thing, vector())
    del thing.factor
    del Local.factor
    call(thing, vector())
    Local.__call__ = lambda self, x: x - 1  # type: ignore[method-assign, assignment]
    call(thing, vector())


@scenario(breaks=True)
def class_attribute_is_written(start: Start) -> None:
    class Local:
        count = 0

    def program(x: torch.Tensor) -> Any:
        Local.count += 1
        return x * Local.count

    call = start(program)
    for _ in range(3):
        call(vector())


@scenario
def slots(start: Start) -> None:
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self, a: Any) -> None:
            self.a = a

    def program(thing: Slotted, x: torch.Tensor) -> Any:
        had = hasattr(thing, "b")
        thing.b = thing.a * x
        made = Slotted(thing.b + 1)
        made.b = made
        return had, thing.b, made

    call = start(program)
    thing = Slotted(2)
    call(thing, vector())
    call(thing, vector())
    call(Slotted(vector()), vector())


@scenario
def fallback_attributes(start: Start) -> None:
    class Lazy:
        def __init__(self) -> None:
            self.asked: list[str] = []

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"no {name}")
            self.asked.append(name)
            return len(name)

    def program(lazy: Lazy, x: torch.Tensor) -> Any:
        return x * lazy.four, hasattr(lazy, "_hidden"), getattr(lazy, "_other", 5), lazy.asked

    call = start(program)
    call(Lazy(), vector())
    lazy = Lazy()
    lazy.four = 10
    call(lazy, vector())


@scenario
def attribute_overrides(start: Start) -> None:
    class Loud:
        def __init__(self) -> None:
            self.value = 2

        def __getattribute__(self, name: str) -> Any:
            found = object.__getattribute__(self, name)
            return found + 1 if isinstance(found, int) else found

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            if name != "count":
                object.__setattr__(self, "count", value)

    def program(loud: Loud, x: torch.Tensor) -> Any:
        loud.value = 5
        return x * loud.value, loud.count  # type: ignore[attr-defined]

    call = start(program)
    call(Loud(), vector())
    call(Loud(), vector())


@scenario
def inheritance_and_super(start: Start) -> None:
    class Base:
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.n

        @classmethod
        def make(cls, n: int) -> Any:
            return cls(n)

    class Mixin(Base):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return super().run(x) * 2

    class Last(Mixin):
        def __init__(self, n: int) -> None:
            super().__init__(n + 1)
            self.extra = "e"

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return super().run(x) - 1

        @classmethod
        def make(cls, n: int) -> Any:
            return super().make(n * 10)

    def program(thing: Last, x: torch.Tensor) -> Any:
        return thing.run(x), Last(1), Last.make(2), isinstance(thing, Base), type(thing).__name__

    call = start(program)
    call(Last(3), vector())
    call(Last(4), vector())


@dataclasses.dataclass
class Config:
    scale: float = 2.0
    names: list[str] = dataclasses.field(default_factory=list)
    weight: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: int = 1


@dataclasses.dataclass(slots=True)
class SlottedData:
    a: Any
    b: int = 3


@scenario
def dataclass_values(start: Start) -> None:
    def program(config: Config, x: torch.Tensor) -> Any:
        config.names.append("seen")
        made = Config(weight=x * config.scale)
        changed = dataclasses.replace(config, scale=1.0)
        return made, Frozen(x, len(config.names)), SlottedData(x + 1), changed, [f.name for f in dataclasses.fields(config)]

    call = start(program)
    config = Config()
    call(config, vector())
    call(config, vector())
    call(Config(scale=3.0), vector())


@scenario
def frozen_dataclass_is_written(start: Start) -> None:
    def program(frozen: Frozen, x: torch.Tensor) -> Any:
        try:
            frozen.b = 5  # type: ignore[misc]
        except dataclasses.FrozenInstanceError as error:
            return frozen.a + x, str(error)

    call = start(program)
    call(Frozen(vector()), vector())
    call(Frozen(vector()), vector())


class Point(typing.NamedTuple):
    x: Any
    y: Any = 2

    def total(self) -> Any:
        return self.x + self.y


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024


@scenario
def named_tuples(start: Start) -> None:
    def program(p: Point, x: torch.Tensor) -> Any:
        a, b = p
        q = p._replace(y=x)
        return Point(a * b), q.total(), p.total(), Pair(x, right=p), p[0], len(p), p._fields, q._asdict()

    call = start(program)
    call(Point(vector(), 3), vector())
    call(Point(vector(), 4), vector())
    call(Point(vector(), vector()), vector())


class Color(enum.Enum):
    RED = 1
    BLUE = "b"

    @property
    def lower(self) -> str:
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


@scenario
def enums(start: Start) -> None:
    def program(color: Color, level: Level, x: torch.Tensor) -> Any:
        if color is Color.RED:
            x = x + 1
        table = {Color.RED: 2, Color.BLUE: 3}
        return x * table[color] * level, color, color.value, color.lower, Color("b"), level > Level.LOW, Level.HIGH + 1

    call = start(program)
    call(Color.RED, Level.LOW, vector())
    call(Color.BLUE, Level.HIGH, vector())
    call(Color.RED, Level.LOW, vector())


@scenario
def container_subclasses(start: Start) -> None:
    class Stack(list):  # type: ignore[type-arg]
        def top(self) -> Any:
            return self[-1]

    class Table(dict):  # type: ignore[type-arg]
        def __missing__(self, key: str) -> int:
            return len(key)

        def __getattr__(self, name: str) -> Any:
            return self[name]

    def program(stack: Stack, table: Table, x: torch.Tensor) -> Any:
        made = Stack([x, x + 1])
        made.label = "made"  # type: ignore[attr-defined]
        other = Table(a=x)
        return stack.top() * x, table["none"], table.a, made, other, made.top(), len(stack), list(table)

    call = start(program)
    call(Stack([1, 2]), Table(a=3), vector())
    call(Stack([1, 2, 3]), Table(a=4, b=1), vector())


@scenario
def instances_returned_are_fresh(start: Start) -> None:
    def program(x: torch.Tensor) -> Any:
        thing = Thing(x * 2)
        thing.me = thing  # type: ignore[attr-defined]
        box = [thing]
        return thing, box, {"box": box}

    call = start(program)
    first = call(vector())
    second = call.hits(vector())
    if first[0] is second[0] or first[1] is second[1]:
        raise AssertionError("the runs share an object")


@scenario
def checks_on_types(start: Start) -> None:
    def program(value: Any, x: torch.Tensor) -> Any:
        if isinstance(value, (list, tuple)):
            return x * len(value)
        if isinstance(value, torch.Tensor):
            return x + value
        if callable(value):
            return value(x)
        if type(value) is bool:
            return -x if value else x
        if issubclass(type(value), int):
            return x - value
        return hasattr(value, "weight"), getattr(value, "weight", None), x.shape

    call = start(program)
    for value in ([1], (1, 2), vector(), torch.sin, True, 3, Thing(1), None):
        call(value, vector())


@scenario
def strings(start: Start) -> None:
    def program(name: str, n: int, x: torch.Tensor) -> Any:
        key = f"{name}_{n:03d}"
        parts = key.split("_")
        text = "%s-%d" % (name, n) + "{}{!r:>5}".format(n, name)
        joined = ",".join(p.upper() for p in parts)
        return x * len(key), key, parts, text, joined, name.startswith("a"), key.replace("_", "."), f"{tuple(x.shape)}"

    call = start(program)
    call("alpha", 7, vector())
    call("beta", 12, vector())


@scenario
def numbers(start: Start) -> None:
    def program(n: int, f: float, x: torch.Tensor) -> Any:
        k = (n // 2) ** 2 % 5 if n else -1
        y = x * math.sqrt(f) + math.pi
        big = n << 70
        return y * k, round(f, 1), divmod(n, 3), abs(-n), big, int(f), float(n), n & 3 | 8, complex(n, f), f == f, max(n, f)

    call = start(program)
    call(7, 2.5, vector())
    call(0, float("nan"), vector())
    call(-3, 0.25, vector())


@scenario(breaks=True)
def match_statement(start: Start) -> None:
    def program(value: Any, x: torch.Tensor) -> Any:
        match value:
            case {"scale": n, **rest}:
                return x * n, rest
            case [first, *others]:
                return x + first, others
            case Point(x=px, y=2):
                return px * x
            case str() | None:
                return x - 1
            case Color.RED:
                return x * 9
            case _:
                return x

    call = start(program)
    for value in ({"scale": 2, "z": 1}, [1, 2], Point(3.0), "text", None, Color.RED, 5):
        call(value, vector())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", scenario.scenarios)
def test_program(name: str, backend: str) -> None:
    scenario.check(name, backend)
