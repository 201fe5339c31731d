"""mark_dynamic and its like."""

from __future__ import annotations

import pytest
import torch

import magneto


def marked(n: int, **options: int) -> torch.Tensor:
    x = torch.ones(n, 8)
    magneto.mark_dynamic(x, 0, **options)
    return x


def test_the_first_capture_serves_all() -> None:
    compiled = magneto.compile(lambda x: x.sum(0), backend="aot_eager")
    compiled(marked(4))
    for n in (5, 6, 7):
        torch.testing.assert_close(compiled(torch.ones(n, 8)), torch.ones(n, 8).sum(0))
    assert magneto.stats()["recompiles"] == 0


def test_bounds_are_guards() -> None:
    compiled = magneto.compile(lambda x: x + 1, backend="aot_eager")
    compiled(marked(4, min=3, max=10))
    compiled(torch.ones(10, 8))
    assert magneto.stats()["recompiles"] == 0
    compiled(torch.ones(11, 8))
    assert magneto.stats()["recompiles"] == 1


def test_a_program_for_one_size_is_an_error_that_names_the_line() -> None:
    @magneto.compile(backend="aot_eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, 8)

    with pytest.raises(
        magneto.exc.ConstraintViolation, match=r"size\(\)\[0\] was marked .*size\(\)\[0\] == 4 at .*test_marks"
    ):
        function(marked(4))
    x = torch.ones(4, 8)
    magneto.maybe_mark_dynamic(x, 0)
    torch.testing.assert_close(function(x), x + 1)


def test_a_size_out_of_its_bounds() -> None:
    compiled = magneto.compile(lambda x: x + 1, backend="aot_eager")
    with pytest.raises(magneto.exc.ConstraintViolation, match=r"\[8, 10\]\, and is 4"):
        compiled(marked(4, min=8, max=10))


def test_static() -> None:
    compiled = magneto.compile(lambda x: x + 1, backend="aot_eager", dynamic=True)
    for n in (4, 5, 6):
        x = torch.ones(n, 8)
        magneto.mark_static(x, 0)
        compiled(x)
    assert magneto.stats()["recompiles"] == 2


@pytest.mark.parametrize("index", [2, -3, "0", None])
def test_what_is_no_dimension(index: object) -> None:
    with pytest.raises((magneto.exc.InvalidValue, TypeError)):
        magneto.mark_dynamic(torch.ones(2, 3), index)  # type: ignore[arg-type]


def test_what_is_no_tensor() -> None:
    with pytest.raises(magneto.exc.InvalidValue, match="only a tensor's sizes"):
        magneto.mark_dynamic([1, 2], 0)  # type: ignore[arg-type]
