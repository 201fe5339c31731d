"""All programs of this folder once more, with all sizes and numbers of their inputs symbols."""

from __future__ import annotations

import pytest
from scenario import check
from test_language import CASES


@pytest.mark.parametrize("backend", ["magneto", "aot_eager"])
@pytest.mark.parametrize(("scenario", "breaks"), CASES)
def test_program(scenario, breaks: bool, backend: str) -> None:  # type: ignore[no-untyped-def]
    check(scenario, breaks, backend=backend, dynamic=True)
