"""INT8: channels of one tensor that are of another scale are judged apart, dead ones rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision
from modelc.core.verdict import Limits
from modelc.validators.apply_tolerance import apply_tolerance
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import tolerance_for

from .judging import verdict_on

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from modelc.core.verdict import Verdict

    Array = NDArray[Any]

BOXES, CLASSES, ANCHORS = 4, 10, 200
LOW = Limits(min_sqnr=-20.0)
FEED = NamedFeed(name="held-out", arrays={"x": np.ones((1, 3), np.float32)}, sizes={})


def detections(seed: int, classes: int = CLASSES) -> Array:
    """As a head of YOLO gives them: boxes in pixels, scores in 0..1, few of them large."""
    draw = np.random.default_rng(seed)
    boxes = draw.uniform(0, 640, (1, BOXES, ANCHORS))
    scores = draw.beta(0.3, 3, (1, classes, ANCHORS))
    return np.concatenate([boxes, scores], axis=1).astype(np.float32)


def in_8_bits(array: Array) -> Array:
    """One scale for the whole tensor."""
    step = np.abs(array).max() / 255
    rounded: Array = (np.round(array / step) * step).astype(np.float32)
    return rounded


def apart(array: Array) -> Array:
    """Boxes and scores each at a scale of their own."""
    return np.concatenate([in_8_bits(array[:, :BOXES]), in_8_bits(array[:, BOXES:])], axis=1)


def judged(eager: Sequence[Array], artifact: Callable[[Array], Array]) -> Verdict:
    return verdict_on(
        [ReferenceOutputs(feed=FEED, outputs={"y": array}) for array in eager],
        [ArtifactOutputs(outputs={"y": artifact(array.copy())}) for array in eager],
        tolerance=tolerance_for(Precision.INT8),
        signature="x:float32[1,3]",
        by_channel=False,
    )


def test_scores_that_died_beside_boxes_are_rejected() -> None:
    verdict = judged([detections(seed) for seed in range(4)], in_8_bits)
    assert verdict.sqnr is not None
    assert verdict.sqnr > 24
    assert not verdict.passed
    assert not verdict.faults  # by its measures: other limits can judge it again
    scores = next(one for one in verdict.groups if one.dead_count)
    assert (scores.output, scores.axis, scores.channels) == ("y", 1, ((4, 13),))
    assert scores.dead == ((4, 13),)
    assert "axis 1" in verdict.reason
    assert "4..13" in verdict.reason


def test_each_group_at_its_own_scale_passes() -> None:
    verdict = judged([detections(seed) for seed in range(4)], apart)
    assert verdict.passed
    boxes, scores = sorted(verdict.groups, key=lambda one: one.channels)
    assert (boxes.channels, scores.channels) == (((0, 3),), ((4, 13),))
    assert boxes.kind
    assert scores.kind
    assert verdict.group_sqnr is not None
    assert verdict.group_sqnr > 25


def test_scores_that_drown_without_dying_are_rejected() -> None:
    def noisy(array: Array) -> Array:
        array[:, BOXES:] += np.random.default_rng(1).normal(0, 0.5, array[:, BOXES:].shape)
        return array

    verdict = judged([detections(seed) for seed in range(4)], noisy)
    assert not verdict.passed
    assert not any(one.dead_count for one in verdict.groups)
    assert verdict.group_sqnr is not None
    assert verdict.group_sqnr < 5
    lower = apply_tolerance(verdict, tolerance_for(Precision.INT8).within(LOW))
    assert lower.passed


def test_a_single_class_is_a_kind_where_it_is_a_map() -> None:
    assert not judged([detections(seed, 1) for seed in range(4)], in_8_bits).passed
    assert judged([detections(seed, 1) for seed in range(4)], apart).passed


def test_the_last_axis_holds_channels_too() -> None:
    eager = [detections(seed).transpose(0, 2, 1) for seed in range(4)]
    verdict = judged(eager, in_8_bits)
    assert not verdict.passed
    assert {one.axis for one in verdict.groups} == {-1}


def test_channels_of_interleaved_kinds_are_found_by_their_scale() -> None:
    turned = np.random.default_rng(2).permutation(BOXES + CLASSES)
    verdict = judged([detections(seed)[:, turned] for seed in range(4)], in_8_bits)
    assert not verdict.passed
    scores = next(one for one in verdict.groups if one.dead_count)
    places = {place for first, last in scores.dead for place in range(first, last + 1)}
    assert places == set(np.flatnonzero(turned >= BOXES).tolist())


def test_one_dead_channel_among_its_like_is_rejected() -> None:
    def without_the_third(array: Array) -> Array:
        array[:, 2] = 0.1
        return array

    draw = np.random.default_rng(3)
    eager = [draw.standard_normal((1, 64, 50)).astype(np.float32) for _ in range(4)]
    verdict = judged(eager, without_the_third)
    assert not verdict.passed
    assert [(one.dead, one.kind) for one in verdict.groups] == [(((2, 2),), False)]


def _softmax(array: Array) -> Array:
    shares = np.exp(array - array.max(axis=-1, keepdims=True))
    found: Array = (shares / shares.sum(axis=-1, keepdims=True)).astype(np.float32)
    return found


def _confident(seed: int) -> Array:
    """1000 classes of which one is all but certain: the others are 0 in 8 bits."""
    logits = np.random.default_rng(seed).standard_normal((1, 1000))
    logits[0, 7 * seed] += 16
    return _softmax(logits)


def _logits(seed: int) -> Array:
    """One class is large in one sample of many: it is of one kind with the others."""
    logits = np.random.default_rng(seed).standard_normal((1, 1000))
    logits[0, 7 * seed] += 60
    return logits.astype(np.float32)


def _features(seed: int) -> Array:
    """Channels of all scales from 1e-6 to 1, some never on."""
    scale = np.logspace(-6, 0, 256)
    scale[::7] = 0
    draw = np.random.default_rng(seed).standard_normal((1, 256))
    return (np.maximum(draw, 0) * scale).astype(np.float32)


def _pruned(seed: int) -> Array:
    """Half of the channels are all but off, each about its own mean."""
    means = np.random.default_rng(99).uniform(1e-4, 1e-3, 32)
    draw = np.random.default_rng(seed)
    off = means[:, None] * (1 + 1e-3 * draw.standard_normal((32, 49)))
    return np.concatenate([draw.standard_normal((32, 49)), off])[None].mT.astype(np.float32)


def _rare(seed: int) -> Array:
    """A mask that is on in one sample alone."""
    found = np.zeros((1, 4, 8, 8), np.float32)
    found[0, seed % 2] = np.random.default_rng(seed).uniform(0.2, 1, (8, 8))
    return found


@pytest.mark.parametrize("draw", [_confident, _logits, _features, _rare])
def test_ordinary_outputs_in_8_bits_pass(draw: Callable[[int], Array]) -> None:
    verdict = judged([draw(seed) for seed in range(16)], in_8_bits)
    assert verdict.passed, verdict.reason


def test_constants_of_a_pruned_half_are_not_dead() -> None:
    """They are a kind, and hold their limit: that they vary by a thousandth is nobody's answer."""

    def still(array: Array) -> Array:
        array[:, :, 32:] = array[:, :, 32:].mean(axis=1, keepdims=True)
        return array

    assert judged([_pruned(seed) for seed in range(4)], still).passed


def test_other_precisions_have_channels_in_place_of_groups() -> None:
    array = detections(0)
    verdict = verdict_on(
        [ReferenceOutputs(feed=FEED, outputs={"y": array})],
        [ArtifactOutputs(outputs={"y": apart(array)})],
        tolerance=tolerance_for(Precision.FP16),
        signature="x:float32[1,3]",
    )
    assert not verdict.groups
