"""Every architecture with batches and lengths that vary: one program for all of them, from the third call on."""

from __future__ import annotations

import copy
from typing import Any

import models
import pytest
import torch
from test_architectures import BREAKS
from test_models import compiled_path
from tiers import those_that_pick

import magneto

# What makes each size a capture of its own: a recurrence is unrolled over the steps (mamba and its like, rwkv, minimax),
# or a loop over the images (superpoint), numbers follow from sizes in a way that is not captured (paddings to a multiple;
# led logs them, too), or what a tensor of sizes holds is asked.
OWN_CAPTURES = {
    *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "mamba", "mamba2", "minimax", "nemotron_h"),
    *("qwen3_next", "recurrent_gemma", "rwkv", "zamba2"),
    *("canine", "deberta", "funnel", "reformer", "tapas", "xmod", "grounding_dino"),
    *("instructblip", "led", "llava", "paligemma", "smolvlm", "superpoint", "vjepa2"),
}


def varied(inputs: dict[str, Any], times: int, shorter: int) -> dict[str, Any]:
    """The batch so many times as large, token sequences so much shorter."""

    def vary(value: Any) -> Any:
        if isinstance(value, list) and len(value) == 2:
            return value * times
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.shape[0] != 2:
            return value
        value = value.repeat(times, *[1] * (value.dim() - 1))
        tokens = value.dim() == 2 and value.dtype in (torch.long, torch.bool) and value.shape[1] > shorter + 2
        return value[:, : value.shape[1] - shorter].contiguous() if tokens else value

    return {name: vary(value) for name, value in inputs.items()}


def tensors_of(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, dict) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


NAMES = [name for name in models.MODELS if name not in BREAKS]


# An architecture is trained or run in other sizes, as its name picks; `make test-all` does both.
@torch.no_grad()
@pytest.mark.parametrize("name", those_that_pick("sizes", ["training", "sizes", "eval"], NAMES))
def test_sizes(name: str) -> None:
    module = models.build(name)
    compiled = magneto.compile(module)
    for times, shorter in ((1, 0), (2, 0), (3, 2), (4, 1)):
        inputs = varied(models.inputs(name, 0), times, shorter)
        torch.manual_seed(0)
        try:
            with compiled_path():
                expected = module(**copy.deepcopy(inputs))
        except (RuntimeError, ValueError, IndexError):
            continue  # these sizes are not for this model
        torch.manual_seed(0)
        actual = compiled(**copy.deepcopy(inputs))
        for left, right in zip(tensors_of(actual), tensors_of(expected), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert magneto.stats()["fallbacks"] == {}
    if name not in OWN_CAPTURES:
        assert magneto.stats()["recompiles"] <= 2, "one for the batch, one for the length"
