"""Feeds of wide integers: what each is there to find, and that it stays within the range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, ValueRange, resolve
from modelc.validators.wide import wide_feeds

LARGE = 2**40


def signature(low: int, high: int) -> Signature:
    """One input of 27 int64, whose range was chosen."""
    found = resolve([parse_input("x:int64[27]")], {})
    values = ValueRange(low=low, high=high, chosen=True, usual=(0, 1))
    return replace(found, inputs=(replace(found.inputs[0], values=values),))


def drawn(low: int, high: int) -> dict[str, np.ndarray]:
    """The feeds by name."""
    return {feed.name: feed.arrays["x"] for feed in wide_feeds(signature(low, high), seed=3)}


def of_low_words(values: np.ndarray) -> np.ndarray:
    """What is left of values that are compared by the sign of a difference of 32 bits."""
    return values.astype(np.uint64).astype(np.uint32).astype(np.int32)


@pytest.mark.parametrize(("low", "high"), [(-LARGE, LARGE), (0, LARGE), (-500, 2**33), (0, 2**31)])
def test_values_stay_within_the_range(low: int, high: int) -> None:
    for name, values in drawn(low, high).items():
        assert values.dtype == np.int64, name
        assert low <= values.min() <= values.max() <= high, name


@pytest.mark.parametrize("name", ["wide-words", "wide-words-low"])
def test_the_extremes_are_others_by_the_low_words_alone(name: str) -> None:
    values = drawn(-LARGE, LARGE)[name]
    low = of_low_words(values)
    wrong_least = values[low.argmin()] != values.min()
    wrong_most = values[low.argmax()] != values.max()
    assert wrong_least or wrong_most
    assert values.max() - values.min() < 2**32


def test_words_are_fed_where_the_range_holds_them() -> None:
    assert "wide-words" not in drawn(0, 2**31)
    assert "wide-words-low" not in drawn(0, LARGE)
    assert "wide-words" in drawn(0, LARGE)
