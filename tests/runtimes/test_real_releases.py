"""Releases from the package index that the machine uses; skipped where it has none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelc.core.errors import MissingError
from modelc.core.external_runtime import ExternalReport
from modelc.core.verdict import State
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_external import validate_external
from modelc.runtimes.installed_runtime import install_runtime

pytestmark = pytest.mark.slow


def judge(source: Source, out: Path, target: str, runtime: str) -> ExternalReport:
    run(Order(source=source, wanted=(Wanted.parse(target),), out=out, judging=Judging()))
    try:
        there = install_runtime(runtime, out.parent / "cache")
    except MissingError as error:
        pytest.skip(error.message)
    return validate_external(out, [there], artifacts=[target], drift=True)


@pytest.mark.parametrize(
    ("target", "runtime"),
    [("onnx", "onnxruntime==1.20.1"), ("openvino", "openvino==2025.3.0")],
)
def test_an_artifact_passes_in_an_older_release(
    gate_source: Source, tmp_path: Path, target: str, runtime: str
) -> None:
    report = judge(gate_source, tmp_path / "out", target, runtime)

    (one,) = report.judged
    package, _, version = runtime.partition("==")
    assert (one.verdict.state, one.versions[package]) == (State.PASSED, version)
    assert not any(drift.beyond for drift in report.drift)


def test_a_release_that_is_too_old_for_the_file_names_the_remedy(
    gate_source: Source, tmp_path: Path
) -> None:
    report = judge(gate_source, tmp_path / "out", "onnx", "onnxruntime==1.16.3")

    (one,) = report.judged
    assert one.verdict.state is State.ERROR
    assert "--for onnxruntime==1.16" in one.verdict.reason
