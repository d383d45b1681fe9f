"""A run reuses valid results in its folder and in the cache, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.manifest import Failure
from modelc.core.records import Dependencies
from modelc.pipeline.cache.file_digests import FileDigests
from modelc.pipeline.cache.reuse import UpToDate
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging, ResumeState
from modelc.pipeline.run_order import run

from ...reasons import has_code
from .conftest import Told
from .two_steps import KEYS, Project


def test_a_second_run_builds_and_writes_nothing(project: Project) -> None:
    project.run()
    assert project.made == ["model", "child"]
    before = {p: p.stat().st_mtime_ns for p in project.order.out.rglob("*")}
    taken = project.run()
    assert taken.resume.kept == {"fake", "child"}
    assert (taken.restored, project.made) == ((), ["model", "child"])
    assert taken.manifest is not None
    assert taken.manifest.exit_code == 0
    assert {p: p.stat().st_mtime_ns for p in project.order.out.rglob("*")} == before


def test_an_empty_folder_is_filled_from_the_cache(project: Project) -> None:
    first = project.run().manifest
    shutil.rmtree(project.order.out)
    taken = project.run()
    assert taken.restored == ("fake", "child")
    assert project.made == ["model", "child"]
    again = project.manifest
    assert first is not None
    assert replace(again, created=first.created) == first
    assert (project.order.out / "model.fake").read_text() == "a model"
    for verdict in again.verdicts:
        assert verdict.worst is not None
        assert (project.order.out / verdict.worst.file).is_file()


def test_another_folder_is_filled_with_paths_of_its_own(project: Project, tmp_path: Path) -> None:
    project.run()
    (tmp_path / "deep").mkdir()
    other = replace(project.order, out=tmp_path / "deep" / "other")
    manifest = project.run(order=other).manifest
    assert project.made == ["model", "child"]
    assert manifest is not None
    assert (other.out / manifest.checkpoint.path).resolve() == other.source.checkpoint.resolve()
    worst = manifest.verdicts[0].worst
    assert worst is not None
    assert str(other.out) in worst.replay


def test_a_step_with_another_key_is_built_again_with_its_children(project: Project) -> None:
    project.run()
    project.run({**KEYS, "child": "c" * 64})
    assert project.made == ["model", "child", "child"]
    project.run({"fake": "d" * 64, "child": "e" * 64})
    assert project.made == ["model", "child", "child", "model", "child"]
    assert project.run().restored == ("fake", "child")  # under the first keys again
    assert len(project.made) == 5


def test_a_changed_file_in_the_folder_is_restored(project: Project) -> None:
    project.run()
    (project.order.out / "model.child").write_text("a chilx")
    taken = project.run()
    assert taken.restored == ("child",)
    assert (project.order.out / "model.child").read_text() == "a child"


def test_a_result_damaged_in_cache_and_folder_is_built_again(project: Project, told: Told) -> None:
    project.run()
    (project.order.out / "model.child").write_text("a chilx")
    for blob in project.cache.store.layout.blobs():
        blob.write_bytes(b"?" * blob.stat().st_size)
    project.run()
    assert project.made == ["model", "child", "child"]
    assert any("(model.child)" in line for line in told)
    assert (project.order.out / "model.child").read_text() == "a child"


def test_a_result_with_changed_dependencies_is_not_up_to_date(project: Project) -> None:
    project.run()
    manifest = project.manifest
    assert any(name.endswith("gate.py") for name in manifest.needs.files)
    changed = dict.fromkeys(manifest.needs.files, "0" * 64)
    write_manifest(replace(manifest, needs=Dependencies(files=changed)), project.order.out)
    assert project.standing() == UpToDate()


def test_an_artifact_with_an_edited_verdict_is_not_up_to_date(
    project: Project, tmp_path: Path
) -> None:
    project.run()
    shutil.rmtree(tmp_path / "cache")
    path = project.order.out / "manifest.json"
    text = path.read_text()
    (of_child,) = (v for v in json.loads(text)["verdicts"] if v["artifact"] == "child")
    figure = f'"max_abs": {of_child["outputs"][0]["max_abs"]}'
    head, at, tail = text.rpartition('"artifact": "child"')
    assert figure in tail
    path.write_text(head + at + tail.replace(figure, '"max_abs": 0.125', 1))
    for _ in range(2):
        assert project.take_up().resume.kept == {"fake"}
        edited = read_manifest(project.order.out)
        assert edited is not None
        write_manifest(edited, project.order.out)  # as a command that reads it and writes it again


def test_an_entry_with_changed_dependencies_is_a_miss(project: Project, tmp_path: Path) -> None:
    manifest = project.run().manifest
    assert manifest is not None
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cfg.json").write_text("{}")
    other = replace(manifest, needs=Dependencies(files={"cfg.json": "0" * 64}))
    project.cache.keep(other, project.order.out, "gate")
    shutil.rmtree(project.order.out)
    assert project.take_up().resume.kept == frozenset()


def test_a_child_of_another_parent_file_is_not_up_to_date(project: Project) -> None:
    project.run()
    manifest = project.manifest
    wrong = tuple(
        replace(one, parent="f" * 64) if one.name == "child" else one for one in manifest.artifacts
    )
    write_manifest(replace(manifest, artifacts=wrong), project.order.out)
    taken = project.take_up()
    assert taken.restored == ("child",)


def test_a_rejected_artifact_is_reused_and_its_children_are_skipped(project: Project) -> None:
    wrong = replace(
        project.targets[0],
        answer=lambda _: {"output": __import__("numpy").zeros((2, 4), "float32")},
    )  # type: ignore[type-var]  # a fake
    project.targets = (wrong, project.targets[1])
    first = project.run().manifest
    assert first is not None
    made = len(project.made)
    for _ in range(2):
        taken = project.run()
        assert len(project.made) == made
        assert taken.resume.kept == {"fake"}
        assert [one.step for one in taken.resume.failures] == ["child"]
        assert taken.manifest is not None
        assert (taken.manifest.exit_code, taken.manifest.failures) == (1, first.failures)
        shutil.rmtree(project.order.out)


def test_an_artifact_that_was_judged_again_is_not_up_to_date(project: Project) -> None:
    from modelc.pipeline.validate_file import rejudge_folder

    project.run()
    rejudge_folder(project.order.out, Judging(atol=1.0, rtol=1.0))
    assert project.standing() == UpToDate()


def test_a_step_with_a_recorded_failure_is_not_up_to_date(project: Project) -> None:
    project.run()
    manifest = project.manifest
    failure = Failure(step="child", message="later", hint="", exit_code=5)
    write_manifest(replace(manifest, failures=(failure,)), project.order.out)
    assert list(project.standing().artifacts) == ["fake"]


def test_a_kept_step_that_is_missing_is_built(project: Project) -> None:
    resume = ResumeState(keys=KEYS, kept=frozenset({"fake", "child"}))
    manifest = run(replace(project.order, resume=resume), targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert manifest.passed
    assert project.made == ["model", "child"]


def test_an_artifact_that_is_not_kept_loses_its_key(project: Project) -> None:
    """What a run did not keep may have needed what this run did not read."""
    project.run()
    resume = ResumeState(keys={"fake": "d" * 64})
    alone = replace(project.order, wanted=project.order.wanted[:1], resume=resume)
    manifest = run(alone, targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert {one.name: one.key for one in manifest.artifacts} == {"fake": "d" * 64, "child": ""}


def test_inputs_that_change_before_or_during_a_run_leave_no_key(
    project: Project, fake: Callable[..., object], tmp_path: Path
) -> None:
    """What was made of other bytes must not be found by the key of those before."""
    samples = tmp_path / "samples.npy"
    samples.write_bytes(b"1")
    digests = FileDigests(None)
    with digests.note_reads() as inputs:
        digests.of(samples)
    order = replace(project.order, resume=ResumeState(keys=KEYS, inputs=inputs))
    writes = fake(
        origin="fake", NAME="child", SUFFIX=".child", CAPTURES=(), text="a child",
        on_convert=lambda _: samples.write_bytes(b"2"),
    )  # fmt: skip
    manifest = run(order, targets=(project.targets[0], writes))  # type: ignore[arg-type]  # fakes
    assert {one.name: one.key for one in manifest.artifacts} == {"fake": KEYS["fake"], "child": ""}
    manifest = run(order, targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert {one.name: one.key for one in manifest.artifacts} == {"fake": "", "child": ""}


def test_kept_steps_are_built_again_after_inputs_changed_before_the_run(
    project: Project, tmp_path: Path
) -> None:
    project.run()
    inputs = {str(tmp_path / "samples.npy"): "as it was"}
    resume = ResumeState(keys=KEYS, inputs=inputs, kept=frozenset({"fake", "child"}))
    run(replace(project.order, resume=resume), targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert project.made == ["model", "child", "model", "child"]


def test_the_folder_of_another_model_is_an_error(project: Project) -> None:
    manifest = project.run().manifest
    assert manifest is not None
    checkpoint = replace(manifest.checkpoint, digest="9" * 64)
    stale = tuple(replace(artifact, key="") for artifact in manifest.artifacts)
    write_manifest(replace(manifest, checkpoint=checkpoint, artifacts=stale), project.order.out)
    with pytest.raises(UsageError, check=has_code(ErrorCode.FOLDER_OCCUPIED, option="overwrite")):
        project.take_up()


def test_a_file_of_the_user_is_not_overwritten(project: Project) -> None:
    project.run()
    shutil.rmtree(project.order.out)
    project.order.out.mkdir()
    (project.order.out / "model.fake").write_text("mine")
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_EXISTS, naming="model.fake")):
        project.take_up()
    assert (project.order.out / "model.fake").read_text() == "mine"
    (project.order.out / "model.fake").write_text("a model")
    assert project.take_up().resume.kept == {"fake", "child"}
