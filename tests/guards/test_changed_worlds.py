"""One thing of the world that a program reads is changed between two calls: what was captured before must not serve any
more where eager gives another answer."""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import logging
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import magneto

WORLDS: dict[str, Callable[[], tuple[Callable[[torch.Tensor], Any], list[Callable[[], Any]]]]] = {}


def world(make: Callable[[], Any]) -> Callable[[], Any]:
    """`make` gives a program and changes, which are made one after the other."""
    assert make.__name__ not in WORLDS
    WORLDS[make.__name__] = make
    return make


def setter(owner: Any, name: str, *values: Any) -> list[Callable[[], Any]]:
    return [functools.partial(setattr, owner, name, value) for value in values]


class Plain:
    value = 1

    def method(self) -> int:
        return self.value


def plain_class(**entries: Any) -> Any:
    return type("Some", (), entries)


# -- classes -----------------------------------------------------------------------------------------------------------


@world
def base_gets_a_method() -> Any:
    base = plain_class(f=lambda self: 1)
    derived = type("Derived", (base,), {})
    obj = derived()
    return lambda x: x + obj.f(), [
        *setter(base, "f", lambda self: 2),
        *setter(derived, "f", lambda self: 3),
        lambda: delattr(derived, "f"),
    ]


@world
def bases_are_assigned() -> Any:
    one, other = plain_class(f=lambda self: 1), plain_class(f=lambda self: 2)
    derived = type("Derived", (one,), {})
    obj = derived()
    return lambda x: x + obj.f(), setter(derived, "__bases__", (other,), (one, other), (other, one))


@world
def class_of_an_instance_is_assigned() -> Any:
    one, other = plain_class(f=lambda self: 1), plain_class(f=lambda self: 2)
    obj = one()
    return lambda x: x + obj.f(), setter(obj, "__class__", other, one)


@world
def dict_of_an_instance_is_assigned() -> Any:
    obj = Plain()
    return lambda x: x + obj.value, [
        *setter(obj, "__dict__", {"value": 4}, {}, {"value": 5}),
        lambda: obj.__dict__.clear(),
        lambda: obj.__dict__.update(value=9),
    ]


@world
def property_becomes_an_attribute() -> Any:
    some = plain_class(v=property(lambda self: 1))
    obj = some()
    return lambda x: x + obj.v, [
        *setter(some, "v", 2, property(lambda self: 3)),
        lambda: obj.__dict__.update(v=7),
        *setter(some, "v", 5),
        lambda: delattr(some, "v"),
    ]


@world
def static_and_class_methods() -> Any:
    some = plain_class(f=staticmethod(lambda: 1), g=classmethod(lambda cls: cls.k), k=2)
    return lambda x: x + some.f() + some.g(), [
        *setter(some, "f", staticmethod(lambda: 5)),
        *setter(some, "k", 7),
        *setter(some, "g", classmethod(lambda cls: 9)),
    ]


@world
def attribute_of_the_metaclass() -> Any:
    meta = type("Meta", (type,), {"size": 3})
    some = meta("Some", (), {})
    return lambda x: x + some.size, [*setter(meta, "size", 4), *setter(some, "size", 5), lambda: delattr(some, "size")]


@world
def descriptor_gets_a_setter() -> Any:
    reader = type("Reader", (), {"__get__": lambda self, obj, cls: 1})
    some = plain_class(v=reader())
    obj = some()
    obj.__dict__["v"] = 2
    return lambda x: x + obj.v, [
        *setter(reader, "__set__", lambda self, obj, value: None),
        lambda: delattr(reader, "__set__"),
    ]


@world
def slots() -> Any:
    some = type("Some", (), {"__slots__": ("a",), "b": 3})
    obj = some()
    obj.a = 1
    return lambda x: x + obj.a + obj.b, [*setter(obj, "a", 2), *setter(some, "b", 4), lambda: delattr(obj, "a")]


@world
def module_level_getattr() -> Any:
    module = types.ModuleType("some")
    module.__getattr__ = lambda name: len(name)  # type: ignore[method-assign]
    return lambda x: x + module.lazy, [
        *setter(module, "__getattr__", lambda name: 10 * len(name)),
        *setter(module, "lazy", 7),
        lambda: delattr(module, "lazy"),
    ]


@world
def enumeration() -> Any:
    class Kind(enum.Enum):
        A = 1
        B = 2

    holder = Plain()
    holder.value = Kind.A  # type: ignore[assignment]
    return lambda x: x + 1 if holder.value is Kind.A else x - 1, setter(holder, "value", Kind.B, Kind.A, None)


