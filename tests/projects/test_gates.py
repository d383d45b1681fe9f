"""Gates: held against what is on record, and what is not on record keeps to none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from modelc.converters.registry import target_named
from modelc.core.errors import Place
from modelc.core.findings import Accuracy
from modelc.core.kinds import Precision
from modelc.core.manifest import FeedPlan, Manifest
from modelc.core.records import Artifact, Checkpoint, FileRecord, Latency
from modelc.core.signature import Signature
from modelc.pipeline.benchmark import timed_turns
from modelc.pipeline.benchmark.timed_turns import MIN_ROUNDS
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.plan import Step
from modelc.pipeline.recorded_run import load_manifest
from modelc.pipeline.step_latency import measure_latency
from modelc.projects import project_records
from modelc.projects.project_records import Breach, Gate, ModelOrder
from modelc.validators.feeds import FeedDrawer

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


def find_breaches(model: ModelOrder, manifest: Manifest) -> tuple[Breach, ...]:
    return project_records.find_breaches(model.gates, model.asked_names, manifest)


def find_doubts(model: ModelOrder, manifest: Manifest) -> tuple[Breach, ...]:
    return project_records.find_doubts(model.gates, model.asked_names, manifest)


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
        (Gate(max_latency_ratio=1.2), replace(INT8, latency=SLOWER), "1.500 x (1.425 to 1.575)"),
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


def timed(low: float, ratio: float, high: float, *, load: float = 0.0) -> Artifact:
    """An artifact whose parent takes 2 ms."""
    latency = Latency(
        milliseconds=2 * ratio, parent=2.0, device="cpu", runs=50, rounds=11,
        ratio=ratio, low=low, high=high, other_load=load, loaded=load > 0.05,
    )  # fmt: skip
    return replace(INT8, latency=latency)


@pytest.mark.parametrize(
    ("most", "artifact", "broken", "undecided"),
    [
        pytest.param(1.1, timed(1.11, 1.2, 1.3), True, False, id="certainly slower"),
        pytest.param(1.1, timed(1.09, 1.2, 1.3), False, True, id="the limit in the interval"),
        pytest.param(1.1, timed(0.9, 1.0, 1.1), False, False, id="certainly as fast"),
        pytest.param(1.0, timed(1.005, 1.01, 1.02), False, True, id="no difference"),
        pytest.param(1.0, timed(1.031, 1.04, 1.05), True, False, id="a difference"),
        pytest.param(0.5, timed(0.51, 0.52, 0.53), True, False, id="not as fast as asked"),
    ],
)
def test_a_gate_is_broken_by_the_whole_interval(
    most: float, artifact: Artifact, broken: bool, undecided: bool
) -> None:
    gated = model(Gate(max_latency_ratio=most))
    assert bool(find_breaches(gated, record(artifact))) is broken
    assert bool(find_doubts(gated, record(artifact))) is undecided


BROKEN = "2.4 ms beside 2 ms of its fp32 parent, 1.200 x (1.180 to 1.230) > max-latency-ratio 1.1"
UNDECIDED = (
    "2.2 ms beside 2 ms of its fp32 parent, 1.100 x (1.000 to 1.300), while other processes used "
    "34% of the cores: too close to max-latency-ratio 1.1 to decide"
)


def test_messages_name_the_interval_the_limit_and_the_load() -> None:
    gated = model(Gate(max_latency_ratio=1.1))
    (breach,) = find_breaches(gated, record(timed(1.18, 1.2, 1.23)))
    assert breach.message == BROKEN
    (doubt,) = find_doubts(gated, record(timed(1.0, 1.1, 1.3, load=0.34)))
    assert doubt.message == UNDECIDED


# Milliseconds of runs of a small convolution on a busy host.
RECORDED = (
    0.0234, 0.0170, 0.0146, 0.0147, 0.0148, 0.0162, 0.0145, 0.0129, 0.0135, 0.0149, 0.0133, 0.0140,
    0.0148, 0.0831, 0.0257, 0.0183, 0.0157, 0.0153, 0.0146, 0.0145, 0.0144, 0.0154, 0.0128, 0.0135,
    0.0127, 0.0133, 0.0500, 0.0207, 0.0156, 0.0162, 0.0127, 0.0149, 0.0121, 0.0128, 0.0154, 0.0157,
    0.0153, 0.0136, 0.0147, 0.0151, 0.0154, 0.0145, 0.0143, 0.0146, 0.0152, 0.0145, 0.0143, 0.0148,
    0.0146, 0.2233, 0.1219, 0.0294, 0.0173, 0.0141, 0.0138, 0.0136, 0.0140, 0.0135, 0.0136, 0.0147,
)  # fmt: skip


class RecordedClock:
    """The clock of the rounds: recorded runs and sleeps advance it, nothing else does."""

    def __init__(self) -> None:
        self.seconds, self._draw = 0.0, Random(0)

    def perf_counter(self) -> float:
        return self.seconds

    def process_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def replay(self, factor: float) -> float:
        milliseconds = factor * self._draw.choice(RECORDED)
        self.sleep(milliseconds / 1e3)
        return milliseconds


@pytest.mark.parametrize(("factor", "most", "broken"), [(1.2, 1.1, True), (1.0, 1.0, False)])
def test_a_planted_slowdown_breaks_a_gate_and_equal_models_do_not(
    exported_digits: Path, factor: float, most: float, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runners of one file take recorded times, and those of the first one are scaled."""
    clock = RecordedClock()
    monkeypatch.setattr(timed_turns, "time", clock)
    file, manifest = exported_digits / "model.onnx", load_manifest(exported_digits)
    feed = FeedDrawer.of(manifest.signature, 0, None).feed("one", {"batch": 1}).arrays
    latency = measure_latency(
        (file, file), target_named("onnx"), device="cpu", signature=manifest.signature, feed=feed,
        change=lambda _: (lambda: clock.replay(factor), lambda: clock.replay(1.0)),
    )  # fmt: skip
    assert latency.low <= latency.ratio <= latency.high
    assert latency.rounds >= MIN_ROUNDS
    gated = model(Gate(max_latency_ratio=most))
    assert bool(find_breaches(gated, record(replace(INT8, latency=latency)))) is broken


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
