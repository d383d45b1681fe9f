"""A format that is wrong when made from one capture is made from another that gives both."""

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
class Mother(Fake):
    """Writes the capture that it was made by; right whatever that is."""

    NAME: str = "mother"
    SUFFIX: str = ".mother"
    CAPTURES: tuple[Capture, ...] = (Capture.SCRIPT, Capture.EXPORT, Capture.TRACE)
    refuses: tuple[Capture, ...] = ()

    def convert(self, job: Job) -> Converted:
        if job.capture in self.refuses:
            raise RunnerError("not by this one", hint="try another")
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
    MADE_FROM: Mapping[Precision, str] = field(default_factory=lambda: {Precision.FP32: "mother"})
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


def test_the_child_is_made_from_the_capture_that_gives_it(order: Orders) -> None:
    asked = order("mother", "child")
    manifest = made(asked, Mother(), Child())
    assert manifest.passed
    assert names(manifest) == ["mother", "mother-export", "child"]
    child = manifest.artifacts[-1]
    assert child.made_from == "mother-export"
    assert child.parent == manifest.artifacts[1].digest
    assert (asked.out / "model.export.mother").read_text() == "export"
    assert (asked.out / "model.child").read_text() == "export"
    assert manifest.steps == ("mother", "child", "mother-export")


def test_nothing_of_the_rejected_one_is_left(order: Orders) -> None:
    asked = order("mother", "child")
    made(asked, Mother(), Child())
    assert not (asked.out / "rejected").exists() or not any((asked.out / "rejected").iterdir())


def test_a_child_that_no_capture_gives_is_rejected(order: Orders) -> None:
    asked = order("mother", "child")
    manifest = made(asked, Mother(), Child(right=Capture.MIXED))
    assert manifest.exit_code == 1
    assert names(manifest) == ["mother", "rejected/child"]


def test_captures_that_fail_are_passed_over(order: Orders) -> None:
    asked = order("mother", "child")
    manifest = made(asked, Mother(refuses=(Capture.EXPORT,)), Child(right=Capture.TRACE))
    assert manifest.passed
    assert names(manifest) == ["mother", "mother-trace", "child"]


def test_a_capture_that_was_asked_for_is_kept(order: Orders) -> None:
    asked = replace(order("mother", "child"), capture=Capture.SCRIPT)
    assert names(made(asked, Mother(), Child())) == ["mother", "rejected/child"]


def test_a_second_run_makes_the_same(order: Orders) -> None:
    asked = order("mother", "child")
    first = made(asked, Mother(), Child())
    again = made(asked, Mother(), Child())
    assert again.passed
    assert sorted(names(again)) == sorted(names(first))


@dataclass(frozen=True, kw_only=True)
class HalfWeights(Child):
    """Has half precision of its weights alone."""

    FLOAT_ENDS: bool = True
    MADE_FROM: Mapping[Precision, str] = field(
        default_factory=lambda: {Precision.FP32: "mother", Precision.FP16: "mother"}
    )


def test_half_weights_are_made_from_another_capture(order: Orders) -> None:
    manifest = made(order("mother", "child:fp16"), Mother(), HalfWeights())
    assert manifest.passed
    assert names(manifest) == ["mother", "mother-export", "child-fp16"]


def test_a_second_parent_is_made_once(order: Orders) -> None:
    asked = order("mother", "child", "child:fp16")
    manifest = made(asked, Mother(), HalfWeights())
    assert manifest.passed
    assert sorted(names(manifest)) == ["child", "child-fp16", "mother", "mother-export"]
    assert {one.made_from for one in manifest.artifacts if "child" in one.name} == {"mother-export"}
