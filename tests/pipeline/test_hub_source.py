from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import modelc
from modelc.core.errors import CheckpointError, ConsentError, ErrorCode
from modelc.core.kinds import Precision
from modelc.core.manifest import Manifest
from modelc.pipeline.api import validate
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.step_keys import step_keys
from modelc.pipeline.hub_source import find_recorded_checkpoint, locate_source
from modelc.pipeline.manifest_file import decode_manifest, read_manifest
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.plan import make_plan
from modelc.pipeline.provenance.artifact_checks import HOLDS
from modelc.pipeline.provenance.verify_folder import verify_folder
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.replay_commands import list_commands

from ..hub_server import HubModel, HubServer, read_folder, use_hub

pytest.importorskip("huggingface_hub")

SAMPLE_MODELS = Path(__file__).parents[2] / "sample_models"
WEIGHTS = (SAMPLE_MODELS / "digits.safetensors").read_bytes()
ID = "hf://org/digits"
DIGITS: dict[str, Any] = {
    "model": "modelc.sample_models.digits:build",
    "inputs": "x:float32[batch=1..8,1,8,8]",
    "to": "torchscript",
}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "BertForSequenceClassification": (
        "BertConfig",
        {**TINY, "vocab_size": 50, "intermediate_size": 16, "max_position_embeddings": 32},
    ),
    "LlamaForCausalLM": (
        "LlamaConfig",
        {**TINY, "vocab_size": 64, "intermediate_size": 32, "num_key_value_heads": 2},
    ),
    "ViTForImageClassification": (
        "ViTConfig", {**TINY, "intermediate_size": 32, "image_size": 16, "patch_size": 4},
    ),
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with use_hub(tmp_path / "cache") as server:
        yield server


@pytest.fixture
def model(hub: HubServer) -> HubModel:
    found = hub.model("org/digits")
    found.push({"model.safetensors": WEIGHTS, "README.md": b"digits"})
    return found


def export(out: Path, source: str = ID, **options: Any) -> Manifest:
    found = modelc.export(source, out=out, **{**DIGITS, **options}).manifest
    assert isinstance(found, Manifest)
    return found


def order_of(source: str, out: Path) -> Order:
    located = locate_source(Source(checkpoint=Path(source), model=DIGITS["model"]), lambda _: None)
    return Order(source=located, wanted=(Wanted(target="torchscript"),), out=out)


def keys_of(order: Order, root: Path) -> dict[str, str]:
    digests = FileDigests(root / "digests")
    return step_keys(order, make_plan(order), root=root, digests=digests)


def test_an_export_pins_the_commit(model: HubModel, tmp_path: Path) -> None:
    manifest = export(tmp_path / "out", f"{ID}@main")
    commit = model.refs["main"]
    hub = manifest.checkpoint.hub
    assert hub is not None
    assert (hub.repo, hub.commit, hub.revision) == ("org/digits", commit, "main")
    assert manifest.checkpoint.path == f"{ID}@{commit}"
    assert read_manifest(tmp_path / "out") == manifest
    assert manifest.passed
    assert not [name for name in manifest.needs.files if "models--org" in name]
    (again, *_) = list_commands(manifest)
    assert f" {ID}@{commit} " in again.text


