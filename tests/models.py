"""The model zoo of the tests, the demo and the benchmarks: `transformers` architectures with small random configs.

One row per architecture, by kind in tests/architectures/. Nothing is downloaded: a row builds its config,
`AutoModel`-style classes are named, weights are random. `build(name)` gives the model in eval mode, `inputs(name, seed)`
the keyword arguments of a forward call. Sizes are tiny; `sizes` overrides single config values (the demo and the
benchmarks use larger ones).
"""

from __future__ import annotations

from typing import Any

import torch
from architectures import audio, decoders, detection, encoders, first, mixtures, multimodal, seq2seq, series, vision
from architectures.base import BATCH, LENGTH, VOCAB, Inputs, Row, tokens

__all__ = ["BATCH", "FIRST", "LENGTH", "MODELS", "VOCAB", "Inputs", "Row", "build", "inputs", "tokens"]

FIRST: dict[str, Row] = first.ROWS
MODELS: dict[str, Row] = {
    **FIRST,
    **encoders.ROWS,
    **decoders.ROWS,
    **mixtures.ROWS,
    **seq2seq.ROWS,
    **vision.ROWS,
    **detection.ROWS,
    **audio.ROWS,
    **multimodal.ROWS,
    **series.ROWS,
}


def build(name: str, seed: int = 0, **sizes: Any) -> torch.nn.Module:
    """The model of a row in eval mode, the same weights for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].make(**sizes)


def inputs(name: str, seed: int = 0, **sizes: Any) -> Inputs:
    """Keyword arguments for a forward call of that row's model; another seed gives other values, equal shapes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + seed)
        return MODELS[name].inputs(**sizes)


def spread_zeros(model: torch.nn.Module) -> None:
    """Parameters that start at zero, as tokens of vision transformers do, get small values: the layer norm of a row of
    equal values multiplies rounding errors by a million, and then eager's gradients are noise themselves.
    """
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and not weight.any():
                weight.add_(torch.randn(weight.shape, generator=numbers, dtype=weight.dtype), alpha=0.02)
