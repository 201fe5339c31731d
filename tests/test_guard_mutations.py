"""Whatever a capture read is changed: the earlier capture must not be used, and the result must be eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import BACKENDS, Registry

import magneto

scenario = Registry()
Start = Callable[..., Any]


def vector(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(1.0, 7.0) * scale


GLOBAL: Any = 2


class Box:
    shared: Any = 3

    def __init__(self, value: Any) -> None:
        self.value = value

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value


@scenario
def scalars(start: Start) -> None:
    call = start(lambda value, x: (x * 2 if value else x + 1, value))
    call(1, vector())
    for value in (2, True, 1.0, "a", "b", None):
        call.recompiles(value, vector())
        call.hits(value, vector())


@scenario
def zeros_and_nans(start: Start) -> None:
    call = start(lambda value, x: (x * value, str(value)))
    call(0.0, vector())
    call.recompiles(-0.0, vector())
    call.recompiles(float("nan"), vector())
    call.hits(float("nan"), vector())


@scenario
def list_length_and_items(start: Start) -> None:
    call = start(lambda items, x: sum([x * i for i in items]))
    items = [1, 2]
    call(items, vector())
    items.append(3)
    call.recompiles(items, vector())
    items[0] = 5
    call.recompiles(items, vector())
    call.recompiles(tuple(items), vector())


@scenario
def item_out_of_range(start: Start) -> None:
    def program(items: list[int], x: torch.Tensor) -> Any:
        try:
            return x * items[2]
        except IndexError:
            return x

    call = start(program)
    items = [1, 2]
    call(items, vector())
    items.append(3)
    call.recompiles(items, vector())


@scenario
def negative_index(start: Start) -> None:
    call = start(lambda items, x: x * items[-1])
    call([1, 2], vector())
    call([1, 2, 3], vector())
    call([1, 2, 7], vector())


@scenario
def dict_keys_values_and_missing_ones(start: Start) -> None:
    call = start(lambda d, x: x * d["a"] + d.get("b", 0) + ("c" in d))
    d = {"a": 1}
    call(d, vector())
    d["z"] = 1
    call.hits(d, vector())
    for key, value in (("a", 2), ("b", 3), ("c", 4)):
        d[key] = value
        call.recompiles(d, vector())
    del d["c"]
    call(d, vector())


@scenario
def dict_order(start: Start) -> None:
    call = start(lambda d, x: [x * v for v in d.values()])
    call({"a": 1, "b": 2}, vector())
    call.recompiles({"b": 2, "a": 1}, vector())


@scenario
def set_contents(start: Start) -> None:
    call = start(lambda names, x: x + ("a" in names))
    names = {"a"}
    call(names, vector())
    names.remove("a")
    call.recompiles(names, vector())


@scenario
def instance_attributes(start: Start) -> None:
    call = start(lambda box, x: (box.run(x), hasattr(box, "extra"), getattr(box, "shared", 0)))
    box = Box(2)
    call(box, vector())
    call.hits(Box(2), vector())
    box.value = 3
    call.recompiles(box, vector())
    box.extra = 1  # type: ignore[attr-defined]
    call.recompiles(box, vector())
    box.shared = 9
    call.recompiles(box, vector())
    box.run = lambda x: x - 1  # type: ignore[method-assign]
    call.recompiles(box, vector())


@scenario
def subclasses_of_a_class(start: Start) -> None:
    class Base:
        pass

    call = start(lambda x: (x + len(Base.__subclasses__()), [c.__name__ for c in Base.__subclasses__()]))
    call(vector())
    call.hits(vector())
    first = type("First", (Base,), {})
    call.recompiles(vector())
    call.hits(vector())
    second = type("Second", (first, Base), {})
    call.recompiles(vector())
    assert second.__mro__[1] is first


@scenario
def cache_of_a_function(start: Start) -> None:
    @functools.lru_cache(8)
    def make(n: int) -> Box:
        return Box(n)

    call = start(lambda x: make(2).run(x))
    call(vector())
    call.hits(vector())
    make.cache_clear()
    make(2).value = 5
    call.recompiles(vector())


@scenario
def class_attributes_methods_and_class(start: Start) -> None:
    class Local(Box):
        pass

    class Other(Local):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x - 5

    call = start(lambda box, x: box.run(x) + box.shared)
    box = Local(2)
    call(box, vector())
    Local.shared = 4
    call.recompiles(box, vector())
    Local.run = lambda self, x: x + self.value  # type: ignore[method-assign, assignment]
    call.recompiles(box, vector())
    box.__class__ = Other
    call.recompiles(box, vector())
    Local.run = lambda self, x: x + self.value  # type: ignore[method-assign, assignment]
    call(box, vector())


@scenario
def method_added_between_super_and_its_target(start: Start) -> None:
    class Base:
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class Middle(Base):
        pass

    class Last(Middle):
        def run(self, x: torch.Tensor) -> torch.Tensor:
            return super().run(x) * 2

    call = start(lambda thing, x: thing.run(x))
    call(Last(), vector())
    Middle.run = lambda self, x: x - 1  # type: ignore[method-assign, assignment]
    call.recompiles(Last(), vector())


@scenario
def fallback_attribute_added(start: Start) -> None:
    class Local:
        pass

    call = start(lambda thing, x: x * getattr(thing, "factor", 2))
    thing = Local()
    call(thing, vector())
    Local.__getattr__ = lambda self, name: 7  # type: ignore[attr-defined]
    call.recompiles(thing, vector())
    Local.factor = property(lambda self: 8)  # type: ignore[attr-defined]
    call.recompiles(thing, vector())


@scenario
def globals_changed(start: Start) -> None:
    global GLOBAL

    def program(x: torch.Tensor) -> Any:
        return x * GLOBAL

    call = start(program)
    try:
        for value in (2, 3):
            GLOBAL = value
            call(vector())
        GLOBAL = vector(3)
        call.recompiles(vector())
        GLOBAL = vector(4)
        call.hits(vector())
        del GLOBAL
        call(vector())
    finally:
        GLOBAL = 2


@scenario
def builtin_shadowed_by_a_global(start: Start) -> None:
    call = start(lambda items, x: x * len(items))
    call([1, 2], vector())
    try:
        globals()["len"] = lambda items: 50
        call.recompiles([1, 2], vector())
    finally:
        del globals()["len"]
    call([1, 2], vector())


@scenario
def closure_cells(start: Start) -> None:
    factor: Any = 2

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    call = start(lambda x: inner(x))
    call(vector())
    factor = 3
    call.recompiles(vector())
    factor = vector()
    call.recompiles(vector())

    def inner(x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-redef] # noqa: F811
        return x - factor

    call.recompiles(vector())


@scenario
def defaults_and_code(start: Start) -> None:
    def inner(x: torch.Tensor, n: int = 2, *, k: int = 1) -> torch.Tensor:
        return x * n + k

    def other(x: torch.Tensor, n: int = 2, *, k: int = 1) -> torch.Tensor:
        return x - n

    call = start(lambda x: inner(x))
    call(vector())
    inner.__defaults__ = (3,)
    call.recompiles(vector())
    inner.__kwdefaults__ = {"k": 5}
    call.recompiles(vector())
    inner.__kwdefaults__["k"] = 6
    call.recompiles(vector())
    inner.__code__ = other.__code__
    call.recompiles(vector())


@scenario
def own_defaults_and_code(start: Start) -> None:
    def program(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        return x * n

    def other(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        return x - n

    call = start(program)
    call(vector())
    program.__defaults__ = (3,)
    call(vector())
    program.__code__ = other.__code__
    call(vector())


@scenario
def mutable_default_changed(start: Start) -> None:
    def inner(x: torch.Tensor, factors: list[int] = [1, 2]) -> Any:  # noqa: B006
        return [x * f for f in factors]

    call = start(lambda x: inner(x))
    call(vector())
    inner.__defaults__[0].append(3)  # type: ignore[index]
    call.recompiles(vector())


@scenario
def partial_and_bound_method(start: Start) -> None:
    call = start(lambda function, x: function(x))
    call(functools.partial(torch.add, other=1), vector())
    call.recompiles(functools.partial(torch.add, other=2), vector())
    call(Box(2).run, vector())
    call.recompiles(Box(3).run, vector())
    call(torch.sin, vector())
    call.recompiles(torch.cos, vector())


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x)))


@scenario
def modules(start: Start) -> None:
    net = Net().double().requires_grad_(False)
    x = torch.ones(3, 6) * torch.arange(3.0).double()[:, None]  # a norm over few rows multiplies roundings
    call = start(lambda x: net(x), net.norm.running_mean, net.norm.num_batches_tracked)
    call(x)
    call.hits(x)
    net.eval()
    call.recompiles(x)
    net.linear.weight = torch.nn.Parameter(torch.ones(6, 6).double(), requires_grad=False)
    call(x)
    net.linear.weight.mul_(2)
    call.hits(x)
    net.linear.bias = None
    call.recompiles(x)
    net.linear = torch.nn.Linear(6, 6, bias=False).double().requires_grad_(False)
    call(x)
    net.drop = torch.nn.Identity()  # type: ignore[assignment]
    call.recompiles(x)
    net.float()
    call.recompiles(x.float())


@scenario
def module_hooks(start: Start) -> None:
    net = torch.nn.Linear(6, 6).requires_grad_(False)
    call = start(lambda x: net(x))
    call(vector())
    handle = net.register_forward_hook(lambda module, args, output: output * 2)
    call.recompiles(vector())
    before = net.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    call.recompiles(vector())
    handle.remove()
    before.remove()
    call(vector())
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: output - 1)
    try:
        call.recompiles(vector())
    finally:
        everywhere.remove()
    call(vector())


@scenario
def module_lists_changed(start: Start) -> None:
    layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Tanh()])

    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    call = start(program)
    call(vector())
    layers.append(torch.nn.Sigmoid())
    call.recompiles(vector())
    layers[0] = torch.nn.Tanh()
    call.recompiles(vector())


@scenario
def modes(start: Start) -> None:
    call = start(lambda x, w: (x @ w, torch.is_grad_enabled(), torch.ones(2)))
    x, w = torch.ones(2, 3), torch.ones(3, 2)
    call(x, w)
    with torch.no_grad():
        call.recompiles(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call.recompiles(x, w)
    with torch.autocast("cpu", dtype=torch.float16):
        call.recompiles(x, w)
    torch.set_default_dtype(torch.float64)
    try:
        call.recompiles(x, w)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        call.recompiles(x, w)
    call.hits(x, w)


@scenario
def default_device(start: Start) -> None:
    call = start(lambda x: (x + 1, torch.ones(2).device.type))
    call(vector())
    with torch.device("meta"):
        start(lambda: torch.ones(2).device.type)()
    call(vector())


@scenario
def tensor_metadata(start: Start) -> None:
    call = start(lambda x: (x * 2, x.shape, x.dtype, x.stride(), x.is_contiguous()))
    x = torch.ones(2, 3)
    call(x)
    for other in (
        torch.ones(3, 3),
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2).t(),
        torch.ones(2, 6)[:, ::2],
        torch.ones(2, 3, 1),
        torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
    ):
        call.recompiles(other)
        call.hits(other)


@scenario
def resized_in_place(start: Start) -> None:
    call = start(lambda x: x.sum() + x.shape[0])
    x = torch.ones(4)
    call(x)
    x.resize_(2)
    call.recompiles(x)


@scenario
def requires_grad(start: Start) -> None:
    call = start(lambda x: x * 2)
    x = torch.ones(3)
    call(x)
    x.requires_grad_()
    call.recompiles(x)


# -- identity ------------------------------------------------------------------------------------------------------------


@scenario
def same_tensor_twice(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return x * y, x is y

    call = start(program)
    x, y = vector(), vector(2)
    call(x, y)
    call.hits(x, y)
    call.recompiles(x, x)
    call.hits(y, y)
    call.hits(x, y)


@scenario
def same_tensor_in_a_list(start: Start) -> None:
    def program(xs: list[torch.Tensor]) -> Any:
        xs[0].mul_(2)
        return xs[1] + 0, xs[0] is xs[1]

    call = start(program)
    x = vector()
    call([x, x])
    call.recompiles([x, vector()])


@scenario
def views_of_one_tensor(start: Start) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        return y * 2, x[1:], y

    call = start(program)
    base = torch.arange(8.0)
    call(base[:4], base[2:6])
    call(base[:4], base[4:])
    call(base[:4], torch.ones(4))


@scenario
def same_list_twice(start: Start) -> None:
    def program(a: list[Any], b: list[Any], x: torch.Tensor) -> Any:
        a.append(x + 1)
        return len(b), a is b, b

    call = start(program)
    call([1], [1], vector())
    one = [1]
    call.recompiles(one, one, vector())
    call.hits([1], [1], vector())


@scenario
def same_instance_twice(start: Start) -> None:
    def program(a: Box, b: Box, x: torch.Tensor) -> Any:
        a.value = x + 1
        return b.value, a is b, a == b, a in [b]

    call = start(program)
    call(Box(1), Box(1), vector())
    box = Box(1)
    call.recompiles(box, box, vector())
    call.hits(Box(1), Box(1), vector())


@scenario
def argument_is_a_global(start: Start) -> None:
    call = start(lambda box, x: (box is BOX, x + 1))
    call(Box(1), vector())
    call.recompiles(BOX, vector())


BOX = Box(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", scenario.scenarios)
def test_mutation(name: str, backend: str) -> None:
    with magneto.config.patch(cache_size_limit=64):  # more changes than there is room for by default
        scenario.check(name, backend)
