"""Accuracy on labelled digits: eager once, right and wrong artifacts beside it, the gate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelc.calibration.calibration_options import LabelledOptions
from modelc.core.contract import Feed, Outputs, Runner, Target
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.events import Event, Finished, Noted, Started, ignore_events
from modelc.core.findings import Accuracy, SkippedCheck
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.manifest import Manifest
from modelc.core.verdict import State
from modelc.pipeline.accuracy_gate import check_accuracy
from modelc.pipeline.eager_reference import EagerReference
from modelc.pipeline.finish_pending import finish_pending
from modelc.pipeline.judge_case import Candidate, JudgeRequest
from modelc.pipeline.labelled_accuracy import (
    BrokenAnswerError,
    LabelledFeeds,
    enter_labelled,
    measure_accuracy,
)
from modelc.pipeline.limit_text import Measuring, parse_drop
from modelc.pipeline.manifest_file import read_manifest
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.recorded_run import FinishRequest
from modelc.pipeline.run_order import run
from modelc.pipeline.run_progress import Progress
from modelc.pipeline.stored_use import SKIPPED_TEXTS
from modelc.pipeline.validate_file import rejudge_folder
from modelc.pipeline.validate_folder import validate_folder
from modelc.validators.ruling import Judgment, Ruling

from ..open_models import open_source
from ..reasons import has_code, reason_codes
from .conftest import eagerly
from .test_pending import table

HELD_OUT = Path(__file__).parents[2] / "sample_models" / "digits_heldout.npz"
Fakes = Callable[..., Target]
ANYTHING = Judging(atol=1e9, min_sqnr=-1e9)  # so that only the gate can refuse


def measuring(source: object = HELD_OUT, **parts: Any) -> Measuring:
    label = parts.pop("label", None)
    return Measuring(data=LabelledOptions(source=str(source), label=label), **parts)


@pytest.fixture(scope="module")
def subject(digits_source: Source, tmp_path_factory: pytest.TempPathFactory) -> EagerReference:
    return open_source(digits_source, tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def opened(subject: EagerReference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`opened(measuring(...))` -> LabelledFeeds; `opened.told` is what was noted."""
    told: list[Event] = []
    stage = Progress(tell=told.append, logs=tmp_path_factory.mktemp("logs"))
    with ExitStack() as held:

        def make(asked: Measuring) -> LabelledFeeds:
            told.clear()
            found = enter_labelled(asked, subject, stage, held)
            assert found is not None
            return found

        make.told = told  # type: ignore[attr-defined]  # for tests of notes
        yield make


class Changed:
    """Eager with its outputs changed: a runner that is wrong as it is told."""

    inputs: tuple[str, ...] = ("x",)

    def __init__(self, subject: EagerReference, change: Callable[[Feed, Any], Any]) -> None:
        self._eager = subject.model
        self._change = change
        self.sizes: set[int] = set()

    def run(self, feed: Feed) -> Outputs:
        self.sizes.add(len(feed["x"]))
        return {"output": self._change(feed, self._eager.run(feed)["output"])}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        """Hold nothing."""


def permuted(_: Feed, logits: Any) -> Any:
    """Class 0 answers as 1, 1 as 2, and so on: values, shapes and SQNR look ordinary."""
    return np.roll(logits, 1, axis=1)


def no_eights(_: Feed, logits: Any) -> Any:
    """Never an 8."""
    return np.where(np.arange(10) == 8, -1e3, logits).astype(np.float32)


def test_eager_is_measured_once_and_is_what_was_trained(
    opened: Any, subject: EagerReference
) -> None:
    labelled = opened(measuring())
    found = measure_accuracy(subject.model, labelled)
    assert found.eager == found.artifact == 447 / 450
    assert (found.drop, found.disagreements, found.samples) == (0.0, 0, 450)
    assert found.low == pytest.approx(-0.00941, abs=1e-5)
    assert not [one for one in opened.told if isinstance(one, Noted)]


