"""An artifact that was calibrated is judged on values of its own kind; elsewhere by form alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision
from modelc.validators.feeds import NamedFeed, draw_feeds
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import tolerance_for

from .judging import signature_of, verdict_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from modelc.core.verdict import Verdict

    Array = NDArray[Any]
    Outputs = dict[str, Array]

X = "x:float32[batch=1..8,6]"
WEIGHT = np.random.default_rng(7).standard_normal((6, 4)).astype(np.float32)
HELD_OUT = tuple(
    NamedFeed(
        name=f"held-out-{number}",
        arrays={"x": np.random.default_rng(number).uniform(0, 1, (1, 6)).astype(np.float32)},
        sizes={},
    )
    for number in (1, 2, 3)
)


def eager(array: Array) -> Array:
    return array @ WEIGHT


def quantized(array: Array) -> Array:
    """8 bits over 0..1: what was calibrated; beyond it everything saturates."""
    return np.asarray(np.round(np.clip(array, 0, 1) * 255) / 255 @ WEIGHT).astype(np.float32)


def judged(artifact: Callable[[Array], Array], *, loose: bool = True) -> Verdict:
    drawn = draw_feeds(signature_of(X))
    references = [
        ReferenceOutputs(feed=feed, outputs={"y": eager(feed.arrays["x"])})
        for feed in (*drawn, *HELD_OUT)
    ]
    return verdict_on(
        references,
        [ArtifactOutputs(outputs={"y": artifact(r.feed.arrays["x"])}) for r in references],
        tolerance=tolerance_for(Precision.INT8),
        signature=X,
        loose=frozenset(feed.name for feed in drawn) if loose else frozenset(),
    )


def test_values_that_it_was_not_calibrated_for_do_not_count() -> None:
    verdict = judged(quantized)
    assert verdict.passed
    assert verdict.sqnr is not None
    assert verdict.sqnr > 40


def test_without_held_out_samples_they_do() -> None:
    assert not judged(quantized, loose=False).passed


def test_every_feed_is_on_record_and_says_whether_it_counted() -> None:
    verdict = judged(quantized)
    counted = {output.feed for output in verdict.outputs if not output.loose}
    assert counted == {feed.name for feed in HELD_OUT}
    assert len(verdict.outputs) == len(verdict.feeds) > len(HELD_OUT)


def test_an_artifact_that_is_wrong_on_held_out_samples_fails() -> None:
    verdict = judged(lambda x: quantized(x) + np.float32(0.5) * eager(np.ones_like(x)))
    assert not verdict.passed
    assert "held-out" in verdict.reason


def test_nan_on_a_drawn_feed_fails() -> None:
    def broken(x: Array) -> Array:
        return np.where(x.min() < 0, np.float32(np.nan), quantized(x))

    verdict = judged(broken)
    assert not verdict.passed
    assert any(
        output.nonfinite_artifact and not output.nonfinite_eager for output in verdict.outputs
    )


def test_another_shape_on_a_drawn_feed_fails() -> None:
    verdict = judged(lambda x: quantized(x)[:1])
    assert "shape [1, 4], eager has" in verdict.reason


@pytest.mark.parametrize("seed", range(20))
def test_noise_at_20_db_passes_and_at_10_db_fails(seed: int) -> None:
    generator = np.random.default_rng(seed)

    def with_noise(x: Array, decibel: float) -> Array:
        truth = eager(x)
        noise = generator.standard_normal(truth.shape)
        noise *= np.sqrt(np.mean(truth**2) / np.mean(noise**2)) * 10 ** (-decibel / 20)
        return np.asarray(truth + noise).astype(np.float32)

    assert judged(lambda x: with_noise(x, 20)).passed
    assert not judged(lambda x: with_noise(x, 10)).passed


def test_a_quiet_channel_may_drown_in_8_bit_noise() -> None:
    scale = np.array([1, 1, 1, 1e-3], dtype=np.float32)
    references = [
        ReferenceOutputs(feed=feed, outputs={"y": eager(feed.arrays["x"]) * scale})
        for feed in HELD_OUT
    ]
    replies = [
        ArtifactOutputs(outputs={"y": r.outputs["y"] + np.float32(2e-3)}) for r in references
    ]

    def verdict(*, by_channel: bool) -> Verdict:
        tolerance = tolerance_for(Precision.FP16)
        return verdict_on(
            references, replies, tolerance=tolerance, signature=X, by_channel=by_channel
        )

    assert "channel 3" in verdict(by_channel=True).reason
    assert verdict(by_channel=False).passed
