"""Objects as text, to see whether two runs of a program leave the same ones behind."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from magneto._debug.record.encode import Encoder


def described(values: Sequence[Any]) -> str:
    """What is reached from them, up to the first object that has no form in a record. Of tensors no values."""
    encoder = Encoder()
    with contextlib.suppress(Exception):
        encoder.value(list(values), "")
        encoder.finish()
    return json.dumps([encoder.objects, encoder.namespaces], default=str)
