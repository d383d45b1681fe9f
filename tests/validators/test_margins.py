"""The margin that a search minimizes: the distance to the limits, at an output's own scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from modelc.core.kinds import Precision
from modelc.core.verdict import Verdict
from modelc.validators.feeds import NamedFeed
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import TOLERANCES, margin_on_feed

from .judging import verdict_on

Floats = NDArray[np.float64]
Answer = tuple[Floats, Floats | None]
USUAL = np.linspace(-1, 1, 40)


def judged(*answers: Answer) -> Verdict:
    """FP16's verdict on feeds `0`, `1` and so on; None is a feed that the artifact rejected."""
    references, replies = [], []
    for number, (eager, artifact) in enumerate(answers):
        feed = NamedFeed(name=str(number), arrays={"x": np.full(2, number)}, sizes={})
        references.append(ReferenceOutputs(feed=feed, outputs={"y": eager}))
        outputs = None if artifact is None else {"y": artifact.copy()}
        replies.append(ArtifactOutputs(outputs=outputs, error="" if outputs else "no"))
    tolerance = TOLERANCES[Precision.FP16]
    return verdict_on(references, replies, tolerance=tolerance, signature="x:int64[2]")


def test_more_error_leaves_less_margin() -> None:
    verdict = judged((USUAL, USUAL * 1.001), (USUAL, USUAL * 1.002))
    assert 0 < margin_on_feed(verdict, "1") < margin_on_feed(verdict, "0")


def test_an_error_beyond_the_limit_is_negative() -> None:
    assert margin_on_feed(judged((USUAL, USUAL * 1.05)), "0") < -6


def test_what_cancels_is_measured_at_its_usual_scale() -> None:
    """Roundoff of 1e-3 beside 1e-2 that is left of 1."""
    tiny = USUAL * 0.01
    off = 1e-3 * np.where(np.arange(40) % 2, 1.0, -1.0)
    verdict = judged(*[(USUAL + n, USUAL + n + off) for n in range(3)], (tiny, tiny + off))
    assert not next(o for o in verdict.outputs if o.feed == "3").passed
    assert margin_on_feed(verdict, "3") > 6


@pytest.mark.parametrize(("times", "passes"), [(1.0, True), (2.5, True), (3.5, False)])
def test_on_a_small_output_an_error_may_be_as_large_as_elsewhere(
    times: float, passes: bool
) -> None:
    tiny, off = USUAL * 0.001, 1e-3 * np.where(np.arange(40) % 2, 1.0, -1.0)
    others = [(USUAL + n / 8, USUAL + n / 8 + off) for n in range(6)]
    verdict = judged(*others, (tiny, tiny + times * off))
    assert all(one.passed for one in verdict.outputs if one.feed != "6")
    assert next(one for one in verdict.outputs if one.feed == "6").passed is passes


def test_a_large_error_on_a_small_output_is_beyond_all_the_same() -> None:
    tiny = USUAL * 0.01
    verdict = judged((USUAL, USUAL), (USUAL, USUAL), (tiny, tiny + 0.2))
    assert margin_on_feed(verdict, "2") < -6


def test_exact_is_infinitely_far_from_any_limit() -> None:
    assert margin_on_feed(judged((USUAL, USUAL)), "0") == math.inf


def test_nan_and_rejected_feeds_are_infinitely_far_beyond() -> None:
    verdict = judged((USUAL, USUAL), (USUAL, USUAL * np.nan), (USUAL, None))
    assert margin_on_feed(verdict, "1") == margin_on_feed(verdict, "2") == -math.inf