@world
def flags() -> Any:
    class Kind(enum.Flag):
        A = 1
        B = 2

    holder = Plain()
    holder.value = Kind.A  # type: ignore[assignment]
    return lambda x: x + 1 if Kind.B in holder.value else x - 1, setter(
        holder, "value", Kind.B, Kind.A | Kind.B, Kind(0)
    )


@world
def abstract_class_registers() -> Any:
    class Base(abc.ABC):  # noqa: B024
        pass

    some = plain_class()
    obj = some()
    return lambda x: x + 1 if isinstance(obj, Base) else x - 1, [lambda: Base.register(some)]


@world
def subclass_hook() -> Any:
    class Base(abc.ABC):  # noqa: B024
        yes = False

        @classmethod
        def __subclasshook__(cls, other: type) -> Any:
            return cls.yes or NotImplemented

    obj = Plain()
    return lambda x: x + 1 if isinstance(obj, Base) else x - 1, []


@world
def single_dispatch() -> Any:
    @functools.singledispatch
    def f(value: Any) -> int:
        return 1

    return lambda x: x + f(3) + f("a"), [
        lambda: f.register(int, lambda value: 2),
        lambda: f.register(str, lambda value: 30),
        lambda: f.register(bool, lambda value: 4),
    ]


@world
def dataclass_fields() -> Any:
    @dataclasses.dataclass
    class Config:
        size: int = 1
        name: str = "a"

    config = Config()
    return lambda x: x + config.size + len(config.name) + len(dataclasses.asdict(config)), [
        *setter(config, "size", 2),
        *setter(config, "name", "abc"),
    ]


@world
def frozen_dataclass_as_key() -> Any:
    @dataclasses.dataclass(frozen=True)
    class Key:
        a: int

    table = {Key(1): 10, Key(2): 20}
    holder = Plain()
    holder.value = Key(1)  # type: ignore[assignment]
    return lambda x: x + table[holder.value], [*setter(holder, "value", Key(2)), lambda: table.update({Key(2): 30})]


# -- functions ---------------------------------------------------------------------------------------------------------


def helper(a: int, b: int = 2, *, c: int = 3) -> int:
    return a + b * c


@world
def code_of_a_function() -> Any:
    f = types.FunctionType(helper.__code__, globals(), "f", (2,))
    f.__kwdefaults__ = {"c": 3}

    def other(a: int, b: int = 2, *, c: int = 3) -> int:
        return a - b * c

    return lambda x: x + f(1), setter(f, "__code__", other.__code__, helper.__code__)


@world
def defaults_of_a_function() -> Any:
    f = types.FunctionType(helper.__code__, globals(), "f", (2,))
    f.__kwdefaults__ = {"c": 3}
    return lambda x: x + f(1), [
        *setter(f, "__defaults__", (5,)),
        lambda: f.__kwdefaults__.update(c=7),  # type: ignore[union-attr]
        *setter(f, "__kwdefaults__", {"c": 8}),
        *setter(f, "__defaults__", (1, 6)),
    ]


@world
def mutable_default() -> Any:
    def f(x: torch.Tensor, seen: list[int] = [1]) -> Any:  # noqa: B006
        return x + sum(seen)

    return lambda x: f(x), [lambda: f.__defaults__[0].append(5), lambda: f.__defaults__[0].clear()]  # type: ignore[index]


@world
def contents_of_a_cell() -> Any:
    def make() -> Any:
        k = 1

        def f() -> int:
            return k

        def change(value: int) -> None:
            nonlocal k
            k = value

        return f, change

    f, change = make()
    return lambda x: x + f(), [lambda: change(5), lambda: change(5.5)]  # type: ignore[arg-type]


@world
def attributes_of_a_function() -> Any:
    def f() -> int:
        return f.scale  # type: ignore[attr-defined]

    f.scale = 2  # type: ignore[attr-defined]
    return lambda x: x * f(), setter(f, "scale", 3, 4.5)


@world
def partial_of_a_function() -> Any:
    holder = Plain()
    holder.value = functools.partial(helper, 1, b=3)  # type: ignore[assignment]
    return lambda x: x + holder.value(c=2), [  # type: ignore[operator]
        *setter(holder, "value", functools.partial(helper, 1, b=4)),
        lambda: holder.value.keywords.update(b=9),  # type: ignore[attr-defined]
        *setter(holder, "value", functools.partial(helper, 7)),
    ]


