"""All programs of this folder once more, with an exit forced after every n-th instruction."""

from __future__ import annotations

import pytest
from scenario import observe
from test_language import CASES

import magneto
from magneto import _test_settings


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize(("scenario", "breaks"), CASES)
def test_program(scenario, breaks: bool, every: int) -> None:  # type: ignore[no-untyped-def]
    expected = observe(scenario, None)
    magneto.reset()
    with _test_settings.patch(exit_every=every), magneto.config.patch(cache_size_limit=1000):
        actual = observe(scenario, lambda function: magneto.compile(function, backend="aot_eager"))
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert left == right, f"call {index + 1}:\n{left}\ninstead of\n{right}"