def test_a_folder_is_validated_with_its_own_commit_and_without_a_network(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    manifest = export(tmp_path / "out")
    model.push({"model.safetensors": WEIGHTS[:-4] + bytes(4)})
    hub.requests.clear()
    found = validate(tmp_path / "out")
    assert isinstance(found, Manifest)
    assert found.passed
    assert found.checkpoint == manifest.checkpoint
    assert not hub.requests
    hub.stop()
    assert isinstance(validate(tmp_path / "out"), Manifest)
    checks = verify_folder(tmp_path / "out").checks
    assert [one.found for one in checks if one.of == "checkpoint"] == [HOLDS]


def test_a_commit_that_left_the_cache_is_downloaded_again(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    manifest = export(tmp_path / "out")
    model.push({"model.safetensors": WEIGHTS, "other": b""})
    place = find_recorded_checkpoint(manifest.checkpoint, tmp_path / "out")
    assert place is not None
    (place / "model.safetensors").unlink()
    assert find_recorded_checkpoint(manifest.checkpoint, tmp_path / "out") is None
    found = validate(tmp_path / "out")
    assert isinstance(found, Manifest)
    assert found.passed
    (place / "model.safetensors").unlink()
    hub.stop()
    with pytest.raises(CheckpointError) as caught:
        validate(tmp_path / "out")
    assert caught.value.code is ErrorCode.HUB_UNREACHABLE
    assert "checkpoint" in caught.value.options


def test_other_bytes_in_the_cache_are_noticed(model: HubModel, tmp_path: Path) -> None:
    export(tmp_path / "out")
    (blob,) = [path for path in tmp_path.rglob("blobs/*") if path.stat().st_size == len(WEIGHTS)]
    blob.write_bytes(WEIGHTS[:-4] + bytes(4))
    with pytest.raises(CheckpointError) as caught:
        validate(tmp_path / "out")
    assert caught.value.code is ErrorCode.FILE_CHANGED
    assert model.refs


def test_a_recorded_checkpoint_may_be_elsewhere(
    hub: HubServer, model: HubModel, tmp_path: Path
) -> None:
    export(tmp_path / "out")
    hub.stop()
    found = validate(tmp_path / "out", moved=Moved(checkpoint=SAMPLE_MODELS / "digits.safetensors"))
    assert isinstance(found, Manifest)
    assert found.passed
    assert model.refs


def test_a_local_checkpoint_may_be_found_on_the_hub(model: HubModel, tmp_path: Path) -> None:
    export(tmp_path / "out", str(SAMPLE_MODELS / "digits.safetensors"))
    found = validate(tmp_path / "out", moved=Moved(checkpoint=Path(ID)))
    assert isinstance(found, Manifest)
    assert found.passed
    assert model.refs


def test_a_single_file_is_judged_against_a_model_on_the_hub(
    model: HubModel, tmp_path: Path
) -> None:
    export(tmp_path / "out", to="onnx")
    source = Source(checkpoint=Path(ID), model=DIGITS["model"], inputs=(DIGITS["inputs"],))
    verdict = validate(tmp_path / "out" / "model.onnx", against=source)
    assert not isinstance(verdict, Manifest)
    assert verdict.passed
    assert model.refs


def test_the_keys_of_steps_have_the_commit(model: HubModel, tmp_path: Path) -> None:
    first = keys_of(order_of(f"{ID}@main", tmp_path / "out"), tmp_path)
    pinned = f"{ID}@{model.refs['main']}"
    assert keys_of(order_of(pinned, tmp_path / "out"), tmp_path) == first
    model.push({"model.safetensors": WEIGHTS, "other": b""})  # the same weights
    assert keys_of(order_of(f"{ID}@main", tmp_path / "out"), tmp_path) != first
    assert keys_of(order_of(pinned, tmp_path / "out"), tmp_path) == first


def test_a_token_is_in_no_file(
    model: HubModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    monkeypatch.setenv("HF_DEBUG", "1")
    model.private = True
    export(tmp_path / "out")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"topsecret" in path.read_bytes()]


def test_pickles_need_consent_again(hub: HubServer, tmp_path: Path) -> None:
    import torch

    torch.save({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, tmp_path / "net.pt")
    hub.model("org/linear").push({"pytorch_model.bin": (tmp_path / "net.pt").read_bytes()})
    linear: dict[str, Any] = {
        "model": "torch.nn:Linear", "inputs": "input:float32[batch=1..4,2]",
        "model_args": {"in_features": "2", "out_features": "3"},
    }  # fmt: skip
    with pytest.raises(ConsentError):
        export(tmp_path / "out", "hf://org/linear", **linear)
    assert export(tmp_path / "out", "hf://org/linear", allow_pickle=True, **linear).passed
    with pytest.raises(ConsentError):
        validate(tmp_path / "out")
    found = validate(tmp_path / "out", moved=Moved(allow_pickle=True))
    assert isinstance(found, Manifest)


def test_a_manifest_without_a_hub_still_loads(model: HubModel, tmp_path: Path) -> None:
    export(tmp_path / "out")
    text = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    del text["checkpoint"]["hub"]
    found = decode_manifest(json.dumps(text).encode(), tmp_path / "manifest.json")
    assert found.checkpoint.hub is None
    assert model.refs


def test_an_edited_record_is_refused(model: HubModel, tmp_path: Path) -> None:
    manifest = export(tmp_path / "out")
    hub = manifest.checkpoint.hub
    assert hub is not None
    for changes in ({"repo": "../../x"}, {"commit": "../.."}, {"place": "../../.."}):
        checkpoint = replace(manifest.checkpoint, hub=replace(hub, **changes))
        with pytest.raises(modelc.ModelcError) as caught:
            find_recorded_checkpoint(checkpoint, tmp_path)
        assert caught.value.code is ErrorCode.INVALID_VALUE
    assert model.refs


@pytest.mark.slow
def test_the_bill_has_the_package_url(model: HubModel, tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx")
    from modelc.pipeline.provenance.bill_of_materials import make_bill

    export(tmp_path / "out")
    assert (
        f"pkg:huggingface/org/digits@{model.refs['main']}" in make_bill(tmp_path / "out").decode()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_models_of_transformers(hub: HubServer, tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    config, changes = FAMILIES[kind]
    torch.manual_seed(0)
    made = getattr(transformers, kind)(getattr(transformers, config)(**changes))
    made.save_pretrained(tmp_path / "saved", max_shard_size="10KB")
    hub.model("org/net").push(read_folder(tmp_path / "saved"))
    manifest = modelc.export("hf://org/net", out=tmp_path / "out", to="onnx").manifest
    assert manifest.passed
    assert not [name for name in manifest.needs.files if "cache" in name]
    assert {one.precision for one in manifest.artifacts} == {Precision.FP32}
    hub.stop()
    found = validate(tmp_path / "out")
    assert isinstance(found, Manifest)
    assert found.passed
