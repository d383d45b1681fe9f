"""Accuracy-aware INT8 on models with planted layers: few are returned, and nothing is promised."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from modelc.calibration.calibration_options import CalibrationOptions, LabelledOptions
from modelc.converters.registry import target_named
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.events import Event, Finished, Noted, ignore_events
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.records import Artifact
from modelc.core.verdict import State
from modelc.pipeline.limit_text import Measuring
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Lowering, Order, Source, Wanted
from modelc.pipeline.plan import make_plan
from modelc.pipeline.run_order import run

from ..reasons import has_code, reason_codes

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
DIGITS = HERE.parents[1] / "sample_models" / "digits_calib"
INPUT = "x:float32[batch=1..4,3,16,16]{-5..5}"


@pytest.fixture(scope="module")
def calib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images of noise: what the planted weights make of them does not matter."""
    folder = tmp_path_factory.mktemp("calib")
    draw = np.random.default_rng(0)
    for index in range(40):
        image = draw.standard_normal((3, 16, 16)).astype(np.float32)
        np.save(folder / f"{index:02}.npy", image)
    return folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Source]]:
    """`planted("outliers")`: that net of budget_nets.py as a checkpoint."""
    from safetensors.torch import save_file

    sys.path.append(str(HERE))  # tests are not a package
    nets = importlib.import_module("budget_nets")
    folder = tmp_path_factory.mktemp("nets")

    def make(name: str) -> Source:
        path = folder / f"{name}.safetensors"
        if not path.exists():
            save_file(getattr(nets, name)().state_dict(), path)
        return Source(checkpoint=path, model=f"budget_nets:{name}", inputs=(INPUT,))

    yield make
    sys.path.remove(str(HERE))


@pytest.fixture
def ordered(planted: Callable[[str], Source], calib: Path, tmp_path: Path) -> Callable[..., Order]:
    """`ordered("outliers", "onnx", min_sqnr=30)`: INT8 by ONNX Runtime, its cache in tmp_path."""

    def make(
        name: str, target: str, *, min_sqnr: float | None, out: str = "out", **lowering: object
    ) -> Order:
        plain = Lowering(calibration=CalibrationOptions(source=str(calib)), quantizer="onnxruntime")
        return Order(
            source=planted(name),
            wanted=(Wanted(target=target, precision=Precision.INT8),),
            out=tmp_path / out,
            judging=Judging(min_sqnr=min_sqnr),
            lowering=replace(plain, **lowering),  # type: ignore[arg-type]  # the fields are its own
            cache=tmp_path / "cache",
        )

    return make


def int8_of(manifest: Manifest) -> Artifact:
    (artifact,) = (a for a in manifest.artifacts if a.precision is Precision.INT8)
    return artifact


def quantizations(told: list[Event]) -> int:
    """How often a quantizer really ran."""
    ended = [event for event in told if isinstance(event, Finished)]
    return sum(e.step.startswith("quantize") and e.detail != "from the cache" for e in ended)


def chosen_of(artifact: Artifact) -> tuple[str, ...]:
    (point,) = (point for point in artifact.tradeoffs if point.chosen)
    return point.kept


@pytest.mark.parametrize("target", ["onnx", "openvino", "tensorrt-onnx"])
def test_planted_layers_are_returned_and_most_stay_in_int8(
    ordered: Callable[..., Order], target: str
) -> None:
    manifest = run(ordered("outliers", target, min_sqnr=22.0))
    assert manifest.exit_code == 0, manifest.verdicts
    artifact = int8_of(manifest)
    verdict = manifest.verdict_of(artifact.name)
    assert verdict is not None
    assert verdict.sqnr is not None
    assert verdict.sqnr >= 22.0
    assert any("held-out samples" in note for note in verdict.notes)
    plain, *_ = artifact.tradeoffs
    assert plain.kept == ()
    assert (plain.sqnr or 0.0) < 3.0
    kept = {title.partition(" ")[0] for title in chosen_of(artifact)}
    assert len(kept) <= 3
    assert "blocks.5" in kept
    assert artifact.coverage is not None
    assert artifact.coverage.layers["int8"] >= 7


