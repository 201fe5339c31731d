"""Compiled autograd with sizes that vary: the second size makes a program for all that follow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from program_table import ProgramTable
from torch import Tensor, nn
from torch.nn import functional as F
from whole_backwards import Compile, Seen, compare, gradients, identity, network, run

import magneto
from magneto._install import compiled_autograd

Step = Callable[[int, int], Any]
TABLE = ProgramTable()  # by name: what makes the step of a training program, which is given a batch and a length
SIZES = [(3, 5), (4, 6), (7, 9), (12, 4), (5, 11), (6, 6), (9, 3), (16, 13), (15, 8), (11, 7), (8, 3), (3, 5)]


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    yield
    compiled_autograd.give_back()


@TABLE
def pieces(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()
    first, last = compile(lambda x: F.gelu(a(x))), compile(lambda h: torch.softmax(c(h), -1))

    def step(n: int, m: int) -> None:
        last(torch.tanh(b(first(torch.randn(n, m, 4)))) * 2).square().sum().backward()
        seen.extend(gradients(a, b, c))

    return step


@TABLE
def operators_alone(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()

    def step(n: int, m: int) -> None:
        x = torch.randn(n, 4, requires_grad=True)
        F.cross_entropy(c(torch.relu(b(a(x).sigmoid()))), torch.arange(n) % 3).backward()
        seen.extend([x.grad, *gradients(a, b, c)])

    return step


@TABLE
def one_compiled_function(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()
    loss = compile(lambda x: c(torch.relu(b(torch.tanh(a(x))))).square().mean())

    def step(n: int, m: int) -> None:
        loss(torch.randn(n, m, 4)).backward()
        seen.extend(gradients(a, b, c))

    return step


@TABLE
def attention(compile: Compile, seen: Seen) -> Step:
    table, layer = nn.Embedding(10, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    norm = compile(nn.LayerNorm(8))

    def step(n: int, m: int) -> None:
        tokens = torch.arange(n * m).view(n, m) % 10
        norm(layer(table(tokens))).sin().mean().backward()
        seen.extend(gradients(table, layer))

    return step


@TABLE
def heads(compile: Compile, seen: Seen) -> Step:
    qkv, out = nn.Linear(8, 24), nn.Linear(8, 8)
    project = compile(lambda h: out(h) + h)

    def step(n: int, m: int) -> None:
        x = torch.randn(n, m, 8)
        q, k, v = (t.view(n, m, 2, 4).transpose(1, 2) for t in qkv(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / 2).masked_fill(torch.ones(m, m).triu(1).bool(), -1e9).softmax(-1)
        project((weights @ v).transpose(1, 2).reshape(n, m, 8)).mean().backward()
        seen.extend(gradients(qkv, out))

    return step


@TABLE
def batches_of_images(compile: Compile, seen: Seen) -> Step:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    head = compile(lambda h: torch.log_softmax(h[:, :5], 1))

    def step(n: int, m: int) -> None:
        F.nll_loss(head(net(torch.randn(n, 3, 8, 8))), torch.arange(n) % 5).backward()
        seen.extend(gradients(net))

    return step


@TABLE
def images_of_many_sizes(compile: Compile, seen: Seen) -> Step:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4))
    last = compile(lambda h: torch.tanh(h).mean((2, 3)))

    def step(n: int, m: int) -> None:
        last(net(torch.randn(n, 3, m, m + 2))).square().sum().backward()
        seen.extend(gradients(net))

    return step


@TABLE
def joined_and_cut(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first = compile(lambda x: torch.tanh(a(x)))

    def step(n: int, m: int) -> None:
        h = first(torch.randn(n, 4))
        g = b(torch.cat([h, h[1:] * 2, torch.ones(m, 8)]))
        (g[:-1].sin().sum() + g[m:].exp().mean()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def indexed(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        h = torch.tanh(a(torch.randn(n, m, 4)))
        picked = h[torch.arange(n), torch.arange(n) % m] + h[:, -1] + h.gather(1, torch.zeros(n, 1, 8).long())[:, 0]
        last(picked.index_select(0, torch.arange(n).flip(0))).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def broadcast(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    scale = nn.Parameter(torch.ones(8))
    first = compile(lambda x: torch.tanh(a(x)))

    def step(n: int, m: int) -> None:
        h = first(torch.randn(n, 4))
        wide = h.unsqueeze(1).expand(n, m, 8) * torch.arange(m).view(m, 1) + scale
        (b(wide) + b(h)[:, None]).sigmoid().sum().backward()
        seen.extend([*gradients(a, b), scale.grad])

    return step


@TABLE
def recurrent(compile: Compile, seen: Seen) -> Step:
    cell = nn.GRUCell(4, 8)
    head = compile(lambda h: torch.relu(h).square().mean())

    def step(n: int, m: int) -> None:
        h = torch.zeros(n, 8)
        for x in torch.randn(3, n, 4):
            h = cell(x, h)
        head(h).backward()
        seen.extend(gradients(cell))

    return step


def rows_of(layer: Callable[[], nn.Module]) -> Callable[[Compile, Seen], Step]:
    """Sequences through a layer whose gradients are one operator, whatever their length."""

    def program(compile: Compile, seen: Seen) -> Step:
        net = layer()
        head = compile(lambda h: torch.relu(h).square().mean())

        def step(n: int, m: int) -> None:
            x = torch.randn(n, m, 4, requires_grad=True)
            y, (h, c) = net(x)
            (head(y) + h.sum() + c.square().mean()).backward()
            seen.extend([x.grad, *gradients(net)])

        return step

    return program


TABLE["lstm"] = rows_of(lambda: nn.LSTM(4, 8, 2, batch_first=True, bidirectional=True))
TABLE["lstm_without_biases"] = rows_of(lambda: nn.LSTM(4, 8, bias=False))


@TABLE
def written_rows(compile: Compile, seen: Seen) -> Step:
    """A tensor of padding that is filled, and scaled in places."""
    a, b, _ = network()
    last = compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        h = torch.zeros(n + 3, m, 8)
        h[:n] = a(torch.randn(n, m, 4))
        h[:, 1:] *= 2
        h[:, 0] = 0
        h[1].sigmoid_()
        last(h).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def views_of_what_is_written(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        h = torch.tanh(a(torch.randn(n, m, 4))) * 2
        before, turned = h[:, 1:], h.transpose(0, 1)
        h[:, -1].mul_(torch.full((n, 1), 0.5))
        turned[0] += h[:, 1]
        (last(turned) + before.sin().sum() + h[..., ::2].mean()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def written_and_asked_for(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        x, y = torch.randn(n, m, 4, requires_grad=True), torch.randn(n, 8, requires_grad=True)
        h = a(x)
        h[:, 0].copy_(y * 2)
        seen.extend(torch.autograd.grad(last(h), [y, b.weight]))

    return step


@TABLE
def with_hooks(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).mean())

    def step(n: int, m: int) -> None:
        h = first(torch.randn(n, m, 4))
        h.register_hook(lambda gradient: seen.append(tuple(gradient.shape)) or gradient * 2)
        last(torch.relu(b(h))).backward()
        seen.extend(gradients(a, b, c))

    return step


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2 + 0 * ctx.saved_tensors[0]


@TABLE
def with_a_function(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()
    last = compile(lambda h: torch.exp(c(h)).mean())

    def step(n: int, m: int) -> None:
        last(torch.relu(b(Scaled.apply(torch.tanh(a(torch.randn(m, n, 4))))))).backward()
        seen.extend(gradients(a, b, c))

    return step


@TABLE
def statistics(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first = compile(lambda x: torch.tanh(a(x)))

    def step(n: int, m: int) -> None:
        h = b(first(torch.randn(n, m, 4)))
        (h.mean() + h.logsumexp(1).mean() + h.norm(dim=-1).sum() + h.amax(0).sum()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def variances(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first = compile(lambda x: ((a(x) - a(x).mean()) / a(x).std()).sin(), dynamic=True)

    def step(n: int, m: int) -> None:
        h = b(first(torch.randn(n, m, 4)))
        (h.var(0).sum() + h.std() + torch.var_mean(h, 1)[0].mean()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def rearranged(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: (h * 2).sigmoid().sum())

    def step(n: int, m: int) -> None:
        h = a(torch.randn(n, m, 4)).permute(1, 0, 2).reshape(n * m, 8)
        h = b(h).view(m, n, 8).flip(0).roll(1, 1).cumsum(0).flatten(1).t()
        last(F.pad(h, (1, 2)).contiguous()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def products_of_matrices(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first = compile(lambda x: torch.tanh(a(x)))

    def step(n: int, m: int) -> None:
        h = first(torch.randn(n, m, 4))
        (torch.einsum("nid,njd->nij", h, b(h)).tril().sum() + torch.bmm(h, h.mT).mean()).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def asked_for(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        x = torch.randn(n, m, 4, requires_grad=True)
        h = first(x) * 3
        seen.extend(torch.autograd.grad(last(h), [x, h, b.weight]))

    return step


@TABLE
def batches_of_one_tensor(compile: Compile, seen: Seen) -> Step:
    """What is saved begins elsewhere each time."""
    a, b, c = network()
    data = torch.randn(40, 4)
    loss = compile(lambda h: c(h).square().mean())

    def step(n: int, m: int) -> None:
        loss(torch.relu(b(torch.tanh(a(data[m : m + n]))))).backward()
        seen.extend(gradients(a, b, c))

    return step


@TABLE
def an_optimizer(compile: Compile, seen: Seen) -> Step:
    a, b, c = network()
    optimizer = torch.optim.AdamW([*a.parameters(), *b.parameters(), *c.parameters()], lr=0.01)
    first = compile(lambda x: F.gelu(a(x)))

    def step(n: int, m: int) -> None:
        optimizer.zero_grad()
        loss = F.mse_loss(c(F.layer_norm(b(first(torch.randn(n, m, 4))), (8,))), torch.zeros(n, m, 3))
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())

    return step


@TABLE
def places_that_vary(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: torch.exp(b(h)).sum())

    def step(n: int, m: int) -> None:
        h = torch.tanh(a(torch.randn(20, 4)))
        last(h[m] + h.narrow(0, n - 2, 3).sum(0) + h[m - 2 :].mean(0) + h[: n - 1].amax(0)).backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def numbers_of_functions(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    first = compile(lambda h, k: (h * k).tanh()[:, :k] * (k + 1))

    def step(n: int, m: int) -> None:
        k = 2 + m % 5
        b(F.pad(first(a(torch.randn(n, 4)), k), (0, 8 - k))).exp().sum().backward()
        seen.extend(gradients(a, b))

    return step


@TABLE
def sizes_in_data(compile: Compile, seen: Seen) -> Step:
    a, b, _ = network()
    last = compile(lambda h: b(h[h.sum(1) > -100]).exp(), fullgraph=True)

    def step(n: int, m: int) -> None:
        last(a(torch.randn(n, 4)) * 2).sum().backward()
        seen.extend(gradients(a, b))

    return step


def trained(name: str, sizes: list[tuple[int, int]]) -> Callable[[Compile, Seen], None]:
    def program(compile: Compile, seen: Seen) -> None:
        step = TABLE[name](compile, seen)
        for size in sizes:
            before = len(seen)
            step(*size)
            seen[before:] = [one.clone() if isinstance(one, Tensor) else one for one in seen[before:]]

    return program


# Where a Function cuts the backward in pieces.
PIECES = {"with_a_function": 2}


@pytest.mark.parametrize("name", TABLE)
def test_two_captures_for_all_sizes(name: str) -> None:
    program = trained(name, SIZES)
    compare(run(program, magneto.compile, captured=True), run(program, identity))
    stats = magneto.stats()
    assert stats["eager_backwards"] == {}
    assert (stats["whole_backwards"], stats["whole_backward_runs"]) == (2 * PIECES.get(name, 1), len(SIZES))


SPECIAL = [(3, 5), (4, 6), (1, 7), (5, 3), (6, 3), (4, 4), (2, 9), (1, 3)]


@pytest.mark.parametrize("name", sorted(TABLE.keys() - {"places_that_vary", "sizes_in_data", "variances"}))
def test_sizes_of_one_and_equal_ones(name: str) -> None:
    """What a program assumes of sizes is a guard: another one computes what does not fit."""
    program = trained(name, SPECIAL)
    compare(run(program, magneto.compile, captured=True), run(program, identity))
    assert magneto.stats()["eager_backwards"] == {}


def questions(compile: Compile, seen: Seen) -> None:
    """Operators that do otherwise for some sizes."""
    a, b, _ = network()
    first = compile(lambda x: torch.tanh(a(x)))
    for n, m in [(3, 4), (5, 6), (1, 6), (5, 1), (1, 1), (0, 3), (4, 0), (6, 6), (7, 2), (2, 7)]:
        h = b(first(torch.randn(n, m, 4)))
        wide = h + h[:, :1].squeeze(1).unsqueeze(1) + h.squeeze(0).sum() + h[: n // 2].sum()
        rows = wide.reshape(-1, 8).expand(max(2, 1), n * m, 8).sum(0)
        (rows * torch.ones(n * m, 1)).sum().backward()
        seen += [one.clone() for one in gradients(a, b) if one is not None]


def test_sizes_that_operators_ask_about() -> None:
    with magneto.config.patch(strict=False):
        compare(run(questions, magneto.compile, captured=True), run(questions))


DYNAMIC = {True: 1, None: 2, False: 4}


@pytest.mark.parametrize("dynamic", DYNAMIC)
def test_dynamic_of_a_block(dynamic: bool | None) -> None:
    program = trained("operators_alone", [(5, 5), (6, 5), (7, 5), (9, 5), (7, 5)])
    want = run(program)
    torch.manual_seed(0)
    seen: Seen = []
    with compiled_autograd._block(None, dynamic):
        program(identity, seen)
    compare(seen, want)
    assert magneto.stats()["whole_backwards"] == DYNAMIC[dynamic]


@pytest.mark.parametrize("setting", [{"automatic_dynamic_shapes": False}, {"assume_static_by_default": False}])
def test_settings_of_the_forward(setting: dict[str, bool]) -> None:
    program = trained("operators_alone", [(5, 5), (6, 5), (7, 5), (9, 5), (7, 5)])
    with magneto.config.patch(**setting):
        compare(run(program, captured=True), run(program))
    assert magneto.stats()["whole_backwards"] == (1 if "assume_static_by_default" in setting else 4)


def test_a_compiler_gets_sizes() -> None:
    modules: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule) -> Callable[..., Any]:
        modules.append(module)
        return module.forward

    program = trained("pieces", SIZES)
    compare(run(program, magneto.compile, captured=True, compiler=compiler), run(program))
    assert len(modules) == 2
    assert "sizes_1" not in modules[0].code and "sizes_1" in modules[1].code


@pytest.mark.parametrize("backend", ["aot_eager", "eager_numerics", "interpreter"])
def test_backends(backend: str) -> None:
    program = trained("heads", SIZES[:5])
    compare(run(program, magneto.compile, captured=True, compiler=sys.intern(backend)), run(program))
    assert magneto.stats()["whole_backwards"] == 2
