"""Programs run twice: with the interpreter of the loop IR, and as machine code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magneto import _test_settings


@pytest.fixture(params=["interpreted", "machine"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    with _test_settings.patch(interpret_kernels=request.param == "interpreted"):
        yield request.param
