"""Data-dependent numbers and sizes: captured where a setting or fullgraph=True asks for it, else side exits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from data_programs import PROGRAMS
from test_sizes import assert_same

import magneto

BACKENDS = ["eager", "aot_eager", "magneto"]


INPUTS = [[1, 2, 3], [3, 2, 1], [2, 2, 2], [1, 0, 5], [4, 1, 1]]


def outcome(function: Callable[..., Any], x: torch.Tensor) -> Any:
    try:
        return function(x)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_for_all_data(name: str, backend: str) -> None:
    magneto.reset()
    compiled = magneto.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for data in INPUTS:
        x = torch.tensor(data)
        assert_same(outcome(compiled, x), outcome(PROGRAMS[name], x))
    assert magneto.stats()["graphs"] == 1
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamic_inputs_too(name: str) -> None:
    magneto.reset()
    compiled = magneto.compile(PROGRAMS[name], backend="aot_eager", fullgraph=True, dynamic=True)
    for data in ([1, 2, 3], [2, 1, 1, 2], [0, 3, 3], [6, 0]):
        x = torch.tensor(data)
        assert_same(outcome(compiled, x), outcome(PROGRAMS[name], x))


@pytest.mark.parametrize("name", PROGRAMS)
def test_side_exits_by_default(name: str) -> None:
    magneto.reset()
    compiled = magneto.compile(PROGRAMS[name], backend="aot_eager")
    for data in INPUTS:
        x = torch.tensor(data)
        assert_same(outcome(compiled, x), outcome(PROGRAMS[name], x))


def test_a_question_is_an_error_that_says_what_would_settle_it() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        if x.nonzero().shape[0] > 3:
            return x + 1
        return x - 1

    x = torch.ones(5)
    with pytest.raises(
        magneto.exc.Unsupported,
        match=r"(?s)4 <= u0.*u0 is of aten.nonzero.*torch._check\(x.nonzero\(\).shape\[0\] > 3\)",
    ):
        magneto.compile(branches, backend="aot_eager", fullgraph=True)(x)
    assert_same(magneto.compile(branches, backend="aot_eager")(x), branches(x))


def test_settings_take_them_without_fullgraph() -> None:
    def program(x: torch.Tensor) -> Any:
        n = x.sum().item()
        torch._check(n >= 0)
        return torch.zeros(n), x.nonzero()

    x = torch.tensor([1, 2])
    for numbers, sizes, breaks in ((False, False, 1), (True, False, 0), (True, True, 0)):
        magneto.reset()
        with magneto.config.patch(capture_scalar_outputs=numbers, capture_dynamic_output_shape_ops=sizes):
            assert_same(magneto.compile(program, backend="aot_eager")(x), program(x))
        assert magneto.stats()["breaks"] == breaks


def test_a_check_that_fails_raises_as_in_the_program() -> None:
    def program(x: torch.Tensor, log: list[int]) -> Any:
        log.append(1)
        x.add_(1)
        n = x.sum().item()
        torch._check(n < 10, lambda: "much too large")
        return torch.zeros(n)

    compiled = magneto.compile(program, backend="aot_eager", fullgraph=True)
    for value in (1, 4, 2):
        ours, theirs = torch.tensor([value, 0]), torch.tensor([value, 0])
        logs: tuple[list[int], list[int]] = ([], [])
        assert_same(
            outcome(lambda x: compiled(x, logs[0]), ours),  # noqa: B023
            outcome(lambda x: program(x, logs[1]), theirs),  # noqa: B023
        )
        assert_same(ours, theirs)
        assert logs[0] == logs[1]


def test_a_check_of_equality_that_fails_raises_too() -> None:
    compiled = magneto.compile(PROGRAMS["known_after_a_check"], backend="aot_eager", fullgraph=True)
    for data in ([1, 2, 3], [1, 2, 4], [6, 0, 0], [1, 1, 1]):
        x = torch.tensor(data)
        assert_same(outcome(compiled, x), outcome(PROGRAMS["known_after_a_check"], x))


def test_an_assert_that_fails_raises_as_in_the_program() -> None:
    compiled = magneto.compile(PROGRAMS["asserted"], backend="aot_eager", fullgraph=True)
    for data in ([1, 2], [9, 2], [2, 2]):
        assert_same(outcome(compiled, torch.tensor(data)), outcome(PROGRAMS["asserted"], torch.tensor(data)))


def test_what_is_written_after_the_read_does_not_change_it() -> None:
    def program(x: torch.Tensor) -> Any:
        n = x[0].item()
        x.zero_()
        return torch.ones(n), n

    compiled = magneto.compile(program, backend="aot_eager", fullgraph=True)
    for value in (3, 5):
        assert_same(compiled(torch.tensor([value])), program(torch.tensor([value])))


def test_what_stands_between_the_reads_is_compiled() -> None:
    def rows(x: torch.Tensor) -> Any:
        y = x.sin() * 2 + 1
        found = y[x > 0] * 3 + 1
        return (found.exp() + found).tanh(), found.sum(), y.cos() + 1

    compiled = magneto.compile(rows, fullgraph=True)
    with torch.inference_mode():
        for count in (100, 37, 100, 1, 0):
            x = torch.randn(count)
            for ours, eager in zip(compiled(x), rows(x), strict=True):
                torch.testing.assert_close(ours, eager)
    stats = magneto.stats()
    assert stats["uncompiled"] == {} and stats["kernels"] >= 4


def test_a_mask_of_nothing() -> None:
    def rows(x: torch.Tensor) -> Any:
        return x[x > 0] * 2, x.nonzero()

    for backend in BACKENDS:
        x = torch.empty(0)
        assert_same(magneto.compile(rows, fullgraph=True, backend=backend)(x), rows(x))


def test_unbacked_dimensions() -> None:
    compiled = magneto.compile(lambda x: (x * 2, x.sum(0), x.shape[0] + 1), backend="aot_eager")
    for n in (4, 0, 1, 7):
        x = torch.ones(n, 3)
        magneto.mark_unbacked(x, 0)
        assert_same(compiled(x), (x * 2, x.sum(0), n + 1))
    assert magneto.stats()["frames"] == 1


def test_a_mask_that_ends_a_segment_fixes_no_sizes() -> None:
    """The sizes of what was masked became constants before the segment ended: a capture for each size."""

    def f(x: torch.Tensor) -> torch.Tensor:
        while x.numel() > 2:
            x = x[1:][x[1:] > x[0]]
        return x

    compiled = magneto.compile(f, backend="aot_eager")
    for n in (12, 9, 7, 11):
        assert_same(compiled(torch.arange(float(n))), f(torch.arange(float(n))))
    assert magneto.stats()["frames"] <= 6


def test_few_programs_are_run_twice() -> None:
    """What examples of sizes have answered holds for all sizes that are not 0 or 1, and mostly for these."""
    for name in ("item", "nonzero", "masked", "where", "unique", "repeated", "experts", "written", "masked_rows"):
        magneto.reset()
        compiled = magneto.compile(PROGRAMS[name], backend="aot_eager", fullgraph=True)
        for data in ([2, 2, 2], [3, 1, 2], [1, 2, 3]):
            outcome(compiled, torch.tensor(data))
        assert magneto.stats()["undone"] == {}, name


@pytest.mark.parametrize("name", ["flaubert", "xlm", "jetmoe"])
def test_models_that_read_numbers_are_one_graph(name: str) -> None:
    pytest.importorskip("transformers")
    import models

    model, given = models.build(name), models.inputs(name)
    with torch.no_grad():
        expected = model(**given)
        actual = magneto.compile(model, backend="aot_eager", fullgraph=True)(**given)
    torch.testing.assert_close(actual[0], expected[0])


# -- by default: where nothing is asked of the size --------------------------------------------------------------------


class Routed(torch.nn.Module):
    """Experts that take the rows for which they are the best."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(4, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        best = weights.argmax(-1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(best == number)
            result = result.index_add(0, rows, expert(x[rows]) * weights[rows, number, None])
        return result


