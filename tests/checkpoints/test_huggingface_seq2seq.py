"""Encoder-decoders in two parts: inputs, caches, and the logits of transformers' whole model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modelc.checkpoints.checkpoint_files import identify
from modelc.checkpoints.checkpoint_loader import load_checkpoint
from modelc.checkpoints.eager_model import open_eager
from modelc.checkpoints.loaded_module import LoadedModule
from modelc.core.contract import Array
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

from ..reasons import has_code

transformers = pytest.importorskip("transformers")

IDS = {"vocab_size": 60, "pad_token_id": 0, "decoder_start_token_id": 3, "eos_token_id": 2}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
LAYERS = {"encoder_layers": 1, "decoder_layers": 2}
WIDTHS = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
BART = {**IDS, **HEADS, **LAYERS, **WIDTHS, "max_position_embeddings": 40, "bos_token_id": 1}
T5 = {**IDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 2,
      "num_heads": 2}  # fmt: skip
AUDIO = {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 30}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("T5ForConditionalGeneration", T5),
    "MT5": ("MT5ForConditionalGeneration", T5),
    "Bart": ("BartForConditionalGeneration", BART),
    "MBart": ("MBartForConditionalGeneration", BART),
    "Marian": ("MarianMTModel", {**BART, "decoder_vocab_size": 60}),
    "Pegasus": ("PegasusForConditionalGeneration", BART),
    "M2M100": ("M2M100ForConditionalGeneration", BART),
    "Whisper": ("WhisperForConditionalGeneration", {**BART, **AUDIO}),
    "SwitchTransformers": (
        "SwitchTransformersForConditionalGeneration",
        {**T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    "NllbMoe": (
        "NllbMoeForConditionalGeneration",
        {**BART, "num_experts": 2, "encoder_sparse_step": 1, "decoder_sparse_step": 2},
    ),
}


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    from modelc.checkpoints.huggingface_folder import silence_transformers

    with silence_transformers():
        yield


def saved(folder: Path, name: str, **changes: object) -> Any:
    """Save a small random model of a family, and return it."""
    kind, sizes = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(
        getattr(transformers, f"{name}Config")(**{**sizes, **changes})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()  # Marian's positions are not saved


def opened(folder: Path, part: str, **more: str) -> LoadedModule:
    audio = "num_mel_bins" in (folder / "config.json").read_text()
    base = "automatic-speech-recognition" if audio else "text2text-generation"
    arguments = {"task": f"{base}-{part}", **more}
    return load_checkpoint(identify(folder, factory=None, factory_args=arguments, method=None))


@pytest.mark.parametrize("name", FAMILIES)
def test_encoder_and_decoder_in_steps_give_the_logits_of_the_whole_model(
    tmp_path: Path, name: str
) -> None:
    model = saved(tmp_path, name)
    encoder, decoder = opened(tmp_path, "encoder"), opened(tmp_path, "merged")
    random = np.random.default_rng(0)
    feed: dict[str, Array] = {}
    if name == "Whisper":
        feed["input_features"] = random.standard_normal((2, 8, 40)).astype(np.float32)
    else:
        feed["input_ids"] = random.integers(1, 60, (2, 9))
        feed["attention_mask"] = np.array([[1] * 9, [1] * 5 + [0] * 4])
    ids = random.integers(1, 60, (2, 8))
    given = {name: torch.from_numpy(array) for name, array in feed.items()}
    with torch.no_grad():
        wanted = model(**given, decoder_input_ids=torch.from_numpy(ids)).logits.numpy()
    made = open_eager(encoder, Signature(inputs=tuple(encoder.known.values()))).run(feed)
    assert list(made)[:3] == [
        "last_hidden_state", "present.0.encoder.key", "present.0.encoder.value",
    ]  # fmt: skip
    cross = {n.replace("present", "past_key_values"): a for n, a in made.items() if "." in n}
    if name != "Whisper":
        cross["encoder_attention_mask"] = feed["attention_mask"]
    past = {n: np.zeros((2, 2, 0, 8), np.float32) for n in decoder.known if ".decoder." in n}
    step = open_eager(decoder, Signature(inputs=tuple(decoder.known.values())))
    for start, end in ((0, 3), (3, 6), (6, 7), (7, 8)):
        made = step.run({"input_ids": ids[:, start:end], **cross, **past})
        assert np.abs(made["logits"] - wanted[:, start:end]).max() < 1e-4
        past = {n.replace("present", "past_key_values"): a for n, a in made.items() if "." in n}


def test_the_decoder_has_a_past_that_may_be_empty_and_an_encoder_of_its_own_length(
    tmp_path: Path,
) -> None:
    saved(tmp_path, "Bart")
    known = opened(tmp_path, "merged").known
    assert [str(known[name]) for name in list(known)[:3] + list(known)[-1:]] == [
        "input_ids:int64[batch,sequence]{0..59}",
        "past_key_values.0.decoder.key:float32[batch,2,past,8]",
        "past_key_values.0.decoder.value:float32[batch,2,past,8]",
        "past_key_values.1.encoder.value:float32[batch,2,encoder_sequence,8]",
    ]
    mask = "encoder_attention_mask:int64[batch,encoder_sequence]{0..1}"
    assert str(known["encoder_attention_mask"]) == mask
    highs = [known[name].dims[1].high for name in ("input_ids", "encoder_attention_mask")]
    assert highs == [20, 40]  # of 40 positions on each side; past and tokens share the decoder's


def test_ranges_of_the_past_and_of_the_encoder_can_be_stated(tmp_path: Path) -> None:
    saved(tmp_path, "Bart")
    known = opened(tmp_path, "merged").known
    stated = merge_inputs(
        [parse_input("past_key_values.0.decoder.key[_,_,past=0..30,_]"),
         parse_input("encoder_attention_mask[_,encoder_sequence=1..9]")], known,
    )  # fmt: skip
    highs = {name: dim.high for name, dim in stated.dynamic_dims.items()}
    assert (highs["past"], highs["encoder_sequence"]) == (30, 9)


def test_whisper_has_frames_of_the_config_and_no_mask(tmp_path: Path) -> None:
    saved(tmp_path, "Whisper")
    assert [str(one) for one in opened(tmp_path, "encoder").known.values()] == [
        "input_features:float32[batch,8,40]"
    ]
    known = opened(tmp_path, "merged").known
    assert "encoder_attention_mask" not in known
    assert str(known["past_key_values.0.encoder.key"]).endswith("[batch,2,20,8]")


def test_a_length_reaches_the_decoder_of_whisper_and_not_its_encoder(tmp_path: Path) -> None:
    saved(tmp_path, "Whisper")
    assert opened(tmp_path, "merged", length="8").known["input_ids"].dims[1].high == 8
    with pytest.raises(UsageError) as caught:
        opened(tmp_path, "encoder", length="8")
    assert caught.value.code is ErrorCode.NO_EFFECT


def test_parts_that_do_not_give_the_logits_of_the_whole_model_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, "T5")
    decoder = transformers.models.t5.modeling_t5.T5Stack
    forward = decoder.forward

    def without_mask(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("past_key_values") is not None and self.is_decoder:
            kwargs["encoder_attention_mask"] = None
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(decoder, "forward", without_mask)
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="logits")
    ) as caught:
        opened(tmp_path, "merged")
    assert caught.value.hint.endswith("--model-arg task=text2text-generation")


def test_an_encoder_of_waveforms_is_refused_by_its_input(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 60}
    heads = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    layers = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    config = transformers.MoonshineConfig(**sizes, **heads, **layers)
    transformers.MoonshineForConditionalGeneration(config).save_pretrained(tmp_path)
    task = "automatic-speech-recognition-encoder"
    named = has_code(ErrorCode.UNSUPPORTED, naming="input_values")
    with pytest.raises(UsageError, check=named):
        load_checkpoint(identify(tmp_path, factory=None, factory_args={"task": task}, method=None))
