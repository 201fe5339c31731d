"""Scripts as people write them around PyTorch: each is run in eager and compiled, and must give the same.

A script is a function that takes `compiled`, which it puts around the function, method or module that is to be
compiled: in eager that is the identity. It makes all of its state by itself, and returns whatever should be the same.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from compare import Closeness, assert_same

import magneto

Compiled = Callable[[Any], Any]
Script = Callable[[Compiled], Any]

# Whole trainings: what one step rounds otherwise the next ones carry on.
FLOAT32 = Closeness(rtol=1e-4, atol=1e-5, floats=True)
BFLOAT16 = Closeness(rtol=2e-2, atol=2e-3, floats=True)  # eager rounds every operator's result to 8 bits


@dataclasses.dataclass
class Scripts:
    """The scripts of one file, for `pytest.mark.parametrize`."""

    scripts: dict[str, tuple[Script, Closeness]] = dataclasses.field(default_factory=dict)

    def __call__(self, script: Script | None = None, *, closeness: Closeness = FLOAT32) -> Any:
        """Decorator of a script."""
        if script is None:
            return lambda actual: self(actual, closeness=closeness)
        assert script.__name__ not in self.scripts
        self.scripts[script.__name__] = (script, closeness)
        return script


def observe(script: Script, compiled: Compiled) -> dict[str, Any]:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    result = script(compiled)
    return {"result": result, "next random": (torch.rand(2), random.random(), np.random.rand())}


def check(script: Script, closeness: Closeness) -> None:
    expected = observe(script, lambda function: function)
    magneto.reset()
    actual = observe(script, magneto.compile)
    assert_same(actual, expected, closeness=closeness, path=script.__name__)
    stats = magneto.stats()
    assert stats["frames"] > 0, "nothing was captured"
    assert not stats["fallbacks"], stats["fallbacks"]
