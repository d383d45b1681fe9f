"""A run names what changed where it builds a recorded step again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from modelc.core.errors import ConversionError
from modelc.core.manifest import Manifest
from modelc.core.records import Dependencies
from modelc.pipeline.cache.environment import packages
from modelc.pipeline.manifest_file import write_manifest
from modelc.pipeline.order import Judging, Order

from .two_steps import KEYS, LastingError, Project

NEW = {"fake": "c" * 64, "child": "d" * 64}


def reason(text: str) -> str:
    """The text after the first word, which says that steps are built again."""
    head, _, rest = text.partition(": ")
    assert head in ("rebuild", "retry")
    return rest


def other_weights(manifest: Manifest) -> Manifest:
    checkpoint = manifest.checkpoint
    files = tuple(replace(file, sha256="0" * 64) for file in checkpoint.files)
    return replace(manifest, checkpoint=replace(checkpoint, files=files))


def other_name(manifest: Manifest) -> Manifest:
    checkpoint = manifest.checkpoint
    return replace(manifest, checkpoint=replace(checkpoint, path=f"{checkpoint.path}.old"))


def other_version(package: str) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, environment={**manifest.environment, package: "1.0"})


@pytest.mark.parametrize(
    ("edit", "keys", "found"),
    [
        (other_weights, NEW, "gate.safetensors changed"),
        (other_name, NEW, "gate.safetensors.old -> gate.safetensors"),
        (lambda m: replace(m, needs=Dependencies(files={"a.json": "0"})), KEYS, "a.json"),
        (other_version("torch"), NEW, f"torch: 1.0 -> {packages()['torch']}"),
        (other_version("tensorrt"), NEW, f"tensorrt: 1.0 -> {packages().get('tensorrt', 'none')}"),
        (lambda m: m, NEW, "machine"),
        (
            lambda m: replace(m, artifacts=tuple(replace(one, key="") for one in m.artifacts)),
            KEYS,
            "key",
        ),
    ],
)
def test_a_difference_to_the_manifest_is_named(
    project: Project, tmp_path: Path, edit: Callable[[Manifest], Manifest],
    keys: Mapping[str, str], found: str,
) -> None:  # fmt: skip
    project.run()
    manifest = project.manifest
    write_manifest(edit(manifest), project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert found in reason(project.take_up(keys).again)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda o: replace(o, opset=20), "opset: default -> 20"),
        (lambda o: replace(o, judging=Judging(seed=7)), "seed: 0 -> 7"),
        (
            lambda o: replace(
                o, source=replace(o.source, model_args={"width": "4"}), discards=True
            ),
            "model-arg: none -> width=4",
        ),
    ],
)
def test_a_changed_option_is_named(
    project: Project, change: Callable[[Order], Order], found: str
) -> None:
    project.run()
    assert reason(project.take_up(NEW, change(project.order)).again).startswith(found)


def test_another_target_is_not_a_reason(project: Project) -> None:
    project.run(order=replace(project.order, wanted=project.order.wanted[:1]))
    assert "to" not in reason(project.take_up(NEW).again).replace(":", "").split()


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("a chilx")])
def test_a_lost_file_is_named_though_options_differ_too(
    project: Project, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    project.run()
    change(project.order.out / "model.child")
    shutil.rmtree(tmp_path / "cache")
    order = replace(project.order, opset=20)  # in no key here
    assert reason(project.take_up(order=order).again).startswith("model.child")


def test_a_failure_that_may_pass_is_named(project: Project) -> None:
    project.failing(1, ConversionError("no", hint="none"))
    project.run()
    assert reason(project.take_up(KEYS).again).startswith("child")


def test_a_restored_parent_is_the_reason_to_build_its_rejected_child_again(
    project: Project,
) -> None:
    project.failing(1, LastingError("nothing to quantize", hint="none"))
    project.run()
    (project.order.out / "model.fake").unlink()
    result = project.take_up()
    assert (result.restored, result.resume.failures) == (("fake",), ())
    assert "parent" in reason(result.again)


def test_a_run_that_builds_no_recorded_step_names_nothing(project: Project, tmp_path: Path) -> None:
    assert [project.run().again for _ in range(2)] == ["", ""]
    manifest = project.manifest
    write_manifest(replace(manifest, artifacts=(), verdicts=()), project.order.out)
    shutil.rmtree(tmp_path / "cache")
    assert project.take_up(NEW).again == ""
