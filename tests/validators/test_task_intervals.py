"""Intervals beside values that others have printed, and beside what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from modelc.validators.confidence_intervals import (
    bootstrap_interval,
    difference_interval,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17, table II, method 10
        ((36, 12, 2, 0), 0.0569, 0.3404),
        # Altman et al. (2000), Statistics with Confidence, table 6.2
        ((14, 5, 0, 22), 0.011, 0.226),
        # Bentur et al. (2009): airway responsiveness before and after a transplantation
        ((1, 1, 7, 12), -0.507, -0.026),
    ],
)
def test_the_paired_interval_is_the_published_one(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    found = difference_interval(*table)
    assert found.low == pytest.approx(low, abs=6e-4)
    assert found.high == pytest.approx(high, abs=6e-4)


def test_wilsons_interval_is_the_published_one() -> None:
    found = wilson_interval(81, 263)  # Newcombe (1998), Statistics in Medicine 17, 857-872, table I
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_swapping_the_models_mirrors_the_interval() -> None:
    one, other = difference_interval(90, 6, 2, 2), difference_interval(90, 2, 6, 2)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))


@pytest.mark.parametrize("count", [10, 450, 50_000])
def test_the_interval_of_models_that_never_differ_has_a_width(count: int) -> None:
    found = difference_interval(count, 0, 0, 0)
    assert 0 < found.high < 8 / count * 4
    assert found.low == pytest.approx(-found.high)


def test_the_interval_holds_the_true_drop_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    inside = 0
    for _ in range(400):
        eager = chance.random(300) < 0.9
        artifact = eager & (chance.random(300) >= 0.02)  # loses a fiftieth of its hits: 0.018
        cells = (eager & artifact, eager & ~artifact, ~eager & artifact, ~eager & ~artifact)
        found = difference_interval(*(int(cell.sum()) for cell in cells))
        inside += found.low <= 0.018 <= found.high
    assert 370 <= inside <= 398


def test_the_bootstrap_holds_a_known_difference_and_is_seeded() -> None:
    chance = np.random.default_rng(1)
    eager = chance.normal(size=2000)
    artifact = eager + chance.normal(0.1, 0.2, size=2000)
    found = bootstrap_interval(eager, artifact, lambda one, other: other - one)
    error = 1.96 * float((artifact - eager).std()) / 2000**0.5
    assert found.high - found.low == pytest.approx(2 * error, rel=0.1)
    assert found.low < float((artifact - eager).mean()) < found.high
    assert found == bootstrap_interval(eager, artifact, lambda one, other: other - one)
