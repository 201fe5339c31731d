"""Compiled autograd: a backward over several compiled functions and eager operators between them is one program.

Each program runs twice: all in eager, and with its functions compiled and its backwards captured.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from whole_backwards import Compile, Program, Seen, compare, gradients, identity, network, run

import magneto
from magneto import _C
from magneto._install import compiled_autograd


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    yield
    compiled_autograd.give_back()


class Pieces:
    """Two compiled pieces around an eager one."""

    def __init__(self, compile: Compile) -> None:
        self.layers = network()
        a, b, c = self.layers
        self.first = compile(lambda x: nn.functional.gelu(a(x)))
        self.last = compile(lambda x: torch.softmax(c(x), -1))
        self.between = b

    def __call__(self, x: Tensor) -> Tensor:
        return (self.last(torch.tanh(self.between(self.first(x))) * 2) ** 2).sum()

    def parameters(self) -> list[nn.Parameter]:
        return [p for layer in self.layers for p in layer.parameters()]

    def gradients(self) -> list[Tensor | None]:
        return gradients(*self.layers)


def pieces_with_eager_between(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    pieces(torch.randn(5, 4)).backward()
    seen += pieces.gradients()


def only_eager_operators(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    x = torch.randn(5, 4, requires_grad=True)
    nn.functional.cross_entropy(c(torch.relu(b(a(x).sigmoid()))), torch.tensor([0, 1, 2, 0, 1])).backward()
    seen += [x.grad, *gradients(a, b, c)]


def one_piece_twice(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    piece = compile(lambda x: torch.tanh(b(x)))
    piece(piece(a(torch.randn(5, 4))).exp()).sum().backward()
    seen += gradients(a, b)


def accumulation(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    for _ in range(3):
        (pieces(torch.randn(5, 4)) / 3).backward()
    seen += pieces.gradients()


def steps_of_an_optimizer(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    optimizer = torch.optim.SGD(pieces.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        optimizer.zero_grad()
        loss = pieces(torch.randn(5, 4))
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    seen += pieces.gradients()


def retained_graph(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    loss = pieces(torch.randn(5, 4))
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    seen += pieces.gradients()
    with pytest.raises(RuntimeError) as raised:
        loss.backward()
    seen.append("backward through the graph a second time" in str(raised.value))


def hooks_of_leaves(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    for number, parameter in enumerate(pieces.parameters()):
        parameter.register_hook(lambda gradient, number=number: seen.append(("hook", number)) or gradient * 2)
        parameter.register_post_accumulate_grad_hook(
            lambda leaf, number=number: seen.append(("accumulated", number, leaf.grad is not None))
        )
    pieces(torch.randn(5, 4)).backward()
    pieces(torch.randn(5, 4)).backward()
    seen += pieces.gradients()


def optimizer_in_hooks(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in pieces.parameters()}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in pieces.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        pieces(torch.randn(5, 4)).backward()
    seen += [*(p.detach() for p in pieces.parameters()), *pieces.gradients()]


def buckets_as_in_ddp(compile: Compile, seen: Seen) -> None:
    """Hooks behind the nodes that accumulate, which count gradients, and a callback at the backward's end."""
    pieces = Pieces(compile)
    bucket: list[int] = []
    nodes = []

    def ready(number: int) -> None:
        if not bucket:
            torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(("all", sorted(bucket))))
        bucket.append(number)

    for number, parameter in enumerate(pieces.parameters()):
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, number=number: ready(number))
        nodes.append(node)
    pieces(torch.randn(5, 4)).backward()
    seen += [*bucket, *pieces.gradients()]


