from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import open_eager
from modelc.core.signature import Signature
from modelc.validators.feeds import draw_feeds

transformers = pytest.importorskip("transformers")

Settings = dict[str, object]

TEXT: Settings = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}
SEEN: Settings = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 16,
    "patch_size": 8,
}
BOTH: Settings = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
IDS = "input_ids:int64[batch,sequence]{0..59}"
MASK = "attention_mask:int64[batch,sequence]{0..1}"
KINDS = "token_type_ids:int64[batch,sequence]{0..1}"
DECODER = "decoder_input_ids:int64[batch,decoder_sequence]{0..59}"

FAMILIES: dict[str, tuple[str, Settings, list[str]]] = {
    "BertForTokenClassification": ("BertConfig", TEXT, [IDS, MASK, KINDS]),
    "LayoutLMForTokenClassification": (
        "LayoutLMConfig",
        {**TEXT, "max_2d_position_embeddings": 64},
        [IDS, "bbox:int64[batch,sequence,4]{0..63 ascending}", MASK, KINDS],
    ),
    "BertForMultipleChoice": (
        "BertConfig",
        TEXT,
        [one.replace("sequence", "choices=2..4,sequence") for one in (IDS, MASK, KINDS)],
    ),
    "RobertaForQuestionAnswering": (  # two of its positions are the padding's
        "RobertaConfig",
        {**TEXT, "pad_token_id": 1, "type_vocab_size": 1},
        [IDS.replace("32", "30"), MASK.replace("32", "30")],
    ),
    "GPT2LMHeadModel": (
        "GPT2Config",
        {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},
        [IDS, MASK],
    ),
    "BartForConditionalGeneration": (
        "BartConfig",
        {**BOTH, "vocab_size": 60, "max_position_embeddings": 32},
        [IDS, MASK, DECODER.replace("{n}", "32")],
    ),
    "ViTForImageClassification": ("ViTConfig", SEEN, ["pixel_values:float32[batch,3,16,16]"]),
    "YolosForObjectDetection": (
        "YolosConfig",
        {**SEEN, "image_size": [16, 24], "num_detection_tokens": 5},
        ["pixel_values:float32[batch,3,16,24]"],
    ),
    "VideoMAEForVideoClassification": (
        "VideoMAEConfig",
        {**SEEN, "num_frames": 4},
        ["pixel_values:float32[batch,4,3,16,16]"],
    ),
    "ViltForQuestionAnswering": (
        "ViltConfig",
        {**TEXT, **SEEN, "num_labels": 3},
        [IDS, MASK, KINDS, "pixel_values:float32[batch,3,16,16]"],
    ),
    "CLIPModel": (
        "CLIPConfig",
        {
            "text_config": {**TEXT, "projection_dim": 8, "eos_token_id": 2, "bos_token_id": 1},
            "vision_config": SEEN,
            "projection_dim": 8,
        },
        [IDS, "pixel_values:float32[batch,3,16,16]", MASK],
    ),
    "Wav2Vec2ForCTC": (
        "Wav2Vec2Config",
        {
            "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 16, "conv_dim": [8, 8], "conv_stride": [5, 2],
            "conv_kernel": [10, 3], "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 2,
        },
        ["input_values:float32[batch,samples=130..490]"],
    ),
    "ASTForAudioClassification": (
        "ASTConfig",
        {**SEEN, "max_length": 32, "num_mel_bins": 16},
        ["input_values:float32[batch,32,16]"],
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {
            **BOTH, "vocab_size": 60, "num_mel_bins": 8, "max_source_positions": 20,
            "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
        ["input_features:float32[batch,8,40]", DECODER.replace("{n}", "20")],
    ),
    "PatchTSTForPrediction": (
        "PatchTSTConfig",
        {
            "num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8,
            "d_model": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 16,
            "prediction_length": 4,
        },
        ["past_values:float32[batch,32,2]"],
    ),
    "TimeSeriesTransformerForPrediction": (
        "TimeSeriesTransformerConfig",
        {
            **BOTH, "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2],
            "num_time_features": 1, "num_static_categorical_features": 1, "cardinality": [5],
            "embedding_dimension": [2], "num_static_real_features": 1,
        },
        [
            "past_values:float32[batch,10]",
            "past_time_features:float32[batch,10,1]",
            "past_observed_mask:float32[batch,10]{1..1}",
            "static_categorical_features:int64[batch,1]{0..4}",
            "static_real_features:float32[batch,1]",
            "future_values:float32[batch,4]",
            "future_time_features:float32[batch,4,1]",
        ],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    from modelc.checkpoints.huggingface_folder import silence_transformers

    with silence_transformers():
        yield


def saved(folder: Path, kind: str, config: str, changes: dict[str, object]) -> Path:
    torch.manual_seed(0)
    getattr(transformers, kind)(getattr(transformers, config)(**changes)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_folder_says_its_inputs_and_eager_takes_them(tmp_path: Path, kind: str) -> None:
    config, changes, wanted = FAMILIES[kind]
    loaded = load_checkpoint(
        identify(saved(tmp_path, kind, config, changes), factory=None, factory_args={})
    )
    signature = Signature(inputs=tuple(loaded.known.values()))
    assert [str(spec) for spec in signature.inputs] == wanted
    eager = open_eager(loaded, signature)
    for feed in draw_feeds(signature):
        assert eager.run(feed.arrays)


@pytest.mark.parametrize(
    ("said", "sides"),
    [
        ({"size": {"shortest_edge": 32}}, "32,32"),
        ({"size": {"height": 48, "width": 64}}, "48,64"),
        ({"size": 256, "crop_size": 40}, "40,40"),
        (None, "224,224"),
        ("nonsense", "224,224"),
    ],
)
def test_a_model_of_any_size_is_fed_what_its_preprocessor_makes(
    tmp_path: Path, said: object, sides: str
) -> None:
    changes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    saved(tmp_path, "ResNetModel", "ResNetConfig", changes)
    if said is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    loaded = load_checkpoint(identify(tmp_path, factory=None, factory_args={}))
    assert str(loaded.known["pixel_values"]) == f"pixel_values:float32[batch,3,{sides}]"
