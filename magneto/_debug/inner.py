"""Which functions of a program call which: a capture inlines what it calls, and a fault may be in any of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from magneto._messages import TORCH_FOLDER

_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def calls_during(run: Callable[[], Any]) -> dict[str, list[str]]:
    """The functions that each one called in `run`, "name (file:line)", in order. Those of PyTorch are looked through:
    what they call counts as called by who called them."""
    tree: dict[str, dict[str, None]] = {}
    callers = [""]

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return":
            if len(callers) > 1:  # else one that was there before
                callers.pop()
        elif event == "call":
            code = frame.f_code
            if code.co_filename.startswith((TORCH_FOLDER, _OURS, "<")):
                callers.append(callers[-1])
                return
            name = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
            tree.setdefault(callers[-1], {})[name] = None
            callers.append(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {name: list(called) for name, called in tree.items()}
