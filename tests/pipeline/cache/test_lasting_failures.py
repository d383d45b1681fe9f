"""A step that fails because of the model is not tried again; after any other failure it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modelc.core.contract import EAGER
from modelc.core.errors import ConversionError
from modelc.core.kinds import Precision
from modelc.core.records import Dependencies
from modelc.pipeline.cache.reuse import UpToDate
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.run_order import run

from .two_steps import KEYS, LastingError, Project

EAGER_FP32 = {Precision.FP32: EAGER}


def test_a_transient_failure_is_not_cached(project: Project) -> None:
    project.failing(0, ConversionError("no", hint="none"))
    project.run()
    tried = project.made.count("tried")
    assert tried > 0
    project.run()
    assert project.made.count("tried") == 2 * tried
    assert not project.cache.store.layout.entries()


def test_a_lasting_failure_is_not_tried_again_nor_are_its_children(project: Project) -> None:
    project.failing(0, LastingError("a branch", hint="none"))
    first = project.run().manifest
    made = list(project.made)
    assert first is not None
    assert [(one.step, bool(one.key)) for one in first.failures] == [
        ("fake", True),
        ("child", False),
    ]
    for _ in range(2):
        taken = project.run()
        assert project.made == made
        assert taken.manifest == first
        assert taken.resume.failures == first.failures
    assert not project.cache.store.layout.entries()  # in the folder only


def test_a_lasting_failure_is_tried_again_under_another_key_or_with_changed_dependencies(
    project: Project,
) -> None:
    project.failing(1, LastingError("nothing to quantize", hint="none"))
    project.run()
    assert project.run().resume.done == {"fake", "child"}
    other = project.take_up({**KEYS, "child": "c" * 64})
    assert other.resume.kept == {"fake"}
    assert other.resume.failures == ()
    manifest = project.manifest
    changed = Dependencies(files=dict.fromkeys(manifest.needs.files, "0" * 64))
    write_manifest(replace(manifest, needs=changed), project.order.out)
    assert project.standing() == UpToDate()


def test_a_lasting_failure_keeps_its_dependencies(project: Project) -> None:
    """Also where nothing else of the record is kept: another step of it is built again."""
    project.failing(0, LastingError("a branch", hint="none"))
    project.run()
    before = project.manifest
    more = Dependencies(files={**before.needs.files, "gone.json": "absent"})
    write_manifest(replace(before, needs=more), project.order.out)
    project.targets = (project.targets[0], replace(project.targets[1], MADE_FROM=EAGER_FP32))  # type: ignore[type-var]  # a fake
    project.run()
    now = project.manifest
    assert [one.name for one in now.artifacts] == ["child"]
    assert "gone.json" in now.needs.files


def test_a_lasting_failure_is_tried_again_after_an_input_changed_during_the_run(
    project: Project, tmp_path: Path
) -> None:
    project.failing(0, LastingError("a branch", hint="none"))
    resume = replace(project.run().resume, keys=KEYS, inputs={str(tmp_path / "weights"): "another"})
    now = run(replace(project.order, resume=resume), targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert [(one.step, one.key, one.orphan_of) for one in now.failures] == [
        ("fake", "", ""), ("child", "", "fake"),
    ]  # fmt: skip


def test_a_skipped_step_is_tried_again_with_its_parent_after_an_input_changed(
    project: Project, tmp_path: Path
) -> None:
    project.failing(0, LastingError("a branch", hint="none"))
    taken = project.run()
    taken = project.take_up()
    assert [one.orphan_of for one in taken.resume.failures] == ["", "fake"]
    inputs = {str(tmp_path / "weights"): "another"}
    resume = replace(taken.resume, keys=KEYS, inputs=inputs)
    mended = (replace(project.targets[0], on_convert=lambda _: None), project.targets[1])  # type: ignore[type-var]  # a fake
    now = run(replace(project.order, resume=resume), targets=mended)  # type: ignore[arg-type]  # fakes
    assert now.failures == ()
    assert {one.name for one in now.artifacts} == {"fake", "child"}
