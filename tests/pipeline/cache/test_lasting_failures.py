"""A refusal that lies in the model is not tried again; any other failure is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modelc.core.contract import EAGER
from modelc.core.errors import ConversionError
from modelc.core.kinds import Precision
from modelc.core.records import Dependencies
from modelc.pipeline.cache.reuse import UpToDate
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.run_order import run

from .two_steps import KEYS, OfTheModelError, Project

EAGER_FP32 = {Precision.FP32: EAGER}


def test_a_failure_that_may_pass_is_not_kept(project: Project) -> None:
    project.failing(0, ConversionError("no", hint="none"))
    project.run()
    tried = project.made.count("tried")
    assert tried > 0
    project.run()
    assert project.made.count("tried") == 2 * tried
    assert not project.cache.store.layout.entries()


def test_a_refusal_that_lasts_is_not_tried_again_nor_what_is_made_from_it(project: Project) -> None:
    project.failing(0, OfTheModelError("a branch", hint="none"))
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


def test_a_refusal_that_lasts_is_tried_again_under_another_key_or_without_its_needs(
    project: Project,
) -> None:
    project.failing(1, OfTheModelError("nothing to quantize", hint="none"))
    project.run()
    assert project.run().resume.done == {"fake", "child"}
    other = project.take_up({**KEYS, "child": "c" * 64})
    assert other.resume.kept == {"fake"}
    assert other.resume.failures == ()
    manifest = read_manifest(project.order.out)
    assert manifest is not None
    changed = Dependencies(files=dict.fromkeys(manifest.needs.files, "0" * 64))
    write_manifest(replace(manifest, needs=changed), project.order.out)
    assert project.standing() == UpToDate()


def test_a_refusal_keeps_the_needs_that_it_was_made_with(project: Project) -> None:
    """Also where nothing else of the record is kept: another step of it is made anew."""
    project.failing(0, OfTheModelError("a branch", hint="none"))
    project.run()
    before = read_manifest(project.order.out)
    assert before is not None
    more = Dependencies(files={**before.needs.files, "gone.json": "absent"})
    write_manifest(replace(before, needs=more), project.order.out)
    project.targets = (project.targets[0], replace(project.targets[1], MADE_FROM=EAGER_FP32))  # type: ignore[type-var]  # a fake
    project.run()
    now = read_manifest(project.order.out)
    assert now is not None
    assert [one.name for one in now.artifacts] == ["child"]
    assert "gone.json" in now.needs.files


def test_a_refusal_of_a_parent_that_was_fetched_is_tried_again(project: Project) -> None:
    """The fetched parent may be another file under the same key."""
    project.failing(1, OfTheModelError("nothing to quantize", hint="none"))
    project.run()
    (project.order.out / "model.fake").unlink()
    taken = project.take_up()
    assert taken.restored == ("fake",)
    assert taken.resume.failures == ()


def test_a_refusal_does_not_stand_where_an_input_changed_after_the_run_began(
    project: Project, tmp_path: Path
) -> None:
    project.failing(0, OfTheModelError("a branch", hint="none"))
    resume = replace(project.run().resume, keys=KEYS, inputs={str(tmp_path / "weights"): "another"})
    now = run(replace(project.order, resume=resume), targets=project.targets)  # type: ignore[arg-type]  # fakes
    assert [(one.step, one.key, one.orphan_of) for one in now.failures] == [
        ("fake", "", ""), ("child", "", "fake"),
    ]  # fmt: skip


def test_an_orphan_is_tried_again_with_its_parent_where_an_input_changed(
    project: Project, tmp_path: Path
) -> None:
    project.failing(0, OfTheModelError("a branch", hint="none"))
    taken = project.run()
    taken = project.take_up()
    assert [one.orphan_of for one in taken.resume.failures] == ["", "fake"]
    inputs = {str(tmp_path / "weights"): "another"}
    resume = replace(taken.resume, keys=KEYS, inputs=inputs)
    mended = (replace(project.targets[0], on_convert=lambda _: None), project.targets[1])  # type: ignore[type-var]  # a fake
    now = run(replace(project.order, resume=resume), targets=mended)  # type: ignore[arg-type]  # fakes
    assert now.failures == ()
    assert {one.name for one in now.artifacts} == {"fake", "child"}
