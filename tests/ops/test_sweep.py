"""A part of the sweep over PyTorch's operator database (see sweep.py), small enough for every run."""

import pytest
import sweep
import torch

SOME = sweep.infos()[::9]


@pytest.mark.parametrize("info", SOME, ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip("."))
def test_op(info):
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    assert not list(sweep.check(info, dtype, 2))


@pytest.mark.long
@pytest.mark.parametrize("dtype", sweep.DTYPES)
@pytest.mark.parametrize("info", sweep.infos(), ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip("."))
def test_op_in_all_dtypes(info, dtype):
    if sweep.DTYPES[dtype] in info.dtypes:
        assert not list(sweep.check(info, sweep.DTYPES[dtype], 6))


COMPLEX = [info for info in sweep.infos() if torch.complex64 in info.dtypes][::6]


@pytest.mark.parametrize("info", COMPLEX, ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip("."))
def test_complex_operators_are_called(info):
    """`python tests/ops/sweep.py --dtype complex64` for all of them."""
    sweep.ways.pop(info.name, None)
    assert not list(sweep.check(info, torch.complex64, 2))
    ways = sweep.ways.get(info.name, set())
    assert all(
        way in ("generated", "not captured") or way.startswith("extern ") or "no plain tensors" in way for way in ways
    ), ways


@pytest.mark.parametrize(
    "info", sweep.infos()[4::9], ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip(".")
)
def test_op_with_symbols_for_sizes(info):
    """`python tests/ops/sweep.py --dynamic` for all of them."""
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    assert not list(sweep.check(info, dtype, 6, dynamic=True))
