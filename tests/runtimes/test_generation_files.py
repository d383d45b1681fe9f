"""`genai_config.json` from a checkpoint's configuration, and from the inputs of a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.generation import DecoderLoop, find_cached_loop
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.runtimes.generation_files import longest_text, make_genai_config, read_settings

from ..reasons import has_code

CONFIG = {
    "vocab_size": 512, "max_position_embeddings": 256, "hidden_size": 64, "bos_token_id": 1,
    "num_attention_heads": 4, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip


def decoder(*, heads: tuple[int, ...] = (2, 2), past: int = 128, mask: bool = True) -> Signature:
    inputs = ["input_ids:int64[batch=1..8,sequence=1..64]{0..511}"]
    if mask:
        inputs.append("attention_mask:int64[batch=1..8,total=past+sequence]{0..1 ascending}")
    for layer, count in enumerate(heads):
        for part in ("key", "value"):
            name = f"past_key_values.{layer}.{part}"
            inputs.append(f"{name}:float32[batch=1..8,{count},past=0..{past},16]")
    outputs = [text.partition(":")[0].replace("past_key_values", "present") for text in inputs]
    names = ("logits", *(one for one in outputs if one.startswith("present")))
    return merge_inputs([parse_input(text) for text in inputs], {}).with_outputs(names)


def loop_of(signature: Signature) -> DecoderLoop:
    found = find_cached_loop(signature)
    assert found is not None
    return found


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_a_configuration_has_the_form_of_the_cache(tmp_path: Path) -> None:
    signature = decoder()
    found = make_genai_config(
        read_settings(write(tmp_path, CONFIG)), signature, loop_of(signature), "model.onnx"
    )
    decoder_part = found["model"]["decoder"]
    assert (decoder_part["num_key_value_heads"], decoder_part["head_size"]) == (2, 16)
    assert (decoder_part["num_hidden_layers"], decoder_part["num_attention_heads"]) == (2, 4)
    assert decoder_part["inputs"] == {
        "input_ids": "input_ids", "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value",
    }  # fmt: skip
    assert found["model"]["context_length"] == 256
    assert found["search"]["max_length"] == 129
    assert not found["search"]["past_present_share_buffer"]


@pytest.mark.parametrize(
    ("config", "generation", "ends", "pad"),
    [
        ({}, None, (2,), 2),
        ({}, {"eos_token_id": [5, 6], "pad_token_id": 7}, (5, 6), 7),
        ({"pad_token_id": 0}, {"pad_token_id": None}, (2,), 0),
        ({"eos_token_id": None}, {}, (), None),
        ({"eos_token_id": True}, {"eos_token_id": "2"}, (), None),
    ],
)
def test_tokens_are_those_of_the_generation_settings_first(
    tmp_path: Path, config: dict[str, object], generation: object, ends: object, pad: object
) -> None:
    found = read_settings(write(tmp_path, {**CONFIG, **config}, generation))
    assert (found.ends, found.pad) == (ends, pad)


def test_a_nested_text_config_counts(tmp_path: Path) -> None:
    found = read_settings(write(tmp_path, {"vocab_size": 7, "text_config": CONFIG}))
    assert (found.vocabulary, found.positions, found.heads) == (512, 256, 4)


def test_sampling_is_that_of_the_checkpoint_and_off_by_default(tmp_path: Path) -> None:
    signature = decoder()
    chosen = {"do_sample": True, "top_k": 20, "temperature": 0.7, "top_p": None}
    for generation, wanted in ((None, {"do_sample": False}), (chosen, {**chosen})):
        settings = read_settings(write(tmp_path, CONFIG, generation))
        search = make_genai_config(settings, signature, loop_of(signature), "m.onnx")["search"]
        given = {name: value for name, value in wanted.items() if value is not None}
        assert given.items() <= search.items()
        assert "top_p" not in search


def test_layers_of_other_heads_are_an_error(tmp_path: Path) -> None:
    signature, settings = decoder(heads=(2, 4)), read_settings(write(tmp_path, CONFIG))
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="several forms")):
        make_genai_config(settings, signature, loop_of(signature), "model.onnx")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": ' * 5000])
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(
        CheckpointError, check=has_code(ErrorCode.CORRUPT_FILE, naming="config.json")
    ):
        read_settings(tmp_path)


def test_a_text_is_as_long_as_the_longest_past_and_a_token() -> None:
    signature = decoder(past=40)
    assert longest_text(signature, loop_of(signature)) == 41
