"""What a backward is given of the forward, and what it computes again: the cut, its costs, budgets and checkpoints."""

from __future__ import annotations

import copy
import ctypes
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import magneto
from magneto import _testing

BUDGETS = (1.0, 0.5, 0.0, 1000)


# -- the cut ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300))
def test_no_cut_is_cheaper(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 9)
    edges = [
        (start, end, draw.choice((0, 1, 2, 3, 7, -1)))
        for start, end in itertools.permutations(range(count), 2)
        if end != 0 and start != count - 1 and draw.random() < 0.4 and (start, end) != (0, count - 1)
    ]

    def cost(side: set[int]) -> float:
        cut = [weight for start, end, weight in edges if start not in side and end in side]
        return float("inf") if -1 in cut else sum(cut)

    inner = range(1, count - 1)
    sides = [{count - 1, *chosen} for size in range(count - 1) for chosen in itertools.combinations(inner, size)]
    least = min(map(cost, sides))
    found = set(_testing.min_cut(count, edges))
    if least < float("inf"):
        assert cost(found) == least
        assert len(found) == min(len(side) for side in sides if cost(side) == least)


# -- what is saved ----------------------------------------------------------------------------------------------------

SWIGLU = """graph {
  %0: f32[64, 256] = input "x"
  %1: f32[256, 512] = input "w"
  %2: f32[256, 512] = input "v"
  %3: f32[64, 512] = input "tangents_1"
  torch.mm(%0, %1) {
    %4: f32[64, 512] = aten.mm.default(%0, %1)
    %5: f32[64, 512] = aten.mm.default(%0, %2)
    %6: f32[64, 512] = aten.silu.default(%4)
    %7: f32[64, 512] = aten.mul.Tensor(%6, %5)
  }
  backward() {
    %8: f32[64, 512] = aten.mul.Tensor(%3, %6)
    %9: f32[64, 512] = aten.mul.Tensor(%3, %5)
    %10: f32[64, 512] = aten.silu_backward.default(%9, %4)
    %11: f32[64, 256] = aten.neg.default(%0)
    %12: f32[256, 512] = aten.neg.default(%1)
    %13: f32[256, 512] = aten.neg.default(%2)
  }
  return (%7)
}
"""


def test_what_kernels_compute_on_the_way_is_computed_again() -> None:
    assert _testing.partition(SWIGLU, 4, True, 1.0) == ([0, 1, 2, 4, 5], 2 * 64 * 512 * 4, 3 * 64 * 512 * 4)
    assert _testing.partition(SWIGLU, 4, False, 1.0)[0] == [0, 1, 2, 4, 5, 6]


def test_a_budget_makes_products_again() -> None:
    saved, held, _ = _testing.partition(SWIGLU, 4, True, 0.5)
    assert held == 64 * 512 * 4 and set(saved) - {0, 1, 2} in ({4}, {5})
    assert _testing.partition(SWIGLU, 4, True, 0.0)[:2] == ([0, 1, 2], 0)


def test_no_input_is_saved_that_eager_does_not_save() -> None:
    """A later write to it would be an error that eager does not raise. Where memory is asked for, that is the price."""
    text = SWIGLU.replace("aten.neg.default(%2)", "aten.neg.default(%1)")
    assert 2 not in _testing.partition(text, 4, True, 1.0)[0]
    assert 2 in _testing.partition(text, 4, True, 0.0)[0]


# -- programs ---------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """A root mean square norm, written out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate, self.down = Norm(16), nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Dropping(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x).tanh(), 0.4).exp()


class Counting(Gated):
    """A buffer is written, which what comes behind it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale.exp()
        self.scale.add_(0.25)
        return super().forward(y * self.scale.exp()).sigmoid()


class InPlace(Gated):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).sin()
        z = y.cos() * 2
        z[:, 3:5] = y[:, 1:3].exp()
        return z.mul_(x.sigmoid()).add_(y)


class Views(Gated):
    def forward(self, x: Tensor) -> Tensor:
        heads = super().forward(x).view(-1, 4, 4).transpose(1, 2)
        return torch.softmax((heads.sin() @ heads.cos()) * 0.5, -1).reshape(-1, 16)[1:]


class Checkpointed(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = Gated, count: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


MODULES: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: Norm(16),
    "gated": Gated,
    "stack": lambda: nn.Sequential(Gated(), Gated(), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Softmax(-1)),
    "dropping": Dropping,
    "counting": Counting,
    "in_place": InPlace,
    "views": Views,
    "checkpointed": Checkpointed,
    "checkpointed_dropping": lambda: Checkpointed(Dropping),
    "checkpointed_counting": lambda: Checkpointed(Views, 1),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten()
    ),
}


def trained(call: Any, model: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Results, gradients, buffers and a random number drawn afterwards, of a step for each input."""
    found: list[Tensor] = []
    torch.manual_seed(1)
    for given in inputs:
        model.zero_grad()
        x = given.clone().requires_grad_()
        result = call(x)
        (result * torch.linspace(-1, 1, result.numel()).view_as(result)).sum().backward()
        assert x.grad is not None
        found += [result.detach(), x.grad, *(w.grad.clone() for w in model.parameters() if w.grad is not None)]
    return [*found, *(buffer.clone() for buffer in model.buffers()), torch.rand(2)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", MODULES)
def test_gradients_are_eagers(name: str, budget: float, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = MODULES[name]().double()
    ours = copy.deepcopy(model)
    inputs = [torch.randn(size, 16, dtype=torch.float64) for size in ((5, 7) if dynamic else (5, 5))]
    want = trained(model, model, inputs)
    with magneto.config.patch(activation_memory_budget=budget):
        compiled = magneto.compile(ours, fullgraph=True, dynamic=dynamic or None)
        got = trained(compiled, ours, inputs)
    for one, other in zip(want, got, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)
    stats = magneto.stats()
    assert stats["joint_graphs"] >= 1 and not stats["no_joint"]
    # Of random numbers in a checkpoint eager keeps the generator's state, which is less.
    assert stats["saved_bytes"] <= stats["eager_saved_bytes"] or name == "checkpointed_dropping"


def masked_layers(x: Tensor, keep: Tensor, count: int, written: bool) -> Tensor:
    """Attention makes numbers of the mask in each layer, which its backward reads."""
    keep = keep.clone()
    for layer in range(count):
        x = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=keep) + x
        if written:
            keep[layer, layer] = False
    return x


@pytest.mark.parametrize("written", [False, True])
def test_what_equal_operators_make_is_saved_once(written: bool) -> None:
    keep = torch.ones(256, 256, dtype=torch.bool).tril()
    saved = []
    for count in (2, 3):
        magneto.reset()
        found = []
        for call in (masked_layers, magneto.compile(masked_layers, fullgraph=True)):
            torch.manual_seed(0)
            x = torch.randn(1, 2, 256, 16, requires_grad=True)
            call(x, keep, count, written).sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[0], found[1])
        saved.append(magneto.stats()["saved_bytes"])
    mask = 4 * 256 * 256
    assert (saved[1] - saved[0] < mask) == (not written)


