"""Fixtures of the tests of `magneto.install()`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import magneto
from magneto._install import settings


@pytest.fixture
def installed() -> Iterator[None]:
    """magneto.install() for one test; settings as before afterwards."""
    before = magneto.config.current()
    reorderable = set(magneto.config.reorderable_logging_functions)
    magneto.install()
    try:
        yield
    finally:
        magneto.uninstall()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings.forget_logs()
        for name, value in before.items():
            setattr(magneto.config, name, value)
        magneto.config.reorderable_logging_functions = reorderable
