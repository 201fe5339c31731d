"""A part of the sweep over PyTorch's operator database (see sweep.py), small enough for every run."""

import pytest
import sweep
import torch

SOME = sweep.infos()[::9]


@pytest.mark.parametrize("info", SOME, ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip("."))
def test_op(info):
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    assert not list(sweep.check(info, dtype, 2))


@pytest.mark.parametrize("info", sweep.infos({"mul", "exp", "nn.functional.linear", "sum"}), ids=lambda info: info.name)
def test_complex_graphs_run_one_by_one(info):
    assert not list(sweep.check(info, torch.complex64, 2))
    assert any("no plain tensors" in way for way in sweep.ways[info.name])
