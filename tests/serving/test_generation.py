"""Decoders packed for onnxruntime-genai and openvino-genai, what a check finds, and real runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import CheckpointError, ErrorCode, MissingError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external
from modelc.runtimes.generation_files import GENAI_CONFIG
from modelc.runtimes.installed_runtime import install_runtime
from modelc.serving.generation_repository import _advise_longer
from modelc.serving.pack_models import check_repository
from modelc.serving.repository_kinds import ORT_GENAI, OV_GENAI, TRITON, kind_of
from modelc.serving.repository_records import PackReport

from ..reasons import has_code

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.slow, pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]
Pack = Callable[..., PackReport]
KINDS = [ORT_GENAI, OV_GENAI]
SIZES = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, trained on this file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=["<pad>", "<s>", "</s>"])
    made.train_from_iterator([Path(__file__).read_text()], trainer)
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **tokens).save_pretrained(folder)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with an ONNX and an IR with states, beside its checkpoint. Copy it."""
    import torch

    from modelc.checkpoints.huggingface_folder import silence_transformers

    folder = tmp_path_factory.mktemp("genai")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with torch.no_grad(), silence_transformers():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
        model.save_pretrained(folder / "saved")
        save_tokenizer(folder / "saved")
        arguments = {"task": "text-generation-merged"}
        source = Source(checkpoint=folder / "saved", model_args=arguments)
        wanted = tuple(map(Wanted.parse, ("onnx", "openvino")))
        order = Order(source=source, wanted=wanted, out=folder / "llama", stateful=True)
        assert run(order).passed
    return folder / "llama"


@pytest.fixture
def places(llama: Path, pack: Pack, tmp_path: Path) -> dict[str, Path]:
    """The version folders of both kinds, to be changed."""
    found = {}
    for kind in KINDS:
        pack(llama, tmp_path / kind.name, kind=kind)
        found[kind.name] = tmp_path / kind.name / "llama" / "1"
    return found


def codes(version: Path) -> list[str]:
    return [str(fault.code) for fault in check_repository(version.parent.parent).faults]


def test_a_pack_has_what_its_runtime_reads(places: dict[str, Path]) -> None:
    texts = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    onnx, openvino = ({one.name for one in places[kind.name].iterdir()} for kind in KINDS)
    assert onnx == {"model.onnx", GENAI_CONFIG, "modelc.json", *texts}
    assert openvino >= {"openvino_model.xml", "openvino_model.bin", "modelc.json", *texts}
    config = json.loads((places[ORT_GENAI.name] / GENAI_CONFIG).read_text())
    assert (config["model"]["eos_token_id"], config["model"]["vocab_size"]) == (2, 64)


@pytest.mark.parametrize(("positions", "past"), [(512, "past=0..384"), (256, "")])
def test_a_longer_past_is_named_where_prompts_leave_room(
    llama: Path, positions: int, past: str
) -> None:
    manifest = read_manifest(llama)
    assert manifest is not None
    signature = manifest.signature
    assert signature is not None
    advice = _advise_longer(signature, positions)
    assert ("--input '" in advice) == bool(past)
    if past:
        spec = parse_input(advice.partition("'")[2].rstrip("'"))
        assert spec.name == "past_key_values.0.key"
        assert past in advice


def test_no_other_format_is_advised_where_the_right_one_is_packed(
    llama: Path, pack: Pack, tmp_path: Path
) -> None:
    report = pack(llama, tmp_path / "both", kind=ORT_GENAI)
    (left,) = report.left_out
    assert (left.artifact, left.hint) == ("openvino", "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_was_packed_is_sound_and_known(kind: Any, places: dict[str, Path]) -> None:
    version = places[kind.name]
    found = check_repository(version.parent.parent)
    assert (found.kind, found.faults, found.versions) == (kind.name, (), ("llama/1",))
    assert kind_of(version.parent.parent) is kind


def test_the_same_is_not_packed_twice_and_another_tokenizer_is(
    llama: Path, pack: Pack, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama.parent, tmp_path / "genai") / "llama"
    repository = tmp_path / "repository"
    for is_new in (True, False):
        (model,) = pack(folder, repository, kind=ORT_GENAI).models
        assert (model.version, model.is_new) == (1, is_new)
    settings = folder.parent / "saved" / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("</s>", "<s>"))
    (model,) = pack(folder, repository, kind=ORT_GENAI).models
    assert (model.version, model.is_new) == (2, True)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_changed_text_is_found(kind: Any, name: str, places: dict[str, Path]) -> None:
    path = places[kind.name] / name
    path.write_text(path.read_text() + " ")
    assert codes(places[kind.name]) == ["other-file"]
    path.unlink()
    assert codes(places[kind.name]) == ["missing-file"]


def _set(config: Any, *names: str, value: object) -> None:
    for name in names[:-1]:
        config = config[name]
    config[names[-1]] = value