def test_a_join_of_boxes_and_scores_is_returned_and_every_product_stays(
    ordered: Callable[..., Order],
) -> None:
    artifact = int8_of(run(ordered("detector", "onnx", min_sqnr=26.0)))
    assert (artifact.tradeoffs[0].sqnr or 0.0) < 3.0
    assert chosen_of(artifact) == ("Concat node_cat",)
    assert artifact.coverage is not None
    assert artifact.coverage.layers == {"int8": 7}


def test_a_net_that_plain_int8_ruins_holds_with_the_planted_layers_in_float(
    ordered: Callable[..., Order], tmp_path: Path
) -> None:
    manifest = run(ordered("outliers", "onnx", min_sqnr=26.0))
    artifact = int8_of(manifest)
    assert (artifact.tradeoffs[0].sqnr or 0.0) < 3.0
    kept = chosen_of(artifact)
    assert {title.partition(" ")[0] for title in kept} >= {"blocks.4", "blocks.5"}
    assert len(kept) <= 3
    nodes = artifact.options["kept"].split(", ")
    assert {"node_Conv_5", "node_Conv_6"} <= set(nodes)
    fewer = [p for p in artifact.tradeoffs if set(p.kept) < set(kept)]
    assert len(fewer) > 1
    assert not any(point.passed for point in fewer)
    assert not (tmp_path / "out" / "rejected").exists()
    assert read_manifest(tmp_path / "out") == manifest


def test_the_record_matches_the_file(ordered: Callable[..., Order], tmp_path: Path) -> None:
    manifest = run(ordered("outliers", "onnx", min_sqnr=26.0))
    artifact = int8_of(manifest)
    (point,) = (p for p in artifact.tradeoffs if p.chosen)
    verdict = manifest.verdict_of(artifact.name)
    assert verdict is not None
    assert point.sqnr == pytest.approx(verdict.sqnr)
    assert point.latency is not None
    assert point.parent is not None
    assert point.share == pytest.approx(artifact.coverage.share["int8"])  # type: ignore[union-attr]  # measured
    found = target_named("onnx").inspect(tmp_path / "out" / artifact.files[0].name)
    assert found.quantized is Precision.INT8


def test_without_a_budget_no_layers_are_searched(ordered: Callable[..., Order]) -> None:
    told: list[Event] = []
    manifest = run(ordered("outliers", "onnx", min_sqnr=None), told.append)
    artifact = int8_of(manifest)
    assert manifest.exit_code == 1
    assert artifact.rejected
    assert artifact.tradeoffs == ()
    assert quantizations(told) == 1


def test_plain_int8_that_holds_is_left_alone(
    ordered: Callable[..., Order], digits_source: Source
) -> None:
    calibration = CalibrationOptions(source=str(DIGITS))
    order = replace(
        ordered("outliers", "onnx", min_sqnr=20.0),
        source=digits_source,
        lowering=Lowering(calibration=calibration, quantizer="onnxruntime"),
    )
    told: list[Event] = []
    artifact = int8_of(run(order, told.append))
    (point,) = artifact.tradeoffs
    assert point.chosen
    assert point.kept == ()
    assert quantizations(told) == 1


def test_without_int8_a_budget_is_only_a_tolerance(
    ordered: Callable[..., Order], tmp_path: Path
) -> None:
    order = replace(
        ordered("outliers", "onnx", min_sqnr=30.0),
        lowering=Lowering(),
        wanted=(Wanted(target="onnx"),),
    )
    manifest = run(order)
    assert manifest.passed
    assert manifest.artifacts[0].tradeoffs == ()
    assert not (tmp_path / "cache" / "tradeoffs").exists()


