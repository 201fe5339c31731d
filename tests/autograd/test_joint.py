"""Results that require gradients, computed by compiled code with gradients that are compiled, too."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import magneto

Program = Callable[..., Tensor | tuple[Tensor, ...]]


def module(*layers: nn.Module) -> nn.Module:
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).tanh()
        return self.a(hidden), self.b(hidden)


PROGRAMS: dict[str, tuple[Callable[[], Program], tuple[tuple[int, ...], ...]]] = {
    "scale": (lambda: lambda x: x * 2, ((4,),)),
    "product": (lambda: lambda x, y: x @ y, ((3, 4), (4, 2))),
    "two_results": (lambda: lambda x, y: (x @ y, x.sum() * y), ((3, 3), (3, 3))),
    "broadcast": (lambda: lambda x, y: x.sin() * y + y.exp(), ((3, 4), (4,))),
    "views": (lambda: lambda x: x.view(2, 6).t()[1:].reshape(5, 2).cumsum(0), ((3, 4),)),
    "transposed_result": (lambda: lambda x: (x * 3).t().contiguous().t(), ((3, 4),)),
    "one_value_twice": (lambda: lambda x: x * x.detach() + x, ((5,),)),
    "linear": (lambda: module(nn.Linear(4, 5)), ((3, 4),)),
    "perceptron": (
        lambda: module(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4)),
        ((3, 8),),
    ),
    "in_place": (lambda: module(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)), ((3, 4),)),
    "dropout": (lambda: module(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)), ((3, 8),)),
    "images": (lambda: module(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), ((2, 3, 8, 8),)),
    "recurrent": (lambda: lambda x, w: torch.stack([x := torch.tanh(x @ w) for _ in range(4)]), ((2, 3), (3, 3))),
    "heads": (Heads, ((3, 4),)),
    "cross_entropy": (lambda: lambda x: nn.functional.cross_entropy(x, torch.arange(4)), ((4, 7),)),
}


def parameters(program: Program) -> list[nn.Parameter]:
    return list(program.parameters()) if isinstance(program, nn.Module) else []


def run(program: Program, weights: list[nn.Parameter], inputs: list[Tensor]) -> list[Tensor | None]:
    """Results, gradients of inputs and weights, and what the random state is afterwards."""
    for weight in weights:
        weight.grad = None
    leaves = [x.clone().requires_grad_() for x in inputs]
    torch.manual_seed(5)
    results = program(*leaves)
    results = (results,) if isinstance(results, Tensor) else results
    sum(result.sin().sum() for result in results).backward()
    return [*(r.detach() for r in results), *(x.grad for x in leaves), *(w.grad for w in weights), torch.rand(1)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, backend: str, dynamic: bool | None) -> None:
    make, shapes = PROGRAMS[name]
    program = make()
    compiled = magneto.compile(program, backend=backend, dynamic=dynamic)
    for _ in range(2):
        inputs = [torch.randn(shape) for shape in shapes]
        expected, given = (run(p, parameters(program), inputs) for p in (program, compiled))
        for i, (a, b) in enumerate(zip(expected, given, strict=True)):
            assert (a is None) == (b is None), i
            if a is None or b is None:
                continue
            assert a.stride() == b.stride()
            if backend == "aot_eager":
                assert torch.equal(a, b), i
            else:
                torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
    stats = magneto.stats()
    assert stats["joint_graphs"] and not stats["no_joint"]


def test_backwards_of_unrelated_results_are_apart() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, (x + w).sum()

    x, w = torch.randn(3), torch.randn(3, requires_grad=True)
    first, second = magneto.compile(f, backend="aot_eager")(x, w)
    second.backward()
    first.sum().backward()
    assert torch.equal(w.grad, 1 + x)


def test_a_second_backward_raises_as_in_eager() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() * x

    for program in (f, magneto.compile(f)):
        loss = program(torch.randn(3, requires_grad=True)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_a_saved_input_that_is_written_is_an_error() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sum()

    for program in (f, magneto.compile(f)):
        x, w = torch.randn(3), torch.randn(3, requires_grad=True)
        loss = program(x, w)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_retained_and_stopped_gradients() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, w.exp()

    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a, b = magneto.compile(f)(x, w)
    for _ in range(2):
        gradients = torch.autograd.grad(a.sum(), (x, w), retain_graph=True)
        torch.testing.assert_close(gradients, (w.detach(), x.detach()))
    assert torch.autograd.grad(b.sum(), x, allow_unused=True) == (None,)


def test_gradients_of_gradients() -> None:
    def f(x: Tensor) -> Tensor:
        return (x**3).sum()

    x = torch.randn(4, requires_grad=True)
    (first,) = torch.autograd.grad(magneto.compile(f)(x), x, create_graph=True)
    torch.testing.assert_close(first, 3 * x**2)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_a_penalty_on_gradients_through_running_statistics() -> None:
    """The torch level runs again for it, which must not count the batch a second time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    other = copy.deepcopy(model)
    x = torch.randn(6, 4)
    for program in (model, magneto.compile(other)):
        given = x.clone().requires_grad_()
        for _ in range(2):
            (slope,) = torch.autograd.grad(program(given).sum(), given, create_graph=True)
            ((slope.norm(dim=1) - 1) ** 2).mean().backward()
    assert magneto.stats()["joint_graphs"] == 1
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    for mine, theirs in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


BLOCKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Tensor]]] = {
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
        lambda batch, length: torch.randn(batch, length, 16),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 5),
        ),
        lambda batch, length: torch.randn(batch, 3, 2 * length, 2 * length + 2),
    ),
    "statistics of batches": (
        lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 4, 3)),
        lambda batch, length: torch.randn(batch, 3, length),
    ),
    "embeddings": (
        lambda: nn.Sequential(nn.Embedding(20, 8), nn.LayerNorm(8), nn.Linear(8, 20), nn.LogSoftmax(-1)),
        lambda batch, length: torch.randint(0, 20, (batch, length)),
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_one_capture_for_all_sizes(name: str) -> None:
    make, inputs = BLOCKS[name]
    model = make()
    other = copy.deepcopy(model)
    compiled = magneto.compile(other, dynamic=True)
    for batch, length in ((5, 6), (4, 9), (7, 8)):
        x = inputs(batch, length)
        results = []
        for program in (model, compiled):
            given = x.clone().requires_grad_(x.is_floating_point())
            (program(given) ** 2).mean().backward()
            results.append(given.grad)
        torch.testing.assert_close(results[1], results[0])
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert (magneto.stats()["graphs"], magneto.stats()["joint_graphs"]) == (1, 1), magneto.stats()


def test_nothing_is_kept_after_many_steps() -> None:
    layer = nn.Linear(4, 4)
    compiled = magneto.compile(layer)
    x = torch.randn(2, 4)
    for _ in range(20):
        compiled(x).sum().backward()
    last = compiled(x)
    node = last.grad_fn
    assert node is not None and node.name() == "CompiledFunctionBackward"


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_an_int_that_changes_is_a_size(backend: str) -> None:
    """It is an input of the forward that only sizes read: what the trace of the backward adds goes without it."""
    weight = torch.ones(3, requires_grad=True)

    def program(x: Tensor, w: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return (x * weight).cos().sum(), w.expand(k, 3).contiguous()

    compiled = magneto.compile(program, backend=backend)
    for k in (3, 5, 7):
        loss, rows = compiled(torch.ones(4, 3), torch.ones(3), k)
        assert rows.shape == (k, 3)
        loss.backward()
    assert magneto.stats()["graphs"] == 2


def test_training_at_eagers_speed_is_said_once() -> None:
    class SignThatIsNoted(torch.autograd.Function):
        noted: list[str] = []

        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.sign()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            SignThatIsNoted.noted.append("backward")
            return gradient

    x = torch.randn(3, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="no joint graph: a custom autograd.Function .SignThatIsNotedBackward"):
        magneto.compile(lambda x: SignThatIsNoted.apply(x) * 2)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        magneto.compile(lambda x: SignThatIsNoted.apply(x) * 3)(x)
    assert sum(magneto.stats()["no_joint"].values()) == 2


def pooled(x: Tensor, w: Tensor) -> Tensor:
    """Its average is given the strides of channels-last in place."""
    x = nn.functional.conv2d(x, w).to(memory_format=torch.channels_last)
    return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1).sin()


def turned(x: Tensor, w: Tensor) -> Tensor:
    h = x[0, 0] * w.sum()
    row = h[0]
    h.t_()
    return row * 2 + h[0] * w.sum()


def squeezed(x: Tensor, w: Tensor) -> Tensor:
    h = (x * w.sum()).sum((2, 3), keepdim=True)
    h.squeeze_(-1)
    return h.tanh() + h.flip(0)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("program", [pooled, turned, squeezed])
def test_sizes_changed_in_place(program: Callable[[Tensor, Tensor], Tensor], backend: str) -> None:
    compiled = magneto.compile(program, backend=backend)
    for _ in range(2):
        x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 2, 2)
        found = []
        for function in (program, compiled):
            leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            result = function(*leaves)
            result.sin().sum().backward()
            found.append([result.detach(), result.stride(), *(leaf.grad for leaf in leaves)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    stats = magneto.stats()
    assert stats["joint_graphs"] and not stats["no_joint"]


# -- gradients of slices ----------------------------------------------------------------------------------------------

SLICES: dict[str, tuple[Program, tuple[int, ...]]] = {
    "each_step": (lambda x: torch.stack([x[:, t].sin() * t for t in range(x.shape[1])]), (3, 7, 2)),
    "every_second_step": (lambda x: sum(x[:, t].exp() for t in range(0, 7, 2)) * x.sum(), (3, 7, 2)),
    "steps_twice": (lambda x: sum(x[:, t % 5].exp() * x[:, -1 - t % 5] for t in range(9)), (3, 6, 2)),
    "windows": (lambda x: torch.cat([x[..., t : t + 2].cos() for t in range(0, 8, 2)], -1).cumsum(-1), (3, 8)),
    "windows_that_overlap": (lambda x: sum(x[..., t : t + 4].cos() for t in range(5)), (3, 9)),
    "slices_of_slices": (lambda x: sum((x[:, t, k] * k).tanh() for t in range(5) for k in range(4)), (3, 5, 4)),
    "recurrent": (lambda x: (h := x[0] * 0, [h := torch.tanh(h + x[t]) for t in range(6)])[1][-1], (6, 4)),
    "negative_zeros": (lambda x: 1 / sum((x[t] * -0.0 for t in range(4)), torch.zeros(3) + x[0]), (4, 3)),
    "bfloat16": (lambda x: torch.stack([x[t].bfloat16() * t for t in range(5)]).float(), (5, 3)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SLICES)
def test_gradients_of_slices(name: str, dynamic: bool) -> None:
    program, sizes = SLICES[name]
    compiled = magneto.compile(program, fullgraph=True, dynamic=dynamic or None)
    torch.manual_seed(0)
    for _ in range(2):
        x = torch.randn(sizes)
        found = []
        for call in (program, compiled):
            leaf = x.clone().requires_grad_()
            result = call(leaf)
            result.sum().backward()
            found.append((result.detach(), leaf.grad))
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert not magneto.stats()["no_joint"]


def test_the_class_of_a_result_s_node() -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, (y * 3).exp().sum()

    results = magneto.compile(program)(torch.ones(3, requires_grad=True))
    for result in results:
        node = result.grad_fn
        assert type(node).__name__ == node.name() == "CompiledFunctionBackward"
        assert isinstance(node, torch.autograd.graph.Node) and result.grad_fn is node
    called = []
    node.register_prehook(lambda gradients: called.append(len(gradients)))
    results[1].backward()
    assert called == [1]