@world
def cached_function() -> Any:
    holder = Plain()

    @functools.cache
    def f(a: int) -> int:
        return a * 3

    return lambda x: x + f(holder.value), [*setter(holder, "value", 2, 3), f.cache_clear, *setter(holder, "value", 2)]


@world
def wrapped_function() -> Any:
    def inner(a: int) -> int:
        return a + 1

    @functools.wraps(inner)
    def outer(a: int) -> int:
        return outer.__wrapped__(a)  # type: ignore[attr-defined]

    return lambda x: x + outer(1), setter(outer, "__wrapped__", lambda a: a + 10)


@world
def global_name() -> Any:
    space = {"torch": torch, "k": 1}
    exec("def f(x): return x + k", space)
    return space["f"], [lambda: space.update(k=2), lambda: space.update(k=2.5), lambda: space.pop("k")]


@world
def global_hides_a_builtin() -> Any:
    space: dict[str, Any] = {}
    exec("def f(x): return x + abs(-3)", space)
    return space["f"], [lambda: space.update(abs=lambda v: 10), lambda: space.pop("abs")]


@world
def builtin_is_replaced() -> Any:
    own = types.ModuleType("builtins")
    own.__dict__.update(vars(builtins))
    space: dict[str, Any] = {"__builtins__": own.__dict__}
    exec("def f(x): return x + len([1, 2])", space)
    return space["f"], setter(own, "len", lambda v: 10)


@world
def recursion_through_a_name() -> Any:
    space: dict[str, Any] = {}
    exec("def fact(n): return 1 if n == 0 else n * fact(n - 1)\ndef f(x): return x + fact(3)", space)
    return space["f"], [lambda: space.update(fact=lambda n: 100)]


# -- containers --------------------------------------------------------------------------------------------------------


@world
def nested_containers() -> Any:
    data: Any = {"a": [1, (2, {"b": 3})], "s": {4}}
    return lambda x: x + data["a"][0] + data["a"][1][1]["b"] + len(data["s"]), [
        lambda: data["a"].__setitem__(0, 5),
        lambda: data["a"][1][1].update(b=6),
        lambda: data["s"].add(9),
        lambda: data["a"].__setitem__(1, (2, {"b": 8})),
        lambda: data.update(a=[9, (2, {"b": 8})]),
    ]


@world
def order_of_a_dict() -> Any:
    data = {"a": 1, "b": 10}

    def move() -> None:
        data["a"] = data.pop("a")

    def program(x: torch.Tensor) -> Any:
        for key, value in data.items():
            x = x * value + len(key)
        return x

    return program, [move, lambda: data.update(c=3)]


@world
def ordered_dict() -> Any:
    data = collections.OrderedDict(a=1, b=10)

    def program(x: torch.Tensor) -> Any:
        for value in data.values():
            x = x * 2 + value
        return x

    return program, [lambda: data.move_to_end("a"), lambda: data.move_to_end("a", last=False), lambda: data.popitem()]


@world
def default_dict() -> Any:
    data: Any = collections.defaultdict(lambda: 3, a=1)
    return lambda x: x + data["a"] + (data["b"] if "b" in data else 0), [
        lambda: data["b"],
        lambda: data.update(b=8),
        *setter(data, "default_factory", lambda: 4),
    ]


@world
def counter_and_chain() -> Any:
    count = collections.Counter("aab")
    chain = collections.ChainMap({"k": 1}, {"k": 2, "m": 3})
    return lambda x: x + count["a"] + count["z"] + chain["k"] + chain["m"], [
        lambda: count.update("az"),
        lambda: chain.maps[0].pop("k"),
        lambda: chain.maps.insert(0, {"m": 9}),
    ]


@world
def double_ended_queue() -> Any:
    queue = collections.deque([1, 2], maxlen=3)
    return lambda x: x + queue[0] + len(queue), [lambda: queue.appendleft(5), lambda: queue.rotate(1), queue.clear]


@world
def named_tuple() -> Any:
    class Point(NamedTuple):
        a: int
        b: float

    holder = Plain()
    holder.value = Point(1, 2.0)  # type: ignore[assignment]
    return lambda x: x * holder.value.a + holder.value.b, setter(  # type: ignore[attr-defined]
        holder, "value", Point(3, 2.0), Point(3, 4.5), collections.namedtuple("Other", "b a")(7, 8)
    )


