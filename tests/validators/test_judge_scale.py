"""The judge at the right scale: of the feed, of the channel, and of the answers beside fill."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import State
from modelc.validators.channel_metrics import pool_channels
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import OutputPair
from modelc.validators.tolerance import tolerance_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from modelc.core.verdict import Verdict

    Array = NDArray[Any]
    Feed = dict[str, Array]
    Outputs = dict[str, Array]
    Judged = Callable[..., Verdict]

F = np.float32
FP16, FP32 = Precision.FP16, Precision.FP32
X = "x:float32[batch=1..8,6]"
M = "m:bool[]"
MASK = "mask:int64[batch,5]{0..1}"
IMAGE = "x:float32[batch=1..8,5,6]"
WEIGHT = np.random.default_rng(7).standard_normal((6, 4)).astype(F)
OTHER = np.random.default_rng(8).standard_normal((6, 5)).astype(F)


def noisy(array: Array, decibel: float) -> Array:
    """The array with noise at so many dB of its own power, always the same."""
    noise = np.random.default_rng(3).standard_normal(array.shape)
    noise *= np.sqrt(np.mean(array.astype(np.float64) ** 2)) * 10 ** (decibel / 20)
    return np.asarray(array + noise).astype(array.dtype)


def with_noise(model: Callable[[Feed], Outputs], decibel: float) -> Callable[[Feed], Outputs]:
    return lambda feed: {name: noisy(array, decibel) for name, array in model(feed).items()}


# A feed that is small, beside others that are large.


def experts(times: float) -> Callable[[Feed], Outputs]:
    """A branch that is large, and one that is small, `times` what it should be."""

    def model(feed: Feed) -> Outputs:
        large, small = feed["x"] @ WEIGHT * F(1000), feed["x"] @ OTHER[:, :4] * F(times)
        return {"y": large if feed["m"] else small}

    return model


@pytest.mark.parametrize(("times", "precision"), [(-1.0, FP16), (1.02, FP32)])
def test_a_wrong_branch_with_small_outputs_fails(
    judged: Judged, times: float, precision: Precision
) -> None:
    verdict = judged(experts(1), experts(times), X, M, precision=precision)
    assert verdict.state is State.FAILED
    assert judged(experts(1), experts(1), X, M, precision=precision).passed


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("times", [-1.0, 0.0, 0.3, -0.01])
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 1.0, 1e3])
def test_nothing_passes_with_another_direction_beyond_the_floor(
    judged: Judged, precision: Precision, times: float, scale: float
) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ WEIGHT * F(scale if len(feed["x"]) in (1, 8) else 1)}

    def artifact(feed: Feed) -> Outputs:
        y = eager(feed)["y"]
        turned = np.roll(y, 1, -1) if times == 0.3 else y * F(times)
        return {"y": turned if len(feed["x"]) in (1, 8) else y}

    verdict = judged(eager, artifact, X, precision=precision)
    usual = float(np.median([o.peak or 0.0 for o in verdict.outputs]))
    floor = tolerance_for(precision).rtol / 50 * usual
    for output in verdict.outputs:
        beyond = output.max_abs is not None and output.max_abs > floor
        if beyond and output.cosine is not None and output.cosine < 0.9:
            assert not output.passed
            assert not verdict.passed


def test_outputs_that_are_small_everywhere_are_not_excused(judged: Judged) -> None:
    weight = np.random.default_rng(1).standard_normal((6, 20_000)).astype(F)

    def classes(feed: Feed) -> Outputs:
        raised = np.exp(feed["x"] @ weight * F(0.1))
        return {"y": raised / raised.sum(-1, keepdims=True)}

    def rolled(feed: Feed) -> Outputs:
        return {"y": np.roll(classes(feed)["y"], 1, -1)}

    assert judged(classes, rolled, X, precision=FP16).state is State.FAILED


def test_a_sparse_output_is_not_excused_by_its_peak(judged: Judged) -> None:
    def heatmap(feed: Feed) -> Outputs:
        y = np.full((len(feed["x"]), 5000), 1e-4, F) * feed["x"][:, :1]
        y[:, 7] = 1
        return {"y": y}

    def noisy_ground(feed: Feed) -> Outputs:
        y = heatmap(feed)["y"]
        return {"y": y + F(5e-4) * (np.arange(5000) % 2 * 2 - 1).astype(F)}

    assert judged(heatmap, noisy_ground, X, precision=FP16).state is State.FAILED


# A channel that is small, beside others that are large.


def yolo(times: float) -> Callable[[Feed], Outputs]:
    """Boxes in pixels beside scores, whose weights are `times` what they should be."""
    boxes = np.random.default_rng(5).standard_normal((6, 4)).astype(F)

    def model(feed: Feed) -> Outputs:
        scores = 1 / (1 + np.exp(-(feed["x"] @ OTHER) * F(times)))
        pixels = (1 / (1 + np.exp(-(feed["x"] @ boxes)))) * 640
        return {"y": np.concatenate([pixels, scores], -1).astype(F)}

    return model


@pytest.mark.parametrize(("times", "precision"), [(1.05, FP32), (-8.0, FP16)])
def test_wrong_scores_beside_boxes_in_pixels_fail(
    judged: Judged, times: float, precision: Precision
) -> None:
    verdict = judged(yolo(1), yolo(times), IMAGE, precision=precision)
    assert verdict.state is State.FAILED
    (channel,) = (r for r in verdict.reasons if r.code is ReasonCode.CHANNEL_DIFFERS)
    assert "axis -1" in channel.text
    assert channel.feed == ""


def test_wrong_scores_along_axis_1_fail(judged: Judged) -> None:
    def turned(times: float) -> Callable[[Feed], Outputs]:
        return lambda feed: {"y": yolo(times)(feed)["y"].swapaxes(1, 2)}

    verdict = judged(turned(1), turned(1.05), IMAGE)
    assert "channel " in verdict.reason
    assert "of axis 1: SQNR" in verdict.reason


def test_the_channel_that_is_wrong_is_named(judged: Judged) -> None:
    scales = np.array([2e3, 2e3, 1, 2e3], F)

    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ WEIGHT * scales}

    def wrong(feed: Feed) -> Outputs:
        y = eager(feed)["y"].copy()
        y[:, 2] += F(0.1)
        return {"y": y}

    verdict = judged(eager, wrong, "x:float32[batch=4..8,6]")
    assert all(output.passed for output in verdict.outputs)
    (reason,) = verdict.reasons
    assert (reason.code, reason.output, reason.feed) == (ReasonCode.CHANNEL_DIFFERS, "y", "")
    for value in ("channel 2", "axis -1", "SQNR", "dB < 70"):
        assert value in reason.text


def test_values_in_a_channel_that_eager_leaves_zero_fail(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ WEIGHT * np.array([1e6, 1e6, 0, 1e6], F)}

    def wrong(feed: Feed) -> Outputs:
        return {"y": eager(feed)["y"] + np.array([0, 0, 20, 0], F)}

    assert "channel 2 of axis -1" in judged(eager, wrong, X).reason


@pytest.mark.parametrize("scales", [(1, 1e-4), (1e-4, 1), (1, 1, 1, 1e-4)])
def test_quiet_channels_with_noise_at_the_level_of_the_whole_pass(
    judged: Judged, scales: tuple[float, ...]
) -> None:
    weight = np.random.default_rng(2).standard_normal((6, 64)).astype(F)

    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ weight * np.resize(np.array(scales, F), 64)}

    verdict = judged(eager, with_noise(eager, -115), IMAGE)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("decibel", "precision"), [(-115.0, FP32), (-60.0, FP16)])
def test_sparse_relu_channels_pass(judged: Judged, decibel: float, precision: Precision) -> None:
    weight = np.random.default_rng(2).standard_normal((6, 64)).astype(F)
    bias = np.linspace(-9, 1, 64, dtype=F)

    def before(feed: Feed) -> Array:
        return np.asarray(feed["x"] @ weight + bias)

    verdict = judged(
        lambda feed: {"y": np.maximum(before(feed), 0)},
        lambda feed: {"y": np.maximum(noisy(before(feed), decibel), 0)},
        IMAGE,
        precision=precision,
    )
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("decibel", "precision"), [(-115.0, FP32), (-60.0, FP16)])
def test_softmax_outputs_pass(judged: Judged, decibel: float, precision: Precision) -> None:
    weight = 3 * np.random.default_rng(2).standard_normal((6, 64)).astype(F)

    def softmax(logits: Array) -> Outputs:
        raised = np.exp(logits - logits.max(-1, keepdims=True))
        return {"y": raised / raised.sum(-1, keepdims=True)}

    verdict = judged(
        lambda feed: softmax(feed["x"] @ weight),
        lambda feed: softmax(noisy(feed["x"] @ weight, decibel)),
        IMAGE,
        precision=precision,
    )
    assert verdict.passed, verdict.reason


def test_an_axis_of_varying_size_has_no_channels(judged: Judged) -> None:
    tokens = "x:float32[2,seq=1..9]"

    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"]}

    assert judged(eager, with_noise(eager, -110), tokens).passed


def test_pooling_channels_needs_memory_for_a_block_alone() -> None:
    eager = np.ones((2, 256, 64, 64), F)
    feed = NamedFeed(name="opt", arrays={}, sizes={})
    pair = OutputPair(feed=feed, eager={"y": eager}, artifact={"y": eager.copy()})
    tracemalloc.start()
    found = pool_channels("y", [pair, pair], 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6
    assert found.signal.tolist() == [2 * 2 * 64 * 64] * 256


# Answers beside the fill of a mask.


def masked(times: float, fill: float = -1e4) -> Callable[[Feed], Outputs]:
    """Logits under an additive mask, the last one always, with weights `times` what they should."""

    def model(feed: Feed) -> Outputs:
        hidden = 1 - feed["mask"] * np.array([1, 1, 1, 1, 0])
        return {"y": feed["x"] @ OTHER * F(times) + hidden.astype(F) * F(fill)}

    return model


@pytest.mark.parametrize("times", [1.10, 1.01])
def test_a_wrong_weight_under_an_additive_mask_fails(judged: Judged, times: float) -> None:
    assert judged(masked(1), masked(1), X, MASK).passed
    assert judged(masked(1), masked(times), X, MASK).state is State.FAILED


def test_an_input_that_is_ignored_under_an_additive_mask_fails(judged: Judged) -> None:
    def stuck(feed: Feed) -> Outputs:
        return masked(1)({"x": np.ones_like(feed["x"]), "mask": feed["mask"]})

    verdict = judged(masked(1), stuck, X, MASK, precision=FP16)
    (ignored,) = (r for r in verdict.reasons if r.code is ReasonCode.INPUT_IGNORED)
    assert "'x'" in ignored.text
    assert any(not output.passed for output in verdict.outputs)


def test_an_input_that_is_ignored_is_clear_beside_fill_alone(judged: Judged) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": np.concatenate([F(0.01) * feed["x"], np.full_like(feed["x"], -1e4)], -1)}

    def stuck(feed: Feed) -> Outputs:
        return eager({"x": np.full_like(feed["x"], 0.5)})

    (ignored,) = (r for r in judged(eager, stuck, X).reasons if r.code is ReasonCode.INPUT_IGNORED)
    assert "'x'" in ignored.text


def test_a_mask_over_most_of_an_output_does_not_hide_the_rest(judged: Judged) -> None:
    def mostly(times: float) -> Callable[[Feed], Outputs]:
        def model(feed: Feed) -> Outputs:
            y = feed["x"] @ OTHER * F(times)
            return {"y": y - F(1e4) * (np.arange(5) > 1)}

        return model

    assert judged(mostly(1), mostly(1), X).passed
    assert judged(mostly(1), mostly(1.10), X).state is State.FAILED


def test_large_logits_beside_fill_are_judged_at_their_own_scale(judged: Judged) -> None:
    def large(times: float) -> Callable[[Feed], Outputs]:
        def model(feed: Feed) -> Outputs:
            y = 20 + feed["x"] @ OTHER * F(times)
            return {"y": y + (1 - feed["mask"]).astype(F) * F(-1e4)}

        return model

    assert judged(large(1), large(1), X, MASK, precision=FP16).passed
    assert judged(large(1), large(-1), X, MASK, precision=FP16).state is State.FAILED


def test_wrong_fill_fails_and_is_called_so(judged: Judged) -> None:
    verdict = judged(masked(1), masked(1, fill=-2e4), X, MASK)
    assert "fill: max abs" in verdict.reason


def test_fill_that_half_precision_rounds_passes(judged: Judged) -> None:
    def half(feed: Feed) -> Outputs:
        return {"y": masked(1)(feed)["y"].astype(np.float16).astype(F)}

    assert judged(masked(1), half, X, MASK, precision=FP16).passed


@pytest.mark.parametrize("shape", ["x:float32[batch=1..8,6]", "x:float32[batch=1..8,64,6]"])
def test_large_outputs_of_one_mode_are_judged_whole(judged: Judged, shape: str) -> None:
    def eager(feed: Feed) -> Outputs:
        return {"y": feed["x"] @ WEIGHT * F(1e5)}

    verdict = judged(eager, with_noise(eager, -110), shape)
    assert verdict.passed, verdict.reason
    assert all(o.peak is not None and o.peak > 1e4 for o in verdict.outputs)


# A feed on which eager has no finite value.


def spread(feed: Feed) -> Outputs:
    """As `x.std(0)`: undefined for a single row."""
    few = len(feed["x"]) == 1
    return {"y": np.full(6, np.nan, F) if few else feed["x"].std(0, ddof=1)}


def test_nan_alone_on_one_feed_passes_with_a_note(judged: Judged) -> None:
    verdict = judged(spread, spread, X)
    assert verdict.passed, verdict.reason
    (note,) = verdict.notes
    for value in ("'y'", "6 NaN/Inf", "min (batch=1)"):
        assert value in note


def test_a_finite_value_where_eager_has_nan_alone_fails(judged: Judged) -> None:
    def zero(feed: Feed) -> Outputs:
        return {"y": np.nan_to_num(spread(feed)["y"])}

    first = judged(spread, zero, X).outputs[0]
    assert not first.passed
    assert (first.nonfinite_eager, first.nonfinite_artifact) == (6, 0)
