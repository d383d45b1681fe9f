"""Hugging Face folders of many families, converted without `--input`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modelc.checkpoints.huggingface_folder import silence_transformers
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run

transformers = pytest.importorskip("transformers")

Orders = Callable[..., Order]
Settings = dict[str, object]

TEXT: Settings = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 24,
}  # fmt: skip
SEEN: Settings = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "image_size": 16, "patch_size": 8,
}  # fmt: skip
BOTH: Settings = {
    "vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, Settings]] = {
    "BertForTokenClassification": ("BertConfig", TEXT),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2,
         "decoder_start_token_id": 0},
    ),
    "ViTForImageClassification": ("ViTConfig", SEEN),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"},
    ),
    "CLIPModel": (
        "CLIPConfig",
        {"text_config": {**TEXT, "projection_dim": 8, "eos_token_id": 2, "bos_token_id": 1},
         "vision_config": SEEN, "projection_dim": 8},
    ),
    "Wav2Vec2ForCTC": (
        "Wav2Vec2Config",
        {**TEXT, "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3],
         "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2},
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        {**BOTH, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3},
    ),
    "PatchTSTForPrediction": (
        "PatchTSTConfig",
        {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8,
         "d_model": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 16,
         "prediction_length": 4},
    ),
}  # fmt: skip


def saved(folder: Path, kind: str, config: str, changes: Settings) -> Path:
    """A small model of that class, its weights wide enough to tell right from wrong."""
    torch.manual_seed(0)
    with silence_transformers(), torch.no_grad():
        model = getattr(transformers, kind)(getattr(transformers, config)(**changes))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
        model.save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 32}}  # of images, where the config has none
    (folder / "preprocessor_config.json").write_text(json.dumps(sizes))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_folder_is_converted_without_input_options(
    order: Orders, tmp_path: Path, kind: str
) -> None:
    config, changes = FAMILIES[kind]
    source = Source(checkpoint=saved(tmp_path / "hf", kind, config, changes))
    manifest = run(order("onnx", "openvino", source=source))
    assert manifest.passed
    assert [artifact.name for artifact in manifest.artifacts] == ["onnx", "openvino"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["text-generation-prefill", "text-generation-with-past"])
def test_a_decoder_is_converted_with_its_past(order: Orders, tmp_path: Path, task: str) -> None:
    changes = {**TEXT, "num_key_value_heads": 1}
    folder = saved(tmp_path / "hf", "LlamaForCausalLM", "LlamaConfig", changes)
    source = Source(checkpoint=folder, model_args={"task": task})
    manifest = run(order("onnx", "openvino", source=source))
    assert manifest.passed
    names = ["logits", "present.0.key", "present.0.value"]
    assert list(manifest.signature.outputs) == names
    inputs = [spec.name for spec in manifest.signature.inputs]
    assert ("past_key_values.0.key" in inputs) == (task == "text-generation-with-past")