@world
def kinds_of_numbers() -> Any:
    holder = Plain()
    return lambda x: (x + holder.value, type(holder.value).__name__, str(holder.value)), setter(
        holder, "value", True, 1.0, 0.0, -0.0, float("nan"), float("inf"), 1 + 0j, 2**40, -1, 0, False
    )


@world
def subclass_of_int() -> Any:
    class Int(int):
        pass

    holder = Plain()
    return lambda x: (x + holder.value, isinstance(holder.value, Int)), setter(holder, "value", Int(1), Int(2), 2)


@world
def texts_and_bytes() -> Any:
    holder = Plain()
    holder.value = "a"  # type: ignore[assignment]
    return lambda x: x + len(holder.value) if holder.value else x, setter(  # type: ignore[arg-type]
        holder, "value", "bc", b"d", "", bytearray(b"efg"), "é"
    )


@world
def range_and_slice() -> Any:
    holder = Plain()
    holder.value = slice(0, 1)  # type: ignore[assignment]
    return lambda x: x[holder.value] * 2, setter(holder, "value", slice(1, 2), slice(None), slice(None, None, 2), 0)


@world
def read_only_view_of_a_dict() -> Any:
    data = {"a": 1}
    view = types.MappingProxyType(data)
    return lambda x: x + view["a"], [lambda: data.update(a=2)]


@world
def identity_of_two_lists() -> Any:
    holder = Plain()
    first: list[int] = [1]
    holder.value = [first, [1]]  # type: ignore[assignment]

    def program(x: torch.Tensor) -> Any:
        one, other = holder.value  # type: ignore[misc]
        return x + 1 if one is other else x - 1

    return program, setter(holder, "value", [first, first], [[1], first])


@world
def the_same_tensor_twice() -> Any:
    holder = Plain()
    a, b = torch.ones(2), torch.ones(2)
    holder.value = [a, b]  # type: ignore[assignment]

    def program(x: torch.Tensor) -> Any:
        one, other = holder.value  # type: ignore[misc]
        one = one.clone() if one is not other else one
        return x + one + 2 * other

    return program, setter(holder, "value", [a, a], [b, a], [a, torch.zeros(2)])


# -- tensors and modules -----------------------------------------------------------------------------------------------


@world
def parameters() -> Any:
    layer = nn.Linear(2, 2)
    return lambda x: layer(x), [
        *setter(layer, "weight", nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3, 2))),
        *setter(layer, "bias", None, nn.Parameter(torch.ones(3))),
        lambda: layer.double().float(),
        lambda: layer.weight.requires_grad_(False),
        lambda: layer.weight.data.mul_(3),
        lambda: layer._parameters.update(weight=nn.Parameter(torch.full((2, 2), 2.0))),
    ]


@world
def hooks_of_a_module() -> Any:
    layer = nn.Linear(2, 2)
    handles: list[Any] = []
    return lambda x: layer(x), [
        lambda: handles.append(layer.register_forward_hook(lambda m, args, out: out * 2)),
        lambda: handles.append(layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))),
        lambda: handles.pop().remove(),
        lambda: handles.pop().remove(),
        lambda: layer.__dict__.update(forward=lambda x: x - 1),
        lambda: layer.__dict__.pop("forward"),
    ]


@world
def hooks_of_all_modules() -> Any:
    layer = nn.Linear(2, 2)
    handles: list[Any] = []
    return lambda x: layer(x), [
        lambda: handles.append(nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)),
        lambda: handles.pop().remove(),
        lambda: handles.append(nn.modules.module.register_module_forward_pre_hook(lambda m, args: (args[0] + 1,))),
        lambda: handles.pop().remove(),
    ]


@world
def modules_in_containers() -> Any:
    layers = nn.ModuleList([nn.Identity()])
    table = nn.ModuleDict({"a": nn.Identity()})
    chain = nn.Sequential(nn.ReLU())

    def program(x: torch.Tensor) -> Any:
        for layer in layers:
            x = layer(x)
        for name, layer in table.items():
            x = layer(x) + len(name)
        return chain(x)

    return program, [
        lambda: layers.append(nn.Sigmoid()),
        lambda: layers.insert(0, nn.Tanh()),
        lambda: table.update({"bc": nn.ReLU()}),
        lambda: table.pop("a"),
        lambda: chain.append(nn.Softplus()),
        lambda: chain.__setitem__(0, nn.GELU(approximate="tanh")),
    ]


