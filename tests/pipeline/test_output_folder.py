"""An output folder that is used again: what is kept, rejected, moved or removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.contract import Job, Target
from modelc.core.errors import CheckpointError, ConversionError, ErrorCode, UsageError
from modelc.core.events import Event, Noted
from modelc.core.records import record_of
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Order, Source
from modelc.pipeline.run_order import run
from modelc.sample_models import gate

from ..reasons import has_code

NESTED = "modelc.sample_models.nested:detector"
Fakes = Callable[..., Target]
Orders = Callable[..., Order]


@pytest.fixture
def targets(fake: Fakes) -> tuple[Target, ...]:
    return (fake(), fake(NAME="second", SUFFIX=".second"))


@pytest.fixture
def other(gate_source: Source, tmp_path: Path) -> Source:
    """Gate with other weights."""
    import torch
    from safetensors.torch import save_file

    module = gate.gate()
    with torch.no_grad():
        module.get_parameter("body.bias").add_(1.0)
    save_file(module.state_dict(), tmp_path / "other.safetensors")
    return replace(gate_source, checkpoint=tmp_path / "other.safetensors")


def test_a_second_target_is_added_to_the_first(order: Orders, targets: tuple[Target, ...]) -> None:
    run(order("fake"), targets=targets)
    found = run(order("second"), targets=targets)
    assert [artifact.name for artifact in found.artifacts] == ["fake", "second"]
    assert found.steps == ("second",)
    assert found.passed


def test_an_artifact_that_is_built_again_is_recorded_once(
    order: Orders, targets: tuple[Target, ...]
) -> None:
    run(order("fake", "second"), targets=targets)
    found = run(order("fake"), targets=targets)
    assert sorted(artifact.name for artifact in found.artifacts) == ["fake", "second"]
    assert sorted(verdict.artifact for verdict in found.verdicts) == ["fake", "second"]


def test_another_checkpoint_is_an_error(
    order: Orders, targets: tuple[Target, ...], other: Source, tmp_path: Path
) -> None:
    before = run(order("fake"), targets=targets)
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, option="overwrite")):
        run(order("second", source=other), targets=targets)
    assert read_manifest(tmp_path / "out") == before


def test_a_folder_without_results_is_reused_for_another_checkpoint(
    order: Orders, fake: Fakes, other: Source
) -> None:
    def refuse(_: Job) -> None:
        raise ConversionError("no", hint="none")

    assert run(order("fake"), targets=(fake(on_convert=refuse),)).failures
    assert run(order("fake", source=other), targets=(fake(),)).artifacts


def test_other_factory_arguments_are_another_model(
    order: Orders, targets: tuple[Target, ...], gate_source: Source
) -> None:
    run(order("fake"), targets=targets)
    changed = replace(gate_source, model_args={"outputs": "4"})
    named = "--model-arg outputs=4"
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, naming=named)):
        run(order("fake", source=changed), targets=targets)


def test_overwrite_moves_another_checkpoints_files_to_replaced(
    order: Orders, fake: Fakes, other: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=(fake(text="old"),))
    second = fake(NAME="second", SUFFIX=".second", answer=lambda feed: answer_of(other, feed))
    found = run(order("second", source=other, overwrite=True), targets=(fake(), second))
    assert [artifact.name for artifact in found.artifacts] == ["second"]
    assert (tmp_path / "out" / "replaced" / "model.fake").read_text() == "old"
    assert not (tmp_path / "out" / "model.fake").exists()
    assert found.exit_code == 0


def test_a_moved_file_is_recorded_as_it_is_until_it_changes(
    order: Orders, targets: tuple[Target, ...], other: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=targets)
    (tmp_path / "out" / "model.fake").write_text("a changed model")
    found = run(order("second", source=other, overwrite=True), targets=targets)
    (moved,) = found.replaced
    assert moved == record_of(tmp_path / "out" / "replaced" / "model.fake", name=moved.name)
    (tmp_path / "out" / "replaced" / "model.fake").write_text("edited")
    assert run(order("fake", source=other), targets=targets).replaced == ()


def test_a_project_reports_what_it_removes_of_another_checkpoint(
    order: Orders, targets: tuple[Target, ...], other: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=targets)
    events: list[Event] = []
    run(replace(order("second", source=other), discards=True), events.append, targets=targets)
    (note,) = [one for one in events if isinstance(one, Noted) and one.warning]
    assert "removed fake" in note.text
    assert "another checkpoint" in note.text
    assert not (tmp_path / "out" / "model.fake").exists()


def test_a_project_removes_no_changed_file(
    order: Orders, targets: tuple[Target, ...], other: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=targets)
    (tmp_path / "out" / "model.fake").write_text("edited")
    found = run(replace(order("second", source=other), discards=True), targets=targets)
    assert (tmp_path / "out" / "replaced" / "model.fake").read_text() == "edited"
    assert [file.name for file in found.replaced] == ["replaced/model.fake"]


def answer_of(source: Source, feed: object) -> dict[str, object]:
    import torch
    from safetensors.torch import load_file

    module = gate.gate()
    module.load_state_dict(load_file(source.checkpoint))
    assert isinstance(feed, dict)
    with torch.no_grad():
        return {"output": module(torch.tensor(feed["x"])).numpy()}


def test_overwrite_with_a_model_that_does_not_load_changes_nothing(
    order: Orders, targets: tuple[Target, ...], other: Source, tmp_path: Path
) -> None:
    before = run(order("fake"), targets=targets)
    with pytest.raises(CheckpointError, check=has_code(ErrorCode.MISFIT_WEIGHTS)):
        run(order("fake", source=replace(other, model=NESTED), overwrite=True), targets=targets)
    assert read_manifest(tmp_path / "out") == before
    assert (tmp_path / "out" / "model.fake").exists()


def test_artifacts_of_other_inputs_are_moved_only_with_overwrite(
    order: Orders, targets: tuple[Target, ...], gate_source: Source, tmp_path: Path
) -> None:
    run(order("fake"), targets=targets)
    wider = replace(gate_source, inputs=("x:float32[batch=1..9,16]",))
    with pytest.raises(
        UsageError,
        check=has_code(ErrorCode.FOLDER_OCCUPIED, option="overwrite", naming="x:float32"),
    ):
        run(order("second", source=wider), targets=targets)
    found = run(order("second", source=wider, overwrite=True), targets=targets)
    assert [artifact.name for artifact in found.artifacts] == ["second"]
    assert (tmp_path / "out" / "replaced" / "model.fake").exists()


def test_overwrite_of_the_same_model_and_inputs_keeps_artifacts(
    order: Orders, targets: tuple[Target, ...]
) -> None:
    run(order("fake"), targets=targets)
    found = run(order("second", overwrite=True), targets=targets)
    assert [artifact.name for artifact in found.artifacts] == ["fake", "second"]


def test_a_file_in_the_way_is_a_usage_error(
    order: Orders, targets: tuple[Target, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, check=has_code(ErrorCode.NOT_WRITABLE)):
        run(order("fake"), targets=targets)


def test_temporary_folders_of_ended_runs_are_removed(
    order: Orders, targets: tuple[Target, ...], tmp_path: Path
) -> None:
    dead = tmp_path / "out" / ".work-4194304-abc"  # beyond the largest process id
    dead.mkdir(parents=True)
    run(order("fake"), targets=targets)
    assert not dead.exists()


def test_external_data_of_an_earlier_export_is_removed(order: Orders, tmp_path: Path) -> None:
    run(order("onnx", external_data=True))
    assert (tmp_path / "out" / "model.onnx.data").exists()
    run(order("onnx"))
    assert not (tmp_path / "out" / "model.onnx.data").exists()
