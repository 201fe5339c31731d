"""One capture for many sizes: eager's results, and no more captures than needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from size_programs import ROWS, Row, arguments

import magneto


def outcome(function: Any, row: Row, n: int) -> Any:
    torch.manual_seed(n)
    try:
        return function(*arguments(row, n))
    except Exception as error:
        return type(error)


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, equal_nan=True)
        assert actual.stride() == expected.stride()
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for left, right in zip(actual, expected, strict=True):
            assert_same(left, right)
    else:
        assert actual == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", ROWS)
def test_one_capture_serves_all_sizes(name: str, backend: str) -> None:
    row = ROWS[name]
    compiled = magneto.compile(row.function, backend=backend, dynamic=True)
    for n in (9, 7, 5, 8, 11, 64, 13, 13, 13, 13):
        assert_same(outcome(compiled, row, n), outcome(row.function, row, n))
    recompiles = magneto.stats()["recompiles"]
    assert magneto.stats()["fallbacks"] == {}
    assert recompiles > 1 if row.fixed else recompiles <= int(row.branches), "captures of their own"


@pytest.mark.parametrize("name", ROWS)
def test_the_second_size_makes_it_dynamic(name: str) -> None:
    row = ROWS[name]
    compiled = magneto.compile(row.function, backend="aot_eager")
    for n in (9, 7, 5, 8, 11, 64, 13):
        assert_same(outcome(compiled, row, n), outcome(row.function, row, n))
    if not row.fixed:
        assert magneto.stats()["recompiles"] <= 1 + row.branches


@pytest.mark.parametrize("name", ROWS)
def test_sizes_of_zero_and_one(name: str) -> None:
    row = ROWS[name]
    compiled = magneto.compile(row.function, backend="aot_eager", dynamic=True)
    for n in (1, 0, 2, 3, 4, 1, 0, 6):
        assert_same(outcome(compiled, row, n), outcome(row.function, row, n))


def test_each_size_is_a_capture_if_told() -> None:
    compiled = magneto.compile(lambda x: x + 1, backend="aot_eager", dynamic=False)
    for n in range(2, 7):
        compiled(torch.ones(n))
    assert magneto.stats()["recompiles"] == 4


def test_only_what_varies_is_dynamic() -> None:
    compiled = magneto.compile(lambda x: x + 1, backend="aot_eager")
    for shape in ((4, 3), (5, 3), (6, 3), (7, 3)):
        compiled(torch.ones(shape))
    assert magneto.stats()["recompiles"] == 1
    compiled(torch.ones(8, 5))
    assert magneto.stats()["recompiles"] == 2


def test_a_varying_int_is_a_size() -> None:
    compiled = magneto.compile(lambda x, n: (x + torch.zeros(n), n * 2), backend="aot_eager", dynamic=None)
    for n in range(2, 12):
        result, doubled = compiled(torch.ones(1), n)
        assert result.shape == (n,) and doubled == 2 * n
    assert magneto.stats()["recompiles"] <= 2


def test_one_program_serves_all_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu().sum(-1)

    compiled = magneto.compile(function, dynamic=True)
    for _ in range(4):
        for n in (4, 9, 17, 100):
            torch.testing.assert_close(compiled(torch.ones(n, 8)), function(torch.ones(n, 8)))
    assert magneto.stats()["recompiles"] == 0
    assert magneto.stats()["specialised"] == 0


def test_a_size_that_comes_often_has_code_of_its_own() -> None:
    """Where there is no code for all sizes: the layout of memory that is written is not known."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)[1:].relu()

    compiled = magneto.compile(function, dynamic=True)
    for _ in range(4):
        for n in (4, 9, 17):
            torch.testing.assert_close(compiled(torch.ones(n, 2 * n)[:, ::2]), function(torch.ones(n, 2 * n)[:, ::2]))
    assert magneto.stats()["recompiles"] == 0
    assert magneto.stats()["specialised"] == 2  # beside that of the capture