@world
def modes_of_modules() -> Any:
    drop, norm = nn.Dropout(0.5), nn.BatchNorm1d(2)
    drop.eval(), norm.eval()

    def program(x: torch.Tensor) -> Any:
        torch.manual_seed(0)
        return drop(norm(x))

    return program, [
        drop.train,
        *setter(drop, "p", 0.1, 0.0),
        norm.train,
        *setter(norm, "momentum", None, 0.5),
        *setter(norm, "eps", 1.0),
        norm.eval,
        *setter(norm, "track_running_stats", False),
        *setter(norm, "running_mean", None),
    ]


@world
def parametrized_module() -> Any:
    layer = nn.Linear(2, 2)

    class Double(nn.Module):
        def forward(self, w: torch.Tensor) -> torch.Tensor:
            return 2 * w

    return lambda x: layer(x), [
        lambda: nn.utils.parametrize.register_parametrization(layer, "weight", Double()),
        lambda: nn.utils.parametrize.remove_parametrizations(layer, "weight"),
    ]


@world
def a_tensor_from_outside() -> Any:
    holder = Plain()
    holder.value = torch.ones(2)  # type: ignore[assignment]
    return lambda x: (x + holder.value).sum(0), setter(
        holder, "value", torch.ones(1), torch.ones(2, dtype=torch.float64), torch.ones(2, 2), torch.ones(2, 2).t(),
        torch.ones(2, requires_grad=True), torch.ones(2).to_sparse().to_dense(), torch.ones(()), 3,
        nn.Parameter(torch.ones(2)), torch.ones(2, dtype=torch.cfloat), torch.ones(4)[::2], torch.zeros(2, 1).expand(2, 2),
    )  # fmt: skip


@world
def attribute_of_a_tensor() -> Any:
    t: Any = torch.ones(2)
    t.scale = 2
    return lambda x: x * t.scale, [*setter(t, "scale", 3), lambda: delattr(t, "scale")]


@world
def method_of_tensors_is_replaced() -> Any:
    return lambda x: torch.Tensor.magneto_method(x), [  # type: ignore[attr-defined]
        *setter(torch.Tensor, "magneto_method", lambda self: self + 1, lambda self: self + 2),
        lambda: delattr(torch.Tensor, "magneto_method"),
    ]


@world
def function_of_torch_is_replaced() -> Any:
    original = F.relu
    return lambda x: F.relu(x - 2), setter(F, "relu", lambda x: x * 5, original)


# -- state of the process ----------------------------------------------------------------------------------------------


@world
def default_dtype() -> Any:
    return lambda x: x + torch.ones(2) * 1.5, [
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ]


@world
def modes_of_autograd() -> Any:
    w = torch.ones(2, requires_grad=True)
    return lambda x: (x * w, torch.is_grad_enabled()), [
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_grad_enabled(True),
        lambda: w.requires_grad_(False),
    ]


@world
def autocast() -> Any:
    w = torch.ones(2, 2)
    stack = contextlib.ExitStack()
    return lambda x: x @ w, [
        lambda: stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16)),
        lambda: stack.enter_context(torch.autocast("cpu", dtype=torch.float16)),
        lambda: stack.enter_context(torch.autocast("cpu", enabled=False)),
        stack.close,
    ]


@world
def default_device() -> Any:
    return lambda x: torch.ones(2).device.type, [
        lambda: torch.set_default_device("meta"),
        lambda: torch.set_default_device("cpu"),
        lambda: torch.set_default_device(None),
    ]


@world
def deterministic_algorithms() -> Any:
    return lambda x: (torch.are_deterministic_algorithms_enabled(), x + 1), [
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ]


@world
def environment() -> Any:
    return lambda x: x + len(os.environ.get("MAGNETO_TEST_VARIABLE", "")), [
        lambda: os.environ.update(MAGNETO_TEST_VARIABLE="abc"),
        lambda: os.environ.update(MAGNETO_TEST_VARIABLE="abcd"),
        lambda: os.environ.pop("MAGNETO_TEST_VARIABLE"),
    ]


@world
def context_variable() -> Any:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=1)
    return lambda x: x + variable.get(), [lambda: variable.set(2), lambda: variable.set(3)]


@world
def thread_local() -> Any:
    local = threading.local()
    local.value = 1
    return lambda x: x + local.value, [*setter(local, "value", 2), lambda: delattr(local, "value")]


@world
def decimals() -> Any:
    context = decimal.getcontext()
    return lambda x: x + float(decimal.Decimal(1) / decimal.Decimal(3)), setter(context, "prec", 3, 28)


