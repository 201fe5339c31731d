"""Small programs with classes, text and numbers around tensors: compiled as in eager, call after call."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
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
        return (
            made,
            Frozen(x, len(config.names)),
            SlottedData(x + 1),
            changed,
            [f.name for f in dataclasses.fields(config)],
        )

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
        text = "%s-%d" % (name, n) + "{}{!r:>5}".format(n, name)  # noqa: UP031, UP032
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
        return (
            y * k,
            round(f, 1),
            divmod(n, 3),
            abs(-n),
            big,
            int(f),
            float(n),
            n & 3 | 8,
            complex(n, f),
            f == f,
            max(n, f),
        )

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
