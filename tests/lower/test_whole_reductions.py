"""Reductions of everything, which take two kernels where there is much to reduce."""

from __future__ import annotations

import pytest
import torch
from eager_support import check, hostile

SIZES = [(1 << 16,), (1 << 16 | 1,), (512, 300), (3, 50000), (5, 7, 3000), (1, 1, 70000), (100000, 2), (17, 0, 9)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_whole(sizes: tuple[int, ...]) -> None:
    x = torch.rand(sizes)
    check(lambda x: (x.sum(), x.sum(tuple(range(x.dim())), keepdim=True)), x)
    if x.numel():
        check(lambda x: (x.mean(), x.amax(), x.amin(), x.max(), x.norm(), (x * 2 - 1).abs().sum()), x)
        check(lambda x: (x.var(), x.std()), x)


def test_strides_and_dtypes() -> None:
    check(lambda x: (x.t() * 2).sum(), torch.rand(300, 400))
    check(lambda x: x[:, ::2].sum(), torch.rand(300, 800))
    check(lambda x: (x.sum(), x.amax()), torch.randint(-9, 9, (300, 400)))
    check(lambda x: (x.sum(), x.mean()), torch.rand(300, 400).bfloat16())
    check(lambda x: (x.amax(), x.amin()), hostile(300, 400))