def test_sizes_that_memory_is_too_small_for() -> None:
    """They raise as often as they come; a frame that was not finished for them is not used."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sort()[0] + 1

    compiled = magneto.compile(function, dynamic=True)
    for n in (5, 2**45, 2**45, 7, 2**45, 5):
        x = torch.ones(1).expand(n)
        if n > 100:
            with pytest.raises(RuntimeError, match="memory"):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), function(x))


def test_strides_that_follow_from_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).reshape(-1) + x.stride(0)

    compiled = magneto.compile(function, backend="aot_eager", dynamic=True)
    for shape in ((3, 4), (5, 7), (2, 9)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))
        torch.testing.assert_close(compiled(x.t()), function(x.t()))
        wide = torch.randn(shape[0], 2 * shape[1])[:, : shape[1]]
        torch.testing.assert_close(compiled(wide), function(wide))


def test_an_error_for_one_size_is_no_error_for_others() -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            return x + torch.ones(4)
        except RuntimeError:
            return None

    compiled = magneto.compile(function, backend="aot_eager", dynamic=True)
    for n in (5, 4, 6, 4):
        result = compiled(torch.ones(n))
        assert (result is None) == (n != 4)


def test_a_backend_is_called_once() -> None:
    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        calls.append((str(module.code), inputs))
        return module.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] * 2, 2) + x.shape[0] * 3 + 1

    compiled = magneto.compile(function, backend=backend, dynamic=True)
    for n in (3, 5, 7):
        torch.testing.assert_close(compiled(torch.ones(n, 4)), function(torch.ones(n, 4)))
    assert len(calls) == 1
    assert "s0" in calls[0][0]


def test_gradients() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.view(x.shape[0] // 2, -1) ** 2).mean() * x.shape[0]

    compiled = magneto.compile(function, dynamic=True)
    for n in (4, 6, 10):
        x, y = (torch.arange(3.0 * n).reshape(n, 3).requires_grad_() for _ in range(2))
        compiled(x).backward()
        function(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert magneto.stats()["recompiles"] == 0


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
def test_gradients_of_inputs_with_a_history(backend: str) -> None:
    """What comes back to an input that eager computed, as behind a graph break, says nothing of its sizes."""

    def program(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (h.sin() + x) * 2

    compiled = magneto.compile(program, backend=backend)
    ours = torch.rand(4, 4, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    for n in range(3, 9):
        x = torch.rand(n, 4)
        assert_same(compiled(x @ ours, x), program(x @ theirs, x))
        compiled(x @ ours, x).sum().backward()
        program(x @ theirs, x).sum().backward()
        assert_same(ours.grad, theirs.grad)
    assert magneto.stats()["frames"] == 2


def test_gradients_of_what_takes_plain_numbers() -> None:
    compiled = magneto.compile(lambda x: F.avg_pool1d(x, x.shape[1]) * 2, dynamic=True, fullgraph=True)
    for n in (4, 6, 9):
        x, y = (torch.arange(3.0 * n).reshape(3, n).requires_grad_() for _ in range(2))
        result = compiled(x)
        assert result.requires_grad
        result.sum().backward()
        (F.avg_pool1d(y, n) * 2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert magneto.stats()["recompiles"] == 0


def test_autocast_of_what_takes_plain_numbers() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.avg_pool3d(x, x.shape[-3:])

    compiled = magneto.compile(program, dynamic=True)
    for n in (4, 6):
        x = torch.ones(1, 2, n, n, n, dtype=torch.bfloat16)
        assert compiled(x).dtype == program(x).dtype


def test_long_chain_of_views_is_captured() -> None:
    """Each size held the one before it: 160 views took 81 s."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(500):
            x = x.reshape(-1, 4).reshape(x.shape[0], -1)
            x = x.reshape(x.shape[0] * 2, -1).reshape(x.shape[0], -1)
        return x + 1

    compiled = magneto.compile(program, backend="aot_eager", dynamic=True)
    for rows, columns in ((6, 8), (10, 4), (14, 12)):
        x = torch.randn(rows, columns)
        assert torch.equal(compiled(x), x + 1)
    assert magneto.stats()["recompiles"] == 0


def test_sizes_that_become_numbers_while_a_composite_operator_holds_them() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (-1, 1, -2, 1), "circular")

    compiled = magneto.compile(program, backend="aot_eager", dynamic=True)
    for n in (4, 3, 2):
        x = torch.randn(1, 3, n, n)
        actual, expected = compiled(x), program(x)
        assert actual.shape == expected.shape
        if n > 2:  # else the whole result is made of places that nobody wrote
            torch.testing.assert_close(actual, expected)


def test_call_that_raises_for_a_number_that_can_not_be_fixed() -> None:
    """It was recorded again with the number fixed, which it was not, until the stack ended: a crash."""

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        try:
            x[n % 4] = x
        except RuntimeError:
            return x + n
        return x

    compiled = magneto.compile(program, backend="eager")
    for n in (1, 1, 2, 3, 6):
        assert_same(compiled(torch.arange(4.0), n), program(torch.arange(4.0), n))
