"""A folder judged again from its manifest alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelc.core.errors import CheckpointError, ErrorCode, UsageError
from modelc.core.events import Event, Started
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Failure, Manifest
from modelc.core.records import record_of
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, Order
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file
from modelc.pipeline.validate_folder import validate_folder

from ..reasons import has_code, reason_codes

Orders = Callable[..., Order]


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def read(folder: Path) -> Manifest:
    found = read_manifest(folder)
    assert found is not None
    return found


def states(manifest: Manifest) -> dict[str, State]:
    return {verdict.artifact: verdict.state for verdict in manifest.verdicts}


@pytest.fixture
def gate_folder(order: Orders, tmp_path: Path) -> Path:
    """A small folder: gate as TorchScript alone."""
    run(order("torchscript"))
    return tmp_path / "out"


def test_an_untouched_folder_passes(digits_copy: Path) -> None:
    before = read(digits_copy)
    found = validate_folder(digits_copy)
    assert found.passed
    assert found.exit_code == 0
    assert found.artifacts == before.artifacts
    assert read(digits_copy) == found


def test_every_artifact_is_really_run_again(digits_copy: Path) -> None:
    told: list[Event] = []
    validate_folder(digits_copy, told.append)
    steps = [event.step for event in told if isinstance(event, Started)]
    assert [f"validate {a.name}" for a in read(digits_copy).artifacts] == [
        step for step in steps if step.startswith("validate")
    ]


@pytest.mark.needs("onnx")
@pytest.mark.needs("openvino")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.torchscript.pt", "torchscript"),
        ("model.pt2", "pt2"),
        ("model.onnx", "onnx"),
        ("model.xml", "openvino"),
        ("model.bin", "openvino"),
        ("model.fp16.bin", "openvino-fp16"),
    ],
)
def test_a_flipped_byte_moves_its_artifact_alone_to_rejected(
    digits_copy: Path, file: str, name: str
) -> None:
    before = {artifact.name for artifact in read(digits_copy).artifacts}
    flip(digits_copy / file)
    found = validate_folder(digits_copy)
    assert found.exit_code == 1
    (verdict,) = (one for one in found.verdicts if one.state is not State.PASSED)
    assert verdict.artifact == f"rejected/{name}"
    assert reason_codes(verdict) == [ReasonCode.CHANGED_FILE]
    assert file in verdict.reason
    assert {artifact.name for artifact in found.artifacts} == {*before - {name}, f"rejected/{name}"}
    assert not (digits_copy / file).exists()
    assert (digits_copy / "rejected" / file).exists()


@pytest.mark.needs("openvino")
@pytest.mark.parametrize("file", ["model.xml", "model.bin"])
def test_a_missing_file_is_named_and_the_others_move_to_rejected(
    digits_copy: Path, file: str
) -> None:
    (digits_copy / file).unlink()
    found = validate_folder(digits_copy)
    verdict = found.verdict_of("rejected/openvino")
    assert verdict is not None
    assert verdict.reason == f"{file} is missing"
    assert found.exit_code == 1
    assert not [path for path in digits_copy.iterdir() if path.name in ("model.xml", "model.bin")]


def test_a_file_with_a_forged_digest_is_judged_by_its_outputs(
    digits_copy: Path,
) -> None:
    manifest = read(digits_copy)
    content = (digits_copy / "model.bin").read_bytes()
    (digits_copy / "model.bin").write_bytes(bytes(400) + content[400:])  # some weights are zero
    forged = tuple(
        replace(a, files=(a.files[0], record_of(digits_copy / "model.bin", role="data")))
        if a.name == "openvino"
        else a
        for a in manifest.artifacts
    )
    write_manifest(replace(manifest, artifacts=forged), digits_copy)
    found = validate_folder(digits_copy)
    verdict = found.verdict_of("rejected/openvino")
    assert verdict is not None
    assert verdict.state is State.FAILED
    assert "output 'output'" in verdict.reason


def test_rejected_artifacts_are_not_judged_again(gate_folder: Path) -> None:
    flip(gate_folder / "model.torchscript.pt")
    first = validate_folder(gate_folder)
    assert validate_folder(gate_folder).artifacts == first.artifacts


def test_a_moved_checkpoint_is_found_at_its_given_place(
    gate_folder: Path, tmp_path: Path, order: Orders
) -> None:
    moved = tmp_path / "elsewhere" / "weights.safetensors"
    moved.parent.mkdir()
    shutil.copy(order("torchscript").source.checkpoint, moved)
    write_manifest(_with_checkpoint(read(gate_folder), "../gone.safetensors"), gate_folder)
    with pytest.raises(
        CheckpointError, check=has_code(ErrorCode.NOT_FOUND, naming="gone.safetensors")
    ):
        validate_folder(gate_folder)
    assert validate_folder(gate_folder, moved=Moved(checkpoint=moved)).passed


def _with_checkpoint(manifest: Manifest, path: str) -> Manifest:
    return replace(manifest, checkpoint=replace(manifest.checkpoint, path=path))


def test_a_changed_checkpoint_is_an_error_of_the_checkpoint(
    gate_folder: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.safetensors"
    shutil.copy(gate_folder / read(gate_folder).checkpoint.path, changed)
    flip(changed)
    with pytest.raises(
        CheckpointError, check=has_code(ErrorCode.FILE_CHANGED, option="checkpoint")
    ):
        validate_folder(gate_folder, moved=Moved(checkpoint=changed))
    assert (gate_folder / "model.torchscript.pt").exists()


def test_tighter_tolerances_reject_artifacts_that_passed(digits_copy: Path) -> None:
    exact = {a.name for a in read(digits_copy).artifacts if a.precision is Precision.FP32}
    found = validate_folder(digits_copy, judging=Judging(min_sqnr=100.0))
    assert {name for name, state in states(found).items() if state is not State.FAILED} == exact


def test_the_recorded_tolerances_apply_by_default(order: Orders, tmp_path: Path) -> None:
    from modelc.core.kinds import Capture

    loose = Judging(atol=9.0, min_sqnr=-99.0)
    run(order("torchscript", capture=Capture.TRACE, judging=loose))
    assert validate_folder(tmp_path / "out").exit_code == 0
    assert validate_folder(tmp_path / "out", judging=Judging(atol=0.1)).exit_code == 1


def test_the_recorded_feeds_are_drawn_again(order: Orders, tmp_path: Path) -> None:
    made = run(order("torchscript", judging=Judging(feeds=9, seed=3)))
    again = validate_folder(tmp_path / "out")
    assert again.feeds.drawn == made.feeds.drawn
    first, second = made.verdicts[0], again.verdicts[0]
    assert (first.feeds, [o.peak for o in first.outputs]) == (
        second.feeds,
        [o.peak for o in second.outputs],
    )
    assert sum(record.kind == "seed" for record in again.feeds.drawn) == 5  # 9 less 4 others


def test_an_interrupted_validation_leaves_a_valid_record(digits_copy: Path) -> None:
    flip(digits_copy / "model.torchscript.pt")

    def stop(event: Event) -> None:
        if isinstance(event, Started) and event.step == "validate pt2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        validate_folder(digits_copy, stop)
    files = {file.name for artifact in read(digits_copy).artifacts for file in artifact.files}
    assert "rejected/model.torchscript.pt" in files
    assert all((digits_copy / name).exists() for name in files)


def test_a_missing_debug_file_is_not_a_fault(digits_copy: Path) -> None:
    (digits_copy / "model.debug.json").unlink()
    assert validate_folder(digits_copy).passed


def test_an_artifact_is_judged_at_its_recorded_precision(digits_copy: Path) -> None:
    """As an engine that uses TF32: values beyond what is declared are not judged in it."""
    manifest = read(digits_copy)
    artifacts = tuple(
        replace(a, judged_as=Precision.FP16) if a.name == "onnx" else a for a in manifest.artifacts
    )
    write_manifest(replace(manifest, artifacts=artifacts), digits_copy)
    done = validate_folder(digits_copy)
    loose = {v.artifact for v in done.verdicts if any(o.loose for o in v.outputs)}
    assert "onnx" in loose
    assert "torchscript" not in loose
    one = validate_file(digits_copy / "model.onnx")
    assert any(o.loose for o in one.outputs)


def test_steps_without_an_artifact_stay_failed(gate_folder: Path) -> None:
    failure = Failure(step="onnx", message="refused", hint="none", exit_code=5)
    write_manifest(replace(read(gate_folder), failures=(failure,)), gate_folder)
    again = validate_folder(gate_folder)
    assert again.failures == (failure,)
    assert again.exit_code == 5
    assert not again.passed


def test_an_artifact_that_can_be_judged_now_is_no_longer_failed(gate_folder: Path) -> None:
    failure = Failure(step="torchscript", message="not judged here", hint="none", exit_code=4)
    write_manifest(replace(read(gate_folder), failures=(failure,)), gate_folder)
    assert validate_folder(gate_folder).exit_code == 0


def test_untrusted_machine_code_is_not_opened_and_the_others_are_judged(
    gate_folder: Path,
) -> None:
    manifest = read(gate_folder)
    (made,) = manifest.artifacts
    record = record_of(gate_folder / "model.torchscript.pt", role="model")
    shutil.copy(gate_folder / record.name, gate_folder / "model.aoti.pt2")
    file = replace(record, name="model.aoti.pt2")
    code = replace(made, name="aoti", target="aoti", files=(file,))
    write_manifest(replace(manifest, artifacts=(code, made)), gate_folder)
    found = validate_folder(gate_folder)
    (failure,) = found.failures
    assert failure.step == "aoti"
    assert failure.exit_code == found.exit_code == 3
    assert failure.hint.endswith(": torchscript")
    assert states(found)["torchscript"] is State.PASSED


@pytest.mark.parametrize("samples", ["changed.npz", "gone.npz"])
def test_changed_or_missing_samples_are_an_error_of_the_checkpoint(
    digits_copy: Path, tmp_path: Path, samples: str
) -> None:
    np.savez(tmp_path / "changed.npz", x=np.zeros((2, 1, 8, 8), np.float32))
    manifest = read(digits_copy)
    feeds = replace(manifest.feeds, samples=f"../{samples}")
    write_manifest(replace(manifest, feeds=feeds), digits_copy)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.FILE_CHANGED, option="samples")):
        validate_folder(digits_copy)


@pytest.mark.parametrize(
    ("folder", "code"), [("", ErrorCode.NO_MANIFEST), ("absent", ErrorCode.NOT_FOUND)]
)
def test_a_folder_without_a_manifest_is_a_usage_error(
    tmp_path: Path, folder: str, code: ErrorCode
) -> None:
    with pytest.raises(UsageError, check=has_code(code, naming=folder)):
        validate_folder(tmp_path / folder)
