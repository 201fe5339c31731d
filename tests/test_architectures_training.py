"""The architectures in training mode: losses and gradients are eager's, with dropout in eager's random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import magneto

pytest.importorskip("transformers")
import models
from test_models import compiled_path

Result = tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy = pytest.importorskip("numpy")  # wav2vec2 and its like choose what they mask with it
    numpy.random.seed(number)


def train(name: str, wrap: Callable[[Any], Any], dtype: torch.dtype | None = None) -> Result | type[Exception]:
    """Losses, gradients, and what the random numbers of PyTorch go on with; or what was raised."""
    model = models.build(name).train()
    spread_zeros(model)
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


def spread_zeros(model: torch.nn.Module) -> None:
    """Parameters that start at zero, as tokens of vision transformers do, get small values: the layer norm of a row of
    equal values multiplies rounding errors by a million, and then eager's gradients are noise themselves.
    """
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and not weight.any():
                weight.add_(torch.randn(weight.shape, generator=numbers, dtype=weight.dtype), alpha=0.02)


def is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_trained(value: Any) -> bool:
    return is_floating(value) and value.requires_grad


def check_gradients(name: str, actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Close to eager's; where a gradient is eager's rounding (of a bias in front of a batch norm it is zero), at most
    twice as far from float64's as eager's.
    """
    assert actual.keys() == expected.keys()
    exact: Any = None
    for key in expected:
        if torch.allclose(actual[key], expected[key], rtol=1e-2, atol=1e-4):
            continue
        with compiled_path():
            exact = exact or train(name, lambda model: model, torch.float64)
        ours, theirs = (float((value[key] - exact[1][key]).abs().max()) for value in (actual, expected))
        assert ours <= 2 * theirs, f"{key}: {ours:g} from float64, eager {theirs:g}"


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_training(name: str) -> None:
    # transformers makes other masks for compilers than for eager, and with them other dropouts.
    with compiled_path():
        expected = train(name, lambda model: model)
    actual = train(name, magneto.compile)
    if isinstance(expected, type):
        assert actual is expected
        return
    assert not isinstance(actual, type), actual
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-3, atol=1e-5)
    check_gradients(name, actual[1], expected[1])
    torch.testing.assert_close(actual[2], expected[2], rtol=0, atol=0)
