"""torch.utils.checkpoint: one graph, eager's values, gradients, random state and saved tensors."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import models
import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import magneto


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.drop = torch.nn.Dropout(0.3)
        self.parts = torch.nn.Sequential(self.up, torch.nn.ReLU(), self.drop, self.down)

    def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
        return x + self.drop(self.down(torch.relu(self.up(x)))) * scale


class Blocks(torch.nn.Module):
    def __init__(self, style: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
        self.style = style

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.style(block, x)
        return x.sum()


def nested(block: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)

    return checkpoint(inner, x, use_reentrant=False)


def with_closure(block: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: block(y) * 2, x, use_reentrant=False)


def with_defaults(block: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y, of=block, by=2: of(y) * by, x, use_reentrant=False)


def with_named_defaults(block: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor, *, of: Any = (block, 2.0)) -> torch.Tensor:
        return of[0](y) * of[1]

    return checkpoint(inner, x, use_reentrant=False)


def with_partial(block: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(functools.partial(block, scale=x.mean()), x, use_reentrant=False)


def with_the_layer_as_argument(block: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(functools.partial(Block.forward, block, scale=x.mean()), x, use_reentrant=False)


def with_tensors_in_containers(block: Any, x: torch.Tensor) -> torch.Tensor:
    def inner(x: torch.Tensor, pair: Any, more: Any, options: Any, of: Any = None) -> torch.Tensor:
        more.append((pair[0] + options["shift"]).view(options["shape"]))
        return of(x, pair[1]) + more[0] * more[1]

    part = functools.partial(inner, of=block)
    options = {"shift": x.cos(), "shape": x.shape}
    return checkpoint(part, x, (x.mean(), x.std()), [x.sin()], options=options, use_reentrant=False)


def save_products() -> Any:
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default, torch.ops.aten.mm.default])


def in_parts(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + checkpoint_sequential(block.parts, 2, x, use_reentrant=False)


def in_parts_of_a_list(block: Any, x: torch.Tensor) -> torch.Tensor:
    return x + checkpoint_sequential([block.up, torch.relu, block.down], 3, x, use_reentrant=False)


STYLES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "module": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "method": lambda block, x: checkpoint(block.forward, x, 0.5, use_reentrant=False),
    "keyword": lambda block, x: checkpoint(block, x, scale=x.std(), use_reentrant=False),
    "random_state_not_kept": lambda block, x: checkpoint(block, x, use_reentrant=False, preserve_rng_state=True),
    "closure": with_closure,
    "defaults": with_defaults,
    "named_defaults": with_named_defaults,
    "contexts": lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=save_products),
    "parts": in_parts,
    "parts_of_a_list": in_parts_of_a_list,
    "partial": with_partial,
    "layer_as_argument": with_the_layer_as_argument,
    "containers": with_tensors_in_containers,
    "nested": nested,
}


def step(model: Any, call: Any, x: torch.Tensor, grad: bool) -> Any:
    saved = []
    torch.manual_seed(3)
    model.zero_grad()
    x = x.clone().requires_grad_(grad)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.shape), t)[1], lambda t: t):
        loss = call(x)
    if grad:
        loss.backward()
    return loss, x.grad, [p.grad for p in model.parameters()], torch.rand(2), len(saved)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, (list, tuple)):
        return all(map(equal, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", STYLES)
def test_as_in_eager(name: str, grad: bool, backend: str) -> None:
    model = Blocks(STYLES[name])
    compiled = magneto.compile(model, backend=backend)
    x = torch.rand(4, 8)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            want = step(model, model, x, grad)
            got = step(model, compiled, x, grad)
            assert equal(got, want)
    stats = magneto.stats()
    assert stats["breaks"] == 0, stats["break_reasons"]
    assert stats["graphs"] == 1


def scaled(block: Any, scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda y: block(y) * scale


REENTRANT: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "module": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "more_arguments": lambda block, x: checkpoint(block, x, 0.5, use_reentrant=True, preserve_rng_state=True),
    "closure": lambda block, x: checkpoint(scaled(block, 2.0), x, use_reentrant=True),
    "parts": lambda block, x: checkpoint_sequential(block.parts, 2, x, use_reentrant=True),
    "several": lambda block, x: sum(checkpoint(lambda a, b: (a * b, 3, block(a)), x, x + 1, use_reentrant=True)),
    "argument": lambda block, x: (
        checkpoint(lambda a: a, x, use_reentrant=True) * checkpoint(lambda a: (a, a.sin()), x, use_reentrant=True)[0]
    ),
    "nested": lambda block, x: checkpoint(
        lambda y: checkpoint(block, y, use_reentrant=True).sin(), x, use_reentrant=True
    ),
    "both": lambda block, x: checkpoint(
        lambda y: checkpoint(block, y, use_reentrant=True).sin(), x, use_reentrant=False
    ),
}


@pytest.mark.filterwarnings("ignore:Magneto trains")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("needs_grad", ["x", "nothing", "off"])
@pytest.mark.parametrize("name", REENTRANT)
def test_reentrant(name: str, needs_grad: str, backend: str) -> None:
    model = Blocks(REENTRANT[name])
    compiled = magneto.compile(model, backend=backend)
    x = torch.rand(4, 8)

    def observe(call: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with torch.set_grad_enabled(needs_grad != "off"):
                if needs_grad == "x":
                    result: Any = step(model, call, x, True)
                else:
                    torch.manual_seed(3)
                    loss = call(x.clone().requires_grad_(needs_grad == "off"))
                    result = loss, loss.requires_grad, torch.rand(2)
        ours = [w for w in caught if "None of the inputs" in str(w.message)]
        return result, [(str(w.message), w.filename, w.lineno) for w in ours]

    for _ in range(3):
        want, got = observe(model), observe(compiled)
        assert got[1] == want[1]
        if backend == "magneto":
            torch.testing.assert_close(got[0], want[0])
        else:
            assert equal(got[0], want[0])
    stats = magneto.stats()
    if needs_grad == "x":
        assert stats["breaks"] == 0, stats["break_reasons"]
        assert stats["graphs"] == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_reentrant_without_gradients(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        first, again = checkpoint(lambda a: (a.sin(), a), x, use_reentrant=True)
        return first, again, again is x, checkpoint(torch.cos, again, use_reentrant=True)

    compiled = magneto.compile(program, backend=backend)
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        for _ in range(2):
            want, got = program(x), compiled(x)
            assert equal(got, want) and got[1]._base is want[1]._base is None
            assert [t.requires_grad for t in (got[0], got[1], got[3])] == [
                t.requires_grad for t in (want[0], want[1], want[3])
            ]
    assert magneto.stats()["breaks"] <= 1  # of the second one, whose argument needs none


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_wrong_uses_of_a_reentrant_one_raise_as_in_eager(backend: str) -> None:
    def keyword(x: torch.Tensor) -> Any:
        return checkpoint(lambda y, k: y * k, x, k=2, use_reentrant=True)

    def contexts(x: torch.Tensor) -> Any:
        return checkpoint(torch.sin, x, use_reentrant=True, context_fn=save_products)

    def gradient(x: torch.Tensor) -> Any:
        return torch.autograd.grad(checkpoint(torch.sin, x, use_reentrant=True).sum(), x)

    for program in (keyword, contexts, gradient):
        x = torch.ones(2, requires_grad=True)
        with pytest.raises((ValueError, RuntimeError)) as want:
            program(x)
        with pytest.raises(want.type) as got:
            magneto.compile(program, backend=backend)(x)
        assert str(got.value) == str(want.value)


def test_default_backend() -> None:
    model = Blocks(STYLES["module"]).eval()
    compiled = magneto.compile(model)
    with torch.no_grad():
        for rows in (4, 4, 5):
            x = torch.rand(rows, 8)
            torch.testing.assert_close(compiled(x), model(x))
    assert magneto.stats()["breaks"] == 0


def test_what_is_written_inside_is_written_once() -> None:
    class Counts(Block):
        calls = 0

        def forward(self, x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
            self.calls += 1
            return super().forward(x, scale)

    for grad in (True, False):
        model, other = Counts(), Counts()
        compiled = magneto.compile(lambda x, m=model: checkpoint(m, x, use_reentrant=False).sum(), backend="aot_eager")
        with torch.set_grad_enabled(grad):
            for _ in range(3):
                compiled(torch.rand(2, 8))
                checkpoint(other, torch.rand(2, 8), use_reentrant=False).sum()
        assert model.calls == other.calls


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_layers_of_transformers(name: str) -> None:
    """They are handed to `checkpoint` as arguments of a functools.partial, with tuples of tensors beside them."""
    model = models.build(name).train()
    model.gradient_checkpointing_enable()
    compiled = magneto.compile(model, fullgraph=True)
    given = models.inputs(name)

    def train(call: Any) -> Any:
        torch.manual_seed(1)
        model.zero_grad()
        loss = sum(
            value.pow(2).mean()
            for value in call(**given).values()
            if isinstance(value, torch.Tensor) and value.requires_grad
        )
        loss.backward()
        return loss.detach(), [weight.grad for weight in model.parameters()]

    want, got = train(model), train(compiled)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    assert magneto.stats()["no_joint"] == {}
