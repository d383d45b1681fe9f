"""One model file against its eager side."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import LOGGED, CheckpointError, ErrorCode, RunnerError, UsageError
from modelc.core.events import Event, Noted
from modelc.core.kinds import Precision, ReasonCode
from modelc.pipeline.manifest_file import MANIFEST_FILE, read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import temporary_logs
from modelc.pipeline.validate_file import validate_file
from modelc.validators.tolerance import TOLERANCES

from ..reasons import has_code

FILES = ["model.torchscript.pt", "model.pt2", "model.onnx", "model.xml"]


@pytest.fixture
def alone(exported_digits: Path, tmp_path: Path) -> Path:
    """The models without their manifest."""
    for path in exported_digits.glob("model.*"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("file", FILES)
def test_a_file_passes_against_its_checkpoint(
    alone: Path, digits_source: Source, file: str
) -> None:
    precision = Precision.FP16 if "fp16" in file else None
    source = replace(digits_source, trust=True)  # the programs among them are nobody's
    verdict = validate_file(alone / file, source, precision=precision)
    assert verdict.passed
    assert verdict.artifact == file
    assert verdict.feeds[:4] == ("sample", "min", "opt", "max")


@pytest.mark.parametrize("file", FILES)
def test_a_file_passes_against_the_manifest_beside_it(exported_digits: Path, file: str) -> None:
    assert validate_file(exported_digits / file).passed


def _rename_output(path: Path, name: str, factor: float = 1.0, *, foreign: bool = True) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(path)
    (output,) = model.graph.output
    for node in model.graph.node:
        node.output[:] = [name if one == output.name else one for one in node.output]
    output.name = name
    if foreign:
        del model.metadata_props[:]  # which say that modelc made it
    weight = next(one for one in model.graph.initializer if len(one.dims) > 1)
    scaled = numpy_helper.to_array(weight) * factor
    weight.CopyFrom(numpy_helper.from_array(scaled.astype("float32"), weight.name))
    onnx.save(model, path)


def test_a_file_of_another_tool_may_call_its_outputs_otherwise(
    alone: Path, digits_source: Source
) -> None:
    events: list[Event] = []
    _rename_output(alone / "model.onnx", "logits")
    verdict = validate_file(alone / "model.onnx", digits_source, events.append)
    assert verdict.passed
    assert [o.output for o in verdict.outputs if o.feed == "opt"] == ["output"]
    assert any("logits" in one.text for one in events if isinstance(one, Noted))
    _rename_output(alone / "model.onnx", "logits", 1.01)
    assert not validate_file(alone / "model.onnx", digits_source).passed


def test_a_file_that_modelc_made_has_the_names_that_it_gave(
    alone: Path, digits_source: Source
) -> None:
    _rename_output(alone / "model.onnx", "logits", foreign=False)
    verdict = validate_file(alone / "model.onnx", digits_source)
    assert not verdict.passed
    assert {one.code for one in verdict.faults} >= {ReasonCode.OUTPUT_NAMES}


def test_a_file_of_another_model_fails_and_nothing_is_written(
    alone: Path, gate_source: Source
) -> None:
    before = {path: path.read_bytes() for path in alone.iterdir()}
    verdict = validate_file(alone / "model.onnx", gate_source)
    assert (verdict.passed, verdict.exit_code) == (False, 6)
    assert {path: path.read_bytes() for path in alone.iterdir()} == before


def test_a_damaged_file_is_an_error_of_the_runtime(alone: Path, gate_source: Source) -> None:
    (alone / "model.onnx").write_bytes(b"\x08garbage")
    with pytest.raises(RunnerError, match="onnx: "):
        validate_file(alone / "model.onnx", gate_source)


@pytest.mark.parametrize("checkpoint", ["model.torchscript.pt", "copy.pt"])
def test_a_file_is_never_compared_with_itself(alone: Path, checkpoint: str) -> None:
    shutil.copy(alone / "model.torchscript.pt", alone / "copy.pt")
    source = Source(checkpoint=alone / checkpoint, trust=True)
    with pytest.raises(UsageError, check=has_code(ErrorCode.SAME_FILE)):
        validate_file(alone / "model.torchscript.pt", source)


def test_without_a_manifest_the_hint_names_against(alone: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_MANIFEST)) as caught:
        validate_file(alone / "model.onnx")
    assert "--against" in caught.value.hint


def test_a_file_that_the_manifest_does_not_know_needs_an_eager_side(digits_copy: Path) -> None:
    shutil.copy(digits_copy / "model.onnx", digits_copy / "other.onnx")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_MANIFEST)):
        validate_file(digits_copy / "other.onnx")


def test_a_file_changed_since_its_manifest_needs_an_eager_side(digits_copy: Path) -> None:
    import onnx

    model = onnx.load(digits_copy / "model.onnx")
    model.doc_string = "changed"
    onnx.save(model, digits_copy / "model.onnx")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        validate_file(digits_copy / "model.onnx")


def test_no_file_and_no_model_are_usage_errors(alone: Path) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_FOUND)):
        validate_file(alone / "absent.onnx")
    (alone / "notes.txt").write_text("hello")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_AN_ARTIFACT)):
        validate_file(alone / "notes.txt")


@pytest.mark.needs("openvino")
def test_a_file_does_not_choose_its_own_tolerance(alone: Path, digits_source: Source) -> None:
    assert not validate_file(alone / "model.fp16.xml", digits_source).passed


@pytest.mark.needs("openvino")
def test_a_file_judged_as_fp16_has_the_tolerance_of_fp16(
    alone: Path, digits_source: Source
) -> None:
    half = validate_file(alone / "model.fp16.xml", digits_source, precision=Precision.FP16)
    full = validate_file(alone / "model.xml", digits_source)
    assert (half.tolerance.min_sqnr, full.tolerance.min_sqnr) == (40.0, 90.0)
    assert half.passed
    assert half.sqnr is not None
    assert 40.0 < half.sqnr < 90.0


@pytest.mark.needs("openvino")
def test_half_weights_fail_at_the_tolerance_of_single(alone: Path, digits_source: Source) -> None:
    judging = Judging(atol=1e-6, rtol=1e-4, min_sqnr=90.0)
    assert not validate_file(alone / "model.fp16.xml", digits_source, judging=judging).passed


def test_a_changed_checkpoint_is_an_error_of_the_checkpoint(
    order: Callable[..., Order], tmp_path: Path
) -> None:
    made = run(order("torchscript"))
    out = tmp_path / "out"
    other = replace(made.checkpoint, path=str(tmp_path / "other.safetensors"))
    content = bytearray((out / made.checkpoint.path).read_bytes())
    content[-1] ^= 1
    (tmp_path / "other.safetensors").write_bytes(content)
    write_manifest(replace(made, checkpoint=other), out)
    with pytest.raises(
        CheckpointError, check=has_code(ErrorCode.FILE_CHANGED, option="checkpoint")
    ):
        validate_file(out / "model.torchscript.pt")


def test_the_manifests_feeds_are_used(order: Callable[..., Order], tmp_path: Path) -> None:
    made = run(order("torchscript", judging=Judging(feeds=8, seed=2)))
    verdict = validate_file(tmp_path / "out" / "model.torchscript.pt")
    assert verdict.feeds == made.verdicts[0].feeds
    assert sum(name.startswith("seed-") for name in verdict.feeds) == 4  # 8 less 4 others


def test_the_manifest_is_not_changed(exported_digits: Path) -> None:
    before = (exported_digits / MANIFEST_FILE).read_bytes()
    validate_file(exported_digits / "model.onnx")
    assert (exported_digits / MANIFEST_FILE).read_bytes() == before
    assert read_manifest(exported_digits) is not None


def test_untrusted_machine_code_is_rejected_before_it_is_loaded(
    tmp_path: Path, digits_source: Source
) -> None:
    path = tmp_path / "model.aoti.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/archive_format", "pt2")
        archive.writestr("model/data/aotinductor/model/lib.so", b"code")
    told: list[object] = []
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.CONSENT_REQUIRED)) as caught:
        validate_file(path, digits_source, told.append)
    assert "trust" in caught.value.options
    assert not told


def test_an_error_with_a_hint_keeps_it_and_leaves_no_log() -> None:
    hint = "give inputs within the exported signature"
    with pytest.raises(RunnerError) as caught, temporary_logs() as folder:
        raise RunnerError("dim b is 9", hint=hint)
    assert caught.value.hint == hint
    assert not folder.exists()


def test_a_log_that_an_error_points_to_is_kept_with_the_error() -> None:
    def fail(folder: Path) -> None:
        (folder / "validate.log").write_text("runtime-77")
        raise RunnerError("it would not open", hint=LOGGED)

    with pytest.raises(RunnerError) as caught, temporary_logs() as folder:
        fail(folder)
    assert "--debug" in caught.value.hint
    assert caught.value.__notes__ == ["runtime-77"]
    assert not folder.exists()


def test_a_file_with_integer_weights_is_judged_in_their_precision(
    digits_source: Source, tmp_path: Path
) -> None:
    order = Order(source=digits_source, wanted=(Wanted.parse("onnx:int8-weights"),), out=tmp_path)
    run(order)
    own = next(tmp_path.rglob("model.int8-weights.onnx")).rename(tmp_path / "other.onnx")
    found = validate_file(own, digits_source)
    assert found.tolerance == TOLERANCES[Precision.INT8_WEIGHTS]
    assert any(str(Precision.INT8_WEIGHTS) in note for note in found.notes)
    strict = validate_file(own, digits_source, precision=Precision.FP32)
    assert not strict.passed
