"""All programs of this folder once more, with an exit forced after every n-th instruction."""

from __future__ import annotations

import pytest
from scenario import observe
from test_language import CASES

import magneto

# Falls back, visibly: the exit is forced where the value stack holds what no plan rebuilds yet.
KNOWN = {("modules-sequential_is_indexed_sliced_and_iterated", 7): "fallback: Rebuild"}


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize(("scenario", "breaks"), CASES)
def test_program(scenario, breaks: bool, every: int, request: pytest.FixtureRequest) -> None:  # type: ignore[no-untyped-def]
    for (name, n), reason in KNOWN.items():
        if n == every and f"[{name}-" in request.node.name:
            pytest.xfail(reason)
    expected = observe(scenario, None)
    magneto.reset()
    with magneto.config.patch(exit_every=every, cache_size_limit=1000):
        actual = observe(scenario, lambda function: magneto.compile(function, backend="aot_eager"))
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert left == right, f"call {index + 1}:\n{left}\ninstead of\n{right}"
