"""Encoder-decoders."""

from .base import SEQ2SEQ, VOCAB, Inputs, Row, encoder_decoder_tokens


def _long(**sizes: int) -> Inputs:
    return encoder_decoder_tokens(**{"length": 16, **sizes})


def row(model: str, config: str, settings: dict, inputs=encoder_decoder_tokens, **nested: dict) -> Row:
    return Row("encoder-decoder", model, config, inputs, settings, nested)


_BART = {**SEQ2SEQ, "max_position_embeddings": 64}
_T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
       "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}  # fmt: skip

ROWS: dict[str, Row] = {
    "bigbird_pegasus": row("BigBirdPegasusModel", "BigBirdPegasusConfig", {**_BART, "attention_type": "original_full"}),
    "blenderbot": row("BlenderbotModel", "BlenderbotConfig", _BART),
    "blenderbot_small": row("BlenderbotSmallModel", "BlenderbotSmallConfig", _BART),
    "fsmt": row("FSMTModel", "FSMTConfig", {**SEQ2SEQ, "langs": ["en", "de"], "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "max_position_embeddings": 64}),
    "led": row("LEDModel", "LEDConfig", {**SEQ2SEQ, "attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}, _long),
    "longt5": row("LongT5Model", "LongT5Config", {**_T5, "local_radius": 3, "global_block_size": 4}, _long),
    "m2m_100": row("M2M100Model", "M2M100Config", _BART),
    "marian": row("MarianModel", "MarianConfig", _BART),
    "mbart": row("MBartModel", "MBartConfig", _BART),
    "mt5": row("MT5Model", "MT5Config", _T5),
    "mvp": row("MvpModel", "MvpConfig", _BART),
    "nllb_moe": Row("moe", "NllbMoeModel", "NllbMoeConfig", encoder_decoder_tokens, {**_BART, "num_experts": 4, "expert_capacity": 8, "encoder_sparse_step": 2, "decoder_sparse_step": 2}),
    "pegasus_x": row("PegasusXModel", "PegasusXConfig", {**_BART, "block_size": 4, "num_global_tokens": 2}, _long),
    "plbart": row("PLBartModel", "PLBartConfig", _BART),
    "prophetnet": row("ProphetNetModel", "ProphetNetConfig", {"vocab_size": VOCAB, "hidden_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "ngram": 2, "num_buckets": 8, "relative_max_distance": 32}),
    "switch_transformers": Row("moe", "SwitchTransformersModel", "SwitchTransformersConfig", encoder_decoder_tokens, {**_T5, "num_experts": 4, "expert_capacity": 8, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    "t5gemma": row("T5GemmaModel", "T5GemmaConfig", {"vocab_size": VOCAB}, encoder={"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}, decoder={"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4, "cross_attention_hidden_size": 32}),
    "umt5": row("UMT5Model", "UMT5Config", _T5),
}  # fmt: skip
