"""Packed integers of GPTQ, AWQ, compressed-tensors and ModelOpt, written here by their layouts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.packed_weights import PackedLayer, find_format
from modelc.checkpoints.torchao_weights import find_matrices
from modelc.core.errors import CheckpointError, ErrorCode
from modelc.core.weights import QuantizedMatrix

ROWS, COLUMNS, GROUP = 16, 64, 32
Array = NDArray[Any]
GPTQ = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}


def compressed(bits: int, **more: object) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int"}
    groups = {"group_0": {"weights": weights, **more}}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups,
    }  # fmt: skip


def pack(values: Array, bits: int) -> Array:
    """Pack unsigned integers along the last axis, a value at a time."""
    per = 32 // bits
    words = np.zeros((values.shape[0], -(-values.shape[1] // per)), np.uint32)
    for row, column in np.ndindex(values.shape):
        words[row, column // per] |= np.uint32(int(values[row, column]) << bits * (column % per))
    return words.view(np.int32)


def draw(bits: int) -> tuple[Array, Array, Array]:
    """Draw unsigned integers (outputs, inputs), scales and zero points (outputs, groups)."""
    random = np.random.default_rng(0)
    shape = (ROWS, COLUMNS // GROUP)
    integers = random.integers(0, 1 << bits, (ROWS, COLUMNS))
    scales = random.uniform(0.01, 0.02, shape).astype(np.float16)
    return integers, scales, random.integers(1, (1 << bits) - 1, shape)


def expect(integers: Array, scales: Array, zeros: Array) -> Array:
    """Return the weights by the definition."""
    steps = (integers - zeros.repeat(GROUP, 1)).astype(np.float32)
    found: Array = steps * scales.astype(np.float32).repeat(GROUP, 1)
    return found


def unpack(settings: Mapping[str, Any], tensors: Mapping[str, Array]) -> QuantizedMatrix:
    packing = find_format(settings, "folder")
    return packing.unpack(PackedLayer(name="layer", packing=packing, tensors=tensors))


def gptq_tensors(bits: int, offset: int = 1) -> tuple[dict[str, Array], Array]:
    integers, scales, zeros = draw(bits)
    tensors = {
        "qweight": pack(integers, bits).T, "qzeros": pack(zeros.T - offset, bits),
        "scales": scales.T, "g_idx": (np.arange(COLUMNS) // GROUP).astype(np.int32),
    }  # fmt: skip
    return tensors, expect(integers, scales, zeros)


def awq_tensors() -> tuple[dict[str, Array], Array]:
    integers, scales, zeros = draw(4)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def shuffle(values: Array) -> Array:
        return values.reshape(len(values), -1, 8)[:, :, order].reshape(values.shape)

    tensors = {
        "qweight": pack(shuffle(integers.T), 4), "qzeros": pack(shuffle(zeros.T), 4),
        "scales": scales.T,
    }  # fmt: skip
    return tensors, expect(integers, scales, zeros)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq(bits: int, version: str) -> None:
    tensors, meant = gptq_tensors(bits, offset=int(version == "gptq"))

    found = unpack({**GPTQ, "bits": bits, "checkpoint_format": version}, tensors)

    assert found.bits == bits
    assert np.array_equal(found.dequantize(), meant)


def test_awq() -> None:
    tensors, meant = awq_tensors()

    assert np.array_equal(unpack(AWQ, tensors).dequantize(), meant)


@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_tensors(bits: int) -> None:
    integers, scales, zeros = draw(bits)
    tensors = {
        "weight_packed": pack(integers, bits), "weight_scale": scales,
        "weight_shape": np.array([ROWS, COLUMNS]), "weight_zero_point": pack(zeros.T, bits).T,
    }  # fmt: skip

    found = unpack(compressed(bits), tensors)

    assert np.array_equal(found.dequantize(), expect(integers, scales, zeros))


def test_modelopt() -> None:
    integers, scales, zeros = draw(4)
    signed = (integers - 8) & 15
    tensors = {
        "weight": (signed[0::2] | signed[1::2] << 4).astype(np.uint8), "weight_scale": scales,
    }  # fmt: skip

    found = unpack(MODELOPT, tensors)

    assert np.array_equal(found.dequantize(), expect(integers, scales, np.full_like(zeros, 8)))


def broken_tensors(change: str) -> dict[str, Array]:
    tensors, _ = gptq_tensors(4)
    if change == "act-order":
        tensors["g_idx"] = tensors["g_idx"][::-1]
    elif change == "scales":
        tensors["scales"] = tensors["scales"][:, :-1]
    elif change == "groups":
        tensors["scales"] = tensors["scales"].repeat(2, 0)[:3]
    elif change == "zero point":
        tensors["qzeros"] = np.full_like(tensors["qzeros"], -1)
    elif change == "NaN":
        tensors["scales"] = tensors["scales"] * np.float16("nan")
    elif change == "wide":
        tensors["qweight"] = tensors["qweight"].astype(np.int64)
    else:
        del tensors["qzeros"]
    return tensors


@pytest.mark.parametrize(
    "change", ["act-order", "scales", "groups", "zero point", "NaN", "wide", "absent"]
)
def test_a_layer_whose_parts_do_not_fit_is_refused(change: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        unpack(GPTQ, broken_tensors(change))

    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert "gptq" in caught.value.message


def test_integers_wider_than_their_method_writes_are_refused() -> None:
    settings = {**MODELOPT, "quant_algo": "W8A16"}
    tensors: dict[str, Array] = {
        "weight": np.full((ROWS, COLUMNS), 300, np.int32),
        "weight_scale": np.ones(ROWS, np.float16),
    }

    with pytest.raises(CheckpointError) as caught:
        unpack(settings, tensors)

    assert caught.value.code is ErrorCode.UNSUPPORTED


@pytest.mark.parametrize("stated", [16, 64, 128, -1])
def test_groups_that_are_not_the_configs_are_refused(stated: int) -> None:
    for settings, tensors in ((GPTQ, gptq_tensors(4)[0]), (AWQ, awq_tensors()[0])):
        unpack({**settings, "group_size": GROUP}, tensors)
        with pytest.raises(CheckpointError) as caught:
            unpack({**settings, "group_size": stated}, tensors)
        assert f"groups of {GROUP} inputs" in caught.value.message
        assert f"groups of {stated}" in caught.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {**GPTQ, "bits": 3},
        {**GPTQ, "checkpoint_format": "marlin"},
        {**GPTQ, "bits": None},
        {**AWQ, "version": "gemv"},
        compressed(2),
        compressed(8, input_activations={"num_bits": 8}),
        {**compressed(4), "format": "nvfp4-pack-quantized"},
        {**compressed(4), "config_groups": [1]},
        {**MODELOPT, "quant_algo": "FP8"},
        {"quant_method": "bitsandbytes"},
    ],
)
def test_other_settings_are_refused_by_the_method(settings: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_format(settings, "folder")

    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert str(settings["quant_method"]) in caught.value.message


def write_llama(folder: Path) -> tuple[Path, dict[str, Array]]:
    """Write a Llama whose down projections GPTQ packed; return the floats of these."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=ROWS, intermediate_size=COLUMNS, num_hidden_layers=2,
        num_attention_heads=2, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    tensors, floats = transformers.LlamaForCausalLM(config).state_dict(), {}
    for name in [one for one in tensors if one.endswith("down_proj.weight")]:
        packed, floats[name] = gptq_tensors(4)
        del tensors[name]
        stem = name.removesuffix("weight")
        parts = {stem + key: torch.from_numpy(value.copy()) for key, value in packed.items()}
        tensors |= parts
    folder.mkdir()
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip
    text = json.dumps({**config.to_dict(), "quantization_config": GPTQ})
    (folder / "config.json").write_text(text, encoding="utf-8")
    return folder, floats


def test_a_folder_is_floats_with_its_integers_beside(tmp_path: Path) -> None:
    folder, floats = write_llama(tmp_path / "llama")

    loaded = load_checkpoint(identify(folder, factory=None, factory_args={}))

    found = dict(loaded.module.named_parameters())
    matrices = dict(find_matrices(loaded.module))
    assert matrices.keys() == floats.keys()
    for name, meant in floats.items():
        assert np.array_equal(found[name].numpy(), meant)
        assert np.array_equal(matrices[name].dequantize(), meant)
    assert any("gptq quantized: 2 of int4" in note for note in loaded.notes)