def test_an_artifact_with_permuted_classes_is_seen(opened: Any, subject: EagerReference) -> None:
    found = measure_accuracy(Changed(subject, permuted), opened(measuring()), max_drop=0.005)
    assert found.artifact < 0.02
    assert found.low > 0.9
    assert not found.passed
    assert (found.disagreements, len(found.disagreeing)) == (450, 100)


def test_a_class_that_is_never_predicted_exceeds_a_gate_of_half_a_point(
    opened: Any, subject: EagerReference
) -> None:
    found = measure_accuracy(Changed(subject, no_eights), opened(measuring(max_drop=0.005)))
    labels = np.load(HELD_OUT)["y"]
    assert not found.passed
    assert found.drop == pytest.approx(float((labels == 8).mean()), abs=0.01)
    assert found.low > 0.005
    assert {(one.label, one.eager) for one in found.answers} <= {("8", "8"), ("1", "8")}
    assert all(one.artifact != "8" for one in found.answers)
    named = int(found.disagreeing[0].rpartition("row ")[2])
    assert labels[named] == int(found.answers[0].label)


def test_a_drop_of_just_the_limit_is_within_it(opened: Any, subject: EagerReference) -> None:
    places = iter(range(450))

    def thrice(feed: Feed, logits: Any) -> Any:
        rows = [next(places) for _ in range(len(feed["x"]))]
        return np.roll(logits, 1, axis=1) if 0 in rows else logits

    labelled = opened(measuring())
    drop = measure_accuracy(Changed(subject, thrice), labelled).drop
    places = iter(range(450))
    assert measure_accuracy(Changed(subject, thrice), labelled, max_drop=drop).passed


def test_nan_where_eager_has_none_is_an_error(opened: Any, subject: EagerReference) -> None:
    def one_nan(feed: Feed, logits: Any) -> Any:
        return np.where(feed["x"].sum(axis=(1, 2, 3))[:, None] > 24, np.nan, logits)

    with pytest.raises(BrokenAnswerError, match=r"of 450 .* digits_heldout"):
        measure_accuracy(Changed(subject, one_nan), opened(measuring()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, logits: logits[:1], "1x10"),
        (lambda _, logits: logits[:, :3], "cannot be scored"),
    ],
)
def test_outputs_of_another_shape_are_an_error(
    opened: Any, subject: EagerReference, change: Callable[[Feed, Any], Any], words: str
) -> None:
    with pytest.raises(RunnerError, match=words):
        measure_accuracy(Changed(subject, change), opened(measuring()))


def test_batches_have_sizes_that_the_model_allows(opened: Any, subject: EagerReference) -> None:
    runner = Changed(subject, lambda _, logits: logits)
    measure_accuracy(runner, opened(measuring()))
    assert runner.sizes == {4, 2}


def test_labels_in_another_order_are_warned_of(opened: Any, tmp_path: Path) -> None:
    held = np.load(HELD_OUT)
    np.savez(tmp_path / "a.npz", x=held["x"], y=(held["y"] + 1) % 10)
    opened(measuring(tmp_path))
    notes = [one for one in opened.told if isinstance(one, Noted) and one.warning]
    assert "10.00%" in notes[0].text  # chance


def test_data_that_changes_during_a_run_is_rejected(
    opened: Any, subject: EagerReference, tmp_path: Path
) -> None:
    held = np.load(HELD_OUT)
    np.savez(tmp_path / "a.npz", x=held["x"][:8], y=held["y"][:8])
    labelled = opened(measuring(tmp_path))
    np.savez(tmp_path / "a.npz", x=held["x"][:8], y=held["y"][:8][::-1])
    with pytest.raises(UsageError, check=has_code(ErrorCode.FILE_CHANGED)):
        measure_accuracy(subject.model, labelled)


