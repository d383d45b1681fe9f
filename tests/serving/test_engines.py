"""Engines for several GPUs, external data and classes: what no artifact of the other tests has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.records import FileRecord, record_of
from modelc.serving.pick_artifacts import find_class_output
from modelc.serving.repository_kinds import TRITON
from modelc.serving.repository_records import (
    ModelInterface,
    PackedVersion,
    ServedModel,
    ServedTensor,
    ServingOptions,
)
from modelc.serving.triton_comparison import find_config_difference
from modelc.serving.triton_repository import make_config, plan_model_files, plan_version_files

IMAGE = ServedTensor(name="x", dtype="float32", dims=(-1, 3, 8, 8), source="x")
SCORES = ServedTensor(name="y", dtype="float32", dims=(-1, 3), source="y")


def model_of(folder: Path, target: str, *files: str, **record: object) -> ServedModel:
    interface = ModelInterface(inputs=(IMAGE,), outputs=(SCORES,), batch=8, rows_apart=True)
    packed = PackedVersion(
        modelc="1", artifact=target, target=target, precision="fp32", files=(), checkpoint="c",
        manifest="m", domain="", interface=interface,
    )  # fmt: skip
    records: list[FileRecord] = []
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_bytes(name.encode())
        records.append(record_of(folder / name, name=name))
    return ServedModel(
        name="net",
        folder=folder,
        files=tuple(records),
        record=replace(packed, **record),  # type: ignore[arg-type]  # as given
    )


def engine_for(folder: Path, capability: str) -> ServedModel:
    folder.mkdir()
    (folder / "model.engine.json").write_text(json.dumps({"capability": capability}))
    return model_of(folder, "tensorrt", "model.engine", "model.engine.json")


def test_engines_for_two_gpus_are_one_model(tmp_path: Path) -> None:
    made = [engine_for(tmp_path / name, name) for name in ("8.6", "9.0")]
    (model,) = TRITON.prepare(made)
    config = make_config(model, ServingOptions())
    assert dict(config.cc_model_filenames) == {"8.6": "model_8_6.plan", "9.0": "model_9_0.plan"}
    assert {file.name for file in plan_version_files(model)} == {
        "model_8_6.plan", "model_8_6.plan.json", "model_9_0.plan", "model_9_0.plan.json",
    }  # fmt: skip
    group = config.instance_group[0]
    assert group.kind == group.KIND_GPU


def test_two_engines_for_one_gpu_are_two_models(tmp_path: Path) -> None:
    made = [engine_for(tmp_path / name, "8.6") for name in ("a", "b")]
    assert len(TRITON.prepare(made)) == 2


def test_external_data_keeps_the_name_that_the_onnx_refers_to(tmp_path: Path) -> None:
    model = model_of(tmp_path, "onnx", "model.fp16.onnx", "model.fp16.onnx.data")
    names = [file.name for file in plan_version_files(model)]
    assert names == ["model.onnx", "model.fp16.onnx.data"]


@pytest.mark.parametrize("target", ["torchscript", "aoti"])
def test_names_that_the_pytorch_backend_would_misread_are_replaced(
    tmp_path: Path, target: str
) -> None:
    """It takes what is behind two underscores for a position."""
    tensors = (replace(IMAGE, name="image__2"), replace(IMAGE, name="mask"))
    interface = ModelInterface(inputs=tensors, outputs=(SCORES,), batch=8, rows_apart=True)
    (model,) = TRITON.prepare([model_of(tmp_path, target, "model.pt", interface=interface)])
    config = make_config(model, ServingOptions())
    assert [one.name for one in config.input] == ["INPUT__0", "INPUT__1"]
    assert config.max_batch_size == (8 if target == "torchscript" else 0)


def with_classes(model: ServedModel, classes: tuple[str, ...]) -> ServedModel:
    return replace(model, record=replace(model.record, classes=classes, classes_of="y"))


def test_class_names_are_beside_the_only_output_of_their_number(tmp_path: Path) -> None:
    classes = ("cat", "dog", "owl")
    assert find_class_output((SCORES,), classes) == "y"
    assert find_class_output((SCORES, replace(SCORES, name="z")), classes) == ""
    model = with_classes(model_of(tmp_path, "onnx", "m.onnx"), classes)
    assert make_config(model, ServingOptions()).output[0].label_filename == "labels.txt"
    files = {file.name: file.content for file in plan_model_files(model, ServingOptions())}
    assert files["labels.txt"] == b"cat\ndog\nowl\n"


def test_rows_that_were_not_measured_are_not_joined(tmp_path: Path) -> None:
    interface = ModelInterface(inputs=(IMAGE,), outputs=(SCORES,), batch=8)
    config = make_config(
        model_of(tmp_path, "onnx", "m.onnx", interface=interface), ServingOptions()
    )
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (8, False)


@pytest.mark.parametrize(
    ("classes", "differs"), [(("a", "b", "c"), False), (("c", "b", "a"), True)]
)
def test_a_version_with_other_class_names_is_another_model(
    tmp_path: Path, classes: tuple[str, ...], differs: bool
) -> None:
    """All versions of a model share one file of labels."""
    first = with_classes(model_of(tmp_path, "onnx", "m.onnx"), ("a", "b", "c"))
    place = tmp_path / "repository"
    place.mkdir()
    for file in plan_model_files(first, ServingOptions()):
        if "/" not in file.name:
            (place / file.name).write_bytes(file.content)
    found = find_config_difference(place, with_classes(first, classes), ServingOptions())
    assert bool(found) is differs
