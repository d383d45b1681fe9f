from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import Eager, open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.checkpoints.module_outputs import split_outputs
from modelc.core.contract import Array
from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs
from modelc.pipeline.domain_search import choose_dims

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    from modelc.checkpoints.huggingface_folder import silence_transformers

    with silence_transformers():
        yield


def saved(folder: Path, kind: str, config: str, **changes: object) -> Path:
    """A small model of that class, its weights wide enough to tell right from wrong."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**SMALL, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return folder


def opened(folder: Path, *, method: str | None = None, **arguments: str) -> LoadedModule:
    return load_checkpoint(identify(folder, factory=None, factory_args=arguments, method=method))


def eager_of(loaded: LoadedModule) -> Eager:
    return open_eager(loaded, Signature(inputs=tuple(loaded.known.values())))


def test_a_task_opens_the_class_that_transformers_has_for_it(tmp_path: Path) -> None:
    saved(tmp_path, "BertForMaskedLM", "BertConfig")
    loaded = opened(tmp_path, task="fill-mask")
    assert type(loaded.module).__name__ == "BertForMaskedLM"


def test_a_head_that_has_no_weights_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path, "BertForMaskedLM", "BertConfig")
    with pytest.raises(CheckpointError, match=r"missing: .*classifier\.weight") as caught:
        opened(tmp_path, task="text-classification")
    assert caught.value.code is ErrorCode.MISFIT_WEIGHTS
    assert "text-classification" in caught.value.message
    assert "BertForMaskedLM" in caught.value.hint
    assert "architectures" not in caught.value.hint


def test_a_body_without_weights_is_no_missing_head(tmp_path: Path) -> None:
    saved(tmp_path, "BertForMaskedLM", "BertConfig")
    path = tmp_path / "model.safetensors"
    kept = {n: t for n, t in load_file(path).items() if "layer.1.output.dense.weight" not in n}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="BertForMaskedLM") as caught:
        opened(tmp_path, task="fill-mask")
    assert caught.value.code is ErrorCode.MISFIT_WEIGHTS


SMALL_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "decoder_start_token_id": 0}


SMALL_BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 60,
    "max_position_embeddings": 40, "pad_token_id": 1, "decoder_start_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "task",
    ["text2text-generation-with-past", "text-generation-with-past", "text-generation-merged",
     "automatic-speech-recognition-merged", "automatic-speech-recognition-encoder"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["T5", "Bart"])
def test_another_task_for_a_past_of_an_encoder_decoder_names_its_parts(
    tmp_path: Path, kind: str, task: str
) -> None:
    sizes = SMALL_T5 if kind == "T5" else SMALL_BART
    saved(tmp_path, f"{kind}ForConditionalGeneration", f"{kind}Config", **sizes)
    with pytest.raises(UsageError, match=task) as caught:
        opened(tmp_path, task=task)
    found = re.findall(r"--model-arg task=(\S+)", caught.value.hint)
    assert found == ["text2text-generation-encoder", "text2text-generation-merged"]


@pytest.mark.parametrize("part", ["encoder", "merged"])
def test_a_part_of_a_model_that_has_no_encoder_names_the_decoders_task(
    tmp_path: Path, part: str
) -> None:
    saved(tmp_path, "LlamaForCausalLM", "LlamaConfig")
    with pytest.raises(UsageError, match=f"llama .*text2text-generation-{part}") as caught:
        opened(tmp_path, task=f"text2text-generation-{part}")
    assert caught.value.hint.endswith("--model-arg task=text-generation-merged")


SMALL_WHISPER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": 60,
    "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip


@pytest.mark.parametrize("task", ["text2text-generation-merged", "text-generation-with-past"])
def test_whispers_parts_are_named_when_another_task_is_asked_for(tmp_path: Path, task: str) -> None:
    saved(tmp_path, "WhisperForConditionalGeneration", "WhisperConfig", **SMALL_WHISPER)
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, task=task)
    encoder, merged = re.findall(r"--model-arg task=(\S+)", caught.value.hint)
    assert opened(tmp_path, task=encoder).parameters == ("input_features",)
    assert opened(tmp_path, task=merged).parameters == ("input_ids", "past_key_values")


def test_a_part_that_lies_deeper_is_suggested_by_its_path(tmp_path: Path) -> None:
    saved(tmp_path, "WhisperForConditionalGeneration", "WhisperConfig", **SMALL_WHISPER)
    with pytest.raises(UsageError, match="'encoder'") as caught:
        opened(tmp_path, method="encoder")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert "model.encoder?" in caught.value.hint


def test_an_encoder_decoder_makes_no_cache_and_the_note_names_no_task(tmp_path: Path) -> None:
    saved(tmp_path, "T5ForConditionalGeneration", "T5Config", **SMALL_T5)
    loaded = opened(tmp_path)
    (note,) = (note for note in loaded.notes if "use_cache" in note)
    assert "--model-arg use_cache=true" in note
    one = torch.zeros((1, 1), dtype=torch.int64)
    with torch.no_grad():
        assert loaded.module(input_ids=one, decoder_input_ids=one).past_key_values is None


@pytest.mark.parametrize(
    ("kind", "config", "names"),
    [
        ("T5ForConditionalGeneration", SMALL_T5,
         ["decoder.key", "decoder.value", "encoder.key", "encoder.value"]),
        ("LlamaForCausalLM", {}, ["key", "value"]),
        ("MambaForCausalLM", {"state_size": 4}, ["conv_state", "recurrent_state"]),
    ],
)  # fmt: skip
def test_the_cache_that_a_config_turns_on_is_an_output_where_asked_for(
    tmp_path: Path, kind: str, config: dict[str, object], names: list[str]
) -> None:
    saved(tmp_path, kind, re.sub("For.*", "Config", kind), **config)
    loaded = opened(tmp_path, use_cache="true")
    assert not any("use_cache" in note for note in loaded.notes)
    one = torch.zeros((1, 5), dtype=torch.int64)
    more = {"decoder_input_ids": one} if kind.startswith("T5") else {}
    with torch.no_grad():
        parts = split_outputs(loaded.module(input_ids=one, **more))
    assert [n for n in parts.tensors if n.startswith("present.0.")] == [
        f"present.0.{name}" for name in names
    ]
    assert not parts.opaque


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("BertForMaskedLM", []),
        ("LlamaForCausalLM", ["text-generation-merged"]),
        (
            "T5ForConditionalGeneration",
            ["text2text-generation-encoder", "text2text-generation-merged"],
        ),
    ],
)
def test_a_note_names_the_tasks_that_keep_a_cache(
    tmp_path: Path, kind: str, tasks: list[str]
) -> None:
    saved(tmp_path, kind, re.sub("For.*", "Config", kind))
    noted = [note for note in opened(tmp_path).notes if "use_cache" in note]
    assert re.findall(r"task=([\w-]+)", "".join(noted)) == tasks


def test_a_prompt_may_be_one_token(tmp_path: Path) -> None:
    saved(tmp_path, "LlamaForCausalLM", "LlamaConfig")
    known = opened(tmp_path, task="text-generation-prefill").known
    assert known["input_ids"].dims[1].low == 1
    assert known["attention_mask"].dims[1] == known["input_ids"].dims[1]


def test_a_config_without_architectures_opens_without_a_head(tmp_path: Path) -> None:
    saved(tmp_path, "BertModel", "BertConfig")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = opened(tmp_path)
    assert type(loaded.module).__name__ == "BertModel"
    assert "feature-extraction" in loaded.notes[0]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"task": "fill-masc"}, "fill-masc", "'fill-mask'?"),
        ({"task": "object-detection"}, "bert", "feature-extraction, fill-mask"),
        ({"depth": "3"}, "depth", "task=NAME"),
        ({"length": "many"}, "length.* many", "length=512"),
    ],
)
def test_what_is_no_task_is_reported(
    tmp_path: Path, arguments: dict[str, str], message: str, hint: str
) -> None:
    saved(tmp_path, "BertModel", "BertConfig")
    with pytest.raises(UsageError, match=message) as caught:
        opened(tmp_path, **arguments)
    assert hint in caught.value.hint


def test_more_tokens_are_taken_where_the_model_has_positions(tmp_path: Path) -> None:
    saved(tmp_path, "BertModel", "BertConfig", max_position_embeddings=300)
    assert opened(tmp_path, length="200").known["input_ids"].dims[1].high == 200
    assert opened(tmp_path, length="512").known["input_ids"].dims[1].high == 300


def test_a_length_without_tokens_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path, "ViTModel", "ViTConfig", image_size=16, patch_size=8)
    with pytest.raises(UsageError, match="ViTModel") as caught:
        opened(tmp_path, length="512")
    assert caught.value.code is ErrorCode.NO_EFFECT


DECODERS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 1}),
    "mistral": ("MistralForCausalLM", "MistralConfig",
                {"num_key_value_heads": 1, "sliding_window": 4}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"n_layer": 2, "n_head": 2}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_prompt_and_steps_with_a_past_are_the_whole_sequence(tmp_path: Path, name: str) -> None:
    kind, config, changes = DECODERS[name]
    saved(tmp_path, kind, config, **changes)
    whole = opened(tmp_path, task="text-generation").module
    prompt = eager_of(opened(tmp_path, task="text-generation-prefill"))
    step = eager_of(opened(tmp_path, task="text-generation-with-past"))
    ids = np.random.default_rng(0).integers(0, 60, (2, 7))
    mask = np.ones_like(ids)
    mask[0, :2] = 0  # padded on the left
    places = np.maximum(mask.cumsum(1) - 1, 0)
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    told = {n: torch.from_numpy(a) for n, a in given.items() if n in prompt.inputs}
    with torch.no_grad():
        wanted = whole(**told).logits.numpy()
    feed = {n: a[:, :4] for n, a in given.items() if n in prompt.inputs}
    made = prompt.run(feed)
    assert np.abs(made["logits"] - wanted[:, :4])[mask[:, :4] > 0].max() < 1e-4
    for at in range(4, 7):
        past = {n.replace("present", "past_key_values"): a for n, a in made.items()}
        past |= {"input_ids": ids[:, at : at + 1], "attention_mask": mask[:, : at + 1]}
        past |= {"position_ids": places[:, at : at + 1]}
        made = step.run({name: past[name] for name in step.inputs})
        assert np.abs(made["logits"][:, 0] - wanted[:, at]).max() < 1e-4
    assert list(made)[:3] == ["logits", "present.0.key", "present.0.value"]
    assert made["present.1.value"].shape[2] == 7


def test_the_inputs_of_a_step_have_one_past_and_its_mask(tmp_path: Path) -> None:
    saved(tmp_path, "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1)
    known = opened(tmp_path, task="text-generation-with-past").known
    assert [str(spec) for spec in known.values()][:5] == [
        "input_ids:int64[batch,1]{0..59}",
        "attention_mask:int64[batch,total=past+1]{0..1}",
        "position_ids:int64[batch,1]{0..31}",
        "past_key_values.0.key:float32[batch,1,past=1..31,8]",
        "past_key_values.0.value:float32[batch,1,past=1..31,8]",
    ]


def test_one_graph_for_prompt_and_step_has_a_past_that_may_be_empty(tmp_path: Path) -> None:
    saved(tmp_path, "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1)
    loaded = opened(tmp_path, task="text-generation-merged")
    assert [str(spec) for spec in loaded.known.values()][:4] == [
        "input_ids:int64[batch,sequence]{0..59}",
        "attention_mask:int64[batch,total=past+sequence]{0..1 ascending}",
        "position_ids:int64[batch,sequence]{0..total-1}",
        "past_key_values.0.key:float32[batch,1,past,8]",
    ]
    signature = merge_inputs([], loaded.known)
    found = choose_dims(eager_of(loaded), signature).dynamic_dims
    ends = {name: (dim.low, dim.high) for name, dim in found.items() if name != "batch"}
    assert ends == {"sequence": (1, 16), "past": (0, 16), "total": (1, 32)}  # 32 positions
    stated = merge_inputs(
        [parse_input("input_ids[batch,sequence=1..4]"),
         parse_input("past_key_values.0.key[_,_,past=0..28,_]")], loaded.known,
    )  # fmt: skip
    assert stated.dynamic_dims["total"].high == 32


def test_a_text_ends_where_the_angles_of_longrope_change(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    sizes = {"original_max_position_embeddings": 12, "pad_token_id": 0}
    saved(tmp_path, "Phi3ForCausalLM", "Phi3Config", rope_scaling=rope, **sizes)
    mask = opened(tmp_path, task="text-generation-merged").known["attention_mask"]
    assert mask.dims[1].high == 12  # of 32 positions


@pytest.mark.parametrize("name", DECODERS)
def test_one_graph_takes_a_prompt_in_parts_and_then_steps(tmp_path: Path, name: str) -> None:
    kind, config, changes = DECODERS[name]
    saved(tmp_path, kind, config, **changes)
    whole = opened(tmp_path, task="text-generation").module
    loaded = opened(tmp_path, task="text-generation-merged")
    merged = eager_of(loaded)
    ids = np.random.default_rng(0).integers(0, 60, (2, 9))
    mask = np.ones_like(ids)
    mask[0, :2] = 0  # padded on the left
    places = np.maximum(mask.cumsum(1) - 1, 0)
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    told = {n: torch.from_numpy(a) for n, a in given.items() if n in merged.inputs}
    with torch.no_grad():
        wanted = whole(**told).logits.numpy()
    caches = {n: spec.dims for n, spec in loaded.known.items() if n.startswith("past")}
    past: dict[str, Array] = {
        n: np.zeros((2, d[1].opt, 0, d[3].opt), np.float32) for n, d in caches.items()
    }
    for start, end in ((0, 4), (4, 7), (7, 8), (8, 9)):
        feed = {"input_ids": ids[:, start:end], "attention_mask": mask[:, :end], **past}
        feed |= {"position_ids": places[:, start:end]}
        made = merged.run({one: feed[one] for one in merged.inputs})
        apart = np.abs(made["logits"] - wanted[:, start:end])[mask[:, start:end] > 0]
        assert apart.max() < 1e-4
        past = {n.replace("present", "past_key_values"): a for n, a in made.items() if "." in n}


def test_the_positions_of_a_prompt_end_with_its_length(tmp_path: Path) -> None:
    saved(tmp_path, "LlamaForCausalLM", "LlamaConfig", num_key_value_heads=1)
    loaded = opened(tmp_path, task="text-generation-prefill")
    assert str(loaded.known["position_ids"]) == "position_ids:int64[batch,sequence]{0..sequence-1}"
    found = choose_dims(eager_of(loaded), Signature(inputs=tuple(loaded.known.values())))
    places = found.inputs[2].values
    assert places is not None
    assert (found.dynamic_dims["sequence"].high, places.high) == (32, 31)  # positions of the model
    stated = merge_inputs([parse_input("input_ids[batch,sequence=1..50]")], loaded.known)
    places = stated.inputs[2].values
    assert places is not None
    assert places.high == 49


def test_a_past_is_no_longer_than_the_window_that_is_looked_back_on(tmp_path: Path) -> None:
    changes = {"num_key_value_heads": 1, "sliding_window": 8}
    saved(tmp_path, "MistralForCausalLM", "MistralConfig", **changes)
    known = opened(tmp_path, task="text-generation-with-past").known
    assert "past=1..7" in str(known["past_key_values.0.key"])


def test_one_method_of_a_model_with_two_towers_takes_its_own_inputs(tmp_path: Path) -> None:
    text = {**SMALL, "projection_dim": 8, "eos_token_id": 2, "bos_token_id": 1}
    vision = {**SMALL, "image_size": 16, "patch_size": 8}
    saved(tmp_path, "CLIPModel", "CLIPConfig", text_config=text, vision_config=vision,
          projection_dim=8)  # fmt: skip
    loaded = opened(tmp_path, method="get_image_features")
    assert list(loaded.known) == ["pixel_values"]
    image = np.zeros((2, 3, 16, 16), np.float32)
    found = eager_of(loaded).run({"pixel_values": image})
    assert (2, 8) in [array.shape for array in found.values()]


def test_the_encoder_alone_is_a_part_of_the_model(tmp_path: Path) -> None:
    saved(tmp_path, "T5ForConditionalGeneration", "T5Config", d_model=16, d_kv=8, d_ff=16,
          num_layers=1, num_heads=2, decoder_start_token_id=0)  # fmt: skip
    loaded = opened(tmp_path, method="encoder")
    assert list(loaded.known) == ["input_ids", "attention_mask"]
    ids = np.ones((2, 5), np.int64)
    found = eager_of(loaded).run({"input_ids": ids, "attention_mask": ids})
    assert found["last_hidden_state"].shape == (2, 5, 16)
