"""The model zoo of the tests, the demo and the benchmarks: `transformers` architectures with small random configs.

One row per architecture. Nothing is downloaded: a row builds its config, `AutoModel`-style classes are named, weights
are random. `build(name)` gives the model in eval mode, `inputs(name, seed)` the keyword arguments of a forward call.
Sizes are tiny; `sizes` overrides single config values (the demo and the benchmarks use larger ones).
"""

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
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **_SPECIAL}
_BERT = {**_TEXT, "intermediate_size": 64, "max_position_embeddings": 64}
_LLAMA = {**_TEXT, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
_SEQ2SEQ = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "decoder_start_token_id": 1,
    **_SPECIAL,
}
_AUDIO = {
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
_MOE = {**_LLAMA, "num_experts_per_tok": 2}

MODELS: dict[str, Row] = {
    # -- encoders --
    "bert": Row("encoder", "BertModel", "BertConfig", masked_tokens, _BERT),
    "roberta": Row("encoder", "RobertaForMaskedLM", "RobertaConfig", masked_tokens, {**_BERT, "pad_token_id": 1}),
    "distilbert": Row(
        "encoder",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        masked_tokens,
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    "albert": Row("encoder", "AlbertModel", "AlbertConfig", masked_tokens, {**_BERT, "embedding_size": 16}),
    "electra": Row("encoder", "ElectraForPreTraining", "ElectraConfig", masked_tokens, {**_BERT, "embedding_size": 16}),
    "deberta_v2": Row(
        "encoder",
        "DebertaV2Model",
        "DebertaV2Config",
        masked_tokens,
        {**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    ),
    "modernbert": Row(
        "encoder",
        "ModernBertModel",
        "ModernBertConfig",
        masked_tokens,
        {**_BERT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2},
    ),
    # -- decoders --
    "gpt2": Row(
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        tokens,
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **_SPECIAL},
    ),
    "gpt_neox": Row("decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", tokens, _BERT),
    "opt": Row(
        "decoder",
        "OPTForCausalLM",
        "OPTConfig",
        masked_tokens,
        {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    ),
    "bloom": Row(
        "decoder",
        "BloomForCausalLM",
        "BloomConfig",
        masked_tokens,
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, **_SPECIAL},
    ),
    "llama": Row("decoder", "LlamaForCausalLM", "LlamaConfig", tokens, _LLAMA),
    "mistral": Row("decoder", "MistralForCausalLM", "MistralConfig", masked_tokens, {**_LLAMA, "sliding_window": 4}),
    "qwen2": Row("decoder", "Qwen2ForCausalLM", "Qwen2Config", masked_tokens, _LLAMA),
    "gemma": Row("decoder", "GemmaForCausalLM", "GemmaConfig", tokens, {**_LLAMA, "head_dim": 8}),
    "phi": Row("decoder", "PhiForCausalLM", "PhiConfig", tokens, {**_LLAMA, "num_key_value_heads": 4}),
    "falcon": Row("decoder", "FalconForCausalLM", "FalconConfig", masked_tokens, _TEXT),
    # -- mixtures of experts --
    "mixtral": Row("moe", "MixtralForCausalLM", "MixtralConfig", tokens, {**_MOE, "num_local_experts": 4}),
    "qwen2_moe": Row(
        "moe",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        tokens,
        {**_MOE, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
    ),
    # -- encoder-decoders --
    "t5": Row(
        "encoder-decoder",
        "T5Model",
        "T5Config",
        encoder_decoder_tokens,
        {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
         "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2},
    ),
    "bart": Row("encoder-decoder", "BartModel", "BartConfig", encoder_decoder_tokens,
                {**_SEQ2SEQ, "max_position_embeddings": 64}),
    "pegasus": Row("encoder-decoder", "PegasusModel", "PegasusConfig", encoder_decoder_tokens,
                   {**_SEQ2SEQ, "max_position_embeddings": 64}),
    # -- vision --
    "vit": Row("vision", "ViTForImageClassification", "ViTConfig", image, _VIT),
    "deit": Row("vision", "DeiTModel", "DeiTConfig", image, _VIT),
    "resnet": Row(
        "vision",
        "ResNetForImageClassification",
        "ResNetConfig",
        image,
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "bottleneck"},
    ),
    "convnext": Row(
        "vision", "ConvNextModel", "ConvNextConfig", image,
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "patch_size": 4, "image_size": 32},
    ),
    "swin": Row(
        "vision", "SwinModel", "SwinConfig", image,
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    # -- audio --
    "whisper": Row(
        "audio", "WhisperModel", "WhisperConfig", spectrogram,
        {**_SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 20},
    ),
    "wav2vec2": Row("audio", "Wav2Vec2Model", "Wav2Vec2Config", waveform, _AUDIO),
    "hubert": Row("audio", "HubertModel", "HubertConfig", waveform, _AUDIO),
    # -- several modalities --
    "clip": Row(
        "multimodal", "CLIPModel", "CLIPConfig", image_and_text,
        {"projection_dim": 16},
        {"text_config": {**_BERT, "projection_dim": 16}, "vision_config": {**_VIT, "projection_dim": 16}},
    ),
}  # fmt: skip


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
