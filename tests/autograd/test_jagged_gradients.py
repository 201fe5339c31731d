"""Gradients through jagged tensors (torch.nested, layout=torch.jagged), made inside, given and given back: one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from program_table import ProgramTable
from torch.nested._internal import nested_tensor

import magneto

BACKENDS = ("magneto", "aot_eager")
LENGTHS = ((2, 5, 3), (4, 1, 6), (3, 7, 2), (2, 5, 3))

jagged_of: Any = torch.nested.nested_tensor_from_jagged
torch.manual_seed(0)
LAYER = torch.nn.Linear(8, 8)
NORM = torch.nn.LayerNorm(8)
PARAMETERS = [*LAYER.parameters(), *NORM.parameters()]
TABLE = ProgramTable()


@TABLE
def padded(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return jagged_of(v * 2, o).to_padded_tensor(0.5).sin().sum()


@TABLE
def values(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return jagged_of(v, o).sin().values().square()


@TABLE
def pointwise(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    x = jagged_of(v, o)
    return torch.where(x > 0, x, x * 0.1).values() * x.detach().exp().values()


@TABLE
def softmax(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return jagged_of(v, o).softmax(-1).values().square().sum()


@TABLE
def layers(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return F.gelu(LAYER(NORM(jagged_of(v, o)))).values().square().sum()


@TABLE
def saved_results(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return LAYER(jagged_of(v, o)).relu().sigmoid().tanh().exp().values().sum()


@TABLE
def dropout(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return F.dropout(jagged_of(v, o), 0.5).values().square().sum()


@TABLE
def joined_and_cut(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    x = jagged_of(v, o)
    a, b = torch.cat([x, x * 2], dim=-1).chunk(2, -1)
    return (a.sin() * b).mean(-1).values()


@TABLE
def beside_dense(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return (jagged_of(v, o) * LAYER.bias + LAYER.weight.sum()).to_padded_tensor(0.0)


@TABLE
def attention(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    x = jagged_of(v, o)
    heads = [(each * 0.5).unflatten(-1, [2, 4]).transpose(1, 2) for each in (LAYER(x), LAYER(x).sin(), x)]
    return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2).values().square().sum()


@TABLE
def given_back(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    return jagged_of(v, o)


@TABLE
def computed_and_given_back(v: torch.Tensor, o: torch.Tensor) -> Any:
    y = jagged_of(v, o).sin()
    return y, LAYER(y), y._values.requires_grad


@TABLE
def gradient_of_a_factor(v: torch.Tensor, o: torch.Tensor) -> Any:
    return (jagged_of(v, o) @ LAYER.weight).values()


@TABLE
def items(v: torch.Tensor, o: torch.Tensor) -> Any:
    return torch.stack([item.square().sum() for item in jagged_of(v, o).unbind()])


@TABLE
def items_of_two(v: torch.Tensor, o: torch.Tensor) -> torch.Tensor:
    x = LAYER(jagged_of(v, o))
    return torch.stack([a.amax(0) * b.mean(0) for a, b in zip(x.unbind(), x.sin().unbind(), strict=True)])


@TABLE
def gradient_taken_inside(v: torch.Tensor, o: torch.Tensor) -> Any:
    x = jagged_of(v, o).sin()
    (inside,) = torch.autograd.grad(LAYER(x).values().square().sum(), v, retain_graph=True)
    return inside, x.values()


@TABLE
def gradient_inside_goes_on(v: torch.Tensor, o: torch.Tensor) -> Any:
    x = LAYER(jagged_of(v, o)).to_padded_tensor(0.0)
    (inside,) = torch.autograd.grad(x.sin().sum(), v)
    return inside * LAYER.bias.sum()


def numbers(call: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(call))


def parts_given(call: int) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = torch.tensor([0, *LENGTHS[call]]).cumsum(0)
    return numbers(call, sum(LENGTHS[call])).requires_grad_(), offsets


def jagged_given(call: int, leaf: bool = True) -> torch.Tensor:
    items = [numbers(call + i, length) for i, length in enumerate(LENGTHS[call])]
    made = torch.nested.nested_tensor(items, layout=torch.jagged).requires_grad_()
    return made if leaf else made.tanh()


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        assert not value._is_view() or value._base is not None
        inner = value._values.detach(), value._offsets, value._lengths, value._ragged_idx
        return "jagged", value.requires_grad, value.is_leaf, inner, value._metadata_cache.keys()
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def train(function: Callable[..., Any], *given: torch.Tensor) -> Any:
    for parameter in PARAMETERS:
        parameter.grad = None
    torch.manual_seed(5)
    for tensor in given:
        if tensor.requires_grad:
            tensor.retain_grad()
    result = function(*given)
    results = result if isinstance(result, tuple) else (result,)
    loss = torch.zeros(())
    for each in results:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            loss = loss + (each.values() if each.is_nested else each).cos().sum()
    loss.backward()
    return plain(results), plain([tensor.grad for tensor in (*given, *PARAMETERS)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", TABLE)
def test_of_parts(name: str, fullgraph: bool, backend: str) -> None:
    compiled = magneto.compile(TABLE[name], backend=backend, fullgraph=fullgraph)
    for call in range(len(LENGTHS)):
        assert_same(train(compiled, *parts_given(call)), train(TABLE[name], *parts_given(call)))
    assert magneto.stats()["break_reasons"] == magneto.stats()["no_joint"] == magneto.stats()["fallbacks"] == {}
    assert magneto.stats()["recompiles"] <= 1


GIVEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": lambda x: x.sin().values().square(),
    "jagged": lambda x: x.sin() * 2,
    "layers": lambda x: LAYER(NORM(x)).relu(),
    "both": lambda x: (x * 2, x.softmax(-1).to_padded_tensor(0.0)),
    "itself": lambda x: (x, x * 3),
    "half without": lambda x: x.detach().exp() * LAYER(x),
    "inside": lambda x: x * x._values.sum() + x.values().mean(),
    "twice": lambda x: [x + LAYER(x) for _ in range(2)][1] * x,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("name", GIVEN)
def test_of_a_jagged_argument(name: str, leaf: bool, backend: str) -> None:
    compiled = magneto.compile(GIVEN[name], backend=backend, fullgraph=True)
    for call in range(len(LENGTHS)):
        assert_same(train(compiled, jagged_given(call, leaf)), train(GIVEN[name], jagged_given(call, leaf)))
    assert magneto.stats()["recompiles"] <= 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["values", "jagged", "layers", "inside"])
def test_of_a_view_of_plain_values(name: str, backend: str) -> None:
    program = GIVEN[name]
    compiled = magneto.compile(program, backend=backend, fullgraph=True)

    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda v, o: function(jagged_of(v, o).unflatten(-1, [2, 4]).flatten(-2))

    for call in range(len(LENGTHS)):
        assert_same(train(through(compiled), *parts_given(call)), train(through(program), *parts_given(call)))


def test_segments_hand_them_on() -> None:
    """A result of one compiled function is the argument of the next; each of them ends at an exit in between."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = LAYER(x).relu()
        print(end="")
        return NORM(y * 2)

    compiled = magneto.compile(program)
    for call in range(len(LENGTHS)):
        twice = train(lambda x: compiled(compiled(x)), jagged_given(call))
        assert_same(twice, train(lambda x: program(program(x)), jagged_given(call)))
    assert list(magneto.stats()["break_reasons"]) == ["InputOutput: call of builtins.print"]