def test_the_parent_of_int8_is_not_judged_by_its_budget(ordered: Callable[..., Order]) -> None:
    manifest = run(ordered("detector", "onnx", min_sqnr=1.0))
    parent, artifact = manifest.verdict_of("onnx"), manifest.verdict_of("onnx-int8")
    assert parent is not None
    assert artifact is not None
    assert artifact.tolerance.min_sqnr == 1.0
    assert parent.tolerance.min_sqnr != 1.0


def test_a_missed_budget_states_the_best_result(
    ordered: Callable[..., Order], tmp_path: Path
) -> None:
    manifest = run(ordered("outliers", "onnx", min_sqnr=90.0))
    assert manifest.exit_code == 1
    artifact = int8_of(manifest)
    assert artifact.rejected
    assert (tmp_path / "out" / "rejected" / "model.int8.onnx").is_file()
    assert not (tmp_path / "out" / "model.int8.onnx").exists()
    verdict = manifest.verdict_of("rejected/onnx-int8")
    assert verdict is not None
    assert verdict.state is State.FAILED
    best = max(point.sqnr or 0.0 for point in artifact.tradeoffs)
    assert best > 30.0
    assert f" {best:.1f} dB " in verdict.reason
    assert verdict.sqnr == pytest.approx(best)
    assert not any(point.chosen for point in artifact.tradeoffs)


def test_an_interrupted_search_resumes(ordered: Callable[..., Order]) -> None:
    whole: list[Event] = []
    run(replace(ordered("outliers", "onnx", min_sqnr=29.0, out="a"), cache=None), whole.append)
    trials = [e.text for e in whole if isinstance(e, Noted) and "in floating point:" in e.text]
    assert len(trials) >= 4

    def until_second(event: Event) -> None:
        first.append(event)
        done = [e for e in first if isinstance(e, Noted) and "in floating point:" in e.text]
        if len(done) == 2:
            raise KeyboardInterrupt

    first: list[Event] = []
    with pytest.raises(KeyboardInterrupt):
        run(ordered("outliers", "onnx", min_sqnr=29.0), until_second)
    second: list[Event] = []
    resumed = run(ordered("outliers", "onnx", min_sqnr=29.0), second.append)
    assert resumed.exit_code == 0
    assert quantizations(first) == 3  # plain, and two trials
    assert quantizations(second) == len(trials) - 2
    ranking = [e.detail for e in second if isinstance(e, Finished) and e.step.startswith("rank")]
    assert "0 measured" in ranking[0]
    third: list[Event] = []
    again = run(ordered("outliers", "onnx", min_sqnr=29.0), third.append)
    assert quantizations(third) == 0
    assert chosen_of(int8_of(again)) == chosen_of(int8_of(resumed))


def test_another_budget_takes_no_trial_of_this_one(ordered: Callable[..., Order]) -> None:
    run(ordered("outliers", "onnx", min_sqnr=26.0))
    artifact = int8_of(run(ordered("outliers", "onnx", min_sqnr=29.0, out="other")))
    for point in artifact.tradeoffs:
        assert point.passed == ((point.sqnr or 0.0) >= 29.0)


def test_damaged_records_are_measured_anew(ordered: Callable[..., Order], tmp_path: Path) -> None:
    first = int8_of(run(ordered("outliers", "onnx", min_sqnr=26.0)))
    files = list((tmp_path / "cache" / "tradeoffs").glob("*.json"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:-3])
    second = int8_of(run(ordered("outliers", "onnx", min_sqnr=26.0, out="again")))
    assert chosen_of(second) == chosen_of(first)


def test_the_search_ends_after_the_trials_allowed(ordered: Callable[..., Order]) -> None:
    for out in ("first", "again"):  # again: with trials from the cache, which count alike
        manifest = run(ordered("outliers", "onnx", min_sqnr=29.0, max_trials=1, out=out))
        verdict = manifest.verdict_of("onnx-int8")
        assert verdict is not None
        assert verdict.passed
        assert any("--max-trials 1 " in note for note in verdict.notes)
        assert len(int8_of(manifest).tradeoffs) == 2  # plain, and one trial