def some_inputs(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    some = pieces.parameters()[2:4]
    pieces(torch.randn(5, 4)).backward(inputs=some)
    seen += [g is None for g in pieces.gradients()]
    seen += [p.grad for p in some]


def grad_of_leaves(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    x = torch.randn(5, 4, requires_grad=True)
    seen += torch.autograd.grad(pieces(x), [x, *pieces.parameters()])
    seen += [g is None for g in pieces.gradients()]


def grad_of_what_is_no_leaf(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(b(h)).sum())
    h = first(torch.randn(5, 4)) * 3
    seen += torch.autograd.grad(last(h), [h, b.weight])


def unused_input(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    x, other = torch.randn(5, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    seen += torch.autograd.grad(pieces(x), [x, other], allow_unused=True)
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(pieces(x), [x, other])


def several_roots(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    piece = compile(lambda x: torch.tanh(a(x)))
    h = piece(torch.randn(5, 4))
    torch.autograd.backward([b(h).sum(), (h * h).mean(), h], [None, torch.tensor(2.0), torch.ones(5, 8)])
    seen += gradients(a, b)


def given_tangent(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    piece = compile(lambda x: b(torch.tanh(a(x))))
    tangent = torch.randn(8, 5).t()
    piece(torch.randn(5, 4)).add(1).backward(tangent)
    seen += [tangent, *gradients(a, b)]


def a_sum_of_leaves(compile: Compile, seen: Seen) -> None:
    """One gradient for two leaves, and for the program: none of them shares its memory."""
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    tangent = torch.ones(3)
    (x + y).backward(tangent)
    x.grad += 1
    seen += [x.grad, y.grad, tangent]


def graph_breaks(compile: Compile, seen: Seen) -> None:
    a, b, c = network()

    def broken(x: Tensor) -> Tensor:
        h = torch.tanh(a(x))
        seen.append("between")
        print(end="")
        return c(torch.relu(b(h))).sum()

    compiled = compile(broken)
    for _ in range(2):
        compiled(torch.randn(5, 4)).backward()
    seen += gradients(a, b, c)


def step_with_its_backward(compile: Compile, seen: Seen) -> None:
    a, b, c = network()

    def step(x: Tensor) -> Tensor:
        loss = (c(torch.relu(b(torch.tanh(a(x))))) ** 2).mean()
        loss.backward()
        return loss.detach()

    compiled = compile(step)
    for _ in range(3):
        seen.append(compiled(torch.randn(5, 4)))
    seen += gradients(a, b, c)


def sizes_that_vary(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    for rows in (2, 3, 4, 5, 3, 4):
        pieces(torch.randn(rows, 4)).backward()
    seen += pieces.gradients()


def structures_that_vary(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    x = torch.randn(5, 4)
    for power in (1, 2, 3, 2):
        (pieces(x) ** power).backward()
    for scale in (0.5, 0.25):
        nn.functional.leaky_relu(pieces(x), scale).backward()
    seen += pieces.gradients()


def places_of_a_cat(compile: Compile, seen: Seen) -> None:
    """Same results, other offsets: what only the node knows."""
    x = torch.randn(4, requires_grad=True)
    weight = torch.arange(10.0)
    for before in (1, 3):
        (torch.cat([torch.zeros(before), x, torch.zeros(6 - before)]) * weight).sum().backward()
        seen.append(x.grad)
        x.grad = None


def convolutions(compile: Compile, seen: Seen) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    head = compile(lambda h: torch.log_softmax(h[:, :5], 1))
    for _ in range(2):
        nn.functional.nll_loss(head(net(torch.randn(2, 3, 8, 8))), torch.tensor([1, 2])).backward()
    seen += gradients(net)


def attention(compile: Compile, seen: Seen) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    norm = compile(nn.LayerNorm(8))
    table = nn.Embedding(10, 8)
    norm(layer(table(torch.tensor([[1, 2, 3], [4, 5, 1]])))).square().sum().backward()
    seen += gradients(layer, table)


def written_in_place(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    piece = compile(lambda x: torch.tanh(a(x)))
    h = b(piece(torch.randn(5, 4)))
    h.mul_(2)
    h[:, 0] = 0
    h.sum().backward()
    seen += gradients(a, b)


def changed_meanwhile(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    h = torch.tanh(a(torch.randn(5, 4)))
    loss = b(h).sum()
    h.detach().zero_()
    with pytest.raises(RuntimeError) as raised:
        loss.backward()
    seen += [str(raised.value).splitlines()[0], *gradients(a, b)]


def autocast(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    piece = compile(lambda x: torch.tanh(a(x)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = b(piece(torch.randn(5, 4))).float().sum()
    loss.backward()
    seen += [g.bfloat16() for g in gradients(a, b) if g is not None]


def memory_of_gradients(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    x = torch.randn(5, 4)
    pieces(x).backward()
    held = [g.data_ptr() for g in pieces.gradients() if g is not None]
    objects = pieces.gradients()
    versions = [g._version for g in objects if g is not None]
    pieces(x).backward()
    seen += [one is other for one, other in zip(objects, pieces.gradients(), strict=True)]
    seen.append(held == [g.data_ptr() for g in pieces.gradients() if g is not None])
    seen.append([g._version - v for g, v in zip(pieces.gradients(), versions, strict=True) if g is not None])


class Signed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2


def custom_function(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).sum())
    last(torch.relu(b(Signed.apply(first(torch.randn(5, 4)) * 3)))).backward()
    seen += gradients(a, b, c)


def hook_inside(compile: Compile, seen: Seen) -> None:
    a, b, c = network()
    first, last = compile(lambda x: torch.tanh(a(x))), compile(lambda h: torch.exp(c(h)).sum())
    h = first(torch.randn(5, 4)) * 3
    h.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    last(torch.relu(b(h))).backward()
    seen += gradients(a, b, c)


def retained_gradient(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    h = compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4)) * 3
    h.retain_grad()
    b(h).sum().backward()
    seen += [h.grad, *gradients(a, b)]


def hooks_of_modules(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    b.register_full_backward_hook(lambda _, inputs, outputs: seen.append(inputs[0]) or (inputs[0] * 2,))
    b(compile(lambda x: torch.tanh(a(x)))(torch.randn(5, 4))).sum().backward()
    seen += gradients(a, b)


PROGRAMS: dict[Program, tuple[int, int]] = {
    # programs that are made, backwards that they compute
    pieces_with_eager_between: (1, 1),
    only_eager_operators: (1, 1),
    one_piece_twice: (1, 1),
    accumulation: (1, 3),
    steps_of_an_optimizer: (1, 4),
    retained_graph: (1, 3),
    hooks_of_leaves: (1, 2),
    optimizer_in_hooks: (1, 3),
    buckets_as_in_ddp: (1, 1),
    some_inputs: (1, 1),
    grad_of_leaves: (1, 1),
    grad_of_what_is_no_leaf: (1, 1),
    several_roots: (1, 1),
    given_tangent: (1, 1),
    a_sum_of_leaves: (1, 1),
    graph_breaks: (1, 2),
    step_with_its_backward: (0, 0),  # a part of the graph
    structures_that_vary: (5, 6),
    places_of_a_cat: (2, 2),
    convolutions: (1, 2),
    attention: (1, 1),
    changed_meanwhile: (0, 0),
    autocast: (1, 1),
    memory_of_gradients: (1, 2),
    # ...in pieces
    custom_function: (2, 1),
    hook_inside: (2, 1),
    retained_gradient: (2, 1),
    hooks_of_modules: (3, 1),
}


ORDERED = {hooks_of_leaves, buckets_as_in_ddp}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_backward_is_one_program(program: Program) -> None:
    # Of the leaves of a compiled function another one may come first than in eager.
    want = run(program, magneto.compile if program in ORDERED else identity)
    compare(run(program, magneto.compile, captured=True), want)
    stats = magneto.stats()
    assert (stats["whole_backwards"], stats["whole_backward_runs"]) == PROGRAMS[program]
    assert stats["eager_backwards"] == {}


def checkpointed(compile: Compile, seen: Seen) -> None:
    from torch.utils.checkpoint import checkpoint

    a, b, c = network()
    piece = compile(lambda h: torch.exp(c(h)).sum())
    for reentrant in (False, True):
        x = torch.randn(5, 4, requires_grad=True)
        h = checkpoint(lambda x: torch.tanh(b(torch.tanh(a(x)))), x, use_reentrant=reentrant)
        piece(h * 2).backward()
        seen.append(x.grad)
    seen += gradients(a, b, c)


def saved_on_cpu(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    with torch.autograd.graph.save_on_cpu():
        loss = b(torch.tanh(a(torch.randn(5, 4)))).sum()
    loss.backward()
    seen += gradients(a, b)


def gradients_of_gradients(compile: Compile, seen: Seen) -> None:
    a, b, _ = network()
    x = torch.randn(5, 4, requires_grad=True)
    (first,) = torch.autograd.grad(compile(lambda x: torch.tanh(b(torch.tanh(a(x)))).sum())(x), x, create_graph=True)
    first.square().sum().backward()
    seen += [x.grad, *gradients(a, b)]


def sparse_gradients_that_are_added(compile: Compile, seen: Seen) -> None:
    table = nn.Embedding(10, 4, sparse=True)
    compile(torch.tanh)(table(torch.tensor([1, 2, 1])) * table(torch.tensor([3, 1, 2]))).sum().backward()
    seen.append(table.weight.grad.to_dense())


def batched_gradients(compile: Compile, seen: Seen) -> None:
    x = torch.randn(3, requires_grad=True)
    y = torch.tanh(x * 2)
    seen += torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


def anomaly_mode(compile: Compile, seen: Seen) -> None:
    pieces = Pieces(compile)
    with torch.autograd.detect_anomaly(check_nan=False):
        pieces(torch.randn(5, 4)).backward()
    seen += pieces.gradients()


def under_autocast(compile: Compile, seen: Seen) -> None:
    """Formulas of the engine multiply in bfloat16 there."""
    a, b, _ = network()
    loss = b(torch.tanh(a(torch.randn(5, 4)))).square().sum()
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    seen += gradients(a, b)


LEFT: dict[Program, str] = {
    under_autocast: "autocast",
    checkpointed: "hooks on saved tensors",
    saved_on_cpu: "hooks on saved tensors",
    gradients_of_gradients: "create_graph=True",
    anomaly_mode: "anomaly mode",
    batched_gradients: "gradients that are no plain tensors of the CPU",
    sparse_gradients_that_are_added: "aten.add.Tensor reads the sparse gradient",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", LEFT, ids=lambda program: program.__name__)
def test_what_is_left_to_the_engine(program: Program) -> None:
    want = run(program)
    with magneto.config.patch(strict=False):
        compare(run(program, magneto.compile, captured=True), want)
    causes = magneto.stats()["eager_backwards"]
    assert any(cause.startswith(LEFT[program]) for cause in causes), causes


def test_what_is_left_is_said_once_and_an_error_in_strict_mode() -> None:
    with magneto.config.patch(strict=False), pytest.warns(RuntimeWarning, match="hooks on saved tensors") as said:
        for _ in range(2):
            run(saved_on_cpu, magneto.compile, captured=True)
    assert len(said) == 1
    with pytest.raises(magneto.exc.Unsupported, match="compiled autograd, in strict mode: hooks on saved tensors"):
        run(saved_on_cpu, magneto.compile, captured=True)


def test_sizes_that_vary_have_one_program() -> None:
    """...and the first one its own."""
    want = run(sizes_that_vary)
    compare(run(sizes_that_vary, magneto.compile, captured=True), want)
    assert magneto.stats()["whole_backwards"] == 2


def test_many_numbers() -> None:
    """Floats have programs of their own, and further ones get none."""

    def program(compile: Compile, seen: Seen) -> None:
        pieces = Pieces(compile)
        for slope in (*range(2, 14), 2, 3):
            nn.functional.leaky_relu(pieces(torch.randn(5, 4)), slope / 16).backward()
        seen += pieces.gradients()

    with magneto.config.patch(strict=False), pytest.warns(RuntimeWarning, match="sizes or numbers that vary much"):
        compare(run(program, magneto.compile, captured=True), run(program))
    stats = magneto.stats()
    assert stats["whole_backwards"] == 8 <= stats["whole_backward_runs"]


def test_a_hook_that_raises() -> None:
    def program(compile: Compile, seen: Seen) -> None:
        pieces = Pieces(compile)
        hook = pieces.parameters()[3].register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pieces(torch.randn(5, 4)).backward()
        hook.remove()
        pieces(torch.randn(5, 4)).backward()
        seen += pieces.gradients()[:4]

    got, want = run(program, magneto.compile, captured=True), run(program, magneto.compile)
    compare(got, want)


def test_a_backward_in_a_hook_and_on_another_thread() -> None:
    def program(compile: Compile, seen: Seen) -> None:
        pieces, others = Pieces(compile), Pieces(compile)
        x = torch.randn(5, 4)

        def nested(_: Tensor) -> None:
            with torch.enable_grad():
                others(x).backward()

        pieces.parameters()[0].register_hook(nested)
        thread = threading.Thread(target=lambda: pieces(x).backward())
        thread.start()
        thread.join()
        seen += [*pieces.gradients(), *others.gradients()]

    want = run(program)
    _C.compile_all_backwards(True)
    compiled_autograd._stand_in()
    compare(run(program, magneto.compile), want)
    assert magneto.stats()["whole_backward_runs"] == 2


def test_modes_and_deterministic_algorithms() -> None:
    pieces = Pieces(magneto.compile)
    with compiled_autograd._block(None):
        with magneto.config.patch(strict=False), pytest.warns(RuntimeWarning, match="a dispatch mode"):
            from torch.utils.flop_counter import FlopCounterMode

            loss = pieces(torch.randn(5, 4))
            with FlopCounterMode(display=False) as counter:
                loss.backward()
        assert counter.get_total_flops() > 0
        for _ in range(2):
            pieces(torch.randn(5, 4)).backward()
        torch.use_deterministic_algorithms(True)
        try:
            pieces(torch.randn(5, 4)).backward()
        finally:
            torch.use_deterministic_algorithms(False)
    assert magneto.stats()["whole_backwards"] == 2


class Probe:
    """Lives as long as the node that has it."""


def test_nodes_go_with_their_backward() -> None:
    pieces = Pieces(magneto.compile)
    probes = weakref.WeakSet[Probe]()
    with compiled_autograd._block(None):
        for _ in range(3):
            loss = pieces(torch.randn(5, 4))
            probes.add(probe := Probe())
            loss.grad_fn.metadata["probe"] = probe
            loss.backward()
            del loss, probe
    gc.collect()
    assert not probes and magneto.stats()["whole_backward_runs"] == 3


@pytest.mark.parametrize("backend", ["magneto", "aot_eager", "eager_numerics", "interpreter"])
def test_backends(backend: str) -> None:
    for program in (pieces_with_eager_between, convolutions, attention):
        compare(run(program, magneto.compile, captured=True, compiler=sys.intern(backend)), run(program))
    assert magneto.stats()["whole_backwards"] == 3


def test_the_compiler_of_a_block_gets_a_module() -> None:
    modules: list[torch.fx.GraphModule] = []

    def compiler(module: torch.fx.GraphModule) -> Callable[..., Any]:
        modules.append(module)
        return module.forward

    for program in (pieces_with_eager_between, steps_of_an_optimizer, hooks_of_leaves):
        want = run(program, magneto.compile)
        modules.clear()
        compare(run(program, magneto.compile, captured=True, compiler=compiler), want)
        (module,) = modules  # for all steps
        assert "torch.ops.aten.mm.default" in module.code and "inputs_1" in module.code
