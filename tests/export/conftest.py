"""Fixtures of the tests of exports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import magneto


@pytest.fixture
def installed() -> Iterator[None]:
    """torch.export is ours for one test."""
    magneto.install()
    yield
    magneto.uninstall()
