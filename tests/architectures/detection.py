"""Detection, instance segmentation and segmentation by prompts."""

import torch

from .base import BERT, VIT, Inputs, Row, image, masked_tokens


def row(model: str, config: str, settings: dict, inputs=image, **nested: dict) -> Row:
    return Row("detection", model, config, inputs, settings, nested)


def _image64(**sizes: int) -> Inputs:
    return image(**{"size": 64, **sizes})


def _prompted(batch: int = 2) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 64, 64), "input_points": torch.rand(batch, 1, 2, 2) * 60, "input_labels": torch.ones(batch, 1, 2, dtype=torch.int64)}  # fmt: skip


_RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}  # fmt: skip
_LAST = {**_RESNET, "out_features": ["stage4"]}
_SWIN = {"model_type": "swin", "image_size": 64, "patch_size": 4, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"]}  # fmt: skip
_DETR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 5, "use_timm_backbone": False,
         "use_pretrained_backbone": False, "backbone": None}  # fmt: skip
_RT = {"d_model": 32, "encoder_hidden_dim": 32, "encoder_in_channels": [16, 16, 16], "feat_strides": [8, 16, 32], "encoder_layers": 1, "encoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_in_channels": [32, 32, 32], "decoder_ffn_dim": 64, "decoder_layers": 2, "decoder_attention_heads": 4, "num_queries": 5, "num_denoising": 0, "encode_proj_layers": [2], "hidden_expansion": 0.5}  # fmt: skip
_RT_BACKBONE = {"model_type": "rt_detr_resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}  # fmt: skip

ROWS: dict[str, Row] = {
    "conditional_detr": row("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", {**_DETR, "backbone_config": _LAST}, _image64),
    "d_fine": row("DFineForObjectDetection", "DFineConfig", {**_RT, "backbone_config": {"model_type": "hgnet_v2", "embedding_size": 8, "stem_channels": [3, 8, 8], "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "stage_in_channels": [8, 8, 16, 16], "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [8, 16, 16, 16], "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [1, 1, 1, 1], "stage_kernel_size": [3, 3, 3, 3], "stage_downsample": [False, True, True, True], "stage_light_block": [False, False, True, True], "out_features": ["stage2", "stage3", "stage4"]}}, _image64),
    "dab_detr": row("DabDetrForObjectDetection", "DabDetrConfig", {**_DETR, "hidden_size": 32, "backbone_config": _LAST}, _image64),
    "deformable_detr": row("DeformableDetrForObjectDetection", "DeformableDetrConfig", {**_DETR, "num_feature_levels": 2, "backbone_config": {**_RESNET, "out_features": ["stage4"]}}, _image64),
    "detr": row("DetrForObjectDetection", "DetrConfig", {**_DETR, "backbone_config": _LAST}, _image64),
    "grounding_dino": row("GroundingDinoForObjectDetection", "GroundingDinoConfig", {**_DETR, "num_feature_levels": 2, "num_queries": 4, "max_text_len": 16, "encoder_layers": 1, "backbone_config": {**_SWIN, "out_features": ["stage3", "stage4"]}, "text_config": {"model_type": "bert", **BERT}}, lambda batch=2: {**_image64(batch=batch), **masked_tokens(batch)}),
    "owlvit": row("OwlViTModel", "OwlViTConfig", {"projection_dim": 16}, lambda batch=2: {**masked_tokens(batch), **image(batch)}, text_config={**BERT, "max_position_embeddings": 16}, vision_config=VIT),
    "owlv2": row("Owlv2Model", "Owlv2Config", {"projection_dim": 16}, lambda batch=2: {**masked_tokens(batch), **image(batch)}, text_config={**BERT, "max_position_embeddings": 16}, vision_config=VIT),
    "rt_detr": row("RTDetrForObjectDetection", "RTDetrConfig", {**_RT, "backbone_config": _RT_BACKBONE}, _image64),
    "rt_detr_v2": row("RTDetrV2ForObjectDetection", "RTDetrV2Config", {**_RT, "backbone_config": _RT_BACKBONE}, _image64),
    "sam": row("SamModel", "SamConfig", {"vision_config": {**VIT, "image_size": 64, "output_channels": 16, "window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 8, "mlp_dim": 64}, "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}, "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "iou_head_hidden_dim": 16}}, _prompted),
    "table_transformer": row("TableTransformerForObjectDetection", "TableTransformerConfig", {**_DETR, "backbone_config": _LAST}, _image64),
    "yolos": row("YolosForObjectDetection", "YolosConfig", {**VIT, "image_size": [32, 32], "num_detection_tokens": 5}),
}  # fmt: skip
