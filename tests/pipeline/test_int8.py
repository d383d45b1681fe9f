"""INT8 from a folder of images to a proven artifact, and the ways in which it must not pass."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.converters.registry import target_named
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Event, Finished, Noted
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.preprocess import Preprocess
from modelc.core.records import Artifact
from modelc.pipeline.api import build
from modelc.pipeline.benchmark.timed_turns import MIN_ROUNDS
from modelc.pipeline.held_out import load_samples
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Lowering, Order, Source, Wanted
from modelc.pipeline.plan import make_plan
from modelc.pipeline.recorded_run import Moved, load_manifest
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder

from ..reasons import has_code, reason_codes

CALIB = Path(__file__).parents[2] / "sample_models" / "digits_calib"
HELD_OUT = CALIB.with_name("digits_heldout.npz")


def int8_of(folder: Path) -> dict[str, Artifact]:
    return {
        artifact.target: artifact
        for artifact in load_manifest(folder).artifacts
        if artifact.precision is Precision.INT8
    }


def accuracy(path: Path, target: str, manifest: Manifest) -> float:
    """Share of the 450 held-out digits that the model file reads right."""
    data = np.load(HELD_OUT)
    right = 0
    with target_named(target).open_runner(path, "cpu", manifest.signature) as runner:
        for start in range(0, len(data["x"]), 8):
            (logits,) = runner.run({"x": data["x"][start : start + 8]}).values()
            right += int((logits.argmax(-1) == data["y"][start : start + 8]).sum())
    return right / len(data["x"])


PLAIN = Lowering(calibration=CalibrationOptions(source=str(CALIB)), quantizer="onnxruntime")
FEW = CalibrationOptions(source=str(CALIB), samples=16)


def order_of(
    source: Source, out: Path, wanted: str = "onnx:int8", *, cache: Path | None = None, **parts: Any
) -> Order:
    """An order with these parts of its lowering."""
    lowering = replace(PLAIN, **parts)
    wanted_ = (Wanted.parse(wanted),)
    return Order(source=source, wanted=wanted_, out=out, lowering=lowering, cache=cache)


def only_int8(manifest: Manifest) -> Artifact:
    (artifact,) = (a for a in manifest.artifacts if a.precision is Precision.INT8)
    return artifact


def test_every_backend_reads_the_held_out_digits_as_well_as_fp32(
    int8_digits: Path, exported_digits: Path
) -> None:
    manifest = load_manifest(int8_digits)
    before = accuracy(exported_digits / "model.onnx", "onnx", manifest)
    found = int8_of(int8_digits)
    assert set(found) >= {"onnx", "openvino", "tensorrt-onnx"}
    for name, artifact in found.items():
        after = accuracy(int8_digits / artifact.files[0].name, name, manifest)
        assert after >= before - 0.005, name


def test_the_layers_really_compute_in_int8(int8_digits: Path) -> None:
    for artifact in int8_of(int8_digits).values():
        assert artifact.coverage is not None
        assert artifact.coverage.layers["int8"] >= 3
        assert (
            artifact.coverage.share["int8"] > 0
        )  # of the time, which is noise on a shared machine


def test_the_calibration_set_is_on_record(int8_digits: Path) -> None:
    for artifact in int8_of(int8_digits).values():
        record = artifact.calibration
        assert record is not None
        assert (int8_digits / record.source).resolve() == CALIB.resolve()
        assert (record.kind, record.found) == ("folder", 128)
        assert record.used + record.held_out == 128
        assert record.held_out == 16


def test_it_is_judged_on_samples_that_it_was_not_calibrated_with(int8_digits: Path) -> None:
    manifest = load_manifest(int8_digits)
    for artifact in int8_of(int8_digits).values():
        verdict = manifest.verdict_of(artifact.name)
        assert verdict is not None
        counted = {output.feed for output in verdict.outputs if not output.loose}
        samples = {f"held-out-{n}" for n in range(1, 17)}
        assert counted == {"sample", *samples, "held-out-batch=4", "held-out-batch=8"}
        assert len(load_samples(artifact, int8_digits)) == 16


def test_a_folder_is_judged_again_without_its_calibration_images(
    int8_digits: Path, tmp_path: Path
) -> None:
    before = load_manifest(int8_digits)
    copy = Path(shutil.copytree(int8_digits, tmp_path / "out"))
    checkpoint = (int8_digits / before.checkpoint.path).resolve()
    moved = Moved(checkpoint=checkpoint, samples=checkpoint.with_name("digits_samples.npz"))
    found = validate_folder(copy, moved=moved)
    assert found.passed
    for verdict in found.verdicts:
        earlier = before.verdict_of(verdict.artifact)
        assert earlier is not None
        assert verdict.sqnr == pytest.approx(earlier.sqnr, abs=0.1)


def test_one_file_is_judged_again_on_its_held_out_samples(int8_digits: Path) -> None:
    verdict = validate_file(int8_digits / "model.int8.onnx")
    assert verdict.passed
    assert "held-out-1" in verdict.feeds


def test_samples_that_were_changed_are_found(int8_digits: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(int8_digits, tmp_path / "out"))
    checkpoint = (int8_digits / load_manifest(int8_digits).checkpoint.path).resolve()
    path = copy / "model.int8.onnx.samples.npz"
    path.write_bytes(path.read_bytes() + b"x")
    moved = Moved(checkpoint=checkpoint, samples=checkpoint.with_name("digits_samples.npz"))
    found = validate_folder(copy, moved=moved)
    verdict = found.verdict_of("rejected/onnx-int8")
    assert verdict is not None
    assert reason_codes(verdict) == [ReasonCode.CHANGED_FILE]
    assert "samples.npz" in verdict.reason


def test_int8_without_samples_is_rejected_before_the_checkpoint_is_read(
    digits_source: Source,
) -> None:
    nowhere = replace(digits_source, checkpoint=Path("/nowhere"))
    order = order_of(nowhere, Path("/nowhere/out"), calibration=None, quantizer=None)
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_SAMPLES, option="calib")) as caught:
        run(order)
    assert "--calib" in caught.value.hint


def test_a_second_run_takes_the_calibration_from_the_cache(
    digits_source: Source, tmp_path: Path
) -> None:
    calib = Path(shutil.copytree(CALIB, tmp_path / "calib"))
    told: list[Event] = []

    def again(out: str) -> list[str]:
        told.clear()
        calibration = CalibrationOptions(source=str(calib), selection="first", hold_out=1)
        cache = tmp_path / "cache"
        order = order_of(digits_source, tmp_path / out, cache=cache, calibration=calibration)
        assert run(order, told.append).passed
        ended = [event for event in told if isinstance(event, Finished)]
        return [event.detail for event in ended if event.step.startswith("quantize")]

    assert again("first") == [""]
    (detail,) = again("second")
    assert "cache" in detail
    images = sorted(calib.rglob("*.png"))
    shutil.copyfile(images[40], images[3])
    assert again("third") == [""]
    blobs = [*(tmp_path / "cache" / "results" / "blobs").glob("*/*")]
    assert blobs
    for blob in blobs:
        blob.write_bytes(blob.read_bytes()[:-1])
    assert again("fourth") == [""]
    notes = [event.text for event in told if isinstance(event, Noted)]
    assert any("cached" in note for note in notes)


def test_a_quantized_onnx_is_built_upon_without_calibration(
    int8_digits: Path, tmp_path: Path
) -> None:
    found = build(int8_digits / "model.int8.onnx", to="openvino:int8", out=tmp_path / "ir").manifest
    assert [artifact.name for artifact in found.artifacts] == ["openvino-int8"]
    record = found.artifacts[0].calibration
    assert record is not None
    assert (tmp_path / "ir" / record.source).resolve() == CALIB.resolve()
    assert found.passed


@pytest.mark.parametrize("rest", [None, Precision.FP16])
def test_the_rest_of_a_quantized_onnx_is_lowered_if_asked(
    digits_source: Source, tmp_path: Path, rest: Precision | None
) -> None:
    name = "tensorrt-onnx:int8"
    first = order_of(digits_source, tmp_path / "a", name, calibration=FEW, rest=Precision.FP32)
    made = only_int8(run(first)).files[0].name
    shutil.copy(tmp_path / "a" / made, tmp_path / "mine.onnx")
    order = Order(
        source=digits_source,
        wanted=first.wanted,
        out=tmp_path / "b",
        parent=tmp_path / "mine.onnx",
        parent_precision=Precision.INT8,
        lowering=Lowering(rest=rest),
    )
    found = run(order)
    assert found.passed
    assert only_int8(found).options.get("rest") == rest


def test_random_data_is_marked(digits_source: Source, tmp_path: Path) -> None:
    calibration = CalibrationOptions(source="random", samples=8)
    record = only_int8(run(order_of(digits_source, tmp_path, calibration=calibration))).calibration
    assert record is not None
    assert (record.source, record.kind) == ("random", "random")


def test_images_that_are_not_normalised_are_rejected(digits_source: Source, tmp_path: Path) -> None:
    raw = CalibrationOptions(source=str(CALIB), preprocess=Preprocess.parse("raw"))
    with pytest.raises(UsageError, match=r"0\.\.255"):
        run(order_of(digits_source, tmp_path, calibration=raw))


@pytest.mark.parametrize(("pattern", "kept"), [("head_conv", 1), ("Conv", 3)])
def test_what_is_kept_in_floating_point_is_not_quantized(
    digits_source: Source, tmp_path: Path, pattern: str, kept: int
) -> None:
    order = order_of(digits_source, tmp_path, calibration=FEW, keep=(pattern,))
    coverage = only_int8(run(order)).coverage
    assert coverage is not None
    assert (coverage.layers["fp32"], coverage.layers["int8"]) == (kept, 5 - kept)


def test_int8_that_quantized_nothing_is_an_error(digits_source: Source, tmp_path: Path) -> None:
    found = run(order_of(digits_source, tmp_path, calibration=FEW, keep=("*",)))
    assert found.exit_code == 5
    assert not list(tmp_path.glob("model.int8*"))


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ("openvino:int8", {"quantizer": "nnfc"}),
        ("onnx:int8", {"quantizer": None, "method": "entropi"}),
    ],
)
def test_an_unknown_quantizer_or_method_is_rejected(
    digits_source: Source, tmp_path: Path, wanted: str, parts: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"'nnfc'|entropi"):
        make_plan(order_of(digits_source, tmp_path, wanted, **parts))


@pytest.mark.slow
def test_auto_tries_all_quantizers_and_records_each(digits_source: Source, tmp_path: Path) -> None:
    found = run(order_of(digits_source, tmp_path, "openvino:int8", quantizer=None))
    artifact = only_int8(found)
    assert len(artifact.attempts) >= 2
    assert artifact.capture in {attempt.capture for attempt in artifact.attempts}
    timed = [one for one in artifact.attempts if one.latency is None or not one.latency.slower]
    best = max(one.sqnr or 0 for one in timed or artifact.attempts)  # by the clock of a busy host
    kept = next(a for a in artifact.attempts if a.capture == artifact.capture)
    assert kept.sqnr is not None
    assert kept.sqnr >= best - 0.5
    assert kept.latency is not None
    assert kept.latency.low <= kept.latency.ratio <= kept.latency.high
    assert kept.latency.rounds >= MIN_ROUNDS
    assert read_manifest(tmp_path) == found