def labels_file(folder: Path, labels: Any) -> Path:
    np.savez(folder / "a.npz", x=np.load(HELD_OUT)["x"][: len(labels)], y=np.asarray(labels))
    return folder / "a.npz"


@pytest.mark.parametrize(
    ("labels", "parts", "words"),
    [
        ([3, 10], {}, "a.npz row 1 has the label 10; the output has 10 classes"),
        ([3, np.nan], {}, "NaN or Inf in 1 of 2 labels"),
        (["a", "b"], {}, "'a'"),
        ([3, 4], {"output": "logits"}, "unknown --metric-output 'logits'"),
        ([3, 4], {"metric": "top9"}, "unknown metric 'top9'"),
        ([3, 4], {"metric": "mse"}, "has a label of a number, and the output is 10"),
        ([3, 4], {"metric": "tests_no_such:fn"}, "no module"),
        ([3, 4], {"label": "z"}, "has no label 'z'"),
    ],
)
def test_unusable_labels_or_metrics_are_an_error_before_conversion(
    opened: Any, tmp_path: Path, labels: Any, parts: dict[str, Any], words: str
) -> None:
    path = labels_file(tmp_path, labels)
    with pytest.raises(UsageError) as caught:
        opened(measuring(path, **parts))
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_classes_and_outputs_must_be_as_many(opened: Any, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "a.png")
    with pytest.raises(UsageError, check=has_code(ErrorCode.LABELS_MISMATCH)):
        opened(measuring(tmp_path))


def test_the_gate_of_mse_is_relative_to_eagers_own_loss(
    opened: Any, subject: EagerReference, tmp_path: Path
) -> None:
    held = np.load(HELD_OUT)
    np.savez(tmp_path / "a.npz", x=held["x"], y=np.eye(10, dtype=np.float32)[held["y"]])
    labelled = opened(measuring(tmp_path, metric="mse", max_drop=0.01))
    same = measure_accuracy(Changed(subject, lambda _, logits: logits), labelled)
    worse = measure_accuracy(Changed(subject, lambda _, logits: logits * 1.05), labelled)
    assert (same.drop, same.passed, same.relative) == (0.0, True, True)
    assert worse.artifact == pytest.approx(worse.eager * (1 + worse.drop))
    assert worse.drop > 0.01
    assert not worse.passed


def made(
    digits: Source, out: Path, answer: Callable[[Feed], Outputs], fake: Fakes, **asked: Any
) -> Manifest:
    """A run with one target that answers as it is told, judged by labelled data alone."""
    order = Order(
        source=digits,
        wanted=(Wanted(target="fake"),),
        out=out,
        judging=ANYTHING,
        measuring=measuring(**asked),
    )
    return run(order, targets=(fake(answer=answer),))


