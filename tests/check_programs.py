"""Programs that check a tensor's data, for test_checks.py. (pytest rewrites the asserts of test files.)"""

from __future__ import annotations

import torch


def assert_on_a_tensor(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    assert (x > 0).all(), f"found {x.min()}"
    return x * 2


def assert_on_a_sum(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    assert y.sum() > 0
    return y


def assert_that_is_caught(x: torch.Tensor) -> torch.Tensor:
    try:
        assert x.sum() > 0
    except AssertionError:
        return x - 1
    return x + 1


def assert_on_several_elements(x: torch.Tensor) -> torch.Tensor:
    assert x > 0
    return x + 1


def check_tensor_all(x: torch.Tensor) -> torch.Tensor:
    torch._check_tensor_all(x > 0, lambda: "must be positive")
    return x + 1
