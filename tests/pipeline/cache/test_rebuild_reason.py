"""Why something is made again is said in a line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import ConversionError
from modelc.core.manifest import Manifest
from modelc.core.records import Dependencies
from modelc.pipeline.cache.environment import packages
from modelc.pipeline.manifest_file import read_manifest, write_manifest
from modelc.pipeline.order import Judging

from .two_steps import KEYS, OfTheModelError, Project

NEW = {"fake": "c" * 64, "child": "d" * 64}


def recorded(project: Project) -> Manifest:
    manifest = read_manifest(project.order.out)
    assert manifest is not None
    return manifest


def test_the_first_run_and_one_that_makes_nothing_say_nothing(project: Project) -> None:
    assert [project.run().again for _ in range(2)] == ["", ""]


def test_changed_weights_are_named(project: Project, tmp_path: Path) -> None:
    project.run()
    before = recorded(project)
    (file,) = before.checkpoint.files
    other = replace(before.checkpoint, files=(replace(file, sha256="0" * 64),))
    write_manifest(replace(before, checkpoint=other), project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert project.take_up(NEW).again == f"made again: {file.name} changed"


def test_another_name_of_the_checkpoint_is_said(project: Project) -> None:
    project.run()
    before = recorded(project)
    path = before.checkpoint.path
    write_manifest(
        replace(before, checkpoint=replace(before.checkpoint, path=f"{path}.old")),
        project.order.out,
    )
    name = Path(path).name
    assert project.take_up(NEW).again.endswith(f" {name}.old and is {name}")


def test_what_the_users_code_read_is_named(project: Project, tmp_path: Path) -> None:
    project.run()
    missing = (tmp_path / "config.json").as_posix()
    needs = Dependencies(files={missing: "0" * 64})
    write_manifest(replace(recorded(project), needs=needs), project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert project.take_up().again == f"made again: {missing} is gone"


@pytest.mark.parametrize(
    ("package", "then", "told"), [("torch", "1.0", "was 1.0"), ("tensorrt", "9.9", "was 9.9")]
)
def test_another_version_is_named(project: Project, package: str, then: str, told: str) -> None:
    project.run()
    before = recorded(project)
    write_manifest(
        replace(before, environment={**before.environment, package: then}), project.order.out
    )
    now = packages().get(package, "none")
    assert project.take_up(NEW).again == f"made again: {package} {told} and is {now}"


def test_another_option_is_named_and_a_further_target_is_none(project: Project) -> None:
    project.run()
    order = replace(project.order, opset=20)
    assert project.take_up(NEW, order).again.split(": ")[1].split()[0] == "opset"
    alone = replace(project.order, wanted=project.order.wanted[:1])
    project.run(order=alone)
    assert "to" not in project.take_up(NEW).again.split()


def test_what_failed_in_passing_is_tried_again(project: Project) -> None:
    project.failing(1, ConversionError("no", hint="none"))
    project.run()
    assert project.take_up(KEYS).again == "child failed: tried again"


def test_where_nothing_on_record_differs_the_rest_is_said(project: Project) -> None:
    project.run()
    assert project.take_up(NEW).again == (
        "made again: some option, data, modelc or this machine is another than it was"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.unlink(), "model.child is gone"),
        (lambda path: path.write_text("a chilx"), "model.child changed"),
    ],
)
def test_a_lost_file_is_named_though_options_differ_too(
    project: Project, tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    project.run()
    change(project.order.out / "model.child")
    shutil.rmtree(tmp_path / "cache")
    order = replace(project.order, opset=20)  # in no key here
    assert project.take_up(order=order).again == f"made again: {told}"


def test_another_seed_and_factory_are_named(project: Project) -> None:
    project.run()
    order = replace(project.order, judging=Judging(seed=7))
    assert project.take_up(NEW, order).again == "made again: seed was 0 and is 7"
    source = replace(project.order.source, model_args={"width": "4"})
    other = replace(project.order, source=source, discards=True)
    assert project.take_up(NEW, other).again.split(": ")[1].split()[0] == "model-arg"


def test_what_has_no_key_is_said_so(project: Project, tmp_path: Path) -> None:
    project.run()
    before = recorded(project)
    plain = tuple(replace(one, key="") for one in before.artifacts)
    write_manifest(replace(before, artifacts=plain), project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert project.take_up().again == (
        "made again: what stood there was not made to be taken up, or was judged since"
    )


def test_a_refusal_of_a_parent_that_was_fetched_says_so(project: Project) -> None:
    project.failing(1, OfTheModelError("nothing to quantize", hint="none"))
    project.run()
    (project.order.out / "model.fake").unlink()
    taken = project.take_up()
    assert taken.restored == ("fake",)
    assert taken.again == (
        "made again: it was not judged to its end, or what it is made from is another file"
    )


def test_a_record_without_anything_of_the_plan_says_nothing(
    project: Project, tmp_path: Path
) -> None:
    project.run()
    nothing = replace(recorded(project), artifacts=(), verdicts=())
    write_manifest(nothing, project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert project.take_up(NEW).again == ""