def test_a_drop_beyond_the_gate_rejects_the_artifact(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    runner = Changed(subject, no_eights)
    manifest = made(digits_source, tmp_path / "out", runner.run, fake, max_drop=0.005)
    verdict, artifact = manifest.verdicts[0], manifest.artifacts[0]
    assert (verdict.state, manifest.exit_code, artifact.rejected) == (State.FAILED, 1, True)
    assert "top1 drops by 9." in verdict.reason
    assert "more than 0.50 points (--max-drop)" in verdict.reason
    assert (tmp_path / "out" / "rejected" / "model.fake").exists()
    assert not (tmp_path / "out" / "model.fake").exists()


def test_without_a_gate_a_drop_is_recorded_and_noted(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    runner = Changed(subject, no_eights)
    manifest = made(digits_source, tmp_path / "out", runner.run, fake)
    artifact = manifest.artifacts[0]
    assert manifest.passed
    assert artifact.accuracy is not None
    assert artifact.accuracy.drop > 0.08
    assert any("--max-drop" in note for note in manifest.verdicts[0].notes)
    assert read_manifest(tmp_path / "out") == manifest


def test_a_note_says_that_few_samples_are_weak_evidence(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    asked = labels_file(tmp_path, np.load(HELD_OUT)["y"][:40])
    answer = subject.model.run
    manifest = made(digits_source, tmp_path / "out", answer, fake, source=asked, max_drop=0.005)
    assert manifest.passed
    assert any(note.startswith("40 ") for note in manifest.verdicts[0].notes)


def test_an_artifact_that_raises_on_labelled_data_is_an_error(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    rows = 0

    def tires(feed: Feed) -> Outputs:
        nonlocal rows
        rows += len(feed["x"])
        if rows > 300:
            raise RunnerError("out of memory: 77", hint="smaller batches")
        return subject.model.run(feed)

    manifest = made(digits_source, tmp_path / "out", tires, fake)
    verdict = manifest.verdicts[0]
    assert (verdict.state, manifest.exit_code) == (State.ERROR, 6)
    assert verdict.reason.endswith(": 77")
    assert not (tmp_path / "out" / "model.fake").exists()


OWN = """
import numpy as np

def strict(predictions, labels):
    if not np.isfinite(predictions).all():
        raise ValueError("NaN in the answer")
    if predictions.max() > 1e6:
        raise ValueError("too large a score")
    return float(np.mean(predictions.argmax() == labels))

strict.higher_is_better = True
strict.per_sample = True

def nothing(predictions, labels):
    return 0.0

nothing.higher_is_better = True
nothing.relative = True

strict_of_top = strict
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of metrics; its name begins as that of a metric of ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "top_metrics.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "top_metrics", raising=False)
    return "top_metrics"


def test_an_error_in_the_users_metric_is_the_users(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path, own: str
) -> None:
    large = Changed(subject, lambda _, logits: logits * np.float32(1e9)).run
    with pytest.raises(UsageError, match=r"fake: .* raised ValueError: too large"):
        made(digits_source, tmp_path / "out", large, fake, metric=f"{own}:strict")
    assert not (tmp_path / "out" / "model.fake").exists()


def test_nan_is_the_artifacts_fault_though_the_users_metric_raises(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path, own: str
) -> None:
    broken = Changed(subject, lambda _, logits: logits * np.float32(np.nan)).run
    manifest = made(digits_source, tmp_path / "out", broken, fake, metric=f"{own}:strict")
    assert (manifest.verdicts[0].state, manifest.exit_code) == (State.FAILED, 1)
    assert "NaN or Inf on" in manifest.verdicts[0].reason


def test_a_relative_drop_from_zero_is_an_error_before_conversion(opened: Any, own: str) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.METRIC_UNDEFINED)):
        opened(measuring(metric=f"{own}:nothing"))


def test_classes_are_not_counted_for_a_metric_of_ones_own(
    opened: Any, own: str, tmp_path: Path
) -> None:
    held = np.load(HELD_OUT)
    folder = tmp_path / "named"
    for name, x in zip("ab", held["x"], strict=False):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / "0.npy", x)
    assert len(opened(measuring(folder, metric=f"{own}:strict_of_top"))) == 2


def test_bad_data_stops_before_anything_is_converted(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    told: list[Event] = []
    order = Order(
        source=digits_source,
        wanted=(Wanted(target="fake"),),
        out=tmp_path / "out",
        measuring=measuring(labels_file(tmp_path, [1, 99])),
    )
    with pytest.raises(UsageError, match="label 99"):
        run(order, told.append, targets=(fake(answer=subject.model.run),))
    assert not [one for one in told if isinstance(one, Started) and "convert" in one.step]


def accuracy_of(manifest: Manifest) -> Accuracy:
    found = manifest.artifacts[0].accuracy
    assert found is not None
    return found


def test_a_folder_is_measured_again_within_the_gate_that_it_had(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made(digits_source, out, subject.model.run, fake, max_drop=0.02)
    again = (fake(answer=Changed(subject, no_eights).run),)
    kept = validate_folder(out, judging=ANYTHING, targets=(fake(answer=subject.model.run),))
    assert accuracy_of(kept).max_drop == 0.02
    failed = validate_folder(out, judging=ANYTHING, measuring=measuring(), targets=again)
    assert (accuracy_of(failed).max_drop, failed.exit_code) == (0.02, 1)
    assert failed.artifacts[0].name == "rejected/fake"
    assert read_manifest(out) == replace(failed)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.5%", 0.005), ("0.005", 0.005), ("0.7 %", 0.007), ("0", 0.0), ("0%", 0.0), ("150%", 1.5)],
)
def test_a_drop_is_read_in_percent_or_as_a_part(text: str, value: float) -> None:
    assert parse_drop(text) == value


@pytest.mark.parametrize("text", ["0.5", "1", "-1%", "nan", "half", "", "%"])
def test_an_ambiguous_or_invalid_drop_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="--max-drop"):
        parse_drop(text)


def test_eager_runs_once_on_labelled_data_for_all_artifacts(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    told: list[Event] = []
    names = ("one", "two")
    order = Order(
        source=digits_source,
        wanted=tuple(Wanted(target=name) for name in names),
        out=tmp_path / "out",
        measuring=measuring(),
    )
    targets = tuple(fake(NAME=n, SUFFIX=f".{n}", answer=subject.model.run) for n in names)
    manifest = run(order, told.append, targets=targets)
    assert manifest.passed
    begun = [one.step for one in told if isinstance(one, Started) and "labelled" in one.step]
    assert [step.partition(" ")[0] for step in begun] == ["open", "eager", "labelled", "labelled"]
    assert manifest.order["metric"] == "top1"
    (eager,) = (
        one for one in told if isinstance(one, Finished) and one.step == "eager on labelled data"
    )
    assert eager.detail == "top1 99.33% on 450 samples"


def test_a_file_that_was_changed_is_not_run_on_labelled_data(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made(digits_source, out, subject.model.run, fake)
    (out / "model.fake").write_text("another")
    opened_: list[bool] = []
    again = fake(answer=subject.model.run, on_open=lambda: opened_.append(True))
    failed = validate_folder(out, measuring=measuring(), targets=(again,))
    assert failed.exit_code == 1
    assert opened_ == []
    assert reason_codes(failed.verdicts[0]) == [ReasonCode.CHANGED_FILE]
    assert any("labelled data" in note for note in failed.verdicts[0].notes)


def test_other_tolerances_do_not_accept_a_drop(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made(digits_source, out, Changed(subject, no_eights).run, fake, max_drop=0.005)
    again = rejudge_folder(out, ANYTHING)
    assert again.verdicts[0].state is State.FAILED
    assert "top1 drops by 9." in again.verdicts[0].reason
    assert again.artifacts[0].rejected


def test_an_engine_is_measured_on_the_host_that_builds_it(
    gate_source: Source, fake: Fakes, tmp_path: Path
) -> None:
    told: list[Event] = []
    x = np.abs(np.random.default_rng(0).normal(size=(12, 16))).astype(np.float32)
    np.savez(tmp_path / "gate.npz", x=x, y=eagerly({"x": x})["output"].argmax(axis=1))
    asked = measuring(tmp_path / "gate.npz", max_drop=0.0)
    order = Order(
        source=gate_source,
        wanted=(Wanted(target="engine"),),
        out=tmp_path / "out",
        measuring=asked,
    )
    prepared = run(order, told.append, targets=table(fake, ready=False))
    assert prepared.exit_code == 4
    notes = [one.text for one in told if isinstance(one, Noted)]
    assert any("engine" in note and "accuracy" in note for note in notes)
    done = finish_pending(
        FinishRequest(out=tmp_path / "out", measuring=asked), targets=table(fake, ready=True)
    )
    found = {artifact.name: artifact.accuracy for artifact in done.artifacts}
    assert found["engine"] == found["fake"]
    assert found["engine"] is not None
    assert (found["engine"].eager, found["engine"].samples) == (1.0, 12)


def _prepare_gate(
    source: Source, fake: Fakes, tmp_path: Path, max_drop: float, *, references: bool = True
) -> Measuring:
    """Prepare an engine with a gate; return the same measurement without it."""
    x = np.abs(np.random.default_rng(0).normal(size=(12, 16))).astype(np.float32)
    labels = eagerly({"x": x})["output"].argmax(axis=1)
    np.savez(tmp_path / "gate.npz", x=x, y=labels)
    asked = measuring(tmp_path / "gate.npz", max_drop=max_drop)
    order = Order(
        source=source,
        wanted=(Wanted(target="engine"),),
        out=tmp_path / "out",
        measuring=asked,
        references=references,
    )
    assert run(order, targets=table(fake, ready=False)).exit_code == 4
    return replace(asked, max_drop=None)


def test_an_engine_is_held_to_the_gate_of_its_preparation(
    gate_source: Source, fake: Fakes, tmp_path: Path
) -> None:
    asked = _prepare_gate(gate_source, fake, tmp_path, 0.01)
    again = FinishRequest(out=tmp_path / "out", measuring=asked)
    done = finish_pending(again, targets=table(fake, ready=True))
    (found,) = (a.accuracy for a in done.artifacts if a.name == "engine")
    assert found is not None
    assert found.max_drop == 0.01


@pytest.mark.parametrize("references", [True, False])
def test_a_finish_that_does_not_measure_as_its_preparation_did_says_so(
    gate_source: Source, fake: Fakes, tmp_path: Path, *, references: bool
) -> None:
    told: list[Event] = []
    _prepare_gate(gate_source, fake, tmp_path, 0.01, references=references)
    request = FinishRequest(out=tmp_path / "out")
    done = finish_pending(request, told.append, targets=table(fake, ready=True))
    verdict = done.verdict_of("engine")
    assert verdict is not None
    noted = [one.text for one in told if isinstance(one, Noted)]
    notes = verdict.notes if references else noted
    assert any(SKIPPED_TEXTS[SkippedCheck.ACCURACY] in note for note in notes)


def test_padding_of_a_fixed_batch_is_not_scored(digits_source: Source, tmp_path: Path) -> None:
    source = replace(digits_source, inputs=("x:float32[4,1,8,8]",), samples=None)
    fixed = open_source(source, tmp_path)
    progress = Progress(tell=ignore_events, logs=tmp_path)
    runner = Changed(fixed, lambda _, logits: logits)
    with ExitStack() as held:
        labelled = enter_labelled(measuring(), fixed, progress, held)
        assert labelled is not None
        found = measure_accuracy(runner, labelled)
    assert runner.sizes == {4}
    assert (found.samples, found.eager, found.artifact) == (450, 447 / 450, 447 / 450)


def test_a_recorded_drop_rejects_an_unchanged_file(
    digits_source: Source, subject: EagerReference, fake: Fakes, tmp_path: Path
) -> None:
    """Its values are right within what was asked; the recorded drop is of this very file."""
    wrong = Changed(subject, no_eights).run
    manifest = made(digits_source, tmp_path / "out", wrong, fake, max_drop=0.005)
    (refused,) = manifest.artifacts
    passed = Judgment(measured=replace(manifest.verdicts[0], state=State.PASSED, reasons=()))
    asked = JudgeRequest(
        candidate=Candidate(name="fake", target=fake(), precision=Precision.FP32, path=tmp_path),
        eager=subject,
        judging=Judging(),
        progress=Progress(tell=ignore_events, logs=tmp_path),
        recorded_accuracy=refused.accuracy,
    )
    verdict = passed.plus(check_accuracy(asked, passed)).verdict
    assert verdict.state is State.FAILED
    assert [reason.code for reason in verdict.reasons] == [ReasonCode.ACCURACY]
    assert check_accuracy(replace(asked, recorded_accuracy=None), passed) == Ruling()
