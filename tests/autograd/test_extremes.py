"""Gradients of the largest, smallest and middle element of all, which PyTorch asks for NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: x / x.max(),
    "smallest": lambda x: x - torch.min(x),
    "middle": lambda x: (x * 2).median() * x.sin(),
    "middle_of_numbers": lambda x: x.nanmedian(),
    "to_0_and_1": lambda x: (x - x.min()) / (x.max() - x.min() + 1e-3),
    "columns": lambda x: x.t()[1:].max() * x.t(),
    "no_dimension": lambda x: x.sum().max() + x[0, 0].median(),
    "of_each": lambda x: torch.stack([row.max() - row.min() for row in x]),
}
nan, inf = float("nan"), float("inf")
DATA = {
    "all_differ": [[1.0, -2.0, 3.5], [0.5, 4.0, -1.0]],
    "ties": [[2.0, 2.0, -1.0], [-1.0, 2.0, -1.0]],
    "one_nan": [[1.0, nan, 3.0], [0.0, 4.0, -1.0]],
    "many_nan": [[nan, nan, 3.0], [0.0, nan, nan]],
    "infinite": [[inf, inf, 3.0], [-inf, 4.0, -1.0]],
}


def run(program: Callable[[Tensor], Tensor], data: Tensor) -> tuple[Tensor, Tensor]:
    x = data.clone().requires_grad_()
    result = program(x)
    weights = torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape)
    result.backward(weights)
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_ties_and_nan(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = magneto.compile(program, backend=backend)
    for dtype in (torch.float64, torch.float32, torch.bfloat16)[: 3 if backend == "aot_eager" else 1]:
        for rows in DATA.values():
            data = torch.tensor(rows, dtype=dtype)
            for result, expected in zip(run(compiled, data), run(program, data), strict=True):
                assert result.stride() == expected.stride()
                if backend == "aot_eager":
                    assert torch.equal(result.nan_to_num(7), expected.nan_to_num(7))
                torch.testing.assert_close(result, expected, equal_nan=True)
    assert magneto.stats()["no_joint"] == {}


def test_one_program_for_all_sizes() -> None:
    program = PROGRAMS["to_0_and_1"]
    compiled = magneto.compile(program, dynamic=True)
    for size in (3, 5, 8, 13):
        data = torch.randn(size, 4, dtype=torch.float64)
        for result, expected in zip(run(compiled, data), run(program, data), strict=True):
            torch.testing.assert_close(result, expected)
    stats = magneto.stats()
    assert (stats["recompiles"], stats["no_joint"]) == (0, {})


def test_gradients_of_gradients() -> None:
    program = PROGRAMS["largest"]
    for f in (program, magneto.compile(program)):
        x = torch.tensor(DATA["ties"], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(f, torch.tensor(DATA["all_differ"], dtype=torch.float64, requires_grad=True))
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x)
        torch.testing.assert_close(second, second_of(program))


def second_of(program: Callable[[Tensor], Tensor]) -> Tensor:
    x = torch.tensor(DATA["ties"], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(program(x).sum(), x, create_graph=True)
    return torch.autograd.grad(first.pow(2).sum(), x)[0]