def filled(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
    mask = x[:, 0] > 0
    result = torch.zeros_like(x)
    result[mask] = layer(x[mask]).tanh()
    return result


def filled_in_two_ways(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
    mask = x > 0
    y = layer(x)
    y = y.masked_scatter(mask, y[mask] * 2)
    y[~mask] = x[~mask].exp()
    return y


#: Each takes x (rows, 4) and a linear layer.
ASK_NOTHING: dict[str, Callable[..., Any]] = {
    "masked rows": lambda x, layer: layer(x[x[:, 0] > 0]).relu().sum(),
    "masked elements": lambda x, layer: (layer(x)[x > 0].square().sum(), x[x > 0]),
    "rows filled": filled,
    "a vector's product": lambda x, layer: x[x > 0].sum() * (layer.weight[0] @ x.t()),
    "nonzero": lambda x, layer: layer(x)[(x[:, 0] > 0).nonzero().squeeze(1)].exp(),
    "where": lambda x, layer: layer(x)[torch.where(x[:, 0] > 0)[0], 1].exp(),
    "repeated": lambda x, layer: layer(x).repeat_interleave((x[:, 0] > 0) * 2, 0).sin(),
    "normalised": lambda x, layer: torch.nn.functional.layer_norm(layer(x[x[:, 1] > 0]), (4,)),
}
ROWS = (6, 6, 1, 6, 9, 6, 9)


def data_of(i: int) -> torch.Tensor:
    """Some rows, none, one and all of them are positive."""
    torch.manual_seed(i)
    x = torch.randn(ROWS[i], 4)
    return {1: -x.abs() - 1, 3: x.abs() + 1}.get(i, x)


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", ASK_NOTHING)
def test_one_graph_by_default(name: str, backend: str) -> None:
    layer, program = torch.nn.Linear(4, 4), ASK_NOTHING[name]
    compiled = magneto.compile(program, backend=backend)
    for i in range(len(ROWS)):
        with torch.no_grad():
            assert_same(compiled(data_of(i), layer), program(data_of(i), layer))
    stats = magneto.stats()
    assert (stats["breaks"], stats["undone"]) == (0, {})
    assert stats["graphs"] <= 3  # rows as captured, then any number of them, then one


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", [*(name for name in ASK_NOTHING if name != "a vector's product"), "experts"])
def test_gradients_are_compiled_by_default(name: str, backend: str) -> None:
    layer = Routed() if name == "experts" else torch.nn.Linear(4, 4)
    program = (lambda x, layer: layer(x)) if name == "experts" else ASK_NOTHING[name]
    compiled = magneto.compile(program, backend=backend)

    def gradients(function: Callable[..., Any], i: int) -> list[torch.Tensor | None]:
        layer.zero_grad()
        x = data_of(i).requires_grad_()
        results = function(x, layer)
        first = results[0] if isinstance(results, tuple) else results
        (first.sum() * 2).backward()
        return [first.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]

    for i in range(len(ROWS)):
        expected = gradients(program, i)
        assert_same(gradients(compiled, i), expected)
    stats = magneto.stats()
    assert (stats["breaks"], stats["undone"], stats["no_joint"]) == (0, {}, {})


#: What the program or an operator asks has no answer for all sizes: the segment ends in front of it, or each run checks
#: the answer, until it was another one in some.
ASK: dict[str, Callable[..., Any]] = {
    "a branch": lambda x, layer: layer(x[x[:, 0] > 0]) if (x[:, 0] > 0).nonzero().shape[0] > 2 else x * 2,
    "rows by two": lambda x, layer: x[x[:, 0] > 0].repeat(2, 1).reshape(-1, 2, 4).sum(1),
    "squeezed": lambda x, layer: layer(x)[x[:, 0] > 0].squeeze() + 1,
    "beside another": lambda x, layer: (x[x[:, 0] > 0] + x[x[:, 0] > 0].clone()) * layer(x).sum(),
    "a loop": lambda x, layer: sum(layer(row) for row in x[x[:, 0] > 0]),
    "the first": lambda x, layer: layer(x)[x[:, 0] > -9][0] * 2,
    "elements filled": filled_in_two_ways,
    "masked_select": lambda x, layer: layer(x).masked_select(x > 0) * 3,
    "unique": lambda x, layer: layer(torch.unique((x * 2).round().long()).float()[:, None].expand(-1, 4)).sum(0),
    "attention": lambda x, layer: (lambda y: torch.softmax(y @ y.mT, -1) @ y)(layer(x[x[:, 1] > 0])),
    "text": lambda x, layer: (x + 1, f"{x[x[:, 0] > 0].shape}"),
}


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", ASK)
def test_questions_end_the_segment_by_default(name: str, trains: bool) -> None:
    layer, program = torch.nn.Linear(4, 4), ASK[name]
    compiled = magneto.compile(program)
    for i in range(len(ROWS)):
        with torch.set_grad_enabled(trains):
            assert_same(
                outcome(lambda x: compiled(x, layer), data_of(i)), outcome(lambda x: program(x, layer), data_of(i))
            )
    assert sum(magneto.stats()["undone"].values()) <= 4
