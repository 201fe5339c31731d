"""Helpers for tests that run graphs given as text."""

import pytest
import torch


@pytest.fixture(autouse=True)
def deterministic():
    torch.manual_seed(0)
    yield


def kind_of(tensor):
    """Element type and sizes as the text form spells them."""
    names = {torch.float32: "f32", torch.int64: "i64", torch.bool: "b8", torch.float64: "f64", torch.complex64: "c64"}
    names[torch.bfloat16] = "bf16"
    return f"{names[tensor.dtype]}{list(tensor.shape)}"
