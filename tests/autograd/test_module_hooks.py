"""Backward hooks of modules (register_full_backward_hook, register_full_backward_pre_hook, global ones) in compiled
models."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from program_table import ProgramTable
from torch import Tensor, nn

import magneto

captured = CAPTURED = ProgramTable()
left = LEFT = ProgramTable()
SEEN: list[Any] = []


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Residual(), nn.LayerNorm(4), nn.Identity())
        self.pair, self.head = Pair(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(self.pair(h, h.sin()))


def note(module: nn.Module, given: Any, gained: Any) -> None:
    SEEN.append((type(module).__name__, [g if g is None else g.clone() for g in (*given, *gained)]))


def double(module: nn.Module, given: Any, gained: Any) -> Any:
    note(module, given, gained)
    return tuple(g if g is None else g * 2 for g in given)


def double_first(module: nn.Module, gained: Any) -> Any:
    SEEN.append(type(module).__name__)
    return tuple(g * 2 for g in gained)


# Each puts hooks on the modules of a net.


@captured
def one_layer(net: Any) -> None:
    net.body[1].register_full_backward_hook(note)


@captured
def first_layer(net: Any) -> None:
    net.body[0].register_full_backward_hook(note)


@captured
def all_layers(net: Any) -> None:
    for layer in net.body:
        layer.register_full_backward_hook(note)
    net.head.register_full_backward_hook(note)


@captured
def whole_net(net: Any) -> None:
    net.register_full_backward_hook(note)


@captured
def nested(net: Any) -> None:
    net.register_full_backward_hook(note)
    net.body.register_full_backward_hook(note)
    net.body[2].register_full_backward_hook(note)
    net.body[2].second.register_full_backward_hook(note)


@captured
def that_changes(net: Any) -> None:
    net.body[2].register_full_backward_hook(double)
    net.body[3].register_full_backward_pre_hook(double_first)


@captured
def two_on_one(net: Any) -> None:
    net.body[2].register_full_backward_hook(double)
    net.body[2].register_full_backward_hook(note)
    net.body[2].register_full_backward_pre_hook(double_first)
    net.body[2].register_full_backward_pre_hook(double_first)


@captured
def gradcam(net: Any) -> None:
    features = []
    net.body[2].register_forward_hook(lambda module, args, result: features.append(result.detach()))
    net.body[2].register_full_backward_hook(
        lambda module, given, gained: SEEN.append((features.pop() * gained[0].mean(0)).sum(1))
    )


@captured
def around_the_residual(net: Any) -> None:
    net.body[1].register_full_backward_hook(note)
    net.body[2].first.register_full_backward_hook(note)


@captured
def inside_the_residual(net: Any) -> None:
    net.body[2].second.register_full_backward_hook(double)


@left
def several_arguments(net: Any) -> None:
    net.pair.register_full_backward_hook(note)


@left
def an_identity(net: Any) -> None:
    net.body[4].register_full_backward_hook(note)
    net.body[4].register_forward_hook(lambda module, args, result: SEEN.append(result))


def run(net: Any, call: Callable[..., Any], scale: float, with_grad: bool) -> Any:
    SEEN.clear()
    net.zero_grad()
    x = (torch.arange(12.0, dtype=torch.float64).reshape(3, 4).cos() * scale).requires_grad_(with_grad)
    call(x).sin().sum().backward()
    return list(SEEN), x.grad, [p.grad for p in net.parameters()]


@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("name", [*CAPTURED, *LEFT])
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks(name: str, with_grad: bool, backend: str) -> None:
    torch.manual_seed(0)
    net = Net().double()
    plain = copy.deepcopy(net)
    for one in (net, plain):
        (CAPTURED | LEFT)[name](one)
    compiled = magneto.compile(net, backend=backend)
    for scale in (1.0, 0.5, 2.0):
        assert_same(run(net, compiled, scale, with_grad), run(plain, plain, scale, with_grad))
    stats = magneto.stats()
    if name in CAPTURED:
        assert stats["breaks"] == 0 and not stats["no_joint"], stats


@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
def test_global_hook(backend: str) -> None:
    net = Net().double().body
    plain = copy.deepcopy(net)
    handles = [
        nn.modules.module.register_module_full_backward_hook(note),
        nn.modules.module.register_module_full_backward_pre_hook(double_first),
    ]
    try:
        compiled = magneto.compile(net, backend=backend)
        for scale in (1.0, 0.5):
            assert_same(run(net, compiled, scale, True), run(plain, plain, scale, True))
        assert magneto.stats()["breaks"] == 0
    finally:
        for handle in handles:
            handle.remove()
    assert_same(run(net, compiled, 2.0, True), run(plain, plain, 2.0, True))
