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


def raises_if_not(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    if not (x > 0).all():
        raise ValueError(f"must be positive, found {x.min():.2f} in {tuple(x.shape)}")
    return x * 2


def raises_if(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if (y < 0).any():
        y = y + 1
        raise RuntimeError("negative: " + str(y))
    return y


def raises_else(x: torch.Tensor) -> torch.Tensor:
    if torch.isfinite(x).all():
        y = x + 1
    else:
        raise ArithmeticError("not finite")
    return y


def raises_if_either(x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 1 or x.sum() < 0:
        raise ValueError("bad")
    return x + 1


def raises_in_a_function(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return raises_if(x) + raises_if_not(x)


def raises_and_catches(x: torch.Tensor) -> torch.Tensor:
    try:
        return raises_if(x)
    except RuntimeError as error:
        return x - len(str(error))


def raises_on_several_elements(x: torch.Tensor) -> torch.Tensor:
    if x < 0:
        raise ValueError("negative")
    return x + 1


RAISING = [
    raises_if_not,
    raises_if,
    raises_else,
    raises_if_either,
    raises_in_a_function,
    raises_and_catches,
    raises_on_several_elements,
]
