"""The architectures in training mode: losses and gradients are eager's, with dropout in eager's random numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

pytest.importorskip("transformers")
import models
from test_models import compiled_path
from tiers import those_that_pick

Result = tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy = pytest.importorskip("numpy")  # wav2vec2 and its like choose what they mask with it
    numpy.random.seed(number)


def train(
    name: str, wrap: Callable[[Any], Any], dtype: torch.dtype | None = None, variant: int = 0
) -> Result | type[Exception]:
    """Losses, gradients, and what the random numbers of PyTorch go on with; or what was raised. `variant`: of the
    weights, a thousandth apart."""
    model = models.build(name).train()
    models.spread_zeros(model)
    if variant:
        vary(model, variant)
    given = models.inputs(name)
    if dtype:
        model = model.to(dtype)
        given = {key: value.to(dtype) if is_floating(value) else value for key, value in given.items()}
    program = wrap(model)
    seed(1)
    losses = []
    for _ in range(2):
        try:
            outputs = program(**given)
        except Exception as error:
            return type(error)
        loss = sum(value.float().pow(2).mean() for value in outputs.values() if is_trained(value))
        if not isinstance(loss, torch.Tensor):
            break
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return losses, gradients, torch.rand(1)


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_trained(value: Any) -> bool:
    return is_floating(value) and value.requires_grad


def vary(model: torch.nn.Module, variant: int) -> None:
    numbers = torch.Generator().manual_seed(variant)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                weight.mul_(1 + 1e-3 * torch.randn(weight.shape, generator=numbers, dtype=weight.dtype))


def is_close(actual: Result, expected: Result) -> bool:
    return all(
        torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in zip(actual[0], expected[0], strict=True)
    ) and all(torch.allclose(actual[1][key], expected[1][key], rtol=1e-2, atol=1e-4) for key in expected[1])


def check_against_float64(name: str) -> None:
    """Where results are eager's rounding (a norm over two pixels multiplies it, and the next one again), ours are in the
    mean at most twice as far from float64's as eager's. How far both are is chance: so the mean over several weights."""
    logarithms = []
    for variant in range(1, 9):
        with compiled_path():
            theirs = train(name, lambda model: model, variant=variant)
            exact = train(name, lambda model: model, torch.float64, variant)
        ours = train(name, magneto.compile, variant=variant)
        far = [
            sum(float((value[1][key].double() - exact[1][key]).pow(2).sum()) for key in exact[1])  # type: ignore[index]
            for value in (ours, theirs)
        ]
        logarithms.append(math.log((far[0] + 1e-30) / (far[1] + 1e-30)) / 2)
    assert sum(logarithms) / len(logarithms) <= math.log(2), [math.exp(each) for each in logarithms]


# An architecture is trained or run in other sizes, as its name picks; `make test-all` does both.
@pytest.mark.parametrize("name", those_that_pick("training", ["training", "sizes", "eval"], sorted(models.MODELS)))
def test_training(name: str) -> None:
    # transformers makes other masks for compilers than for eager, and with them other dropouts.
    with compiled_path():
        expected = train(name, lambda model: model)
    actual = train(name, magneto.compile)
    if isinstance(expected, type):
        assert actual is expected
        return
    assert not isinstance(actual, type), actual
    assert actual[1].keys() == expected[1].keys()
    torch.testing.assert_close(actual[2], expected[2], rtol=0, atol=0)
    if not is_close(actual, expected):
        check_against_float64(name)
