"""torch.autograd.graph.saved_tensors_hooks and save_on_cpu inside: a part of the forward and of the backward."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import Closeness, assert_same
from program_table import ProgramTable
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import magneto

TABLE = ProgramTable()
EXITS = ProgramTable()
functional = nn.functional


def to_half(t: Tensor) -> Tensor:
    return t.to(torch.bfloat16) if t.dtype == torch.float32 else t.detach()


def to_single(t: Tensor) -> Tensor:
    return t.to(torch.float32) if t.dtype == torch.bfloat16 else t


def quantised(t: Tensor) -> Any:
    if t.numel() < 8 or not t.is_floating_point():
        return t.detach()
    scale = t.abs().amax() / 127 + 1e-8
    return (t / scale).round().to(torch.int8), scale


def restored(packed: Any) -> Tensor:
    return packed[0].float() * packed[1] if isinstance(packed, tuple) else packed


class Packed:
    def __init__(self, t: Tensor) -> None:
        self.t = t.half()


class State:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.kept = saved_tensors_hooks(to_half, to_single)
        self.seen: list[Any] = []

    def pack(self, t: Tensor) -> Tensor:
        return t.detach() * 0.5

    def note(self, t: Tensor) -> Tensor:
        self.seen.append(tuple(t.shape))
        return t.detach()


@TABLE
def on_cpu(s: State, x: Tensor) -> Any:
    with save_on_cpu():
        return s.net(x).square().mean()


@TABLE
def half(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(to_half, to_single):
        return s.net(x).square().mean()


@TABLE
def context_from_outside(s: State, x: Tensor) -> Any:
    with s.kept:
        return s.net(x).sin().mean()


@TABLE
def quantisation(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(quantised, restored):
        h = s.net[1](s.net[0](x))
        h = h * h.sigmoid()
    return s.net[4](h).sum()


@TABLE
def what_is_saved_itself(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        return s.net(x).exp().mean()


@TABLE
def other_values(s: State, x: Tensor) -> Any:
    """The gradients are others than without, which shows that both are called."""
    with saved_tensors_hooks(lambda t: (t.clone() * 2, 3), lambda packed: packed[0] * packed[1]):
        return (s.net(x).exp() * x.sum(1, keepdim=True)).mean()


@TABLE
def nested(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(to_half, to_single):
        h = s.net[0](x)
        with saved_tensors_hooks(lambda t: t.detach() * 0.5, lambda t: t * 2.5):
            h = s.net[1](h).exp()
        return (h * h).mean()


@TABLE
def instances(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: Packed(t), lambda packed: packed.t.float()):
        return s.net(x).mean()


@TABLE
def methods(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(s.pack, lambda t: t * 2):
        return s.net(x).square().mean()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2 * ctx.saved_tensors[0]


@TABLE
def custom_function(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(to_half, to_single):
        h = Square.apply(s.net[0](x))
    return h.mean()


@TABLE
def written_behind(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
        y = s.net[0](x).exp()
        z = y * y
    with torch.no_grad():
        y.mul_(2)  # eager checks no versions of what was packed
    return z.mean()


@TABLE
def whole_step(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    with saved_tensors_hooks(to_half, to_single):
        loss = s.net(x).square().mean()
    loss.backward()
    s.opt.step()
    return loss.detach()


@TABLE
def step_on_cpu(s: State, x: Tensor) -> Any:
    s.opt.zero_grad()
    with save_on_cpu():
        h = s.net[:2](x)
    loss = s.net[2:](h).square().mean()
    loss.backward()
    s.opt.step()
    return loss.detach()


@TABLE
def gradients_inside(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(quantised, restored):
        loss = s.net(x).square().mean()
    return torch.autograd.grad(loss, list(s.net.parameters()))[0]


@TABLE
def attention(s: State, x: Tensor) -> Any:
    q, k, v = s.net[0](x)[None].split([3, 3, 2], -1)
    with saved_tensors_hooks(to_half, to_single):
        h = functional.scaled_dot_product_attention(q, k, v)[0]
        return functional.cross_entropy(h.repeat(1, 4) @ s.net[0].weight, torch.arange(6) % 3)


@EXITS
def packing_notes_something(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(s.note, lambda t: t):
        return s.net(x).square().mean()


@EXITS
def unpacking_notes_something(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: t.detach(), s.note):
        return s.net(x).square().mean()


@EXITS
def an_exit_between(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(to_half, to_single):
        h = s.net[0](x)
        print(end="")
        return s.net[1](h).mean()


def by_sign(t: Tensor) -> Tensor:
    return torch.cat([t, t])[: len(t)] if (t.sum() > 0).item() else t * 3


@EXITS
def data_is_asked_for(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: t.detach() * float(t.sum()), lambda t: t):
        return s.net(x).sin().mean()


@EXITS
def data_is_asked_for_later(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(lambda t: t.detach(), by_sign):
        return s.net(x).sin().mean()


@EXITS
def around_a_checkpoint(s: State, x: Tensor) -> Any:
    with saved_tensors_hooks(to_half, to_single):
        h = checkpoint(s.net[:3], x, use_reentrant=False)
    return s.net[3:](h).mean()


def trained(program: Callable[..., Any], turns: int = 4) -> list[Any]:
    state, seen = State(), []
    for turn in range(turns):
        x = torch.randn(6 + turn // 2, 4, generator=torch.Generator().manual_seed(turn))[:6]
        result = program(state, x)
        if result.requires_grad:
            state.net.zero_grad()
            result.backward()
        gradients = [p.grad if p.grad is None else p.grad.clone() for p in state.net.parameters()]
        weights = [p.detach().clone() for p in state.net.parameters()]
        seen.append([result.detach(), gradients, weights, list(state.seen), torch.rand(1)])
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    return seen


# One rounding to half precision more or less is an eighth of a percent.
NEAR = Closeness(rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", TABLE)
def test_one_graph(name: str, backend: str) -> None:
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=True)
    assert_same(trained(compiled), trained(TABLE[name]), closeness=NEAR)
    stats = magneto.stats()
    assert stats["breaks"] == 0 and 1 <= stats["frames"] <= 2 and not stats["no_joint"] and not stats["fallbacks"]


@pytest.mark.lenient
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", EXITS)
def test_cpython_runs_what_is_none(name: str, backend: str) -> None:
    compiled = magneto.compile(EXITS[name], backend=backend)
    assert_same(trained(compiled), trained(EXITS[name]), closeness=NEAR)
    assert magneto.stats()["breaks"]


@pytest.mark.parametrize("raises", ["ValueError", "in place"])
def test_errors_leave_no_hooks_on(raises: str) -> None:
    def pack(t: Tensor) -> Tensor:
        if raises == "ValueError":
            raise ValueError("not this one")
        return t.mul_(2)

    def program(s: State, x: Tensor) -> Any:
        with saved_tensors_hooks(pack, lambda t: t):
            return s.net(x).mean()

    messages = []
    for function in (magneto.compile(program), program):
        with pytest.raises((ValueError, RuntimeError)) as error:
            function(State(), torch.ones(6, 4))
        messages.append(str(error.value))
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert messages[0] == messages[1]


def test_less_is_saved() -> None:
    def program(x: Tensor) -> Tensor:
        with saved_tensors_hooks(to_half, to_single):
            return x.exp().sin().sum()

    magneto.compile(program, backend="aot_eager")(torch.ones(1000, requires_grad=True))
    assert magneto.stats()["saved_bytes"] == 2 * 2 * 1000


def test_gradients_of_gradients() -> None:
    def program(x: Tensor) -> Tensor:
        with saved_tensors_hooks(to_half, to_single):
            return x.exp().sin().sum()

    results = []
    for function in (magneto.compile(program), program):
        x = torch.linspace(0, 1, 7, requires_grad=True)
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        results.append([first.detach(), *torch.autograd.grad(first.square().sum(), x)])
    assert_same(results[0], results[1], closeness=NEAR)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_hooks_outside_too(backend: str) -> None:
    """Those inside are on where they are, as in eager."""
    results = []
    for function in (magneto.compile(half, backend=backend), half):
        calls: list[int] = []

        def pack(t: Tensor, calls: list[int] = calls) -> Tensor:
            calls.append(t.numel())
            return t

        state = State()
        for _ in range(2):
            with saved_tensors_hooks(pack, lambda t: t):
                function(state, torch.ones(6, 4)).exp().backward()
        results.append([calls, [p.grad for p in state.net.parameters()]])
    assert_same(results[0], results[1], closeness=NEAR)


def test_what_was_packed_is_freed() -> None:
    """The capture's own tensors are; some were packed as they are, which makes a circle."""
    compiled = magneto.compile(what_is_saved_itself)
    state = State()
    for _ in range(2):
        reference = weakref.ref(compiled(state, torch.ones(6, 4)))
    gc.collect()
    assert reference() is None and not magneto.stats()["fallbacks"]
