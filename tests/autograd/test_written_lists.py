"""Operators that write lists of tensors: what autograd has saved of these is noticed, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

Tensor = torch.Tensor


def written_result(p: Tensor, x: Tensor) -> Any:
    h = (p * 2).exp()
    with torch.no_grad():
        torch._foreach_mul_([h], 2.0)
    h.sum().backward()
    return p.grad


def written_detached(p: Tensor, x: Tensor) -> Any:
    h = (p * 2).exp()
    torch._foreach_mul_([h.detach()], 2.0)
    return h


def written_weight(p: Tensor, x: Tensor) -> Any:
    h = x * p
    with torch.no_grad():
        torch._foreach_add_([p, x.detach()], [p.detach(), x.detach()])
    return h


def written_data(p: Tensor, x: Tensor) -> Any:
    h = p * x * p
    torch._foreach_mul_([p.data], 2.0)
    h.sum().backward()
    return p.grad


def written_views(p: Tensor, x: Tensor) -> Any:
    y = x.detach() * 2
    torch._foreach_mul_([y[:1], y[1:]], 3.0)
    return y, (y * p).sum()


def unscaled(p: Tensor, x: Tensor) -> Any:
    """A kernel of its own, which counts nothing."""
    h = (p * 2).exp()
    torch._amp_foreach_non_finite_check_and_unscale_([h.detach()], torch.zeros(1), torch.full((1,), 2.0))
    return h


def outcome(program: Callable[..., Any]) -> list[Any]:
    p, x = torch.ones(3, requires_grad=True), torch.arange(3.0).requires_grad_()
    found: list[Any] = []
    for _ in range(2):
        try:
            results = program(p, x)
            results = results if isinstance(results, tuple) else (results,)
            found += [(r.detach().clone(), r._version) for r in results]
            if results[-1].requires_grad:
                results[-1].sum().backward()
        except RuntimeError as error:
            found.append(str(error).split(": [")[0])
        found += [p.detach().clone(), p._version, x._version, None if x.grad is None else x.grad.clone()]
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize(
    "program", [written_result, written_detached, written_weight, written_data, written_views, unscaled]
)
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    want, got = outcome(program), outcome(magneto.compile(program, backend=backend))
    assert len(want) == len(got)
    for expected, found in zip(want, got, strict=True):
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