def test_a_slow_machine_keeps_the_same_layers(
    ordered: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = int8_of(run(ordered("outliers", "onnx", min_sqnr=26.0, out="usual")))
    real, jumps = time.monotonic, count()
    monkeypatch.setattr(time, "monotonic", lambda: real() + 3600.0 * next(jumps))
    order = replace(ordered("outliers", "onnx", min_sqnr=26.0, out="slow"), cache=None)
    slow = int8_of(run(replace(order, capture_timeout=1e9)))
    assert slow.capture == usual.capture
    assert [point.kept for point in slow.tradeoffs] == [point.kept for point in usual.tradeoffs]
    assert chosen_of(slow) == chosen_of(usual)
    assert [file.sha256 for file in slow.files] == [file.sha256 for file in usual.files]


@pytest.mark.parametrize("pattern", ["head", "blocks.1"])
def test_layers_of_keep_fp_are_kept_too(ordered: Callable[..., Order], pattern: str) -> None:
    artifact = int8_of(run(ordered("outliers", "onnx", min_sqnr=26.0, keep=(pattern,))))
    node = {"head": "node_Conv_9", "blocks.1": "node_Conv_2"}[pattern]
    kept = artifact.options["kept"].split(", ")
    assert kept[0] == node
    assert len(kept) > 1
    assert not any(title.startswith(f"{pattern} ") for title in chosen_of(artifact))


def test_a_drop_of_accuracy_is_a_budget_too(ordered: Callable[..., Order]) -> None:
    measuring = Measuring(data=LabelledOptions(source="budget_nets:labelled"), max_drop=0.03)
    manifest = run(replace(ordered("classifier", "onnx", min_sqnr=None), measuring=measuring))
    assert manifest.exit_code == 0, manifest.verdicts
    artifact = int8_of(manifest)
    plain, *_ = artifact.tradeoffs
    assert plain.drop is not None
    assert plain.drop > 0.2
    (point,) = (p for p in artifact.tradeoffs if p.chosen)
    assert point.drop is not None
    assert point.drop <= 0.03
    assert artifact.accuracy is not None
    assert artifact.accuracy.drop == pytest.approx(point.drop)
    assert 1 <= len(point.kept) <= 5


def test_a_drop_that_cannot_be_met_is_a_reason(ordered: Callable[..., Order]) -> None:
    measuring = Measuring(data=LabelledOptions(source="budget_nets:labelled"), max_drop=0.03)
    order = ordered("classifier", "onnx", min_sqnr=None, max_trials=1)
    manifest = run(replace(order, measuring=measuring))
    assert manifest.exit_code == 1
    verdict = manifest.verdict_of("rejected/onnx-int8")
    assert verdict is not None
    assert "within --max-trials 1" in verdict.reason
    assert ReasonCode.BUDGET in reason_codes(verdict)


@pytest.mark.parametrize("trials", [0, -1])
def test_a_number_of_trials_below_one_is_rejected(trials: int) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, option="max-trials")):
        Lowering(max_trials=trials)


def test_max_trials_without_a_budget_is_rejected(ordered: Callable[..., Order]) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.NO_EFFECT, option="max-trials")):
        make_plan(ordered("outliers", "onnx", min_sqnr=None, max_trials=5))


def test_openvino_is_searched_with_its_own_quantizer(ordered: Callable[..., Order]) -> None:
    order = ordered("outliers", "openvino", min_sqnr=26.0, quantizer="nncf")
    manifest = run(order, ignore_events)
    assert manifest.exit_code == 0
    artifact = int8_of(manifest)
    assert artifact.capture == "nncf"
    assert 1 <= len(chosen_of(artifact)) <= 3
