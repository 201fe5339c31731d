"""Embeddings whose gradient is sparse train in one compiled graph; what else reads such a gradient is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from program_table import ProgramTable
from torch import Tensor, nn
from torch.nn import functional as F

import magneto
from magneto._install import compiled_autograd

Loss = Callable[[Tensor], Any]
Program = Callable[[], tuple[Loss, list[Tensor]]]
TABLE = ProgramTable()  # by name: what makes a loss of indices, and the parameters
BATCHES = [torch.tensor([[1, 2, 2], [4, 1, 0]]), torch.tensor([[5, 5, 3], [0, 0, 2]]), torch.tensor([[1, 6, 2]])]


def a_layer(**options: Any) -> Program:
    def program() -> tuple[Loss, list[Tensor]]:
        table, last = nn.Embedding(7, 3, sparse=True, **options), nn.Linear(3, 2).to(options.get("dtype"))
        return lambda i: last(table(i)).sin().sum(), [table.weight, *last.parameters()]

    return program


def bags(**options: Any) -> Program:
    def program() -> tuple[Loss, list[Tensor]]:
        table, last = nn.EmbeddingBag(7, 3, sparse=True, **options), nn.Linear(3, 2)
        return lambda i: last(table(i)).sin().sum(), [table.weight, *last.parameters()]

    return program


TABLE["a_layer"] = a_layer()
TABLE["padded"] = a_layer(padding_idx=2)
TABLE["of_bounded_norm"] = a_layer(max_norm=0.5)
TABLE["of_doubles"] = a_layer(dtype=torch.float64)
TABLE["sums_of_bags"] = bags(mode="sum")
TABLE["means_of_bags"] = bags(mode="mean")
TABLE["padded_bags"] = bags(mode="sum", padding_idx=2)


@TABLE
def a_function() -> tuple[Loss, list[Tensor]]:
    weight = torch.randn(7, 3, requires_grad=True)
    return lambda i: F.embedding(i, weight, sparse=True).exp().mean(), [weight]


@TABLE
def computed_indices() -> tuple[Loss, list[Tensor]]:
    weight = torch.randn(7, 3, requires_grad=True)
    return lambda i: F.embedding((i * 2 + 1) % 7, weight, sparse=True).exp().mean(), [weight]


@TABLE
def a_gradient_of_a_result_alone() -> tuple[Loss, list[Tensor]]:
    """What comes back is the sum's expanded gradient."""
    weight = torch.randn(7, 3, requires_grad=True)
    return lambda i: F.embedding(i, weight, sparse=True).sum(), [weight]


@TABLE
def weighed_bags() -> tuple[Loss, list[Tensor]]:
    weight, scale = torch.randn(7, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)

    def loss(i: Tensor) -> Tensor:
        weights = scale[: i.shape[0]]
        return F.embedding_bag(i, weight, mode="sum", sparse=True, per_sample_weights=weights).sin().sum()

    return loss, [weight, scale]


@TABLE
def bags_with_offsets() -> tuple[Loss, list[Tensor]]:
    table = nn.EmbeddingBag(7, 3, sparse=True)
    starts = torch.tensor([0, 2])
    return lambda i: table(i.flatten(), starts).tanh().sum(), [table.weight]


@TABLE
def two_tables() -> tuple[Loss, list[Tensor]]:
    users, items = nn.Embedding(7, 4, sparse=True), nn.Embedding(7, 4, sparse=True)
    return lambda i: (users(i) * items(i.flip(1))).sum(-1).sigmoid().sum(), [users.weight, items.weight]


def looked_at(gradient: Tensor | None) -> Any:
    if gradient is None or not gradient.is_sparse:
        return gradient if gradient is None else gradient.clone()
    return (gradient.is_coalesced(), gradient.shape, gradient._indices().clone(), gradient._values().clone())


def gradients_of(program: Program, compile: Callable[[Loss], Loss]) -> list[Any]:
    torch.manual_seed(0)
    loss, parameters = program()
    compiled, seen = compile(loss), []
    for i in BATCHES:
        for parameter in parameters:
            parameter.grad = None
        compiled(i).backward()
        seen.append([looked_at(parameter.grad) for parameter in parameters])
    # Twice through one graph, and added to what is there.
    result = compiled(BATCHES[0])
    result.backward(retain_graph=True)
    result.backward()
    seen.append([looked_at(parameter.grad) for parameter in parameters])
    return seen + [parameter.detach().clone() for parameter in parameters]


