"""Guards that have passed often answer from remembered words of memory (src/guards/snapshot.h): each change that could
slip past the words is made on a hot function, and the next call must see it."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

FACTOR: Any = 2
BACKENDS = ("aot_eager", "magneto")


class Leaf:
    shared: Any = 1.0
    __slots__ = ("__dict__", "__weakref__", "slot")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.slot = 1

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value + self.shared * self.slot


class OtherLeaf(Leaf):
    __slots__ = ()

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.value


class Meta(type):
    bonus: Any = 1


class WithMeta(metaclass=Meta):
    pass


def make_closure() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[Any], None]]:
    captured: Any = 3

    def inner(x: torch.Tensor, k: int = 1, *, scale: float = 1.0) -> torch.Tensor:
        return x * captured * k * scale

    def put(value: Any) -> None:
        nonlocal captured
        captured = value

    return inner, put


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.norm = torch.nn.BatchNorm1d(4)
        self.leaf = Leaf(2)
        self.items = [1, 2.5]
        self.pair = (1, [2])
        self.table = OrderedDict(a=1.0, b=2.0)
        self.plain = {"a": 1, 5: 2}
        self.names = {"x", "y"}
        self.frozen = frozenset({1})
        self.inner, self.put = make_closure()
        self.bound = Leaf(3).run
        self.register_buffer("stride", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        x = self.leaf.run(self.norm(x)) * FACTOR
        for index, value in enumerate(self.table.values()):
            x = x + index * value
        x = self.bound(self.inner(x)) * self.items[0] + self.pair[1][0] + self.plain["a"] + sum(self.plain.values())
        x = x + ("x" in self.names) + len(self.frozen) + WithMeta.bonus + getattr(self, "extra", 0)
        return x[:: self.stride.item()], x.requires_grad


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    tensor.data = value


def set_global(value: Any) -> None:
    global FACTOR
    FACTOR = value


def from_thread(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def replace_freed_list(net: Net) -> None:
    """A new list, most likely where the old one was, of the same length."""
    net.items = None  # type: ignore[assignment]
    net.items = [7, 2.5]


def replace_freed_module(net: Net) -> None:
    old = net._modules.pop("norm")
    del old
    gc.collect()
    net.norm = torch.nn.BatchNorm1d(4, eps=0.5).eval()


def clear_and_refill(net: Net) -> None:
    net.plain.clear()
    net.plain.update({"a": 9, 5: 2})


MUTATIONS: dict[str, Callable[[Net], Any]] = {
    "attribute": lambda net: setattr(net.leaf, "value", 5),
    "attribute through __dict__": lambda net: net.leaf.__dict__.update(value=6),
    "another __dict__": lambda net: setattr(net.leaf, "__dict__", {"value": 7}),
    "deleted and set again": lambda net: (delattr(net.leaf, "value"), setattr(net.leaf, "value", 8)),
    "slot": lambda net: setattr(net.leaf, "slot", 4),
    "__class__": lambda net: setattr(net.leaf, "__class__", OtherLeaf),
    "class attribute": lambda net: setattr(Leaf, "shared", 9.0),
    "class attribute through type": lambda net: type.__setattr__(Leaf, "shared", 11.0),
    "metaclass attribute": lambda net: setattr(Meta, "bonus", 4),
    "instance hides the class": lambda net: setattr(net.leaf, "shared", -1.0),
    "code of a method": lambda net: setattr(Leaf.run, "__code__", OtherLeaf.run.__code__),
    "method": lambda net: setattr(Leaf, "run", lambda self, x: x + 100),
    "bound method": lambda net: setattr(net, "bound", Leaf(4).run),
    "receiver of the bound method": lambda net: setattr(net.bound.__self__, "value", 12),
    "method on the instance": lambda net: setattr(net.leaf, "run", types.MethodType(OtherLeaf.run, net.leaf)),
    "list item": lambda net: net.items.__setitem__(0, 4),
    "list replaced where it was": replace_freed_list,
    "list in a tuple": lambda net: net.pair[1].__setitem__(0, 5),
    "tuple": lambda net: setattr(net, "pair", (1, [6])),
    "dict value": lambda net: net.plain.__setitem__("a", 3),
    "dict cleared and filled": clear_and_refill,
    "dict entry": lambda net: net.plain.setdefault("new", 3),
    "dict key of another type": lambda net: (net.plain.pop(5), net.plain.__setitem__("5", 4)),
    "order of an OrderedDict": lambda net: net.table.move_to_end("a"),
    "set": lambda net: net.names.discard("x"),
    "set with as many items": lambda net: (net.names.discard("x"), net.names.add("z")),
    "frozenset": lambda net: setattr(net, "frozen", frozenset({1, 2})),
    "closure": lambda net: net.put(5),
    "defaults": lambda net: setattr(net.inner, "__defaults__", (4,)),
    "keyword default": lambda net: setattr(net.inner, "__kwdefaults__", {"scale": 0.5}),
    "keyword default in place": lambda net: net.inner.__kwdefaults__.update(scale=0.25),  # type: ignore[attr-defined]
    "global": lambda net: set_global(5),
    "global through the dict": lambda net: globals().update(FACTOR=6),
    "global from another thread": lambda net: from_thread(lambda: set_global(7)),
    "attribute from another thread": lambda net: from_thread(lambda: setattr(net.leaf, "value", 13)),
    "new attribute": lambda net: setattr(net, "extra", 3),
    "type cache cleared": lambda net: (sys._clear_type_cache(), setattr(Leaf, "shared", 21.0)),
    "module replaced where it was": replace_freed_module,
    "modules in another order": lambda net: net.layers.__setitem__(0, net.layers[2]),
    "module added": lambda net: net.layers.append(torch.nn.Linear(4, 4)),
    "parameter": lambda net: setattr(net.layers[0], "weight", torch.nn.Parameter(torch.ones(4, 4))),
    "parameter removed": lambda net: setattr(net.layers[0], "bias", None),
    "parameter's values": lambda net: net.layers[0].weight.data.mul_(2),
    "parameter's data": lambda net: set_data(net.layers[0].weight, torch.ones(4, 4) * 2),
    "parameter transposed in place": lambda net: torch.no_grad()(net.layers[0].weight.t_)(),
    "parameter's strides": lambda net: set_data(net.layers[0].weight, torch.randn(4, 8)[:, ::2]),
    "parameter frozen": lambda net: [p.requires_grad_(False) for p in net.parameters()],
    "parameter set_": lambda net: torch.no_grad()(net.layers[0].weight.set_)(torch.randn(4, 4)),
    "double": lambda net: net.double().float(),
    "training": lambda net: net.train(),
    "hook": lambda net: net.layers[1].register_forward_hook(lambda module, args, output: output * 3),
    "buffer's value": lambda net: net.stride.fill_(3),
    "buffer": lambda net: setattr(net, "stride", torch.tensor(1)),
    "buffer's data": lambda net: set_data(net.stride, torch.tensor(4)),
}


@pytest.fixture(autouse=True)
def class_state() -> Any:
    shared, run, code, bonus = Leaf.shared, Leaf.run, Leaf.run.__code__, Meta.bonus
    yield
    set_global(2)
    run.__code__ = code
    Leaf.shared, Leaf.run, Meta.bonus = shared, run, bonus  # type: ignore[method-assign]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MUTATIONS)
def test_hot_mutation(name: str, backend: str) -> None:
    torch.manual_seed(0)
    net = Net().eval()
    compiled = magneto.compile(net, backend=backend)
    x = torch.randn(6, 4)

    def same() -> Any:
        state = {key: value.clone() for key, value in net.norm.state_dict().items()}
        want = net(x)
        net.norm.load_state_dict(state)  # in training each call counts
        got = compiled(x)
        net.norm.load_state_dict(state)
        if backend == "aot_eager":
            torch.testing.assert_close(got[0], want[0])
        else:  # sums in another order, through two layers
            torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)
        assert got[1] == want[1]
        return want

    with torch.enable_grad():
        for _ in range(12):
            before = same()
        assert magneto.stats()["recompiles"] == 0
        MUTATIONS[name](net)
        for _ in range(6):
            after = same()
        changed = before[0].shape != after[0].shape or not torch.equal(before[0], after[0]) or before[1] != after[1]
        assert changed or name in ("double", "set with as many items")
        MUTATIONS["attribute"](net)
        same()


def test_a_mode_of_this_thread_only() -> None:
    compiled = magneto.compile(lambda x: (x * 2, torch.is_grad_enabled()), backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    seen: list[Any] = []
    for _ in range(10):
        compiled(x)

    def other() -> None:
        with torch.no_grad():
            seen.append([compiled(x)[1], compiled(x)[0].requires_grad])
            seen.append(compiled(x)[1])

    from_thread(other)
    assert seen == [[False, False], False]
    assert compiled(x)[1] and compiled(x)[0].requires_grad


@pytest.mark.parametrize("size", [(4, 1), (4, 3), (2, 3, 4, 5)])
def test_strides_of_contiguous_parameters(size: tuple[int, ...]) -> None:
    """Where a dimension has size 1, contiguous tensors of one shape differ in their strides."""
    weight = torch.nn.Parameter(torch.ones(size))
    compiled = magneto.compile(lambda x: (weight * x, weight.stride()), backend="aot_eager")
    for _ in range(20):
        compiled(torch.ones(1))
    strides = list(weight.stride())
    strides[1] = 7
    set_data(weight, torch.arange(200.0).as_strided(size, strides))
    product, found = compiled(torch.ones(1))
    assert found == tuple(strides) and torch.equal(product, weight)
