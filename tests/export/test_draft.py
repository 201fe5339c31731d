"""torch.export.draft_export: programs that ask for data, each question answered as in the example, checked and listed."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import Dim, draft_export, export, load, save

from magneto import exc

pytestmark = pytest.mark.usefixtures("installed")

X = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 0.5, 2.0], [2.0, 2.0, -1.0], [0.5, 1.5, 1.0]])


@torch.library.custom_op("draft_tests::without_fake", mutates_args=())
def without_fake(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.numpy() * 2).clone()


def scaled(x: torch.Tensor) -> torch.Tensor:
    largest = x.max().item()
    return x / largest if largest > 1.5 else x


def by_float(x: torch.Tensor) -> torch.Tensor:
    return x * math.log(1 + x.abs().sum().item())


def by_int(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    count = n.item()
    return x[:count] * 2 if count > 2 else x


def rounds(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for i in range(int(n)):
        x = x * 2 + i
    return x


def until(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 100:
        x = x * 2 + 1
    return x


def picked(x: torch.Tensor) -> torch.Tensor:
    i = x.nonzero()
    return x.sum() if i.numel() == 0 else x[i[:, 0]].sum(0)


def rows_of_mask(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([row * 2 for row in x[x[:, 0] > 0.7]])


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y.add_(1)
    if y.sum().item() > 0:
        y.mul_(2)
    return y


def of_argument(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.sum() * 2 if bool((x > 3.5).any()) else x.sin()


def named(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return x + len(["a", "bc", "def"][n.item()])


def without_fake_in(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.draft_tests.without_fake(x + 1).sum(1)


def of_random_numbers(x: torch.Tensor) -> torch.Tensor:
    y = x + torch.rand(1) * 0
    return y.sum(0) if y.sum().item() < 100 else y


def raises(x: torch.Tensor) -> torch.Tensor:
    if torch.isnan(x).any().item():
        raise ValueError("not a number")
    return x + 1


# Arguments; others for which the answers are the same; others for which they are not, if there are any.
PROGRAMS: dict[Callable[..., Any], Any] = {
    scaled: ((X,), (X + 1,), (X - 5,)),
    by_float: ((X,), (-X,), (X * 2,)),
    by_int: ((X, torch.tensor(3)), (X, torch.tensor(4)), (X, torch.tensor(1))),
    rounds: ((X, torch.tensor(3)), (-X, torch.tensor(3)), (X, torch.tensor(2))),
    until: ((X,), (X * 1.01,), (X + 100,)),
    picked: ((X,), (X * (X > 1),), (X * 0,)),
    rows_of_mask: ((X,), (X * torch.tensor([1.1, 1, 1]),), (-X,)),
    written: ((X,), (X + 1,), (X - 5,)),
    of_argument: ((X,), (X + 0.1,), (X - 5,)),
    named: ((X, torch.tensor(1)), (-X, torch.tensor(1)), (X, torch.tensor(2))),
    without_fake_in: ((X,), (-X,), None),
    of_random_numbers: ((X,), (X + 1,), (X + 100,)),
    raises: ((X,), (-X,), (X * torch.nan,)),
}


def copies(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(arg.clone() for arg in args)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: Callable[..., Any]) -> None:
    example, same, other = PROGRAMS[program]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    made = draft_export(program, copies(example))
    assert_same(torch.get_rng_state(), state)
    file = io.BytesIO()
    save(made, file)
    file.seek(0)
    modules = [made.module(), load(file).module()]
    if program is not without_fake_in:  # which captures the program again
        modules.append(made.run_decompositions().module())
    for module in modules:
        for args in (example, same):
            given, want = copies(args), copies(args)
            assert_same(module(*given), program(*want))
            assert_same(given, want)
        if other is not None:
            with pytest.raises(RuntimeError, match="Not as in the example of draft_export|Runtime assertion failed"):
                module(*copies(other))
    if program is not raises:  # which is a check in each export
        code = program.__code__
        assert not made._report.successful()
        for failure in made._report.failures:
            assert failure.data["code"] is code or failure.data["code"] in code.co_consts
            assert code.co_firstlineno < failure.data["line"] and failure.data["hint"]
        with pytest.raises(exc.Unsupported):
            export(program, copies(example))


def test_report() -> None:
    def steps(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            if n.item() > i + 10:
                x = x + 1
        return torch.ops.draft_tests.without_fake(x)

    report = draft_export(steps, (X, torch.tensor(11)))._report
    branch, operator = report.failures
    assert branch.failure_type == 2 and str(branch.failure_type) == "DATA_DEPENDENT_ERROR"
    assert branch.data["answer"] == "True" and branch.data["times"] == 2  # at most 11: the third follows
    assert operator.failure_type == 1 and "torch.library.register_fake" in operator.data["hint"]
    text = str(report)
    assert "2 found" in text and "test_draft.py" in text and "if n.item() > i + 10:" in text
    assert "torch._check(n.item() > i + 10)" in text and "draft_tests::without_fake" in text


def test_hint_of_an_answer_that_is_false() -> None:
    report = draft_export(picked, (X,))._report
    assert "torch._check(not (i.numel() == 0))" in str(report)


def test_modules_and_sizes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            if self.linear(x).sum().item() < 1e6:
                return self.linear(x) + self.calls
            return x

    model = Model()
    rows = Dim("rows")
    program = draft_export(model, (X, X), dynamic_shapes={"x": {0: rows}, "y": None})
    assert_same(model.calls, torch.zeros(()))
    assert [failure.failure_type for failure in program._report.failures] == [2]
    x = torch.cat([X, X])
    want = copy.deepcopy(model)(x, X)
    assert_same(program.module()(x, X), want)
    with pytest.raises(RuntimeError, match="Not as in the example"):
        program.module()(x * 1e12 * model.linear(x * 1e12).sum().sign(), X)


def test_sizes_that_are_related() -> None:
    """Those vary that can, and what the program asks of them is checked."""

    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y if x.shape[0] % 2 == 0 else x

    sizes = ({0: Dim("n", max=100), 1: Dim.DYNAMIC}, {0: Dim("m"), 1: Dim.DYNAMIC})
    program = draft_export(both, (X, X), dynamic_shapes=sizes)
    (failure,) = program._report.failures
    assert failure.failure_type == 3 and "n" in failure.data["explanation"]
    x = torch.randn(6, 5)
    assert_same(program.module()(x, x), both(x, x))
    for wrong in (torch.randn(5, 5), torch.randn(102, 5)):
        with pytest.raises(RuntimeError):
            program.module()(wrong, wrong)


def test_a_size_that_the_program_fixes() -> None:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] == 4 else x

    program = draft_export(fixed, (X,), dynamic_shapes={"x": {0: Dim("n")}})
    assert not program._report.successful() and "n" in str(program._report)
    assert_same(program.module()(X), X.sin())


def test_nothing_found() -> None:
    assert draft_export(nn.ReLU(), (X,))._report.successful()
    chosen = draft_export(lambda x: x + 1 if x.sum() > 0 else x - 1, (X,))  # one graph
    assert chosen._report.successful()
    assert_same(chosen.module()(-X * 9), -X * 9 - 1)


def test_what_a_draft_refuses() -> None:
    with pytest.raises(exc.Unsupported, match="places keep the call from being one graph"):
        draft_export(lambda x: print(x) or x + 1, (X,))
