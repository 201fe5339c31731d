"""What the rows of all kinds share: the row itself, inputs, and settings that many configs name alike."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

VOCAB = 99
BATCH = 2
LENGTH = 7

Inputs = dict[str, Any]


def tokens(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB) -> Inputs:
    """Token ids alone, as a decoder is usually called."""
    return {"input_ids": torch.randint(3, vocab, (batch, length))}


def masked_tokens(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB) -> Inputs:
    """Token ids with a padding mask whose last row ends two tokens early."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, -2:] = 0
    return {**tokens(batch, length, vocab), "attention_mask": mask}


def encoder_decoder_tokens(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB) -> Inputs:
    return {
        **masked_tokens(batch, length, vocab),
        "decoder_input_ids": torch.randint(3, vocab, (batch, max(2, length - 2))),
    }


def image(batch: int = BATCH, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


def image_and_text(batch: int = BATCH, length: int = LENGTH, vocab: int = VOCAB, size: int = 32) -> Inputs:
    return {**masked_tokens(batch, length, vocab), **image(batch, size)}


def waveform(batch: int = BATCH, samples: int = 1600) -> Inputs:
    return {"input_values": torch.randn(batch, samples)}


def spectrogram(batch: int = BATCH, length: int = 5, vocab: int = VOCAB, bins: int = 16, frames: int = 60) -> Inputs:
    return {
        "input_features": torch.randn(batch, bins, frames),
        "decoder_input_ids": torch.randint(3, vocab, (batch, length)),
    }


@dataclass(frozen=True)
class Row:
    """One architecture: where its classes live, its config and what it is called with."""

    family: str  # encoder, decoder, encoder-decoder, vision, audio, multimodal, moe
    model: str  # class name in transformers
    config: str  # class name in transformers
    inputs: Callable[..., Inputs]
    settings: dict[str, Any] = field(default_factory=dict)
    # Sub-configs that the config class takes as keyword arguments: name -> settings.
    nested: dict[str, dict[str, Any]] = field(default_factory=dict)

    def make(self, **sizes: Any) -> torch.nn.Module:
        transformers = importlib.import_module("transformers")
        config = getattr(transformers, self.config)(**{**self.settings, **self.nested, **sizes})
        return getattr(transformers, self.model)(config).eval()


# What most text models name alike.
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **SPECIAL}
BERT = {**TEXT, "intermediate_size": 64, "max_position_embeddings": 64}
LLAMA = {**TEXT, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
    **SPECIAL,
}
AUDIO = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 2),
    "conv_kernel": (10, 8, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
MOE = {**LLAMA, "num_experts_per_tok": 2}
