"""Integers, ties and agreement: which of them errors decide, and which are wrong."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.core.kinds import Precision, ReasonCode
from modelc.core.verdict import Limits, State, Verdict
from modelc.validators.apply_tolerance import apply_tolerance
from modelc.validators.feeds import NamedFeed
from modelc.validators.metrics import measure_arrays
from modelc.validators.output_pairs import ArtifactOutputs, ReferenceOutputs
from modelc.validators.tolerance import TOLERANCES, override_limits

from .judging import verdict_on

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

RNG = np.random.default_rng(2)
_START = RNG.bit_generator.state
F = np.float32


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """The same in whatever order tests run."""
    RNG.bit_generator.state = _START


def judged(
    eager: list[Array],
    artifact: list[Array],
    *,
    precision: Precision = Precision.FP32,
    undecided: list[Array] | None = None,
    **limits: float,
) -> Verdict:
    feeds = [RNG.standard_normal(6).astype(F) for _ in eager]
    return verdict_on(
        [
            ReferenceOutputs(
                feed=NamedFeed(name=str(n), arrays={"x": x}, sizes={}), outputs={"y": y}
            )
            for n, (x, y) in enumerate(zip(feeds, eager, strict=True))
        ],
        [
            ArtifactOutputs(
                outputs={"y": y}, undecided={} if undecided is None else {"y": undecided[n]}
            )
            for n, y in enumerate(artifact)
        ],
        tolerance=override_limits(TOLERANCES[precision], Limits(**limits)),
    )


def indices(count: int = 4) -> list[Array]:
    return [RNG.integers(0, 9, 50) for _ in range(count)]


def test_ties_that_roundoff_decides_pass_with_a_note() -> None:
    eager = indices()
    artifact = [y.copy() for y in eager]
    artifact[1][7] += 1
    marks = [np.zeros(50, bool) for _ in eager]
    marks[1][7] = True
    verdict = judged(eager, artifact, undecided=marks)
    assert verdict.passed
    assert any("roundoff decides" in note for note in verdict.notes)
    assert verdict.outputs[1].undecided == 1


def test_an_index_off_by_one_that_is_decided_fails_beside_a_tie() -> None:
    eager = indices()
    artifact = [y.copy() for y in eager]
    artifact[1][7:9] += 1
    marks = [np.zeros(50, bool) for _ in eager]
    marks[1][7] = True
    verdict = judged(eager, artifact, undecided=marks)
    assert verdict.state is State.FAILED
    assert "1 of 50 elements differ" in verdict.reason


@pytest.mark.parametrize(("wrong", "passed"), [(1, True), (40, False)])
def test_some_integers_may_differ_in_8_bits(wrong: int, passed: bool) -> None:
    eager = indices()
    artifact = [y.copy() for y in eager]
    artifact[2][:wrong] += 1
    verdict = judged(eager, artifact, precision=Precision.INT8)
    assert verdict.passed is passed
    assert judged(eager, artifact).state is State.FAILED


def logits(rows: int) -> Array:
    return RNG.standard_normal((rows, 12)).astype(F)


def test_rows_that_flip_beyond_what_errors_explain_fail() -> None:
    eager = [logits(40) for _ in range(4)]
    artifact = [y + F(1e-4) * RNG.standard_normal(y.shape).astype(F) for y in eager]
    for y, e in zip(artifact, eager, strict=True):
        best, second = np.argsort(-e[:4], axis=-1)[:, :2].T
        y[np.arange(4), second] = e[np.arange(4), best] + F(1e-3)
    verdict = judged(eager, artifact, precision=Precision.INT8, min_agreement=0.95)
    assert verdict.state is State.FAILED
    (reason,) = (r for r in verdict.reasons if r.code is ReasonCode.ROWS_DISAGREE)
    assert re.search(r" 9[0-4]\.\d% ", reason.text)
    assert "160 rows" in reason.text
    assert "limit 95%" in reason.text


def test_near_ties_count_as_agreeing() -> None:
    eager = np.zeros((10, 12), F)
    eager[:, :2] = [[1.0, 1.0001]]
    artifact = eager.copy()
    artifact[:, :2] = [[1.0001, 1.0]]
    found = measure_arrays(eager, artifact)
    assert found.argmax_agreement == 0
    assert found.top1_agreement == 1
    assert found.top5_agreement == 1


def test_cosine_is_asked_for_where_it_is_given() -> None:
    eager = [logits(8) for _ in range(3)]
    turned = [np.roll(y, 1, -1) for y in eager]

    def within_cosine(least: float) -> Verdict:
        return judged(
            eager,
            turned,
            precision=Precision.FP16,
            atol=100.0,
            min_sqnr=-100.0,
            min_agreement=0.0,
            min_cosine=least,
        )

    assert within_cosine(-1.0).passed
    assert "cosine" in within_cosine(0.9).reason


def test_what_was_decided_is_decided_again_from_the_record() -> None:
    eager = [logits(8) for _ in range(3)]
    artifact = [y + F(1e-2) * RNG.standard_normal(y.shape).astype(F) for y in eager]
    verdict = judged(eager, artifact, precision=Precision.FP16, min_sqnr=20.0)
    assert verdict.passed
    assert apply_tolerance(verdict, verdict.tolerance) == verdict
    strict = apply_tolerance(verdict, override_limits(verdict.tolerance, Limits(min_sqnr=60.0)))
    assert strict.state is State.FAILED
    assert "dB < 60" in strict.reason
    assert apply_tolerance(strict, verdict.tolerance) == verdict


def test_the_margin_is_the_distance_to_the_nearest_limit() -> None:
    eager = [logits(8) for _ in range(3)]
    artifact = [y * F(1.001) for y in eager]
    verdict = judged(eager, artifact, precision=Precision.FP16, atol=0.0, rtol=0.01)
    assert verdict.headroom == pytest.approx(20.0, abs=0.1)
    over = judged(eager, artifact, precision=Precision.FP16, atol=0.0, rtol=1e-4)
    assert over.headroom == pytest.approx(-20.0, abs=0.1)