@world
def log_level() -> Any:
    logger = logging.getLogger("magneto.tests.changed")
    logger.setLevel(logging.ERROR)
    return lambda x: x + 1 if logger.isEnabledFor(logging.INFO) else x - 1, [
        lambda: logger.setLevel(logging.INFO),
        lambda: logger.setLevel(logging.CRITICAL),
    ]


@world
def random_numbers_of_python() -> Any:
    return lambda x: x + random.random(), [lambda: random.seed(1), lambda: random.seed(2)]


@world
def weak_reference() -> Any:
    held = [Plain()]
    reference = weakref.ref(held[0])
    return lambda x: x + 1 if reference() is not None else x - 1, [held.clear]


@world
def interpreter_settings() -> Any:
    before = sys.getrecursionlimit()
    return lambda x: x + sys.getrecursionlimit(), [
        lambda: sys.setrecursionlimit(before + 7),
        lambda: sys.setrecursionlimit(before),
    ]


@world
def iterator_from_outside() -> Any:
    numbers = iter(range(100))
    return lambda x: x + next(numbers), [lambda: next(numbers)]


@world
def generator_from_outside() -> Any:
    def count() -> Iterator[int]:
        k = 0
        while True:
            k += 1
            yield k

    numbers = count()
    return lambda x: x + next(numbers), [lambda: next(numbers)]


@world
def items_and_attributes_by_operator() -> Any:
    holder = Plain()
    data = {"k": [1, 2]}
    return lambda x: x + operator.itemgetter("k")(data)[1] + operator.attrgetter("value")(holder), [
        lambda: data["k"].__setitem__(1, 5),
        *setter(holder, "value", 7),
    ]


@world
def copies_of_objects() -> Any:
    holder = Plain()
    holder.value = [1, 2]  # type: ignore[assignment]
    return lambda x: x + sum(copy.copy(holder).value) + len(copy.deepcopy(holder.value)), [  # type: ignore[call-overload]
        lambda: holder.value.append(5),  # type: ignore[attr-defined]
        *setter(holder, "value", [9]),
    ]


@world
def names_by_string() -> Any:
    holder = Plain()
    name = ["value"]
    holder.other = 10  # type: ignore[attr-defined]
    return lambda x: x + getattr(holder, name[0], 100) + hasattr(holder, "third"), [
        lambda: name.__setitem__(0, "other"),
        lambda: name.__setitem__(0, "missing"),
        *setter(holder, "third", 1),
        *setter(holder, "missing", 50),
    ]


@world
def variables_of_an_object() -> Any:
    holder = Plain()
    holder.a = 1  # type: ignore[attr-defined]
    return lambda x: x + len(vars(holder)) + sum(holder.__dict__.values()), [
        *setter(holder, "b", 4),
        lambda: delattr(holder, "a"),
        lambda: holder.__dict__.update(c=9),
    ]


@world
def names_of_a_class() -> Any:
    some = plain_class(a=1)
    obj = some()
    return lambda x: x + len([n for n in dir(obj) if not n.startswith("__")]), [
        *setter(some, "b", 2),
        lambda: delattr(some, "a"),
        *setter(obj, "c", 2),
    ]


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.requires_grad, value.device.type, repr(value.detach())
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    return type(value), repr(value)


def outcome(program: Callable[[torch.Tensor], Any]) -> Any:
    try:
        return describe(program(torch.tensor([[0.5, -1.0], [2.0, 3.0]])))
    except Exception as error:
        return type(error), str(error)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    random.seed(0)
    torch.manual_seed(0)
    precision = decimal.getcontext().prec
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        decimal.getcontext().prec = precision
        os.environ.pop("MAGNETO_TEST_VARIABLE", None)


def trace(name: str, compiled: bool) -> list[Any]:
    """What the program gives, twice after each change, in a world of its own."""
    results: list[Any] = []
    with restored():
        program, changes = WORLDS[name]()
        call = magneto.compile(program, backend="aot_eager") if compiled else program
        for change in [lambda: None, *changes]:
            change()
            results += [outcome(call), outcome(call)]
    return results


@pytest.mark.parametrize("name", WORLDS)
def test_a_change_is_noticed(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = trace(name, compiled=False)
        magneto.reset()
        with magneto.config.patch(cache_size_limit=100):
            actual = trace(name, compiled=True)
        for i, (got, want) in enumerate(zip(actual, expected, strict=True)):
            assert got == want, f"call {i % 2 + 1} after change {i // 2}"
