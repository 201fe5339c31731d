"""The first rows: the architectures that every kind of test runs on."""

from .base import (
    AUDIO,
    BERT,
    LLAMA,
    MOE,
    SEQ2SEQ,
    SPECIAL,
    TEXT,
    VIT,
    VOCAB,
    Row,
    encoder_decoder_tokens,
    image,
    image_and_text,
    masked_tokens,
    spectrogram,
    tokens,
    waveform,
)

ROWS: dict[str, Row] = {
    # -- encoders --
    "bert": Row("encoder", "BertModel", "BertConfig", masked_tokens, BERT),
    "roberta": Row("encoder", "RobertaForMaskedLM", "RobertaConfig", masked_tokens, {**BERT, "pad_token_id": 1}),
    "distilbert": Row(
        "encoder",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        masked_tokens,
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    "albert": Row("encoder", "AlbertModel", "AlbertConfig", masked_tokens, {**BERT, "embedding_size": 16}),
    "electra": Row("encoder", "ElectraForPreTraining", "ElectraConfig", masked_tokens, {**BERT, "embedding_size": 16}),
    "deberta_v2": Row(
        "encoder",
        "DebertaV2Model",
        "DebertaV2Config",
        masked_tokens,
        {**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    ),
    "modernbert": Row(
        "encoder",
        "ModernBertModel",
        "ModernBertConfig",
        masked_tokens,
        {**BERT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2},
    ),
    # -- decoders --
    "gpt2": Row(
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        tokens,
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL},
    ),
    "gpt_neox": Row("decoder", "GPTNeoXForCausalLM", "GPTNeoXConfig", tokens, BERT),
    "opt": Row(
        "decoder",
        "OPTForCausalLM",
        "OPTConfig",
        masked_tokens,
        {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    ),
    "bloom": Row(
        "decoder",
        "BloomForCausalLM",
        "BloomConfig",
        masked_tokens,
        {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, **SPECIAL},
    ),
    "llama": Row("decoder", "LlamaForCausalLM", "LlamaConfig", tokens, LLAMA),
    "mistral": Row("decoder", "MistralForCausalLM", "MistralConfig", masked_tokens, {**LLAMA, "sliding_window": 4}),
    "qwen2": Row("decoder", "Qwen2ForCausalLM", "Qwen2Config", masked_tokens, LLAMA),
    "gemma": Row("decoder", "GemmaForCausalLM", "GemmaConfig", tokens, {**LLAMA, "head_dim": 8}),
    "phi": Row("decoder", "PhiForCausalLM", "PhiConfig", tokens, {**LLAMA, "num_key_value_heads": 4}),
    "falcon": Row("decoder", "FalconForCausalLM", "FalconConfig", masked_tokens, TEXT),
    # -- mixtures of experts --
    "mixtral": Row("moe", "MixtralForCausalLM", "MixtralConfig", tokens, {**MOE, "num_local_experts": 4}),
    "qwen2_moe": Row(
        "moe",
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        tokens,
        {**MOE, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32},
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
                {**SEQ2SEQ, "max_position_embeddings": 64}),
    "pegasus": Row("encoder-decoder", "PegasusModel", "PegasusConfig", encoder_decoder_tokens,
                   {**SEQ2SEQ, "max_position_embeddings": 64}),
    # -- vision --
    "vit": Row("vision", "ViTForImageClassification", "ViTConfig", image, VIT),
    "deit": Row("vision", "DeiTModel", "DeiTConfig", image, VIT),
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
        {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 30, "max_target_positions": 20},
    ),
    "wav2vec2": Row("audio", "Wav2Vec2Model", "Wav2Vec2Config", waveform, AUDIO),
    "hubert": Row("audio", "HubertModel", "HubertConfig", waveform, AUDIO),
    # -- several modalities --
    "clip": Row(
        "multimodal", "CLIPModel", "CLIPConfig", image_and_text,
        {"projection_dim": 16},
        {"text_config": {**BERT, "projection_dim": 16}, "vision_config": {**VIT, "projection_dim": 16}},
    ),
}  # fmt: skip
