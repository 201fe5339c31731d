"""Dynamic floats: arguments, what follows from sizes, what only the data says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_sizes import assert_same

import magneto


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


TAKES_A_FLOAT: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "operand": lambda x, a: x * a + a,
    "argument": lambda x, a: (x.clamp(-a, a), torch.add(x, x, alpha=a)),
    "fill value": lambda x, a: (torch.full((2,), a), x.masked_fill(x > 0, a), torch.full_like(x, a)),
    "computed with": lambda x, a: x * (1 - a) ** 2 + math.sqrt(a) + math.floor(a * 10),
    "handed on": lambda x, a: (x + 1, a * 2, math.exp(a)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", TAKES_A_FLOAT)
def test_a_float_argument_that_changes_is_one_capture_more(name: str, backend: str) -> None:
    program = TAKES_A_FLOAT[name]
    compiled = magneto.compile(program, backend=backend)
    for a in (0.5, 0.25, 0.125, 0.75, 0.3, 0.9):
        x = torch.linspace(-1, 1, 7)
        assert_same(compiled(x, a), program(x, a))
    assert magneto.stats()["recompiles"] == 1


def test_a_float_attribute_that_changes_is_one_capture_more() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.limit = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(-self.limit, self.limit)

    module = Scaled()
    compiled = magneto.compile(module)
    for limit in (0.5, 0.25, 0.125, 0.75, 0.3):
        module.limit = limit
        x = torch.linspace(-1, 1, 7)
        assert_same(compiled(x), x.clamp(-limit, limit))
    assert magneto.stats()["recompiles"] == 1


def test_gradients_of_a_float_argument() -> None:
    def program(x: torch.Tensor, a: float) -> torch.Tensor:
        return torch.add(x, x, alpha=a).clamp(max=a).sum()

    compiled = magneto.compile(program)
    for a in (0.5, 0.25, 0.125, 0.75):
        ours = torch.linspace(-1, 1, 7).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        compiled(ours, a).backward()
        program(theirs, a).backward()
        assert_same(ours.grad, theirs.grad)


def test_what_raises_for_a_float_raises() -> None:
    def program(x: torch.Tensor, a: float) -> Any:
        return x * math.sqrt(a), 1 / a, x.clone().bernoulli_(a)

    compiled = magneto.compile(program)
    for a in (0.5, 0.25, 0.0, -1.0, 2.0, 0.75):
        torch.manual_seed(0)
        ours = outcome(compiled, torch.ones(3), a)
        torch.manual_seed(0)
        assert_same(ours, outcome(program, torch.ones(3), a))


def beside_tensors(x: torch.Tensor) -> Any:
    a = x.sum().item()
    return x * a + a - 3 * a, torch.full((2,), a), x.clamp(0, a)


def returned(x: torch.Tensor) -> Any:
    a = x.max().item()
    return x + 1, a, float(x[0]), 1.0 - a


def computed_with(x: torch.Tensor) -> Any:
    a = float(x.double().mean())
    return x * (a / 2 + 1) ** 2, a % 0.7, -a, a // 0.3, 1 / (a + 3)


def of_integers(x: torch.Tensor) -> Any:
    count = (x > 0).sum()
    return x / float(count), 1.0 / float(count), count.item() / 2


def normed(x: torch.Tensor) -> Any:
    return F.batch_norm(x[:, None], torch.zeros(1), torch.ones(1), training=True) * float(x[0])


DATA = {f.__name__: f for f in (beside_tensors, returned, computed_with, of_integers, normed)}
INPUTS = [[0.5, 2.0, -1.0], [3.0, 0.25, 0.0], [-2.0, -0.5, -3.0], [1.0, 1.0, 1.0], [math.inf, 1.0, 0.0]]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", DATA)
def test_one_graph_for_all_data(name: str, backend: str) -> None:
    compiled = magneto.compile(DATA[name], backend=backend, fullgraph=True)
    for data in INPUTS:
        x = torch.tensor(data)
        assert_same(
            *(
                [repr(each) for each in result] if isinstance(result, tuple) and torch.isinf(x).any() else result
                for result in (outcome(compiled, x), outcome(DATA[name], x))
            )
        )
    assert magneto.stats()["graphs"] == 1
    assert magneto.stats()["breaks"] == 0


@pytest.mark.parametrize("name", DATA)
def test_side_exits_by_default(name: str) -> None:
    compiled = magneto.compile(DATA[name], backend="aot_eager")
    for data in INPUTS[:4]:
        x = torch.tensor(data)
        assert_same(outcome(compiled, x), outcome(DATA[name], x))


def test_a_question_about_a_float_of_data_says_so() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 0.5 else x - 1

    x = torch.ones(3)
    with pytest.raises(magneto.exc.Unsupported, match="a data-dependent float"):
        magneto.compile(branches, backend="aot_eager", fullgraph=True)(x)
    with magneto.config.patch(capture_scalar_outputs=True):
        assert_same(magneto.compile(branches, backend="aot_eager")(x), branches(x))


def test_number_beside_a_tensor_that_is_written() -> None:
    """It was saved as the tensor was, in case an operator behind it raises: a crash."""

    def f(x: torch.Tensor, n: float, index: torch.Tensor) -> torch.Tensor:
        x.add_(n)
        x.mul_(0.5)
        return x[index]

    compiled = magneto.compile(f)
    index = torch.tensor([3, 1])
    for n in (1, 2, 3, 4.5, 5.5, 6.5):
        x, y = torch.arange(4.0), torch.arange(4.0)
        assert_same((compiled(x, n, index), x), (f(y, n, index), y))
