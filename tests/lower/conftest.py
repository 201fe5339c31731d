"""Programs run twice: with the interpreter of the loop IR, and as machine code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import magneto


@pytest.fixture(params=["interpreted", "machine"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with magneto.config.patch(interpret_kernels=request.param == "interpreted"):
        yield request.param
