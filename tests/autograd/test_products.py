"""Gradients of products, whose formula depends on zeros among the factors."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import magneto

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x.prod(),
    "first": lambda x: x.prod(0),
    "last_kept": lambda x: x.prod(-1, keepdim=True) + x,
    "of_doubles": lambda x: x.prod(1, dtype=torch.float64),
    "all_of_doubles": lambda x: torch.prod(x, dtype=torch.float64),
    "computed": lambda x: (x.sin() * 2).prod(-1).exp(),
    "columns": lambda x: x.t().prod(1) * x.prod(0),
    "running": lambda x: x.cumprod(0),
    "running_last": lambda x: (x * 3).cumprod(-1).sin(),
    "running_column": lambda x: x.t().cumprod(0).t() * x,
    "slices": lambda x: x[1:].prod(0) + x[:, :1].prod(1).sum(),
}
ZEROS: dict[str, list[tuple[int, int]]] = {
    "none": [],
    "one": [(1, 2)],
    "two_in_a_row": [(1, 0), (1, 3)],
    "two_in_a_column": [(0, 1), (2, 1)],
    "first_and_last": [(0, 0), (2, 3)],
}


def factors(zeros: list[tuple[int, int]], dtype: torch.dtype) -> Tensor:
    x = torch.rand(3, 4, dtype=dtype, generator=torch.Generator().manual_seed(len(zeros))) + 0.5
    for place in zeros:
        x[place] = 0
    return x


def gradient(program: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    result = program(x)
    weights = torch.arange(1, result.numel() + 1, dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


@pytest.mark.parametrize("backend", ["aot_eager", "magneto"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_with_and_without_zeros(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    dtypes = (torch.float32, torch.float64) if backend == "aot_eager" else (torch.float64,)
    for dtype in dtypes:
        compiled = magneto.compile(program, backend=backend)
        for zeros in ZEROS.values():
            x = factors(zeros, dtype)
            for got, want in zip(gradient(compiled, x), gradient(program, x), strict=True):
                if backend == "aot_eager":
                    assert torch.equal(got, want) and got.stride() == want.stride()
                else:
                    torch.testing.assert_close(got, want)
    assert not magneto.stats()["no_joint"] and not magneto.stats()["breaks"]


@pytest.mark.parametrize("size", [(), (1,), (0,), (1, 3), (3, 1), (2, 0)])
def test_few_factors(size: tuple[int, ...]) -> None:
    for program in (lambda x: x.prod() * 2, lambda x: x.prod(-1), lambda x: x.cumprod(-1) * 1):
        x = torch.rand(size)
        for got, want in zip(gradient(magneto.compile(program), x), gradient(program, x), strict=True):
            torch.testing.assert_close(got, want)
    assert not magneto.stats()["no_joint"]


def test_one_capture_for_all_sizes() -> None:
    def program(x: Tensor) -> Tensor:
        return x.prod(1).sum() + x.cumprod(0).mean() + x.prod()

    compiled = magneto.compile(program, dynamic=True)
    for rows, columns in itertools.product((3, 5, 7), (2, 4)):
        x = torch.rand(rows, columns) + 0.5
        for got, want in zip(gradient(compiled, x), gradient(program, x), strict=True):
            torch.testing.assert_close(got, want)
    assert magneto.stats()["frames"] == 1 and not magneto.stats()["no_joint"]


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("name", ["all", "first", "computed", "running"])
def test_gradients_of_gradients(name: str, zeros: str) -> None:
    program = PROGRAMS[name]

    def second(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = factors(ZEROS[zeros], torch.float64).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(first.sin().sum(), x)
        return again

    torch.testing.assert_close(second(magneto.compile(program)), second(program))


def test_a_factor_that_is_written_raises_as_in_eager() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        result = y.prod()
        y.add_(1)
        return result

    for function in (program, magneto.compile(program)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(torch.ones(3, requires_grad=True)).backward()


def test_transforms_and_forward_mode() -> None:
    def program(x: Tensor) -> Tensor:
        return x.prod() + x.cumprod(0).sum()

    x = torch.tensor([2.0, 0.0, 3.0])
    for transform in (torch.func.grad, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(magneto.compile(transform(program))(x), transform(program)(x))
