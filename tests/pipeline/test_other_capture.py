"""A derived artifact that is wrong after one capture of its parent is built after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelc.core.contract import Converted, Feed, Job, Outputs, Runner
from modelc.core.errors import RunnerError
from modelc.core.kinds import Capture, Precision
from modelc.core.manifest import Manifest
from modelc.core.signature import Signature
from modelc.pipeline.order import Order
from modelc.pipeline.run_order import run

from .conftest import Fake, FakeRunner, eagerly

Orders = Callable[..., Order]


def wrongly(feed: Feed) -> Outputs:
    return {name: array + 1 for name, array in eagerly(feed).items()}


@dataclass(frozen=True, kw_only=True)
class Parent(Fake):
    """Writes the capture that it was made by; right whatever that is."""

    NAME: str = "parent"
    SUFFIX: str = ".parent"
    CAPTURES: tuple[Capture, ...] = (Capture.SCRIPT, Capture.EXPORT, Capture.TRACE)
    rejects: tuple[Capture, ...] = ()

    def convert(self, job: Job) -> Converted:
        if job.capture in self.rejects:
            raise RunnerError("unsupported", hint="try another")
        path = job.folder / (job.stem + self.SUFFIX)
        path.write_text(str(job.capture))
        return Converted(files=((path.name, "model"),), versions={})

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG002 - contract
        return FakeRunner(signature, eagerly)


@dataclass(frozen=True, kw_only=True)
class Child(Fake):
    """Is right where its parent was made by one capture, and wrong otherwise."""

    NAME: str = "child"
    SUFFIX: str = ".child"
    MADE_FROM: Mapping[Precision, str] = field(default_factory=lambda: {Precision.FP32: "parent"})
    CAPTURES: tuple[Capture, ...] = ()
    right: Capture = Capture.EXPORT

    def convert(self, job: Job) -> Converted:
        assert job.parent is not None
        path = job.folder / (job.stem + self.SUFFIX)
        path.write_text(job.parent.read_text())
        return Converted(files=((path.name, "model"),), versions={})

    def open_runner(self, path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG002 - contract
        is_right = path.read_text() == str(self.right)
        return FakeRunner(signature, eagerly if is_right else wrongly)


def made(order: Order, *targets: Any) -> Manifest:
    return run(order, targets=targets)


def names(manifest: Manifest) -> list[str]:
    return [artifact.name for artifact in manifest.artifacts]


def test_the_child_is_built_from_the_capture_after_which_it_passes(order: Orders) -> None:
    asked = order("parent", "child")
    manifest = made(asked, Parent(), Child())
    assert manifest.passed
    assert names(manifest) == ["parent", "parent-export", "child"]
    child = manifest.artifacts[-1]
    assert child.made_from == "parent-export"
    assert child.parent == manifest.artifacts[1].digest
    assert (asked.out / "model.export.parent").read_text() == "export"
    assert (asked.out / "model.child").read_text() == "export"
    assert manifest.steps == ("parent", "child", "parent-export")
    assert not list(asked.out.glob("rejected/*"))
    again = made(asked, Parent(), Child())
    assert again.passed
    assert sorted(names(again)) == sorted(names(manifest))


def test_a_child_that_passes_after_no_capture_is_rejected(order: Orders) -> None:
    asked = order("parent", "child")
    manifest = made(asked, Parent(), Child(right=Capture.MIXED))
    assert manifest.exit_code == 1
    assert names(manifest) == ["parent", "rejected/child"]


def test_captures_that_fail_are_skipped(order: Orders) -> None:
    asked = order("parent", "child")
    manifest = made(asked, Parent(rejects=(Capture.EXPORT,)), Child(right=Capture.TRACE))
    assert manifest.passed
    assert names(manifest) == ["parent", "parent-trace", "child"]


def test_a_requested_capture_is_kept(order: Orders) -> None:
    asked = replace(order("parent", "child"), capture=Capture.SCRIPT)
    assert names(made(asked, Parent(), Child())) == ["parent", "rejected/child"]


@dataclass(frozen=True, kw_only=True)
class HalfWeights(Child):
    """Has half precision of its weights alone."""

    FLOAT_ENDS: bool = True
    MADE_FROM: Mapping[Precision, str] = field(
        default_factory=lambda: {Precision.FP32: "parent", Precision.FP16: "parent"}
    )


def test_a_second_parent_of_several_artifacts_is_built_once(order: Orders) -> None:
    asked = order("parent", "child", "child:fp16")
    manifest = made(asked, Parent(), HalfWeights())
    assert manifest.passed
    assert sorted(names(manifest)) == ["child", "child-fp16", "parent", "parent-export"]
    assert {one.made_from for one in manifest.artifacts if "child" in one.name} == {"parent-export"}
