"""Training programs under compiled autograd: gradients, effects of hooks and their order as eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from whole_backwards import Compile, Program, Seen, compare, gradients, network, run

import magneto
from magneto._install import compiled_autograd


@pytest.fixture(autouse=True)
def engine() -> Any:
    yield
    compiled_autograd.give_back()


class Scaled(torch.autograd.Function):
    """Says when its backward is called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, seen: Seen) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor, ctx.seen = factor, seen
        return x * factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        ctx.seen.extend(["scaled", ctx.factor, gradient.sum()])
        return gradient * ctx.factor + 0 * x, None, None


class Two(torch.autograd.Function):
    """Two results, of which the program uses one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, one: Any, other: Any) -> Any:  # type: ignore[override]
        return (0 if one is None else one * 2) + (0 if other is None else other * 3)


def say(seen: Seen, name: str, factor: float = 1.0) -> Any:
    def hook(gradient: Tensor) -> Tensor:
        seen.append((name, tuple(gradient.shape)))
        return gradient * factor

    return hook


def three_hooks(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)))
    h = first(torch.randn(5, 4))
    h.register_hook(say(seen, "first", 2))
    h = b(h).sigmoid()
    h.register_hook(say(seen, "between", 3))
    h = last(h)
    h.register_hook(say(seen, "last"))
    h.sum().backward()
    seen += gradients(a, b, c)


def functions_between(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).sum())
    h = Scaled.apply(first(torch.randn(5, 4)), 2.0, seen)
    last(Scaled.apply(torch.relu(b(h)), 3.0, seen) * 2).backward()
    seen += gradients(a, b, c)


def hooks_and_leaves_in_order(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    for name, layer in (("a", a), ("b", b), ("c", c)):
        layer.weight.register_hook(say(seen, name + ".weight"))
        layer.bias.register_post_accumulate_grad_hook(lambda p, name=name: seen.extend([name + ".bias", p.grad.sum()]))
    h = torch.tanh(a(torch.randn(5, 4)))
    h.register_hook(say(seen, "h"))
    g = torch.relu(b(h)) + h
    g.register_hook(say(seen, "g", 0.5))
    c(g).square().mean().backward()
    seen += gradients(a, b, c)


def branches(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    x = torch.randn(5, 4)
    h = compile(lambda x: torch.tanh(a(x)))(x)
    left, right = b(h), compile(lambda h: b(h).exp())(h)
    left.register_hook(say(seen, "left", 2))
    right.register_hook(say(seen, "right", 3))
    (c(left).sum() + c(right).square().sum()).backward()
    seen += gradients(a, b, c)


def hooks_of_nodes(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = torch.tanh(a(torch.randn(5, 4))) * 2
    h.grad_fn.register_prehook(lambda outputs: seen.append("before") or tuple(o * 2 for o in outputs))
    h.grad_fn.register_hook(lambda inputs, outputs: seen.extend(["after", len(inputs), outputs[0].sum()]))
    c(torch.relu(b(h))).sum().backward()
    seen += gradients(a, b, c)


def hooks_of_three_modules(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    for name, layer in (("a", a), ("b", b), ("c", c)):
        layer.register_full_backward_pre_hook(lambda _, outputs, name=name: seen.extend([name, outputs[0].sum()]))
        layer.register_full_backward_hook(lambda _, inputs, outputs, name=name: seen.append((name, inputs[0] is None)))
    (c(torch.tanh(b(torch.tanh(a(torch.randn(5, 4)))))) ** 2).sum().backward()
    seen += gradients(a, b, c)


def retained_gradients(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    g = torch.relu(b(h)) * 3
    for tensor in (h, g):
        tensor.retain_grad()
    c(g).sum().backward()
    seen += [h.grad, g.grad, *gradients(a, b, c)]


def sizes_and_hooks(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).sum())
    for rows in (2, 5, 3, 5):
        h = first(torch.randn(rows, 4))
        h.register_hook(say(seen, "h", 2))
        last(torch.relu(b(h))).backward()
    seen += gradients(a, b, c)


def lengths_of_sequences(compile: Compile, seen: Seen) -> None:
    table, mixer = nn.Embedding(10, 8), nn.GRU(8, 8, batch_first=True)
    head = compile(lambda h: h.log_softmax(-1))
    for length in (3, 6, 3):
        h, _ = mixer(table(torch.arange(2 * length).view(2, length) % 10))
        nn.functional.nll_loss(head(h).flatten(0, 1), torch.arange(2 * length) % 8).backward()
    seen += gradients(table, mixer)


def frozen_parameters(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    b.requires_grad_(False)
    a.bias.requires_grad_(False)
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    compile(lambda h: c(h).square().sum())(torch.relu(b(h))).backward()
    seen += gradients(a, b, c)
    b.requires_grad_(True)
    compile(lambda h: c(h).square().sum())(torch.relu(b(torch.tanh(a(torch.randn(5, 4)))))).backward()
    seen += gradients(a, b, c)


def accumulation_with_hooks(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first = compile(lambda x: torch.tanh(a(x)))
    a.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    for step in range(4):
        h = first(torch.randn(5, 4))
        h.register_hook(say(seen, str(step), 0.5))
        (c(torch.relu(b(h))).sum() / 4).backward()
        if step == 1:
            seen += [p.clone() for p in gradients(a, b, c) if p is not None]
            for layer in (a, b, c):
                layer.zero_grad()


def checkpoints(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    last = compile(lambda h: torch.exp(c(h)).sum())
    for reentrant in (False, True):
        x = torch.randn(5, 4, requires_grad=True)
        h = torch.tanh(a(x)) * 2
        h = checkpoint(lambda h: torch.relu(b(h)).sin(), h, use_reentrant=reentrant)
        h = checkpoint(lambda h: torch.tanh(b(h)), h * 3, use_reentrant=reentrant)
        last(h).backward()
        seen.append(x.grad)
    seen += gradients(a, b, c)


def shared_weights(compile: Compile, seen: Seen) -> None:
    b = nn.Linear(8, 8)
    b.weight.register_hook(say(seen, "weight"))
    piece = compile(lambda h: torch.tanh(b(h)))
    h = torch.randn(5, 8)
    for step in range(3):
        h = piece(h) + nn.functional.linear(h, b.weight.t())
        h.register_hook(say(seen, str(step), 1.5))
    h.sum().backward()
    seen += gradients(b)


def two_losses(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    h.register_hook(say(seen, "h", 2))
    one, other = compile(lambda h: c(h).exp().mean())(h), b(h).square().mean()
    one.backward(retain_graph=True)
    seen += gradients(a, b, c)
    (other * 2).backward()
    seen += gradients(a, b, c)


def gradients_that_are_none(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    one, _ = Two.apply(torch.tanh(a(torch.randn(5, 4))))
    unused = b(one)
    del unused
    compile(lambda h: torch.exp(c(h)).sum())(one).backward()
    seen += gradients(a, b, c)


def steps_of_optimizers(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).mean())
    optimizer = torch.optim.AdamW([*a.parameters(), *b.parameters(), *c.parameters()], lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss = last(Scaled.apply(torch.relu(b(first(torch.randn(5, 4)))), 2.0, seen))
        loss.backward()
        nn.utils.clip_grad_norm_([*a.parameters(), *b.parameters()], 0.5)
        optimizer.step()
        seen.append(loss.detach())
    seen += gradients(a, b, c)


def kept_graph_with_functions(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = Scaled.apply(compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4)), 2.0, seen)
    h.register_hook(say(seen, "h"))
    loss = c(torch.relu(b(h))).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    seen += gradients(a, b, c)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def penalty_on_gradients(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    x = torch.randn(5, 4, requires_grad=True)
    h = compile(lambda x: torch.tanh(a(x)))(x)
    out = c(torch.tanh(b(h))).sum()
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    first.register_hook(say(seen, "first", 2))
    (out + first.square().sum()).backward()
    seen += [x.grad, *gradients(a, b, c)]


def hooks_that_come_and_go(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))

    def once(gradient: Tensor) -> Tensor:
        seen.append("once")
        handle.remove()
        return gradient * 2

    handle = h.register_hook(once)
    h.register_hook(say(seen, "always"))
    loss = c(torch.relu(b(h))).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    seen += gradients(a, b, c)


def hooks_that_train(compile: Compile, seen: Seen) -> None:
    """A backward, a write to a parameter that is done with, and an error, in hooks."""
    a, b, c = network()
    other = nn.Linear(8, 1)

    def nested(gradient: Tensor) -> None:
        with torch.enable_grad():
            other(gradient.detach()).sum().backward()

    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    h.register_hook(nested)
    c(torch.relu(b(h))).sum().backward()
    seen += gradients(a, b, c, other)
    h = torch.tanh(a(torch.randn(5, 4)))
    h.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        c(torch.relu(b(h))).sum().backward()
    seen += gradients(b, c)


def selected_inputs(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    h.register_hook(say(seen, "h", 2))
    g = Scaled.apply(b(h), 2.0, seen)
    loss = c(g).square().sum()
    seen += torch.autograd.grad(loss, [g, h, a.weight], retain_graph=True)
    loss.backward(inputs=[a.bias, c.weight])
    seen += gradients(a, b, c)


def hooks_of_several_tensors(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))
    g = torch.relu(b(h))
    unused = h * 3
    together = torch.autograd.graph.register_multi_grad_hook
    together([h, g, c.weight, unused], lambda grads: seen.extend([None if g is None else g.sum() for g in grads]))
    together([g, h], lambda gradient: seen.append(gradient.sum()), mode="any")
    c(g).square().sum().backward()
    seen += gradients(a, b, c)


def a_backward_in_a_hook(compile: Compile, seen: Seen) -> None:
    """...of a backward that is asked for some gradients."""
    a, b, c = network()
    other = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

    def nested(gradient: Tensor) -> None:
        with torch.enable_grad():
            other(gradient.detach().sum(0)[:8]).sum().backward()

    h = torch.tanh(a(torch.randn(5, 4)))
    h.register_hook(nested)
    seen += torch.autograd.grad(c(torch.relu(b(h))).sum(), [a.weight])
    seen += gradients(other)


FUNCTION, HOOK = "a custom autograd.Function (ScaledBackward)", "hooks on gradients inside"
PROGRAMS: dict[Program, tuple[int, int, set[str]]] = {
    # programs that are made, backwards that they compute, what is not
    three_hooks: (2, 1, set()),
    functions_between: (3, 1, set()),
    hooks_and_leaves_in_order: (3, 1, set()),
    branches: (2, 1, set()),
    hooks_of_nodes: (2, 1, set()),
    hooks_of_three_modules: (5, 1, set()),
    retained_gradients: (2, 1, set()),
    sizes_and_hooks: (2, 4, set()),
    lengths_of_sequences: (3, 3, set()),
    frozen_parameters: (2, 2, set()),
    accumulation_with_hooks: (1, 4, set()),
    checkpoints: (7, 4, {"hooks on saved tensors"}),
    shared_weights: (4, 1, set()),
    two_losses: (2, 2, set()),
    gradients_that_are_none: (2, 1, set()),
    steps_of_optimizers: (2, 4, set()),
    kept_graph_with_functions: (2, 2, set()),
    penalty_on_gradients: (2, 1, {"create_graph=True"}),
    hooks_that_come_and_go: (1, 2, set()),
    hooks_that_train: (2, 2, set()),
    selected_inputs: (2, 2, {FUNCTION}),
    hooks_of_several_tensors: (2, 1, set()),
    a_backward_in_a_hook: (2, 2, {HOOK}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    want = run(program)
    with magneto.config.patch(strict=False):
        compare(run(program, magneto.compile, captured=True), want)
    stats = magneto.stats()
    got = stats["whole_backwards"], stats["whole_backward_runs"], set(stats["eager_backwards"])
    assert got == PROGRAMS[program]