@pytest.mark.parametrize(
    ("names", "value", "code"),
    [
        (("model", "eos_token_id"), 3, "config"),
        (("model", "vocab_size"), 63, "config"),
        (("model", "pad_token_id"), 3, "config"),
        (("model", "context_length"), "64", "config"),
        (("search", "max_length"), 1000, "config"),
        (("search", "max_length"), "5", "config"),
        (("search",), [], "config"),
        (("model", "decoder", "head_size"), 4, "tensor-dims"),
        (("model", "decoder", "num_key_value_heads"), 2, "tensor-dims"),
        (("model", "decoder", "num_hidden_layers"), 2, "tensor-name"),
        (("model", "decoder", "inputs", "past_key_names"), "past.%d.key", "tensor-name"),
        (("model", "decoder", "inputs", "position_ids"), "positions", "tensor-name"),
        (("model", "decoder", "outputs", "logits"), "scores", "tensor-name"),
        (("model", "decoder", "filename"), "other.onnx", "missing-file"),
        (("model", "decoder", "filename"), "../../../llama/model.onnx", "unsafe-file"),
        (("model", "decoder"), None, "config"),
        (("model",), [], "config"),
    ],
)
def test_a_configuration_that_does_not_fit_is_found(
    names: tuple[str, ...], value: object, code: str, places: dict[str, Path]
) -> None:
    path = places[ORT_GENAI.name] / GENAI_CONFIG
    config = json.loads(path.read_text())
    _set(config, *names, value=value)
    path.write_text(json.dumps(config))
    assert code in codes(places[ORT_GENAI.name])


def test_settings_of_sampling_are_the_operators(places: dict[str, Path]) -> None:
    path = places[ORT_GENAI.name] / GENAI_CONFIG
    config = json.loads(path.read_text())
    config["search"] |= {"do_sample": True, "top_k": 5, "max_length": 64}
    path.write_text(json.dumps(config))
    assert codes(places[ORT_GENAI.name]) == []


def test_states_go_to_no_server_that_mixes_requests(
    llama: Path, pack: Pack, tmp_path: Path
) -> None:
    report = pack(llama, tmp_path / "repository", kind=TRITON)
    assert [model.artifact for model in report.models] == ["onnx"]
    assert [one.artifact for one in report.left_out] == ["openvino"]
    assert "states" in report.left_out[0].reason


def test_a_model_that_is_no_decoder_is_not_packed(
    exported_digits: Path, pack: Pack, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOTHING_TO_DO, naming="no decoder")):
        pack(exported_digits, tmp_path / "repository", kind=ORT_GENAI)


@pytest.mark.parametrize("change", ["gone", "changed", "endless"])
def test_a_checkpoint_that_is_gone_or_another_is_an_error(
    change: str, llama: Path, pack: Pack, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama.parent, tmp_path / "genai") / "llama"
    config = folder.parent / "saved" / "config.json"
    if change == "gone":
        shutil.rmtree(folder.parent / "saved")
    elif change == "changed":
        config.write_text(config.read_text().replace("256", "512"))
    else:
        (folder.parent / "saved" / "generation_config.json").write_text('{"eos_token_id": []}')
    kind = UsageError if change == "endless" else CheckpointError
    with pytest.raises(kind):
        pack(folder, tmp_path / "repository", kind=ORT_GENAI)
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("artifact", "runtime"),
    [("onnx", "onnxruntime-genai==0.18.0"), ("openvino", "openvino-genai==2026.4.1.0")],
)
def test_a_runtime_generates_the_tokens_of_eager(
    artifact: str, runtime: str, llama: Path, tmp_path: Path
) -> None:
    try:
        there = install_runtime(runtime, tmp_path / "cache")
    except MissingError as error:
        pytest.skip(error.message)
    (one,) = validate_external(llama, [there], artifacts=[artifact]).judged
    assert one.verdict.state is State.PASSED
    assert one.verdict.notes[0].endswith("are eager's")
    assert one.versions[runtime.partition("==")[0]] == runtime.partition("==")[2]


def test_a_fault_in_the_cache_is_seen_in_the_runtime(llama: Path, tmp_path: Path) -> None:
    """A step that reads the past in reverse order is right on prompts alone."""
    import onnx
    from onnx import helper

    try:
        there = install_runtime("onnxruntime-genai==0.18.0", tmp_path / "cache")
    except MissingError as error:
        pytest.skip(error.message)
    folder = shutil.copytree(llama.parent, tmp_path / "genai") / "llama"
    path = folder / "model.onnx"
    model = onnx.load(path)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == "past_key_values.0.value":
                node.input[place] = "reversed"
    ends = [helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value])
            for name, value in (("s", -1), ("e", -1000), ("a", 2), ("t", -1))]  # fmt: skip
    model.graph.initializer.extend(ends)
    slicing = helper.make_node(
        "Slice", ["past_key_values.0.value", "s", "e", "a", "t"], ["reversed"]
    )
    model.graph.node.insert(0, slicing)
    onnx.save(model, path)
    manifest = json.loads((folder / "manifest.json").read_text())
    from modelc.core.records import sha256_of

    file = manifest["artifacts"][0]["files"][0]
    file["sha256"], file["size"] = sha256_of(path), path.stat().st_size
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (one,) = validate_external(folder, [there], artifacts=["onnx"]).judged
    assert one.verdict.state is State.FAILED
    assert one.verdict.reasons[0].code == "generated-tokens"
