"""Metrics on labelled data: right, wrong, tied and unusable answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.findings import Accuracy
from modelc.validators.accuracy_text import explain_doubt
from modelc.validators.paired_answers import (
    ModelAnswers,
    compare_answers,
    explain_near_chance,
    find_differing_samples,
    find_metric,
    find_newly_broken,
)
from modelc.validators.task_metrics import LabelFaultError

from ..reasons import has_code

Floats = NDArray[np.float32]


def no_load(spec: str) -> object:
    raise AssertionError(f"nothing was to be imported, but {spec}")


def answered(
    metric: str,
    predictions: object,
    labels: object,
    load: Callable[[str], object] = no_load,
) -> ModelAnswers:
    """All samples in one batch."""
    answers = ModelAnswers(find_metric(metric, load))
    answers.add(np.asarray(predictions, dtype=np.float32), np.asarray(labels))
    return answers


def one_hot(classes: Sequence[int], count: int = 10) -> Floats:
    return np.eye(count, dtype=np.float32)[list(classes)]


def test_top1_is_the_share_of_right_classes() -> None:
    assert answered("top1", one_hot([0, 1, 2, 3]), [0, 1, 2, 9]).value == 0.75


def test_top5_counts_a_class_among_the_five_highest() -> None:
    falling = np.arange(10, 0, -1, dtype=np.float32)
    answers = answered("top5", [falling] * 3, [0, 4, 5])
    assert answers.value == pytest.approx(2 / 3)


def test_an_output_that_is_one_value_for_all_classes_is_not_right_everywhere() -> None:
    answers = answered("top1", np.zeros((10, 10)), range(10))
    assert answers.value == 0.1


def test_nan_is_no_answer() -> None:
    predictions = one_hot([3, 4])
    predictions[0, 7] = np.nan
    answers = answered("top1", predictions, [3, 4])
    assert answers.value == 0.5
    assert find_newly_broken(answered("top1", one_hot([3, 4]), [3, 4]), answers, 0, 2) == [0]


def test_mse_is_the_mean_over_elements_and_samples() -> None:
    answers = answered("mse", [[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [3.0, 4.0]])
    assert answers.value == 1.0
    assert not answers.metric.higher_is_better


@pytest.mark.parametrize(
    ("metric", "predictions", "labels", "words"),
    [
        ("top1", one_hot([1, 2]), [1, 10], "label 10; the output has 10 classes, 0 to 9"),
        ("top1", one_hot([1, 2]), [-1, 2], "label -1"),
        ("top1", one_hot([1, 2]), [0.5, 2.0], "label 0.5"),
        ("top1", one_hot([1, 2]), one_hot([1, 2]), "one class number is wanted"),
        ("top1", np.zeros((2, 3, 4)), [0, 1], "float32 3x4"),
        ("top1", np.zeros((2, 1)), [0, 0], "1 values"),
        ("top5", np.zeros((2, 5)), [0, 1], "5 values"),
        ("mse", np.zeros((2, 3)), np.zeros((2, 4)), "label of 4, and the output is 3"),
        ("mse", np.zeros((2, 2, 3)), np.zeros((2, 3, 2)), "label of 3x2"),
    ],
)
def test_what_cannot_be_scored_is_an_error(
    metric: str, predictions: object, labels: object, words: str
) -> None:
    with pytest.raises(LabelFaultError, match=words) as caught:
        answered(metric, predictions, labels)
    assert caught.value.hint


def test_the_row_of_a_bad_label_is_known() -> None:
    with pytest.raises(LabelFaultError) as caught:
        answered("top1", one_hot([1, 2, 3]), [1, 2, 77])
    assert caught.value.row == 2


def test_a_drop_counts_what_each_gets_right() -> None:
    labels = [number % 10 for number in range(200)]
    artifact = list(labels)
    artifact[0], artifact[11] = 5, 7
    one, other = answered("top1", one_hot(labels), labels), answered(
        "top1", one_hot(artifact), labels
    )  # fmt: skip
    pair = compare_answers(one, other)
    assert (pair.drop, pair.differing) == (0.01, 2)
    assert find_differing_samples(one, other, 0, 200) == [0, 11]
    assert pair.interval.low < 0.01 < pair.interval.high


def test_two_that_are_wrong_otherwise_disagree_without_a_drop() -> None:
    one, other = (
        answered("top1", one_hot([1, 2]), [5, 2]),
        answered("top1", one_hot([3, 2]), [5, 2]),
    )
    assert (compare_answers(one, other).drop, find_differing_samples(one, other, 0, 2)) == (
        0.0,
        [0],
    )


def test_the_drop_of_mse_is_relative_and_positive_for_worse() -> None:
    labels = np.zeros((50, 4))
    eager, artifact = answered("mse", labels + 1.0, labels), answered("mse", labels + 1.1, labels)
    pair = compare_answers(eager, artifact)
    assert pair.drop == pytest.approx(0.21, abs=1e-6)
    assert pair.interval.low <= pair.drop <= pair.interval.high


def test_a_relative_drop_from_zero_is_rejected() -> None:
    exact = answered("mse", [[1.0]], [[1.0]])
    with pytest.raises(UsageError, check=has_code(ErrorCode.METRIC_UNDEFINED, naming="mse")):
        compare_answers(exact, answered("mse", [[2.0]], [[1.0]]))


@pytest.mark.parametrize("order", [range(1, 11), range(9, -1, -1)])
def test_another_order_of_classes_looks_like_chance(order: Sequence[int]) -> None:
    labels = [number % 10 for number in range(300)]
    shuffled = [order[label] % 10 for label in labels]
    assert explain_near_chance(answered("top1", one_hot(shuffled), labels))
    assert explain_near_chance(answered("top1", one_hot(labels), labels)) == ""


def share(predictions: Sequence[Floats], labels: Sequence[NDArray[np.int64]]) -> float:
    return float(np.mean([p.argmax() == y for p, y in zip(predictions, labels, strict=True)]))


share.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


def recall_of_nines(predictions: Sequence[Floats], labels: Sequence[NDArray[np.int64]]) -> float:
    hits = [bool(p.argmax() == 9) for p, y in zip(predictions, labels, strict=True) if y == 9]
    return sum(hits) / len(hits)


recall_of_nines.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


@pytest.mark.parametrize(("nines", "defined"), [(3, True), (1, True), (0, False)])
def test_resamples_on_which_a_metric_is_undefined_are_left_out(nines: int, defined: bool) -> None:
    labels = [9] * nines + [1] * 40
    eager = answered("m:recall", one_hot(labels), labels, lambda _: recall_of_nines)
    if not defined:
        with pytest.raises(UsageError, match="raised ZeroDivisionError"):
            compare_answers(eager, eager)
        return
    pair = compare_answers(eager, eager)
    assert (pair.drop, pair.interval.low, pair.interval.high) == (0, 0, 0)
    assert 1000 < int(pair.interval.method.split()[2].replace(",", "")) < 2000


def length(predictions: Sequence[Floats], labels: Sequence[NDArray[np.int64]]) -> float:
    return float(len(predictions) + len(labels))


length.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


@pytest.mark.parametrize(("samples", "resamples"), [(900, 2000), (4000, 500), (30_000, 100)])
def test_the_number_of_resamples_follows_from_the_samples_alone(
    samples: int, resamples: int
) -> None:
    labels = [0] * samples
    eager = answered("m:length", one_hot(labels, count=1), labels, lambda _: length)
    method = compare_answers(eager, eager).interval.method
    assert method.split()[2].replace(",", "") == str(resamples)


def distance(prediction: Floats, label: NDArray[np.int64]) -> float:
    return abs(float(prediction.argmax()) - float(label))


distance.higher_is_better = False  # type: ignore[attr-defined]  # the contract of a metric
distance.per_sample = True  # type: ignore[attr-defined]  # called with one sample


def test_a_metric_of_ones_own_gets_all_samples() -> None:
    labels = [number % 10 for number in range(60)]
    wrong = [0, *labels[1:]][:30] + [9] * 30
    eager = answered("m:share", one_hot(labels), labels, lambda _: share)
    artifact = answered("m:share", one_hot(wrong), labels, lambda _: share)
    pair = compare_answers(eager, artifact)
    assert eager.value == 1.0
    assert pair.drop == pytest.approx(27 / 60)
    assert "bootstrap" in pair.interval.method
    assert 0.3 < pair.interval.low < pair.drop < pair.interval.high < 0.6


def test_a_metric_of_one_sample_is_averaged() -> None:
    eager = answered("m:distance", one_hot([1, 2, 3]), [1, 2, 3], lambda _: distance)
    artifact = answered("m:distance", one_hot([1, 2, 9]), [1, 2, 3], lambda _: distance)
    assert (eager.value, artifact.value, compare_answers(eager, artifact).drop) == (0.0, 2.0, 2.0)


def raising(*_: object) -> float:
    raise ZeroDivisionError("nothing to divide by")


raising.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


def wordy(*_: object) -> str:
    return "good"


wordy.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


def nameless(*_: object) -> float:
    return float("nan")


nameless.higher_is_better = True  # type: ignore[attr-defined]  # the contract of a metric


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (raising, "raised ZeroDivisionError: nothing to divide by"),
        (wordy, "gave a str, not a number"),
        (nameless, "gave nan"),
        (len, "does not say whether more is better"),
        ("text", "is a str, which cannot be called"),
    ],
)
def test_a_metric_that_cannot_be_used_is_an_error_of_one_line(found: object, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        _ = answered("m:f", one_hot([1]), [1], lambda _: found).value
    assert "\n" not in caught.value.message


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'top2'")):
        find_metric("top2", no_load)


@pytest.mark.parametrize(("count", "few"), [(1, True), (9, True), (10, False)])
def test_a_handful_of_samples_is_said_to_be_none(count: int, few: bool) -> None:
    """A bootstrap of one sample has no width, and would count as proof."""
    found = compare_answers(answered("mse", [[1.0]] * count, [[0.0]] * count),
                   answered("mse", [[1.01]] * count, [[0.0]] * count))  # fmt: skip
    accuracy = Accuracy(
        metric="mse", higher_is_better=False, samples=count, eager=1.0, artifact=1.0201,
        drop=found.drop, low=found.interval.low, high=found.interval.high, confidence=0.95,
        method=found.interval.method, max_drop=0.05, relative=True,
    )  # fmt: skip
    assert accuracy.passed
    assert bool(explain_doubt(accuracy)) == few
