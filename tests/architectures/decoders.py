"""Text decoders, state-space models and linear attention."""

from .base import BERT, LLAMA, SPECIAL, VOCAB, Row, masked_tokens, tokens


def row(model: str, config: str, settings: dict = LLAMA, inputs=tokens, **nested: dict) -> Row:
    return Row("decoder", model, config, inputs, settings, nested)


def llama(name: str, inputs=tokens, **settings: object) -> Row:
    """A model named and configured as Llama is."""
    return row(f"{name}ForCausalLM", f"{name}Config", {**LLAMA, **settings}, inputs)


_GPT2 = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **SPECIAL}
_MAMBA = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, **SPECIAL}

ROWS: dict[str, Row] = {
    "apertus": llama("Apertus"),
    "arcee": llama("Arcee"),
    "biogpt": row("BioGptForCausalLM", "BioGptConfig", BERT, masked_tokens),
    "bitnet": llama("BitNet"),
    "codegen": row("CodeGenForCausalLM", "CodeGenConfig", {**_GPT2, "rotary_dim": 4}),
    "cohere": llama("Cohere"),
    "cohere2": llama("Cohere2", sliding_window=4),
    "ctrl": row("CTRLLMHeadModel", "CTRLConfig", {**_GPT2, "dff": 64}),
    "cwm": llama("Cwm", sliding_window=4),
    "diffllama": llama("DiffLlama"),
    "doge": llama("Doge", masked_tokens),
    "ernie4_5": llama("Ernie4_5"),
    "exaone4": llama("Exaone4", sliding_window=4),
    "gemma2": llama("Gemma2", masked_tokens, head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    "gemma3": row("Gemma3ForCausalLM", "Gemma3TextConfig", {**LLAMA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}, masked_tokens),
    "gemma3n": row("Gemma3nForCausalLM", "Gemma3nTextConfig", {**LLAMA, "head_dim": 8, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4, "intermediate_size": [64, 64], "layer_types": ["sliding_attention", "full_attention"], "activation_sparsity_pattern": [0.0, 0.0]}),
    "glm": llama("Glm", head_dim=8),
    "glm4": llama("Glm4", head_dim=8),
    "gpt_bigcode": row("GPTBigCodeForCausalLM", "GPTBigCodeConfig", _GPT2, masked_tokens),
    "gpt_neo": row("GPTNeoForCausalLM", "GPTNeoConfig", {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4, "max_position_embeddings": 64, **SPECIAL}),
    "gpt_neox_japanese": row("GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseConfig", BERT),
    "gptj": row("GPTJForCausalLM", "GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    "granite": llama("Granite"),
    "helium": llama("Helium", head_dim=8),
    "hunyuan_dense": llama("HunYuanDenseV1", head_dim=8),
    "imagegpt": row("ImageGPTModel", "ImageGPTConfig", _GPT2),
    "jais2": llama("Jais2"),
    "modernbert_decoder": row("ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", {**BERT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "global_attn_every_n_layers": 2}),
    "mpt": row("MptForCausalLM", "MptConfig", {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, **SPECIAL}),
    "nanochat": llama("NanoChat"),
    "nemotron": llama("Nemotron"),
    "olmo": llama("Olmo"),
    "olmo2": llama("Olmo2"),
    "olmo3": llama("Olmo3", sliding_window=4),
    "openai": row("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", _GPT2),
    "persimmon": llama("Persimmon", num_key_value_heads=4),
    "phi3": llama("Phi3"),
    "qwen3": llama("Qwen3", masked_tokens, head_dim=8),
    "reformer": row("ReformerModel", "ReformerConfig", {"vocab_size": VOCAB, "hidden_size": 32, "attention_head_size": 8, "num_attention_heads": 4, "attn_layers": ["local", "local"], "feed_forward_size": 64, "axial_pos_embds": False, "local_attn_chunk_length": 4, "max_position_embeddings": 64, "is_decoder": True, **SPECIAL}),
    "seed_oss": llama("SeedOss", head_dim=8),
    "smollm3": llama("SmolLM3"),
    "stablelm": llama("StableLm"),
    "starcoder2": llama("Starcoder2", masked_tokens),
    "vaultgemma": llama("VaultGemma", head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    "xglm": row("XGLMForCausalLM", "XGLMConfig", {"vocab_size": VOCAB, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64, **SPECIAL}, masked_tokens),
    "youtu": llama("Youtu", num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8),
    # -- state-space models, linear attention, and mixtures of those with attention --
    "bamba": llama("Bamba", attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4),
    "falcon_h1": llama("FalconH1", mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_chunk_size=4, head_dim=8),
    "falcon_mamba": row("FalconMambaForCausalLM", "FalconMambaConfig", _MAMBA),
    "jamba": llama("Jamba", num_experts=2, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8, use_mamba_kernels=False),
    "lfm2": llama("Lfm2", layer_types=["conv", "full_attention"]),
    "mamba": row("MambaForCausalLM", "MambaConfig", _MAMBA),
    "mamba2": row("Mamba2ForCausalLM", "Mamba2Config", {**_MAMBA, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}),
    "nemotron_h": row("NemotronHForCausalLM", "NemotronHConfig", {**LLAMA, "layers_block_type": ["mamba", "attention"], "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 4}),
    "qwen3_next": llama("Qwen3Next", head_dim=8, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32),
    "recurrent_gemma": llama("RecurrentGemma", num_key_value_heads=1, lru_width=32, attention_window_size=4, block_types=["recurrent", "attention"], num_hidden_layers=2),
    "rwkv": row("RwkvForCausalLM", "RwkvConfig", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64, **SPECIAL}),
    "zamba2": llama("Zamba2", num_key_value_heads=4, mamba_d_state=8, n_mamba_heads=4, mamba_headdim=16, mamba_ngroups=1, chunk_size=4, layers_block_type=["mamba", "hybrid"], num_mem_blocks=1, hybrid_layer_ids=[1], use_mamba_kernels=False),
}  # fmt: skip
