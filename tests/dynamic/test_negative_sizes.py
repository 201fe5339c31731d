"""Sizes that the program computes, which are zero or negative in some calls: what eager refuses is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import magneto

PROGRAMS: dict[str, Callable[[Tensor, int], Any]] = {
    "ones": lambda x, k: x + torch.ones(k).sum(),
    "zeros": lambda x, k: torch.zeros(2, k) + 1,
    "one_less": lambda x, k: x + torch.ones(k - 1).sum(),
    "full": lambda x, k: torch.full((k,), 2.0).sum() + x,
    "new_zeros": lambda x, k: x.new_zeros(k).sum() + x,
    "new_full": lambda x, k: x.new_full((k,), 1.0).sum() + x,
    "rand": lambda x, k: torch.rand(k).shape[0] + x,
    "randint": lambda x, k: torch.randint(0, 3, (k,)).shape[0] + x,
    "expand": lambda x, k: x.expand(k, 4).sum(),
    "repeat": lambda x, k: x.repeat(k).sum(),
    "arange": lambda x, k: torch.arange(k).sum() + x,
    "eye": lambda x, k: torch.eye(k).sum() + x,
    "linspace": lambda x, k: torch.linspace(0, 1, k).sum() + x,
    "view": lambda x, k: x.view(k, -1).sum(),
    "narrow": lambda x, k: x.narrow(0, 0, k).sum(),
    "pad": lambda x, k: F.pad(x, (k, 0)).sum(),
    "split": lambda x, k: x.split(k)[0].sum(),
    "chunk": lambda x, k: x.chunk(k)[0].sum(),
    "unfold": lambda x, k: x.unfold(0, k, 1).sum(),
    "topk": lambda x, k: x.topk(k)[0].sum(),
    "tril_indices": lambda x, k: torch.tril_indices(k, k).sum() + x,
    "one_hot": lambda x, k: F.one_hot(torch.tensor([0]), k).sum() + x,
    "interpolate": lambda x, k: F.interpolate(x[None, None], size=k).sum(),
    "pool": lambda x, k: F.adaptive_avg_pool1d(x[None], k).sum(),
}


def outcome(program: Callable[[Tensor, int], Any], k: int) -> Any:
    torch.manual_seed(0)
    try:
        return program(torch.arange(4.0), k).tolist()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dynamic: bool | None, backend: str) -> None:
    compiled = magneto.compile(PROGRAMS[name], backend=backend, dynamic=dynamic)
    for k in (2, 3, 0, -1, -2, 1):
        assert outcome(compiled, k) == outcome(PROGRAMS[name], k)
