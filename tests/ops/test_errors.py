"""What operators refuse: the class and the message that a handler in the program reads are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import sweep
from tiers import ways_of

import magneto


def call(info: Any, sample: Any) -> Any:
    try:
        return info.op(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return type(error).__name__, str(error)


SIZES = {"static": False, "dynamic": True}

# With one of them; with both in `make test-all`.
CASES = [
    pytest.param(info, SIZES[way], id=f"{name}-{way}", marks=marks)
    for info in sweep.op_db
    if info.error_inputs_func
    for name in [f"{info.name}.{info.variant_test_name}".rstrip(".")]
    for way, marks in ways_of(name, [], list(SIZES), count=1)
]


@pytest.mark.parametrize(("info", "dynamic"), CASES)
def test_messages(info: Any, dynamic: bool) -> None:
    for given in info.error_inputs("cpu"):
        expected = call(info, given.sample_input)
        if not isinstance(expected, tuple) or not isinstance(expected[0], str):
            continue  # of values in other places than the kernel: accepted
        magneto.reset()
        with magneto.config.patch(strict=True):
            compiled = magneto.compile(lambda sample: call(info, sample), backend="aot_eager", dynamic=dynamic)
            assert compiled(given.sample_input) == expected
