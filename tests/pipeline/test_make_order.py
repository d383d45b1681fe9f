"""Building one artifact from a converted model or from a checkpoint."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.registry import TARGETS
from modelc.core.contract import Target
from modelc.core.kinds import Precision
from modelc.core.records import sha256_of
from modelc.pipeline.api import build
from modelc.pipeline.make_order import build_order, lowers_rest
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted

pytestmark = [pytest.mark.needs("onnx"), pytest.mark.needs("openvino")]
HALF = Wanted(target="openvino", precision=Precision.FP16)


@pytest.fixture
def elsewhere(exported_digits: Path, tmp_path: Path) -> Path:
    """The ONNX without its manifest."""
    return Path(shutil.copy(exported_digits / "model.onnx", tmp_path))


def test_an_onnx_beside_its_manifest_is_built_and_judged_against_eager(
    exported_digits: Path, tmp_path: Path
) -> None:
    onnx = exported_digits / "model.onnx"
    found = build(onnx, to="openvino:fp16", out=tmp_path / "ir").manifest
    (artifact,) = found.artifacts
    assert found.exit_code == 0
    assert (artifact.made_from, artifact.parent) == ("model.onnx", sha256_of(onnx))
    assert (tmp_path / "ir" / "model.fp16.xml").exists()
    assert found.checkpoint.kind == "safetensors"
    assert found.signature.outputs == ("output",)
    assert "sample" in found.verdicts[0].feeds


def test_an_ir_beside_its_onnx_is_added_to_the_manifest(digits_copy: Path) -> None:
    shutil.rmtree(digits_copy / "rejected", ignore_errors=True)
    found = build(digits_copy / "model.onnx", to="openvino", out=digits_copy).manifest
    assert {artifact.name for artifact in found.artifacts} >= {"torchscript", "onnx", "openvino"}
    assert found.exit_code == 0


def test_an_onnx_without_a_manifest_is_its_own_reference(elsewhere: Path, tmp_path: Path) -> None:
    found = build(elsewhere, to="openvino", out=tmp_path / "ir").manifest
    assert found.passed
    assert [one.reference and one.reference.file for one in found.verdicts] == ["model.onnx"]


def test_an_onnx_without_a_manifest_is_built_against_a_checkpoint(
    elsewhere: Path, tmp_path: Path, digits_source: Source
) -> None:
    found = build(elsewhere, to="openvino", out=tmp_path / "ir", against=digits_source).manifest
    assert [artifact.name for artifact in found.artifacts] == ["openvino"]
    assert found.passed


def test_an_onnx_of_another_model_gives_a_rejected_ir(
    exported_digits: Path, tmp_path: Path, digits_source: Source
) -> None:
    import onnx

    model = onnx.load(exported_digits / "model.onnx")
    for tensor in model.graph.initializer:
        if tensor.name.endswith("classify.bias"):
            tensor.raw_data = bytes(len(tensor.raw_data))
    onnx.save(model, tmp_path / "model.onnx")
    found = build(
        tmp_path / "model.onnx", to="openvino", out=tmp_path / "ir", against=digits_source
    ).manifest
    assert found.exit_code == 1
    assert [artifact.name for artifact in found.artifacts] == ["rejected/openvino"]


def test_a_build_has_the_recorded_feeds_and_seed(digits_copy: Path, tmp_path: Path) -> None:
    manifest = read_manifest(digits_copy)
    assert manifest is not None
    write_manifest(replace(manifest, feeds=replace(manifest.feeds, count=7, seed=3)), digits_copy)
    path = digits_copy / "model.onnx"
    asked = Order(source=Source(checkpoint=path), wanted=(HALF,), out=tmp_path / "ir")
    recorded = build_order(path, asked).judging
    assert (recorded.feeds, recorded.seed) == (7, 3)
    given = build_order(path, replace(asked, judging=Judging(feeds=9))).judging
    assert (given.feeds, given.seed) == (9, 3)


def test_a_checkpoint_is_built_through_its_parents(digits_source: Source, tmp_path: Path) -> None:
    asked = Order(source=digits_source, wanted=(HALF,), out=tmp_path)
    order = build_order(digits_source.checkpoint, asked)
    assert (order.parent, order.source) == (None, digits_source)


def test_a_target_made_from_eager_is_built_from_the_checkpoint(
    digits_source: Source, tmp_path: Path
) -> None:
    found = build(
        digits_source.checkpoint, to="torchscript", out=tmp_path, against=digits_source
    ).manifest
    assert found.exit_code == 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.NAME)
def test_only_tensorrt_lowers_what_a_quantizer_leaves(target: Target) -> None:
    by_tensorrt = target.NAME.startswith("tensorrt") or target.NAME == "onnx-tensorrt"
    assert lowers_rest(Wanted(target=target.NAME)) is by_tensorrt
