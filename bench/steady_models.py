"""The models whose compile time and steady state are measured: real architectures, 4 layers or the published depth,
random weights. A row gives a config's class and settings, and the inputs for a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VOCABULARY, LENGTH = 1000, 64
Inputs = dict[str, torch.Tensor]


def tokens(batch: int) -> Inputs:
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, LENGTH))}


def short_tokens(batch: int) -> Inputs:
    return {"input_ids": torch.randint(0, VOCABULARY, (batch, 32))}


def sequence_pair(batch: int) -> Inputs:
    return {**tokens(batch), "decoder_input_ids": tokens(batch)["input_ids"]}


def image(batch: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 224, 224)}


def spectrogram(batch: int) -> Inputs:
    return {"input_features": torch.randn(batch, 80, 1000)}


@dataclass(frozen=True)
class Row:
    model: str
    config: str
    inputs: Callable[[int], Inputs]
    settings: dict[str, Any]
    part: str = ""  # of the model: this attribute


_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
}
_VIT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}

MODELS: dict[str, Row] = {
    "BERT": Row("BertModel", "BertConfig", tokens, _TEXT),
    "GPT-2": Row(
        "GPT2LMHeadModel",
        "GPT2Config",
        tokens,
        {"vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128, "use_cache": False},
    ),
    "Llama": Row("LlamaForCausalLM", "LlamaConfig", tokens, {**_TEXT, "num_key_value_heads": 2, "use_cache": False}),
    "ViT": Row("ViTModel", "ViTConfig", image, {**_VIT, "image_size": 224, "patch_size": 16}),
    "T5": Row(
        "T5Model",
        "T5Config",
        sequence_pair,
        {
            "vocab_size": VOCABULARY,
            "d_model": 256,
            "d_kv": 64,
            "d_ff": 1024,
            "num_layers": 4,
            "num_heads": 4,
            "use_cache": False,
        },
    ),
    "Whisper encoder": Row(
        "WhisperModel",
        "WhisperConfig",
        spectrogram,
        {
            "d_model": 256,
            "encoder_layers": 4,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
            "vocab_size": VOCABULARY,
            "max_source_positions": 500,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        part="encoder",
    ),
    "ResNet-50": Row("ResNetModel", "ResNetConfig", image, {}),
    "ConvNeXt": Row("ConvNextModel", "ConvNextConfig", image, {}),
    "MobileNetV2": Row("MobileNetV2Model", "MobileNetV2Config", image, {}),
    "Mamba": Row(
        "MambaForCausalLM",
        "MambaConfig",
        short_tokens,
        {"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 4, "state_size": 16, "use_cache": False},
    ),
}
BATCHES = (1, 8)


def build(name: str) -> torch.nn.Module:
    """The model in eval mode; the same weights each time."""
    import transformers

    row = MODELS[name]
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model = getattr(transformers, row.model)(getattr(transformers, row.config)(**row.settings)).eval()
    return getattr(model, row.part) if row.part else model


def inputs(name: str, batch: int) -> Inputs:
    torch.manual_seed(1)
    return MODELS[name].inputs(batch)
