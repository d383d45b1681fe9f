"""Encoder and decoder of a Whisper as one model of onnxruntime-genai."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelc.core.dims import Dim
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.signature import InputSpec, Signature
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.runtimes.generation_files import GENAI_CONFIG, GenerationSettings, make_whisper_config
from modelc.serving.pack_models import PackRequest, check_repository, pack_models
from modelc.serving.pick_artifacts import ModelFolder
from modelc.serving.repository_kinds import ORT_GENAI
from modelc.serving.repository_records import ModelInterface, PackedVersion, ServedModel
from modelc.serving.whisper_pack import is_speech_part, join_parts, make_speech_config

from ..reasons import has_code

ROWS, PAST = Dim(low=1, opt=2, high=4, name="batch"), Dim(low=0, opt=4, high=19, name="past")
TOKENS = Dim(low=1, opt=3, high=20, name="sequence")
CROSS = [f"past_key_values.{layer}.encoder.{kind}" for layer in (0, 1) for kind in ("key", "value")]
OWN = [name.replace("encoder", "decoder") for name in CROSS]
MADE = [name.replace("past_key_values", "present") for name in (*CROSS, *OWN)]
SETTINGS = GenerationSettings(vocabulary=99, positions=64, hidden=32, ends=(2,), kind="whisper")


def spec(name: str, *dims: Dim | int, dtype: str = "float32") -> InputSpec:
    sized = tuple(Dim.of_size(one) if isinstance(one, int) else one for one in dims)
    return InputSpec(name=name, dims=sized, dtype=dtype)


def encoder(frames: int = 3000) -> Signature:
    outputs = ("last_hidden_state", *MADE[:4])
    return Signature(inputs=(spec("input_features", ROWS, 80, frames),), outputs=outputs)


def decoder() -> Signature:
    ids = spec("input_ids", ROWS, TOKENS, dtype="int64")
    own = (spec(name, ROWS, 4, PAST, 8) for name in OWN)
    cross = (spec(name, ROWS, 4, 1500, 8) for name in CROSS)
    return Signature(inputs=(ids, *own, *cross), outputs=("logits", *MADE[4:]))


def served(name: str, signature: Signature, checkpoint: str = "a") -> ServedModel:
    record = PackedVersion(
        modelc="", artifact="onnx", target="onnx", precision="fp32", files=(),
        checkpoint=checkpoint, manifest="", domain="",
        interface=ModelInterface(inputs=(), outputs=()),
    )  # fmt: skip
    return ServedModel(name=name, folder=Path(name), files=(), record=record, signature=signature)


def test_the_configuration_has_both_caches() -> None:
    model = make_whisper_config(SETTINGS, decoder(), "encoder.onnx", "decoder.onnx")["model"]
    assert (model["type"], model["context_length"], model["eos_token_id"]) == ("whisper", 64, 2)
    for part in ("encoder", "decoder"):
        assert model[part]["filename"] == f"{part}.onnx"
        assert (model[part]["head_size"], model[part]["num_attention_heads"]) == (8, 4)
    names = model["decoder"]["inputs"]
    given = {name.replace("%d", str(layer)) for name in names.values() for layer in (0, 1)}
    assert given == {one.name for one in decoder().inputs}
    made = {*model["encoder"]["outputs"].values(), *model["decoder"]["outputs"].values()}
    assert {name.replace("%d", "0") for name in made} >= {name for name in MADE if ".0." in name}


def test_a_decoder_of_texts_is_no_speech_part() -> None:
    mask = spec("encoder_attention_mask", ROWS, 1500, dtype="int64")
    assert not is_speech_part(replace(decoder(), inputs=(*decoder().inputs, mask)))
    assert is_speech_part(decoder())
    assert is_speech_part(encoder())


@pytest.mark.parametrize(
    ("models", "code", "naming"),
    [
        ([served("d", decoder())], ErrorCode.NOTHING_TO_DO, "encoder"),
        ([served("e", encoder())], ErrorCode.NOTHING_TO_DO, "decoder"),
        (
            [served("d", decoder()), served("e", encoder(), "other")],
            ErrorCode.NOTHING_TO_DO,
            "encoder",
        ),
        ([served("d", decoder()), served("e", encoder(200))], ErrorCode.UNSUPPORTED, "3000"),
    ],
)
def test_parts_that_do_not_fit_are_an_error(
    models: list[ServedModel], code: ErrorCode, naming: str
) -> None:
    with pytest.raises(UsageError, check=has_code(code, naming=naming)):
        list(join_parts(models))


def test_another_model_of_sounds_is_an_error() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="moonshine")):
        make_speech_config(served("d", decoder()), replace(SETTINGS, kind="moonshine"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version folder of a Whisper with random weights."""
    transformers: Any = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("whisper")
    sizes = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    config = transformers.WhisperConfig(
        vocab_size=64, num_mel_bins=8, max_target_positions=48, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=3, suppress_tokens=[5], begin_suppress_tokens=None,
        **sizes,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config.suppress_tokens = [5]
    model.save_pretrained(folder / "saved")
    for part in ("encoder", "merged"):
        arguments = {"task": f"automatic-speech-recognition-{part}"}
        source = Source(checkpoint=folder / "saved", model_args=arguments)
        order = Order(source=source, wanted=(Wanted.parse("onnx"),), out=folder / part)
        assert run(order).passed
    folders = tuple(ModelFolder(name="w", folder=folder / one) for one in ("encoder", "merged"))
    report = pack_models(PackRequest(folders=folders, repository=folder / "packs", kind=ORT_GENAI))
    (one,) = report.models
    assert any("ignores suppress_tokens" in note for note in one.notes)
    return folder / "packs" / "w" / "1"


@pytest.mark.slow
@pytest.mark.needs("onnx")
def test_a_pack_is_one_model_and_its_check_reads_both_files(packed: Path) -> None:
    assert {"encoder.onnx", "decoder.onnx", GENAI_CONFIG} <= {one.name for one in packed.iterdir()}
    found = check_repository(packed.parent.parent)
    assert (found.kind, found.faults, found.models) == (ORT_GENAI.name, (), ("w",))
    path = packed / GENAI_CONFIG
    text = path.read_text()
    for part, field, code in (
        ("encoder", "filename", "missing-file"),
        ("encoder", "outputs", "tensor-name"),
        ("decoder", "head_size", "tensor-dims"),
    ):
        config = json.loads(text)
        given = {"filename": "other.onnx", "outputs": {}, "head_size": 4}
        config["model"][part][field] = given[field]
        path.write_text(json.dumps(config))
        assert code in {str(one.code) for one in check_repository(packed.parent.parent).faults}
    path.write_text(text)
