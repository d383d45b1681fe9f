"""The judge passes artifacts that are right, and says what a reader should know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision
from modelc.core.verdict import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from modelc.core.verdict import Verdict

    Array = NDArray[Any]
    Feed = dict[str, Array]
    Outputs = dict[str, Array]
    Judged = Callable[..., Verdict]

X = "x:float32[batch=1..8,6]"
FLAG = "flag:float32[batch,6]"
WEIGHT = np.random.default_rng(7).standard_normal((6, 4)).astype(np.float32)


def linear(feed: Feed) -> Outputs:
    return {"y": feed["x"] @ WEIGHT}


def noisy(array: Array, decibel: float) -> Array:
    """The array with noise at so many dB of its own power, always the same."""
    noise = np.random.default_rng(3).standard_normal(array.shape)
    noise *= np.sqrt(np.mean(array**2) / np.mean(noise**2)) * 10 ** (decibel / 20)
    return np.asarray(array + noise).astype(array.dtype)


def test_an_exact_artifact_passes_and_is_called_exact(judged: Judged) -> None:
    verdict = judged(linear, linear, X)
    assert verdict.state is State.PASSED
    assert verdict.reason == ""
    assert all(output.exact and output.sqnr is None for output in verdict.outputs)


def test_every_feed_and_output_has_its_record(judged: Judged) -> None:
    verdict = judged(linear, linear, X)
    assert verdict.feeds == ("min", "opt", "max", "negated", "seed-1")
    assert [output.feed for output in verdict.outputs] == list(verdict.feeds)
    assert verdict.outputs[2].shape == (8, 4)


def test_noise_at_110_db_passes_at_fp32(judged: Judged) -> None:
    verdict = judged(linear, lambda feed: {"y": noisy(linear(feed)["y"], -110)}, X)
    assert verdict.passed
    assert verdict.sqnr == pytest.approx(110, abs=3)


def test_a_single_element_just_below_the_limit_passes(judged: Judged) -> None:
    wide = "x:float32[batch=64..64,6]"

    def artifact(feed: Feed) -> Outputs:
        y = linear(feed)["y"].copy()
        y[0, 0] += np.float32(0.9 * (1e-6 + 1e-4 * float(np.abs(y).max())))
        return {"y": y}

    assert judged(linear, artifact, wide).passed


def test_a_single_element_just_above_the_limit_fails_on_max_abs_alone(judged: Judged) -> None:
    wide = "x:float32[batch=64..64,6]"

    def artifact(feed: Feed) -> Outputs:
        y = linear(feed)["y"].copy()
        y[0, 0] += np.float32(1.1 * (1e-6 + 1e-4 * float(np.abs(y).max())))
        return {"y": y}

    verdict = judged(linear, artifact, wide)
    assert "max abs" in verdict.reason
    assert "SQNR" not in verdict.reason


@pytest.mark.parametrize(("decibel", "passed"), [(-92.0, True), (-88.0, False)])
def test_the_sqnr_limit_is_at_90_db(judged: Judged, decibel: float, passed: bool) -> None:
    fixed = "x:float32[8,6]"
    verdict = judged(linear, lambda feed: {"y": noisy(linear(feed)["y"], decibel)}, fixed)
    assert verdict.passed is passed


def test_half_precision_noise_passes_at_fp16_and_fails_at_fp32(judged: Judged) -> None:
    half = WEIGHT.astype(np.float16).astype(np.float32)

    def artifact(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ half}

    assert judged(linear, artifact, X, precision=Precision.FP16).passed
    assert judged(linear, artifact, X).state is State.FAILED


def near_zero(feed: Feed) -> Outputs:
    """An output that is large, and near zero for a batch of 8."""
    scale = 1e-6 if len(feed["x"]) == 8 else 1e3
    return {"y": linear(feed)["y"] * np.float32(scale)}


def off_by(error: float) -> Callable[[Feed], Outputs]:
    """The same, off by so much where it is near zero."""

    def artifact(feed: Feed) -> Outputs:
        y = near_zero(feed)["y"]
        return {"y": y + np.float32(error) * np.sign(y) * (np.abs(y) < 0.1)}

    return artifact


def test_roundoff_at_the_usual_scale_passes_where_an_output_is_near_zero(judged: Judged) -> None:
    verdict = judged(near_zero, off_by(2e-3), X)
    assert verdict.passed
    (note,) = verdict.notes
    assert "'y'" in note
    assert "max (batch=8)" in note
    assert "usual scale" in note


def test_more_than_roundoff_at_the_usual_scale_fails(judged: Judged) -> None:
    assert judged(near_zero, off_by(5e-2), X).state is State.FAILED


def test_the_reported_peak_and_sqnr_are_the_feeds_own(judged: Judged) -> None:
    tiny = judged(near_zero, off_by(2e-3), X).outputs[2]
    assert tiny.passed
    assert tiny.peak is not None
    assert tiny.peak < 1e-4
    assert tiny.sqnr is not None
    assert tiny.sqnr < 0


def test_one_feed_that_blows_up_does_not_loosen_the_others(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": linear(feed)["y"] * np.float32(1e6 if len(feed["x"]) == 8 else 1)}

    def artifact(feed: Feed) -> Outputs:
        return {"y": eager(feed)["y"] * np.float32(1 if len(feed["x"]) == 8 else 1.01)}

    assert "max abs" in judged(eager, artifact, X).reason


def test_equal_integers_pass(judged: Judged) -> None:
    def labels(feed: Feed) -> Outputs:
        return {"label": linear(feed)["y"].argmax(-1)}

    assert judged(labels, labels, X).passed


def test_an_empty_output_passes_with_a_note(judged: Judged) -> None:
    def empty(feed: Feed) -> Outputs:
        return linear(feed) | {"boxes": np.zeros((0, 4), np.float32)}

    verdict = judged(empty, empty, X)
    assert verdict.passed
    (note,) = verdict.notes
    assert "'boxes'" in note
    assert "empty" in note


def test_a_scalar_output_passes(judged: Judged) -> None:
    def loss(feed: Feed) -> Outputs:
        return {"loss": np.array(linear(feed)["y"].sum())}

    assert judged(loss, loss, X).passed


def test_matched_negative_infinities_pass_with_a_note(judged: Judged) -> None:
    def causal(feed: Feed) -> Outputs:
        y = linear(feed)["y"].copy()
        y[:, -1] = -np.inf
        return {"y": y}

    verdict = judged(causal, causal, X)
    assert verdict.passed
    assert verdict.outputs[0].nonfinite_eager == 1
    (note,) = verdict.notes
    for value in ("'y'", "1 NaN/Inf", "min (batch=1)", "4 more"):
        assert value in note


def test_an_input_that_eager_does_not_use_may_be_left_out(judged: Judged) -> None:
    verdict = judged(linear, linear, X, FLAG, taken=["x"])
    assert verdict.passed
    (note,) = verdict.notes
    assert "'flag'" in note
    assert "taken" in note


def test_a_move_below_the_precision_is_a_note_and_no_failure(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": linear(feed)["y"] + np.float32(1e-6) * feed["flag"][:, :4]}

    verdict = judged(eager, linear, X, FLAG)
    assert verdict.passed
    assert "'flag'" in verdict.notes[0]
    assert "ignored" in verdict.notes[0]


def test_an_output_of_zeros_alone_passes_within_atol(judged: Judged) -> None:
    def zeros(feed: Feed) -> Outputs:
        return {"y": np.zeros((len(feed["x"]), 4), np.float32)}

    assert judged(zeros, lambda feed: {"y": zeros(feed)["y"] + np.float32(5e-7)}, X).passed
