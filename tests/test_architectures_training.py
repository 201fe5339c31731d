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


def train(name: str, wrap: Callable[[Any], Any]) -> Result | type[Exception]:
    """Losses, gradients, and what the random numbers of PyTorch go on with; or what was raised."""
    model = models.build(name).train()
    given = models.inputs(name)
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


def is_trained(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.requires_grad


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
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(actual[2], expected[2], rtol=0, atol=0)
