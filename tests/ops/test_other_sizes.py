"""A part of other_sizes.py, small enough for every run."""

import other_sizes
import pytest
import torch


@pytest.mark.parametrize(
    "info", other_sizes.infos()[2::9], ids=lambda info: f"{info.name}.{info.variant_test_name}".rstrip(".")
)
def test_sizes_that_fit_and_that_do_not(info):
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    assert not list(other_sizes.check(info, dtype, 2))
