"""Every backend over the same programs: results, gradients and state are eager's, and each does what its row says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from compare import Closeness, assert_same
from torch.nn import functional as F

import magneto
from magneto import _C, _backends, _test_settings, exc

BACKENDS = [name for name, _, _ in _C.backend_rows()]
ALL = [*BACKENDS, "callable"]
# Sums are added up in another order by generated kernels.
CLOSE = Closeness(rtol=1e-4, atol=1e-5)


class Program(NamedTuple):
    run: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]


def rand(*sizes: int) -> torch.Tensor:
    return torch.rand(*sizes) + 0.1


def written_input(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    x[0].mul_(2)
    return x.sum(0)


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    return y.t(), y[1:], y


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5) + torch.rand_like(x)


def lists(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return list(torch._foreach_mul([x, y], 3.0))


PROGRAMS = {
    "pointwise": Program(lambda x, y: (x * y + x.sin()).relu() - 1, lambda: (rand(4, 5), rand(5))),
    "reduction": Program(lambda x: (x.softmax(-1), x.mean(0), x.amax()), lambda: (rand(6, 7),)),
    "product": Program(lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: (rand(8, 6), rand(3, 6), rand(3))),
    "norm": Program(lambda x, w: F.layer_norm(x, [6], w), lambda: (rand(4, 6), rand(6))),
    "written input": Program(written_input, lambda: (rand(3, 4),)),
    "views": Program(views, lambda: (rand(3, 4),)),
    "random numbers": Program(dropped, lambda: (rand(16, 16),)),
    "lookup": Program(lambda w, i: F.embedding(i, w).sum(1), lambda: (rand(9, 4), torch.tensor([[1, 2], [8, 0]]))),
    "convolution": Program(
        lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2), lambda: (rand(2, 3, 8, 8), rand(4, 3, 3, 3))
    ),
    "attention": Program(
        F.scaled_dot_product_attention, lambda: (rand(1, 2, 5, 4), rand(1, 2, 5, 4), rand(1, 2, 5, 4))
    ),
    "integers": Program(lambda i: (i // 3, i % 3 == 0, i.cumsum(0)), lambda: (torch.arange(10),)),
    "lists": Program(lists, lambda: (rand(3), rand(4))),
    "a break": Program(lambda x: x + 1 if x.sum().item() > 0 else x - 1, lambda: (rand(5),)),
    "nothing to compute": Program(lambda x: x, lambda: (rand(2),)),
}


def chosen(backend: str) -> Any:
    return (lambda module, inputs: module.forward) if backend == "callable" else backend


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ALL)
def test_results(backend: str, name: str, dynamic: bool) -> None:
    program = PROGRAMS[name]
    inputs = program.inputs()
    compiled = magneto.compile(program.run, backend=chosen(backend), dynamic=dynamic)
    for _ in range(2):
        ours, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        torch.manual_seed(7)
        expected = program.run(*theirs)
        torch.manual_seed(7)
        actual = compiled(*ours)
        assert_same(actual, expected, closeness=CLOSE)
        assert_same(ours, theirs, closeness=CLOSE, path="inputs")
    assert not magneto.stats()["uncompiled"]


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(self.norm(self.first(x)).relu().mean((2, 3)), 0.2, self.training))


@pytest.mark.parametrize("backend", ALL)
def test_training(backend: str) -> None:
    """Losses, gradients, buffers and weights of three steps."""
    torch.manual_seed(1)
    eager = Network()
    ours = copy.deepcopy(eager)
    compiled = magneto.compile(ours, backend=chosen(backend))
    x, y = rand(4, 3, 6, 6), torch.tensor([0, 1, 1, 0])
    losses = []
    for call, model in ((eager, eager), (compiled, ours)):
        torch.manual_seed(2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses.append([])
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert_same(
        [p.grad for p in ours.parameters()], [p.grad for p in eager.parameters()], closeness=CLOSE, path="gradients"
    )
    assert_same(ours.state_dict(), eager.state_dict(), closeness=CLOSE, path="state")


def test_each_does_what_its_row_says() -> None:
    program, inputs = PROGRAMS["product"].run, PROGRAMS["product"].inputs()
    for backend, kernels, externs in (
        ("magneto", True, None),
        ("interpreter", True, None),
        ("aot_eager_decomp_partition", False, {"aten::addmm", "aten::gelu"}),
        ("aot_eager", False, set()),
        ("eager", False, set()),
    ):
        magneto.reset()
        magneto.compile(program, backend=backend)(*inputs)
        stats = magneto.stats()
        assert bool(stats["kernels"]) == kernels, backend
        assert externs is None or set(stats["externs"]) <= externs | {"aten::mm", "aten::add"}, stats["externs"]
        assert bool(stats["externs"]) or externs in (None, set()), backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_joint_graphs_are_those_of_the_row(backend: str) -> None:
    weight = rand(6, 6).requires_grad_()
    loss = magneto.compile(lambda x: (x @ weight).relu().exp().sum(), backend=backend)(rand(4, 6))
    loss.backward()
    stats = magneto.stats()
    assert stats["joint_graphs"] == (backend != "eager") and not stats["autograd_graphs"]


def test_no_machine_code_is_made_where_operators_are_called() -> None:
    with _test_settings.patch(fail_stage="compile.backend.code_generation"), magneto.config.patch(strict=False):
        magneto.compile(PROGRAMS["pointwise"].run, backend="aot_eager")(rand(4, 5), rand(5))
        assert not magneto.stats()["fallbacks"]


def test_names() -> None:
    names = magneto.list_backends()
    assert set(BACKENDS) <= set(names) and "inductor" in names and "callable" not in names
    assert _backends.resolve("inductor") == BACKENDS[0] == "magneto"
    with pytest.raises(exc.InvalidBackend, match="aot_eager_decomp_partition"):
        magneto.compile(lambda x: x, backend="aot_eager_decomp")
    with pytest.raises(ValueError, match="there is no backend"):
        _C.compile(lambda x: x, {"backend": "callable"})
    page = (Path(__file__).parents[1] / "docs" / "modes.md").read_text()
    assert all(f"| `{name}`" in page for name in BACKENDS)


def test_graphs_with_parameters_made_inside_can_be_printed() -> None:
    printed = []

    def backend(module: Any, inputs: Any) -> Any:
        printed.append(module.code + str(module.graph))
        return module.forward

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.Linear(4, 2)(x)

    x = torch.ones(3, 4)
    torch.manual_seed(0)
    expected = program(x)
    torch.manual_seed(0)
    assert_same(magneto.compile(program, backend=backend)(x), expected)
    assert len(printed) == 1 and "linear" in printed[0]
