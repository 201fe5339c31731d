"""Mixtures of experts."""

from .base import LLAMA, MOE, VOCAB, Row, tokens  # noqa: F401


def row(name: str, **settings: object) -> Row:
    return Row("moe", f"{name}ForCausalLM", f"{name}Config", tokens, {**MOE, **settings})


_EXPERTS = {"num_experts": 4, "moe_intermediate_size": 32}
_DEEPSEEK = {"num_key_value_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 16,
             "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "n_group": 2,
             "topk_group": 1, "n_shared_experts": 1}  # fmt: skip

ROWS: dict[str, Row] = {
    "axk1": row("AXK1", **_DEEPSEEK),
    "dbrx": Row("moe", "DbrxForCausalLM", "DbrxConfig", tokens, {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}, "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}}),
    "deepseek_v2": row("DeepseekV2", **_DEEPSEEK),
    "deepseek_v3": row("DeepseekV3", **_DEEPSEEK),
    "dots1": row("Dots1", head_dim=8, n_routed_experts=4, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1, topk_group=1, n_shared_experts=1),
    "ernie4_5_moe": row("Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_layer_start_index=1),
    "flex_olmo": row("FlexOlmo", num_experts=4),
    "glm4_moe": row("Glm4Moe", head_dim=8, n_routed_experts=4, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1, topk_group=1, n_shared_experts=1),
    "gpt_oss": row("GptOss", head_dim=8, num_local_experts=4, sliding_window=4),
    "granitemoe": row("GraniteMoe", num_local_experts=4),
    "granitemoehybrid": row("GraniteMoeHybrid", num_local_experts=4, shared_intermediate_size=32, layer_types=["mamba", "attention"], mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4),
    "granitemoeshared": row("GraniteMoeShared", num_local_experts=4, shared_intermediate_size=32),
    "hunyuan_moe": row("HunYuanMoEV1", head_dim=8, num_experts=4, moe_topk=2),
    "jetmoe": row("JetMoe", num_local_experts=4, kv_channels=8, num_key_value_heads=2, num_attention_heads=4),
    "lfm2_moe": row("Lfm2Moe", layer_types=["conv", "full_attention"], num_dense_layers=1, **_EXPERTS),
    "longcat_flash": row("LongcatFlash", num_layers=1, ffn_hidden_size=64, expert_ffn_hidden_size=32, moe_topk=2, n_routed_experts=4, zero_expert_num=2, q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, head_dim=4, num_key_value_heads=4),
    "minimax": row("MiniMax", num_local_experts=4, layer_types=["linear_attention", "full_attention"], block_size=4, head_dim=8),
    "minimax_m2": row("MiniMaxM2", num_local_experts=4, head_dim=8),
    "olmoe": row("Olmoe", num_experts=4),
    "phimoe": row("Phimoe", num_local_experts=4),
    "qwen3_moe": row("Qwen3Moe", head_dim=8, **_EXPERTS),
}  # fmt: skip
