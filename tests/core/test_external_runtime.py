"""A verdict in another runtime holds for the files that it was made on, all of them."""

from __future__ import annotations

from dataclasses import replace

from modelc.core.external_runtime import ExternalVerdict
from modelc.core.kinds import Precision
from modelc.core.records import Artifact, FileRecord
from modelc.core.verdict import State, Tolerance, Verdict

GRAPH = FileRecord(name="openvino.xml", size=1, sha256="a" * 64)
WEIGHTS = FileRecord(name="openvino.bin", size=1, sha256="b" * 64, role="data")
DEBUG = FileRecord(name="openvino.json", size=1, sha256="c" * 64, role="debug")
ARTIFACT = Artifact(
    name="openvino", target="openvino", precision=Precision.FP32, files=(GRAPH, WEIGHTS, DEBUG),
    parent="", made_from="onnx",
)  # fmt: skip
LIMITS = Tolerance(atol=0.0, rtol=0.0, min_sqnr=0.0)
VERDICT = Verdict(
    artifact="openvino", state=State.PASSED, device="cpu", tolerance=LIMITS, feeds=(), outputs=()
)
FOUND = ExternalVerdict(runtime="double", verdict=VERDICT, sha256=ARTIFACT.joint_digest)


def test_it_holds_for_the_same_files_whatever_is_left_for_debugging() -> None:
    assert not FOUND.is_stale(replace(ARTIFACT, files=(GRAPH, WEIGHTS)))


def test_it_is_stale_once_the_weights_beside_the_model_change() -> None:
    other = replace(WEIGHTS, sha256="d" * 64)
    assert FOUND.is_stale(replace(ARTIFACT, files=(GRAPH, other)))


def test_it_is_stale_without_the_artifact() -> None:
    assert FOUND.is_stale(None)
