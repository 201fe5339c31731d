"""Several modalities."""

import torch

from .base import BERT, LLAMA, SPECIAL, TEXT, VIT, VOCAB, Inputs, Row, image, image_and_text, masked_tokens  # noqa: F401


def row(model: str, config: str, settings: dict, inputs=image_and_text, **nested: dict) -> Row:
    return Row("multimodal", model, config, inputs, settings, nested)


def _boxes(batch: int = 2, length: int = 7) -> Inputs:
    """Text with the box of each token on a page."""
    left = torch.randint(0, 20, (batch, length, 2))
    return {**masked_tokens(batch, length), "bbox": torch.cat([left, left + 5], -1)}


def _image_tokens(count: int, token: int = 98):
    """Text with a run of `count` image tokens in it, which the image's features replace."""

    def make(batch: int = 2, size: int = 32) -> Inputs:
        ids = torch.randint(3, 90, (batch, count + 6))
        ids[:, 2 : 2 + count] = token
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **image(batch, size)}

    return make


_CLIP_TEXT = {**BERT, "projection_dim": 16}
_CLIP_VISION = {**VIT, "projection_dim": 16}

ROWS: dict[str, Row] = {
    "altclip": row("AltCLIPModel", "AltCLIPConfig", {"projection_dim": 16}, text_config={**BERT, "project_dim": 32, "pad_token_id": 1}, vision_config=_CLIP_VISION),
    "blip": row("BlipModel", "BlipConfig", {"projection_dim": 16}, text_config={**BERT, "encoder_hidden_size": 32, "projection_dim": 16}, vision_config=_CLIP_VISION),
    "chinese_clip": row("ChineseCLIPModel", "ChineseCLIPConfig", {"projection_dim": 16}, text_config=_CLIP_TEXT, vision_config=_CLIP_VISION),
    "clipseg": row("CLIPSegForImageSegmentation", "CLIPSegConfig", {"projection_dim": 16, "reduce_dim": 8, "extract_layers": [0, 1], "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16}, text_config=_CLIP_TEXT, vision_config=_CLIP_VISION),
    "flava": row("FlavaModel", "FlavaConfig", {"hidden_size": 32, "projection_dim": 16}, image_and_text, text_config=BERT, image_config=VIT, multimodal_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}, image_codebook_config={}),
    "git": row("GitModel", "GitConfig", {**BERT}, image_and_text, vision_config=VIT),
    "groupvit": row("GroupViTModel", "GroupViTConfig", {"projection_dim": 16, "projection_intermediate_dim": 32}, image_and_text, text_config=BERT, vision_config={"hidden_size": 32, "depths": [1, 1], "num_group_tokens": [4, 0], "num_output_groups": [4, 2], "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8}),
    "instructblip": row("InstructBlipQFormerModel", "InstructBlipQFormerConfig", {**BERT, "encoder_hidden_size": 16}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch, 5)), "query_embeds": torch.randn(batch, 3, 32), "attention_mask": torch.ones(batch, 8, dtype=torch.int64), "encoder_hidden_states": torch.randn(batch, 6, 16)}),
    "kosmos2": row("Kosmos2Model", "Kosmos2Config", {"latent_query_num": 4}, lambda batch=2: {**image(batch), "input_ids": torch.randint(3, VOCAB, (batch, 9)), "image_embeds_position_mask": torch.tensor([[0, 1, 1, 1, 1, 0, 0, 0, 0]] * batch)}, text_config={"vocab_size": VOCAB, "embed_dim": 32, "layers": 1, "attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64}, vision_config=VIT),
    "layoutlmv3": row("LayoutLMv3Model", "LayoutLMv3Config", {**BERT, "pad_token_id": 1, "coordinate_size": 4, "shape_size": 8, "max_2d_position_embeddings": 64, "input_size": 32, "patch_size": 8}, lambda batch=2: {**_boxes(batch), **image(batch)}),
    "llava": row("LlavaForConditionalGeneration", "LlavaConfig", {"image_token_index": 98, "vision_feature_layer": -1}, _image_tokens(16), text_config={"model_type": "llama", **LLAMA}, vision_config={"model_type": "clip_vision_model", **VIT}),
    "lxmert": row("LxmertModel", "LxmertConfig", {**BERT, "l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16}, lambda batch=2: {**masked_tokens(batch), "visual_feats": torch.randn(batch, 4, 16), "visual_pos": torch.rand(batch, 4, 4)}),
    "paligemma": row("PaliGemmaForConditionalGeneration", "PaliGemmaConfig", {"image_token_id": 98, "projection_dim": 32}, lambda batch=2: {**_image_tokens(16)(batch), "token_type_ids": torch.zeros(batch, 22, dtype=torch.int64)}, text_config={"model_type": "gemma", **LLAMA, "head_dim": 8}, vision_config={"model_type": "siglip_vision_model", **VIT}),
    "perceiver": row("PerceiverModel", "PerceiverConfig", {"num_latents": 4, "d_latents": 16, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 2, "num_cross_attention_heads": 2}, lambda batch=2: {"inputs": torch.randn(batch, 6, 32)}),
    "pix2struct": row("Pix2StructVisionModel", "Pix2StructVisionConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "d_ff": 64, "d_kv": 8, "patch_embed_hidden_size": 12, "seq_len": 16}, lambda batch=2: {"flattened_patches": torch.cat([torch.randint(1, 8, (batch, 6, 2)).float(), torch.randn(batch, 6, 12)], -1)}),
    "qwen2_vl_text": row("Qwen2VLTextModel", "Qwen2VLTextConfig", {**LLAMA, "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}, masked_tokens),
    "siglip": row("SiglipModel", "SiglipConfig", {}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch, 7)), **image(batch)}, text_config={**BERT, "projection_size": 32}, vision_config=VIT),
    "smolvlm": row("SmolVLMForConditionalGeneration", "SmolVLMConfig", {"image_token_id": 98, "scale_factor": 2, "pad_token_id": 0}, lambda batch=2: {**{k: v for k, v in _image_tokens(4)(batch).items() if k != "pixel_values"}, "pixel_values": torch.randn(batch, 1, 3, 32, 32)}, text_config={"model_type": "llama", **LLAMA}, vision_config=VIT),
    "trocr": row("TrOCRForCausalLM", "TrOCRConfig", {"vocab_size": VOCAB, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "cross_attention_hidden_size": 32, **SPECIAL}, lambda batch=2: {"input_ids": torch.randint(3, VOCAB, (batch, 7)), "encoder_hidden_states": torch.randn(batch, 4, 32)}),
    "udop": row("UdopModel", "UdopConfig", {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "image_size": 32, "patch_size": 8, "decoder_start_token_id": 0}, lambda batch=2: {**masked_tokens(batch), **image(batch), "bbox": torch.rand(batch, 7, 4), "decoder_input_ids": torch.randint(3, VOCAB, (batch, 5))}),
    "vilt": row("ViltModel", "ViltConfig", {**BERT, **VIT, "max_image_length": -1}, lambda batch=2: {**image_and_text(batch), "pixel_mask": torch.ones(batch, 32, 32, dtype=torch.int64)}),
    "visual_bert": row("VisualBertModel", "VisualBertConfig", {**BERT, "visual_embedding_dim": 16}, lambda batch=2: {**masked_tokens(batch), "visual_embeds": torch.randn(batch, 4, 16), "visual_attention_mask": torch.ones(batch, 4, dtype=torch.int64), "visual_token_type_ids": torch.ones(batch, 4, dtype=torch.int64)}),
    "x_clip": row("XCLIPModel", "XCLIPConfig", {"projection_dim": 16, "prompt_layers": 1, "prompt_num_attention_heads": 2}, lambda batch=1: {**masked_tokens(3), "pixel_values": torch.randn(batch, 2, 3, 32, 32)}, text_config=BERT, vision_config={**VIT, "mit_hidden_size": 16, "mit_num_hidden_layers": 1, "mit_num_attention_heads": 2, "mit_intermediate_size": 32, "num_frames": 2}),
}  # fmt: skip
