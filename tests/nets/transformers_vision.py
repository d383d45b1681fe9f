"""Vision transformers, CNNs, detectors and segmenters of transformers.

Height and width are dynamic where the architecture takes other sizes than its config's.
"""

from __future__ import annotations

from modelc.tests.nets.transformers_cases import VISION, Part, case, known

_IMAGE = ("pixel_values:float32[batch=1..4,3,32,32]",)
_SIZED = ("pixel_values:float32[batch=1..4,3,height=32..72,width=32..64]",)
_SCENE = ("pixel_values:float32[batch=1..3,3,height=64..128,width=64..96]",)
_FIXED_SCENE = ("pixel_values:float32[batch=1..3,3,64,64]",)
_PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32]}
_LABELS = {"num_labels": 5}
_RESNET = Part(
    config="ResNetConfig",
    values={
        "embedding_size": 8,
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage4"],
    },
)
_FEATURES = Part(
    config="ResNetConfig",
    values={**_RESNET.values, "out_features": ["stage2", "stage3", "stage4"]},
)
_SWIN = Part(
    config="SwinConfig",
    values={
        "image_size": 64,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2],
        "window_size": 4,
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    },
)
_DETR = {
    "backbone_config": _RESNET, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
_RT_DETR = {
    "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "d_model": 32, "num_queries": 9, "decoder_in_channels": [32, 32, 32],
    "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "num_labels": 5,
}  # fmt: skip

_TRANSFORMERS = (
    case("vit", "vision-transformer", "ViTForImageClassification", known("vit"), _IMAGE),
    case("deit", "vision-transformer", "DeiTForImageClassification", known("deit"), _IMAGE),
    case("swin", "vision-transformer", "SwinForImageClassification", known("swin"), _IMAGE),
    case("swinv2", "vision-transformer", "Swinv2Model", known("swin"), _SIZED),
    case(
        "beit",
        "vision-transformer",
        "BeitForImageClassification",
        {**VISION, "use_relative_position_bias": True, "out_indices": [2]},
        _IMAGE,
    ),
    case("dinov2", "vision-transformer", "Dinov2Model", known("dinov2"), _SIZED),
    case(
        "pvt",
        "vision-transformer",
        "PvtForImageClassification",
        {**_PYRAMID, "image_size": 32, "num_attention_heads": [1, 2, 2, 4]},
        _IMAGE,
    ),
    case(
        "pvt-v2",
        "vision-transformer",
        "PvtV2ForImageClassification",
        {**_PYRAMID, "image_size": 32, "num_attention_heads": [1, 2, 2, 4]},
        _SIZED,
    ),
    case("mobilevit", "vision-transformer", "MobileViTModel", known("mobilevit"), _SIZED),
    case("poolformer", "vision-transformer", "PoolFormerForImageClassification", _PYRAMID, _SIZED),
    case(
        "levit",
        "vision-transformer",
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        _FIXED_SCENE,
    ),
    case(
        "cvt",
        "vision-transformer",
        "CvtForImageClassification",
        {"embed_dim": [16, 24, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3],
         "drop_path_rate": [0.0, 0.0, 0.0]},
        _SIZED,
    ),
    case(
        "focalnet",
        "vision-transformer",
        "FocalNetForImageClassification",
        {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "focal_levels": [2, 2],
         "hidden_sizes": [8, 16], "focal_windows": [3, 3]},
        _SIZED,
    ),
)  # fmt: skip
_CNNS = (
    case("convnext", "cnn", "ConvNextForImageClassification", known("convnext"), _SIZED),
    case("convnextv2", "cnn", "ConvNextV2ForImageClassification", known("convnext"), _SIZED),
    case("resnet", "cnn", "ResNetForImageClassification", known("resnet"), _SIZED),
    case(
        "regnet",
        "cnn",
        "RegNetForImageClassification",
        {**known("regnet"), "layer_type": "y", "groups_width": 8},
        _SIZED,
    ),
    case("bit", "cnn", "BitForImageClassification", {"depths": [1, 1], "embedding_size": 8,
         "hidden_sizes": [16, 32], "num_groups": 4}, _SIZED),
    case(
        "mobilenet-v1",
        "cnn",
        "MobileNetV1ForImageClassification",
        {"depth_multiplier": 0.25},
        _SIZED,
    ),
    case(
        "mobilenet-v2",
        "cnn",
        "MobileNetV2ForImageClassification",
        known("mobilenet"),
        _SIZED,
    ),
    case(
        "efficientnet",
        "cnn",
        "EfficientNetForImageClassification",
        {
            "image_size": 32, "width_coefficient": 0.25, "depth_coefficient": 0.5,
            "hidden_dim": 320,
        },
        _SIZED,
    ),
)  # fmt: skip
_DETECTORS = (
    case("detr", "detection", "DetrForObjectDetection", _DETR, _SCENE),
    case("conditional-detr", "detection", "ConditionalDetrForObjectDetection", _DETR, _SCENE),
    case(
        "deformable-detr",
        "detection",
        "DeformableDetrForObjectDetection",
        {**_DETR, "backbone_config": _FEATURES, "num_feature_levels": 3},
        _SCENE,
    ),
    case(
        "yolos",
        "detection",
        "YolosForObjectDetection",
        {**VISION, **_LABELS, "image_size": [64, 64], "num_detection_tokens": 7},
        _SCENE,
    ),
    case(
        "rt-detr",
        "detection",
        "RTDetrForObjectDetection",
        {
            **_RT_DETR,
            "backbone_config": Part(config="RTDetrResNetConfig", values=_FEATURES.values),
        },
        _FIXED_SCENE,
    ),
    case(
        "d-fine",
        "detection",
        "DFineForObjectDetection",
        {
            **_RT_DETR,
            "backbone_config": Part(
                config="HGNetV2Config",
                values={
                    "stem_channels": [3, 8, 8],
                    "hidden_sizes": [8, 16, 24, 32],
                    "stage_in_channels": [8, 8, 16, 24],
                    "stage_mid_channels": [8, 8, 8, 8],
                    "stage_out_channels": [8, 16, 24, 32],
                    "stage_num_blocks": [1, 1, 1, 1],
                    "stage_numb_of_layers": [1, 1, 1, 1],
                    "out_features": ["stage2", "stage3", "stage4"],
                },
            ),
        },
        _FIXED_SCENE,
    ),
)
_SEGMENTERS = (
    case(
        "segformer", "segmentation", "SegformerForSemanticSegmentation", known("segformer"), _SIZED
    ),
    case(
        "mask2former",
        "segmentation",
        "Mask2FormerForUniversalSegmentation",
        {
            "backbone_config": _SWIN, "feature_size": 32, "mask_feature_size": 32,
            "hidden_dim": 32, "encoder_feedforward_dim": 32, "encoder_layers": 1,
            "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 32,
            "num_queries": 6, "num_labels": 5,
        },
        _FIXED_SCENE,
        config="Mask2FormerConfig",
    ),
    case(
        "maskformer",
        "segmentation",
        "MaskFormerForInstanceSegmentation",
        {
            "backbone_config": _SWIN, "fpn_feature_size": 32, "mask_feature_size": 32,
            "decoder_config": {**_DETR, "model_type": "detr", "backbone_config": None},
        },
        _FIXED_SCENE,
        config="MaskFormerConfig",
    ),
    case(
        "upernet",
        "segmentation",
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": Part(
                config="ConvNextConfig",
                values={
                    **known("convnext"),
                    "out_features": ["stage1", "stage2", "stage3", "stage4"],
                },
            ),
            "hidden_size": 16, "auxiliary_in_channels": 32, "auxiliary_channels": 16,
            "num_labels": 5,
        },
        _SCENE,
    ),
    case(
        "dpt",
        "segmentation",
        "DPTForSemanticSegmentation",
        {
            **VISION, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "num_labels": 5,
            "image_size": 64, "patch_size": 16,
        },
        _FIXED_SCENE,
    ),
    case(
        "glpn",
        "segmentation",
        "GLPNForDepthEstimation",
        {
            "hidden_sizes": [16, 16, 32, 32], "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16,
        },
        _FIXED_SCENE,
    ),
    case(
        "sam",
        "segmentation",
        "SamModel",
        {
            "vision_config": {
                **VISION, "output_channels": 16, "image_size": 64, "window_size": 2,
                "global_attn_indexes": [1], "num_pos_feats": 8, "mlp_dim": 64,
            },
            "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8},
            "mask_decoder_config": {
                "hidden_size": 16, "mlp_dim": 32, "num_hidden_layers": 2,
                "num_attention_heads": 2, "iou_head_hidden_dim": 16,
            },
        },
        (
            "pixel_values:float32[batch=1..3,3,64,64]",
            "input_points:float32[batch=1..3,1,points=1..4,2]{0..63}",
        ),
        config="SamConfig",
    ),
)  # fmt: skip
CASES = (*_TRANSFORMERS, *_CNNS, *_DETECTORS, *_SEGMENTERS)
