"""Vision: classification, self-supervision, depth, segmentation, video."""

import torch

from .base import VIT, Inputs, Row, image


def row(model: str, config: str, settings: dict = VIT, inputs=image, **nested: dict) -> Row:
    return Row("vision", model, config, inputs, settings, nested)


def _image64(**sizes: int) -> Inputs:
    return image(**{"size": 64, **sizes})


def _video(batch: int = 2, frames: int = 2, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(batch, frames, 3, size, size)}


def _gray(batch: int = 2, size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, size, size)}


_CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "patch_size": 4, "image_size": 32}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}

ROWS: dict[str, Row] = {
    "beit": row("BeitModel", "BeitConfig"),
    "bit": row("BitModel", "BitConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "num_groups": 4}),
    "convnextv2": row("ConvNextV2Model", "ConvNextV2Config", _CONVNEXT),
    "data2vec_vision": row("Data2VecVisionModel", "Data2VecVisionConfig"),
    "depth_anything": row("DepthAnythingForDepthEstimation", "DepthAnythingConfig", {"patch_size": 8, "neck_hidden_sizes": [8, 8, 8, 8], "reassemble_hidden_size": 32, "fusion_hidden_size": 8, "head_hidden_size": 8, "reassemble_factors": [4, 2, 1, 0.5], "backbone_config": {"model_type": "dinov2", **VIT, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "apply_layernorm": True}}),
    "dinov2": row("Dinov2Model", "Dinov2Config"),
    "dinov2_with_registers": row("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
    "dinov3_convnext": row("DINOv3ConvNextModel", "DINOv3ConvNextConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 2, 1]}),
    "dinov3_vit": row("DINOv3ViTModel", "DINOv3ViTConfig"),
    "dpt": row("DPTForDepthEstimation", "DPTConfig", {**VIT, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "is_hybrid": False}),
    "focalnet": row("FocalNetModel", "FocalNetConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "focal_levels": [2, 2], "focal_windows": [3, 3]}),
    "glpn": row("GLPNForDepthEstimation", "GLPNConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 8}, _image64),
    "hgnet_v2": row("HGNetV2ForImageClassification", "HGNetV2Config", {"embedding_size": 8, "stem_channels": [3, 8, 8], "hidden_sizes": [8, 16], "depths": [1, 1], "stage_in_channels": [8, 8], "stage_mid_channels": [8, 8], "stage_out_channels": [8, 16], "stage_num_blocks": [1, 1], "stage_numb_of_layers": [2, 2], "stage_kernel_size": [3, 3], "stage_downsample": [False, True], "stage_light_block": [False, False], "out_features": ["stage2"]}),
    "hiera": row("HieraModel", "HieraConfig", {"image_size": [32, 32], "embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "patch_stride": [4, 4], "masked_unit_size": [4, 4], "num_query_pool": 2}),
    "ijepa": row("IJepaModel", "IJepaConfig"),
    "levit": row("LevitModel", "LevitConfig", {"image_size": 64, "hidden_sizes": [16, 16, 32], "num_attention_heads": [1, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}, _image64),
    "mobilenet_v1": row("MobileNetV1Model", "MobileNetV1Config", {"depth_multiplier": 0.25, "min_depth": 4}),
    "mobilenet_v2": row("MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.25, "min_depth": 4}),
    "mobilevit": row("MobileViTModel", "MobileViTConfig", {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 8, 16, 16, 24, 32], "num_attention_heads": 4}, _image64),
    "mobilevitv2": row("MobileViTV2Model", "MobileViTV2Config", {"image_size": 64, "width_multiplier": 0.25}, _image64),
    "pixio": row("PixioModel", "PixioConfig"),
    "poolformer": row("PoolFormerModel", "PoolFormerConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}),
    "prompt_depth": row("PromptDepthAnythingForDepthEstimation", "PromptDepthAnythingConfig", {"patch_size": 8, "neck_hidden_sizes": [8, 8, 8, 8], "reassemble_hidden_size": 32, "fusion_hidden_size": 8, "head_hidden_size": 8, "reassemble_factors": [4, 2, 1, 0.5], "backbone_config": {"model_type": "dinov2", **VIT, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False, "apply_layernorm": True}}),
    "pvt": row("PvtModel", "PvtConfig", {"image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]}, _image64),
    "pvt_v2": row("PvtV2Model", "PvtV2Config", {"image_size": 64, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "mlp_ratios": [2, 2, 2, 2]}, _image64),
    "regnet": row("RegNetModel", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "groups_width": 8}),
    "segformer": row("SegformerForSemanticSegmentation", "SegformerConfig", {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 8}, _image64),
    "seggpt": row("SegGptModel", "SegGptConfig", {**VIT, "image_size": [64, 32], "patch_size": 8, "intermediate_hidden_state_indices": [0, 1], "merge_index": 0, "decoder_hidden_size": 8, "pretrain_image_size": 32}, lambda batch=2: {"pixel_values": torch.randn(batch, 3, 32, 32), "prompt_pixel_values": torch.randn(batch, 3, 32, 32), "prompt_masks": torch.randn(batch, 3, 32, 32)}),
    "siglip_vision": row("SiglipVisionModel", "SiglipVisionConfig"),
    "superpoint": row("SuperPointForKeypointDetection", "SuperPointConfig", {"encoder_hidden_sizes": [8, 8, 8, 16], "decoder_hidden_size": 16, "keypoint_decoder_dim": 65, "descriptor_decoder_dim": 16}, _image64),
    "swiftformer": row("SwiftFormerModel", "SwiftFormerConfig", {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16]}, _image64),
    "swin2sr": row("Swin2SRForImageSuperResolution", "Swin2SRConfig", {"image_size": 16, "patch_size": 1, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "upscale": 2}, lambda batch=2: image(batch, 16)),
    "swinv2": row("Swinv2Model", "Swinv2Config", _SWIN),
    "textnet": row("TextNetModel", "TextNetConfig", {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 16, 16], "conv_layer_kernel_sizes": [[[3, 3]], [[3, 1]], [[1, 3]], [[3, 3]]], "conv_layer_strides": [[2], [2], [2], [2]]}, _image64),
    "timesformer": row("TimesformerModel", "TimesformerConfig", {**VIT, "num_frames": 2}, _video),
    "upernet": row("UperNetForSemanticSegmentation", "UperNetConfig", {"hidden_size": 16, "pool_scales": [1, 2], "use_auxiliary_head": True, "auxiliary_in_channels": 16, "auxiliary_channels": 8, "num_labels": 5, "backbone_config": {"model_type": "convnext", "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "out_features": ["stage1", "stage2", "stage3", "stage4"]}}, _image64),
    "videomae": row("VideoMAEModel", "VideoMAEConfig", {**VIT, "num_frames": 4, "tubelet_size": 2}, lambda batch=2: _video(batch, 4)),
    "vit_mae": row("ViTMAEModel", "ViTMAEConfig", {**VIT, "mask_ratio": 0.5}, lambda batch=2: {**image(batch), "noise": torch.rand(batch, 16)}),
    "vit_msn": row("ViTMSNModel", "ViTMSNConfig"),
    "vitdet": row("VitDetModel", "VitDetConfig", {**VIT, "window_block_indices": [0], "window_size": 2, "use_relative_position_embeddings": True}),
    "vitmatte": row("VitMatteForImageMatting", "VitMatteConfig", {"hidden_size": 32, "convstream_hidden_sizes": [8, 8, 16], "fusion_hidden_sizes": [16, 8, 8, 8], "backbone_config": {"model_type": "vitdet", **VIT, "num_channels": 4, "image_size": 64, "patch_size": 16, "out_features": ["stage2"]}}, lambda batch=2: {"pixel_values": torch.randn(batch, 4, 64, 64)}),
    "vitpose": row("VitPoseForPoseEstimation", "VitPoseConfig", {"num_labels": 3, "backbone_config": {"model_type": "vitpose_backbone", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": [32, 32], "patch_size": [8, 8], "out_indices": [2]}}),
    "vivit": row("VivitModel", "VivitConfig", {**VIT, "num_frames": 4, "tubelet_size": [2, 8, 8]}, lambda batch=2: _video(batch, 4)),
    "vjepa2": row("VJEPA2Model", "VJEPA2Config", {"crop_size": 32, "patch_size": 8, "hidden_size": 36, "num_attention_heads": 3, "num_hidden_layers": 2, "pred_hidden_size": 36, "pred_num_attention_heads": 3, "pred_num_hidden_layers": 1, "frames_per_clip": 4, "tubelet_size": 2, "mlp_ratio": 2}, lambda batch=2: {"pixel_values_videos": torch.randn(batch, 4, 3, 32, 32)}),
}  # fmt: skip