LEFT = ProgramTable()


@LEFT
def views_of_what_is_given(v: torch.Tensor, o: torch.Tensor) -> Any:
    heads = jagged_of(v, o).unflatten(-1, [2, 4]).transpose(1, 2)
    print(end="")
    return heads.sin()


@LEFT
def shared_memory(v: torch.Tensor, o: torch.Tensor) -> Any:
    y = jagged_of(v, o).sin()
    return y, y.detach()


@LEFT
def written(v: torch.Tensor, o: torch.Tensor) -> Any:
    return (jagged_of(v * 1, o) * 1).mul_(2)


@LEFT
def leaf_made_inside(v: torch.Tensor, o: torch.Tensor) -> Any:
    return jagged_of(v, o).sin().detach().requires_grad_()


@pytest.mark.parametrize("name", LEFT)
def test_what_ends_the_segment_is_as_in_eager(name: str) -> None:
    compiled = magneto.compile(LEFT[name])
    for call in range(len(LENGTHS)):
        assert_same(train(compiled, *parts_given(call)), train(LEFT[name], *parts_given(call)))
    assert magneto.stats()["break_reasons"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_step_is_one_graph(backend: str) -> None:
    def train_with(wrap: Callable[..., Any]) -> Any:
        torch.manual_seed(3)
        layer, head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            items = [F.cross_entropy(head(item).mean(0), label) for item, label in zip(layer(x).unbind(), labels)]
            loss = torch.stack(items).sum() + layer(x).relu().to_padded_tensor(0.0).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, labels = wrap(step), torch.tensor([0, 2, 1])
        losses = [run(jagged_given(call).detach(), labels) for call in range(len(LENGTHS))]
        return losses, [p.detach() for p in (*layer.parameters(), *head.parameters())]

    compiled = train_with(lambda step: magneto.compile(step, backend=backend, fullgraph=True))
    assert_same(compiled, train_with(lambda step: step))
    assert not magneto.stats()["fallbacks"]


def test_a_jagged_gradient_of_what_is_from_outside_is_a_side_exit() -> None:
    def program(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(total, x)[0]

    compiled = magneto.compile(program)
    for call in range(2):
        for function in (compiled, program):
            x = jagged_given(call)
            assert_same(function(x.sin().values().sum(), x).values(), x.detach().cos().values())
    assert magneto.stats()["break_reasons"] and not magneto.stats()["fallbacks"]


def test_numbers_are_read_once_and_again_where_they_were_written() -> None:
    def program(sizes: torch.Tensor, x: torch.Tensor) -> Any:
        first, again = sizes.diff().tolist(), sizes.diff().tolist()
        copied = sizes * 1
        before = copied[1].item()
        copied += 1
        return x[: first[0]], x[: again[0]], before, copied[1].item(), copied

    compiled = magneto.compile(program)
    for sizes in ([0, 2, 5], [0, 4, 5], [1, 2, 6]):
        given = torch.tensor(sizes), torch.arange(8.0)
        assert_same(compiled(*given), program(*given))


def test_gradients_of_gradients_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # create_graph=True gives the tensor that PyTorch keeps here a history, in eager, too.
    monkeypatch.setattr(nested_tensor, "_dummy_instance", None)
    compiled = magneto.compile(lambda x: x.sin(), fullgraph=True)
    x = jagged_given(0)
    (first,) = torch.autograd.grad(compiled(x).values().sum(), x, create_graph=True)
    assert first.requires_grad
    assert_same(first.detach().values(), x.detach().cos().values())
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        first.values().sum().backward()
