"""Gates: held against what is on record, and what is not on record keeps to none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from modelc.converters.registry import target_named
from modelc.core.errors import Place
from modelc.core.findings import Accuracy
from modelc.core.kinds import Precision
from modelc.core.manifest import FeedPlan, Manifest
from modelc.core.records import Artifact, Checkpoint, FileRecord, Latency
from modelc.core.signature import Signature
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.plan import Step
from modelc.projects.project_records import Gate, ModelOrder, find_breaches

FASTER = Latency(milliseconds=1.0, parent=2.0, device="cpu", runs=7)
SLOWER = Latency(milliseconds=3.0, parent=2.0, device="cpu", runs=7)
ACCURACY = Accuracy(
    metric="top1",
    higher_is_better=True,
    samples=100,
    eager=0.9,
    artifact=0.88,
    drop=0.02,
    low=0.0,
    high=0.04,
    confidence=0.95,
    method="paired",
)
INT8 = Artifact(
    name="onnx-int8",
    target="onnx",
    precision=Precision.INT8,
    files=(
        FileRecord(name="model.int8.onnx", size=1000, sha256="a"),
        FileRecord(name="model.int8.debug.json", size=9000, sha256="b", role="debug"),
    ),
    parent="c",
    made_from="onnx",
    latency=FASTER,
    accuracy=ACCURACY,
)


def model(*gates: Gate, asked: bool = True) -> ModelOrder:
    wanted = Wanted(target="onnx", precision=Precision.INT8)
    step = Step(target=target_named("onnx"), wanted=wanted, captures=(), parent="onnx", asked=asked)
    order = Order(source=Source(checkpoint=Path("net.pt")), wanted=(wanted,), out=Path("out/net"))
    return ModelOrder(name="net", order=order, plan=(step,), gates=gates)


def record(artifact: Artifact) -> Manifest:
    return Manifest(
        modelc="1",
        created="",
        order={},
        checkpoint=Checkpoint(path="net.pt", kind="state_dict", digest="d", files=()),
        signature=Signature(inputs=(), outputs=()),
        feeds=FeedPlan(count=5, seed=0),
        environment={},
        artifacts=(artifact,),
    )


@pytest.mark.parametrize(
    ("gate", "artifact", "message"),
    [
        (Gate(max_size=999), INT8, "1.0 kB > max-size 999 B"),
        (Gate(max_drop=0.01), INT8, "2.00% > max-drop 1.00%"),
        (Gate(max_drop=0.01), replace(INT8, accuracy=None), "max-drop"),
        (Gate(max_latency_ratio=1.2), replace(INT8, latency=SLOWER), "1.50 x"),
        (Gate(max_latency_ratio=1.2), replace(INT8, latency=None), "latency was not measured"),
        (Gate(pattern="*-int8", max_size=1), INT8, "max-size 1 B"),
    ],
)
def test_a_broken_gate_is_named(gate: Gate, artifact: Artifact, message: str) -> None:
    (breach,) = find_breaches(model(gate), record(artifact))
    assert breach.artifact == "onnx-int8"
    assert message in breach.message


@pytest.mark.parametrize(
    "gate",
    [
        Gate(max_size=1000),
        Gate(max_drop=0.02),
        Gate(max_latency_ratio=0.5),
        Gate(pattern="openvino*", max_size=1),
        Gate(),
    ],
)
def test_what_keeps_to_a_gate_or_has_none_is_no_breach(gate: Gate) -> None:
    assert find_breaches(model(gate), record(INT8)) == ()


def test_fp32_is_its_own_measure_of_latency() -> None:
    plain = replace(INT8, precision=Precision.FP32, latency=None)
    assert find_breaches(model(Gate(max_latency_ratio=1.0)), record(plain)) == ()


def test_what_was_only_needed_by_others_has_no_gates() -> None:
    assert find_breaches(model(Gate(max_size=1), asked=False), record(INT8)) == ()


def test_the_nearest_gate_goes_before_a_general_one() -> None:
    gates = (
        Gate(max_size=1),
        Gate(pattern="onnx-int8", max_size=5000, places={"max_size": Place(key="here")}),
    )
    assert find_breaches(model(*gates), record(INT8)) == ()


PLACE = Place(file="modelc.toml", line=7, key="[models.net]")


def test_a_breach_says_where_its_gate_was_written() -> None:
    gate = Gate(max_size=1, places={"max_size": PLACE})
    (breach,) = find_breaches(model(gate), record(INT8))
    assert breach.told == PLACE
