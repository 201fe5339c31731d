"""Every row of tests/architectures: eager's results bit for bit (scans: but for rounding), in one graph where nothing in the
model reads data."""

from __future__ import annotations

from typing import Any

import models
import pytest
import torch
from compare import assert_same
from test_models import compiled_path

import magneto

# Models that read a tensor's data or call NumPy on the way: side exits of one cold
# call. torch.compile has more in total (bench/breaks.py); whoever makes one of these numbers smaller, change it here.
BREAKS: dict[str, int] = {
    "fastspeech2": 2,
    "udop": 1,
    "vilt": 9,
}

# These call associative_scan, which PyTorch combines in a tree and Magneto in the order of the steps
# (magneto/_polyfills.py): equal but for rounding.
SCANNED = {"falcon_mamba", "jamba", "mamba"}


def call(function: Any, name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    return function(**models.inputs(name, seed))


@pytest.mark.parametrize("name", [name for name in models.MODELS if name not in models.FIRST])
def test_architecture(name: str) -> None:
    module = models.build(name)
    with torch.no_grad():
        call(module, name, 0)
        with compiled_path():
            expected = [call(module, name, seed) for seed in (0, 1)]
        for backend in ("eager", "aot_eager"):
            magneto.reset()
            # Each break resumes in torch's own Module.__call__: one place, with a result of another type each time.
            with magneto.config.patch(cache_size_limit=100, accumulated_cache_size_limit=1000):
                check(module, name, backend, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "magneto"])
@pytest.mark.parametrize("name", ["smolvlm", "superpoint"])
def test_sizes_that_data_says(name: str, backend: str) -> None:
    """Side exits by default; one graph where breaks are not wanted: the largest of many sizes, masks that take values."""
    module = models.build(name)
    with torch.no_grad():
        compiled = magneto.compile(module, backend=backend, fullgraph=True)
        for seed in (0, 0, 1, 2):
            assert_same(call(compiled, name, seed), call(module, name, seed), exact=backend != "magneto")
    assert magneto.stats()["breaks"] == 0


def check(module: torch.nn.Module, name: str, backend: str, expected: list[Any]) -> None:
    compiled = magneto.compile(module, backend=backend, fullgraph=name not in BREAKS)
    assert_same(call(compiled, name, 0), expected[0], exact=name not in SCANNED)
    assert magneto.stats()["breaks"] == BREAKS.get(name, 0)
    assert_same(call(compiled, name, 0), expected[0], exact=name not in SCANNED)
    assert_same(call(compiled, name, 1), expected[1], exact=name not in SCANNED)
    if name not in BREAKS:
        assert magneto.stats()["recompiles"] == 0
