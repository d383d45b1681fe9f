"""Artifacts are judged as another runtime runs them; the verdicts are recorded beside their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from modelc.converters.registry import target_named
from modelc.converters.runner_base import RunnerBase
from modelc.core.contract import Feed, Outputs, Runner
from modelc.core.errors import RunnerError, UsageError
from modelc.core.kinds import ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.records import Artifact
from modelc.core.signature import Signature
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.measure_drift import _compare
from modelc.pipeline.order import Order
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external

from ..reasons import reason_codes

Orders = Callable[..., Order]


@dataclass(frozen=True, kw_only=True)
class DoubleRuntime:
    """Runs an artifact in its own format's runtime, with a fault of the test's choice."""

    offset: float = 0.0
    fails: bool = False
    declines: tuple[str, ...] = ()
    name: str = "double"

    def decline_reason(self, artifact: Artifact) -> str:
        return "not for it" if artifact.target in self.declines else ""

    def prepare(self, path: Path, artifact: Artifact) -> dict[str, str]:  # noqa: ARG002
        if self.fails:
            raise RunnerError("the server is down", hint="start it")
        return {"double": "1.0"}

    def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:
        opened = target_named(artifact.target).open_runner(path, "cpu", signature)
        return OffsetRunner(opened, self.offset)


class OffsetRunner(RunnerBase):
    def __init__(self, runner: Runner, offset: float) -> None:
        self.inputs, self._runner, self._offset = runner.inputs, runner, offset

    def run(self, feed: Feed) -> Outputs:
        outputs = self._runner.run(feed)
        return {k: (v + self._offset).astype(v.dtype) for k, v in outputs.items()}

    def close(self) -> None:
        self._runner.__exit__(None, None, None)


@pytest.fixture
def folder(order: Orders, tmp_path: Path) -> Path:
    run(order("torchscript", "onnx"))
    return tmp_path / "out"


def recorded(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def test_right_outputs_pass_and_are_recorded(folder: Path) -> None:
    before = recorded(folder)

    report = validate_external(folder, [DoubleRuntime()])

    assert report.exit_code == 0
    assert [one.verdict.artifact for one in report.judged] == ["torchscript", "onnx"]
    after = recorded(folder)
    assert after.external == report.judged
    assert after.verdicts == before.verdicts
    assert after.artifacts == before.artifacts


def test_wrong_outputs_are_rejected_and_no_file_moves(folder: Path) -> None:
    report = validate_external(folder, [DoubleRuntime(offset=0.1)], artifacts=["onnx"])

    assert report.exit_code == 1
    assert report.judged[0].verdict.state is State.FAILED
    assert (folder / recorded(folder).artifacts[1].files[0].name).exists()
    assert not recorded(folder).artifacts[1].rejected


def test_a_later_verdict_replaces_an_earlier_one_of_the_same_runtime(folder: Path) -> None:
    validate_external(folder, [DoubleRuntime(offset=0.1), DoubleRuntime(name="second")])
    validate_external(folder, [DoubleRuntime()])

    states = {(o.runtime, o.verdict.artifact): o.verdict.state for o in recorded(folder).external}
    assert states == {
        ("double", "torchscript"): State.PASSED,
        ("double", "onnx"): State.PASSED,
        ("second", "torchscript"): State.PASSED,
        ("second", "onnx"): State.PASSED,
    }


def test_a_runtime_that_fails_has_no_passed_verdict(folder: Path) -> None:
    report = validate_external(folder, [DoubleRuntime(fails=True)])

    assert {one.verdict.state for one in report.judged} == {State.ERROR}
    assert report.exit_code == RunnerError.exit_code


def test_a_changed_file_is_not_run(folder: Path) -> None:
    path = folder / recorded(folder).artifacts[1].files[0].name
    path.write_bytes(path.read_bytes() + b"\0")

    report = validate_external(folder, [DoubleRuntime()], artifacts=["onnx"])

    assert reason_codes(report.judged[0].verdict) == [ReasonCode.CHANGED_FILE]


def test_a_file_that_is_replaced_while_it_runs_is_not_vouched_for(folder: Path) -> None:
    class ReplacingRuntime(DoubleRuntime):
        def open(self, path: Path, artifact: Artifact, signature: Signature) -> Runner:
            opened = super().open(path, artifact, signature)
            path.write_bytes(path.read_bytes() + b"\0")
            return opened

    report = validate_external(folder, [ReplacingRuntime()], artifacts=["onnx"])

    assert reason_codes(report.judged[0].verdict) == [ReasonCode.CHANGED_FILE]


def test_a_verdict_stays_until_its_artifact_is_made_again(folder: Path, order: Orders) -> None:
    validate_external(folder, [DoubleRuntime()])

    run(order("torchscript"))

    assert [one.verdict.artifact for one in recorded(folder).external] == ["onnx"]


def test_what_a_runtime_declines_is_listed(folder: Path) -> None:
    report = validate_external(folder, [DoubleRuntime(declines=("torchscript",))])

    assert [one.artifact for one in report.declined] == ["torchscript"]
    assert [one.verdict.artifact for one in report.judged] == ["onnx"]


def test_a_runtime_that_declines_everything_is_an_error(folder: Path) -> None:
    with pytest.raises(UsageError):
        validate_external(folder, [DoubleRuntime(declines=("torchscript", "onnx"))])


@dataclass(frozen=True, kw_only=True)
class DoubleFamily:
    """One double for each format, and none for ONNX."""

    def member_for(self, artifact: Artifact) -> DoubleRuntime:
        return DoubleRuntime(name=f"double {artifact.target}", declines=("onnx",))


def test_each_artifact_runs_in_its_member_of_a_family(folder: Path) -> None:
    report = validate_external(folder, [DoubleFamily()])

    judged = [(one.runtime, one.verdict.artifact) for one in report.judged]
    assert judged == [("double torchscript", "torchscript")]
    assert [(o.runtime, o.artifact) for o in report.declined] == [("double onnx", "onnx")]


def test_the_double_adds_what_it_is_told_to(folder: Path) -> None:
    manifest = recorded(folder)
    artifact, feed = manifest.artifacts[1], {}
    for spec in manifest.signature.inputs:
        sizes = tuple(dim.opt for dim in spec.dims)
        feed[spec.name] = np.ones(sizes, spec.dtype)
    path = folder / artifact.files[0].name
    values = []
    for offset in (0.0, 0.5):
        with DoubleRuntime(offset=offset).open(path, artifact, manifest.signature) as runner:
            values.append(next(iter(runner.run(feed).values())))
    assert np.allclose(values[1] - values[0], 0.5, atol=1e-5)


def test_a_runtime_that_gives_zeros_is_apart_from_one_that_does_not() -> None:
    zeros, ones = np.zeros(3, np.float32), np.ones(3, np.float32)

    assert _compare("y", zeros, zeros, 100.0).sqnr is None
    for first, second in ((zeros, ones), (ones, zeros)):
        assert _compare("y", first, second, 100.0).beyond