def test_fractions_save_less() -> None:
    held = []
    for budget in BUDGETS[:3]:
        magneto.reset()
        model = MODULES["stack"]()
        with magneto.config.patch(activation_memory_budget=budget):
            magneto.compile(model)(torch.randn(64, 16, requires_grad=True)).sum().backward()
        held.append(magneto.stats()["saved_bytes"])
    assert held[0] > 2 * held[1] >= 2 * held[2]


def test_bytes_are_a_budget_too() -> None:
    model = MODULES["stack"]()
    with magneto.config.patch(activation_memory_budget=30_000):
        magneto.compile(model)(torch.randn(64, 16, requires_grad=True)).sum().backward()
    stats = magneto.stats()
    assert 0 < stats["saved_bytes"] <= 30_000 < stats["eager_saved_bytes"] and stats["recomputed"]


def test_a_budget_is_no_negative_number() -> None:
    for wrong in (-0.5, float("nan"), "half", True):
        with pytest.raises(magneto.exc.InvalidValue, match="activation_memory_budget"):
            magneto.config.activation_memory_budget = wrong  # type: ignore[assignment]


# -- what eager would not save, or would check ------------------------------------------------------------------------


def step(program: Callable[[Tensor], Tensor], change: Callable[[Tensor, Tensor], None]) -> Any:
    """The gradient where something is written between forward and backward, or the error."""
    x = torch.linspace(-2, 2, 6, requires_grad=True)
    base = x * 1
    result = program(base)
    with torch.no_grad():
        change(base, result)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error).partition("[")[0]
    return x.grad


@pytest.mark.parametrize("change", [lambda x, y: x.add_(1), lambda x, y: y.add_(1)], ids=["input", "result"])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.sigmoid(x),
        lambda x: x.exp() * 2,
        lambda x: x.exp().sin() * 2,
        lambda x: (x * 3).sin().exp(),
        lambda x: nn.functional.silu(x.tanh()),
        lambda x: x.sigmoid().relu(),
        lambda x: (x + 1) * (x + 1).sigmoid(),
    ],
)
def test_writes_before_the_backward(
    program: Callable[[Tensor], Tensor], change: Callable[[Tensor, Tensor], None]
) -> None:
    want = step(program, change)
    got = step(magneto.compile(program), change)
    if isinstance(want, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want)


# -- memory -----------------------------------------------------------------------------------------------------------


class Large(nn.Module):
    """24 MB of intermediates from a tensor of 2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.9, 1.1, 4).view(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.weight).sort(-1).values
        return (y.sort(-2).values * y).sum(0)


def held_by_backward(call: Any) -> int:
    """Bytes of a forward that live until its backward."""
    x = torch.randn(512, 1024, requires_grad=True)

    def resident() -> int:
        """What is free counts for nothing."""
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096 - magneto.stats()["memory"]["outputs"]

    call(x).sum().backward()
    before = resident()
    result = call(x)
    held = resident() - before
    result.sum().backward()
    return held


def test_checkpoints_are_computed_again() -> None:
    whole = nn.Sequential(*(Large() for _ in range(4)))
    again = Checkpointed(Large, 4)
    assert held_by_backward(magneto.compile(whole)) > 48e6
    magneto.reset()
    assert held_by_backward(magneto.compile(again)) < 24e6
    stats = magneto.stats()
    assert stats["saved_bytes"] <= stats["eager_saved_bytes"] and stats["recomputed"] >= 12


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_checkpoints_save_their_inputs_alone(backend: str) -> None:
    model = Checkpointed()
    magneto.compile(model, backend=backend)(torch.randn(8, 16, requires_grad=True)).sum().backward()
    stats = magneto.stats()
    assert stats["saved_bytes"] <= stats["eager_saved_bytes"] == 2 * 8 * 16 * 4