@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize("name", TABLE)
def test_gradients_are_eagers(name: str, backend: str) -> None:
    program = TABLE[name]
    got = gradients_of(program, lambda loss: magneto.compile(loss, backend=backend))
    stats = magneto.stats()
    assert stats["joint_graphs"] > 0 and stats["no_joint"] == {}
    torch.testing.assert_close(got, gradients_of(program, lambda loss: loss))


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "sparse_adam": lambda weights: torch.optim.SparseAdam(weights, lr=0.1),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    def trained(compile: Callable[[Loss], Loss]) -> list[Tensor]:
        torch.manual_seed(0)
        loss, weights = TABLE["two_tables"]()
        optimizer, compiled = OPTIMIZERS[name](weights), compile(loss)
        for _ in range(2):
            for i in BATCHES:
                optimizer.zero_grad()
                compiled(i).backward()
                optimizer.step()
        return [weight.detach() for weight in weights]

    torch.testing.assert_close(trained(magneto.compile), trained(lambda loss: loss))
    assert magneto.stats()["no_joint"] == {}


def test_the_gradient_has_memory_of_its_own() -> None:
    """The next backward computes in the memory of the last one."""
    weight = torch.randn(7, 3, requires_grad=True)
    compiled: Any = magneto.compile(lambda i: F.embedding(i * 1, weight, sparse=True).exp().sin().sum())
    kept: list[tuple[Any, Tensor]] = []
    for i in BATCHES[:2]:
        weight.grad = None
        compiled(i).backward()
        assert weight.grad is not None
        kept.append((weight.grad, weight.grad.to_dense()))
    assert all(torch.equal(gradient.to_dense(), dense) for gradient, dense in kept)


READ: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "two_calls": lambda i, w: (F.embedding(i, w, sparse=True) + F.embedding(i + 1, w, sparse=True)).sin().sum(),
    "tied": lambda i, w: (F.embedding(i, w, sparse=True) @ w.T).sin().sum(),
}


@pytest.mark.parametrize("name", READ)
def test_what_reads_the_gradient_has_no_joint_graph(name: str) -> None:
    def gradient(compile: Callable[[Any], Any]) -> Tensor:
        torch.manual_seed(0)
        weight = torch.randn(7, 3, requires_grad=True)
        compile(READ[name])(BATCHES[0], weight).backward()
        assert weight.grad is not None
        return weight.grad

    with magneto.config.patch(strict=False), pytest.warns(RuntimeWarning, match="reads the sparse gradient"):
        got = gradient(magneto.compile)
    want = gradient(lambda loss: loss)
    assert got.layout == want.layout
    torch.testing.assert_close(got.to_dense(), want.to_dense())


def test_scaled_by_frequencies_raises_as_in_eager() -> None:
    weight = torch.randn(7, 3, requires_grad=True)

    def loss(i: Tensor) -> Tensor:
        return F.embedding(i, weight, scale_grad_by_freq=True, sparse=True).sum()

    with magneto.config.patch(strict=False):
        result: Any = magneto.compile(loss)(BATCHES[0])
    with pytest.raises(RuntimeError, match="scale_grad_by_freq not supported with sparse gradients"):
        result.backward()


def test_compiled_autograd() -> None:
    def trained() -> list[Any]:
        torch.manual_seed(0)
        table, last, seen = nn.Embedding(7, 3, sparse=True), nn.Linear(3, 2), []
        for i in BATCHES:
            table.weight.grad = None
            last(table(i)).sin().sum().backward()
            seen.append(looked_at(table.weight.grad))
        return seen

    with compiled_autograd._block(None, None):
        got = trained()
    stats = magneto.stats()
    assert stats["whole_backwards"] > 0 and stats["eager_backwards"] == {}
    torch.testing.assert_close(got, trained())


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_whole_step_has_two_exits(name: str, backend: str) -> None:
    """One for backward(), one for step() with all that it calls; in two captures."""

    def trained(wrap: Callable[[Any], Any]) -> list[Tensor]:
        torch.manual_seed(0)
        table, last = nn.Embedding(7, 3, sparse=True), nn.Linear(3, 2)
        sparse, dense = OPTIMIZERS[name]([table.weight]), torch.optim.SGD(last.parameters(), lr=0.1)

        def step(i: Tensor) -> Tensor:
            for optimizer in (sparse, dense):
                optimizer.zero_grad()
            loss = last(table(i)).sin().square().sum()
            loss.backward()
            for optimizer in (sparse, dense):
                optimizer.step()
            return loss.detach()

        step = wrap(step)
        losses = [step(i) for i in (*BATCHES, *BATCHES)]
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        return [*losses, table.weight.detach(), last.weight.detach()]

    torch.testing.assert_close(trained(lambda f: magneto.compile(f, backend=backend)), trained(lambda f: f))
    assert magneto.stats()["breaks"] <= 4 and magneto.stats()["recompiles"] <= 3


def test_whether_there_is_one_is_known() -> None:
    weight = torch.ones(4, 2, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        if weight.grad is not None:
            return x * 2 if weight.grad is None else x * 3
        return x - 1

    compiled = magneto.compile(program)
    for gradient in (None, torch.eye(4, 2).to_sparse(), torch.eye(4, 2), torch.eye(4, 2).to_sparse(), None):
        weight.grad = gradient
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
    assert magneto.stats()["breaks"] == 0
