"""Feeds of wide integers: what each is there to find, and that it stays within the range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, ValueRange, merge_inputs
from modelc.validators.wide_integer_feeds import draw_wide_feeds

LARGE = 2**40


def signature(low: int, high: int) -> Signature:
    """One input of 27 int64, whose range was chosen."""
    found = merge_inputs([parse_input("x:int64[27]")], {})
    values = ValueRange(low=low, high=high, chosen=True, usual=(0, 1))
    return replace(found, inputs=(replace(found.inputs[0], values=values),))


def drawn(low: int, high: int) -> dict[str, np.ndarray]:
    """The feeds by name."""
    return {feed.name: feed.arrays["x"] for feed in draw_wide_feeds(signature(low, high), seed=3)}


def of_low_words(values: np.ndarray) -> np.ndarray:
    """What is left of values that are compared by the sign of a difference of 32 bits."""
    return values.astype(np.uint64).astype(np.uint32).astype(np.int32)


@pytest.mark.parametrize(("low", "high"), [(-LARGE, LARGE), (0, LARGE), (-500, 2**33), (0, 2**31)])
def test_values_stay_within_the_range(low: int, high: int) -> None:
    for name, values in drawn(low, high).items():
        assert values.dtype == np.int64, name
        assert low <= values.min() <= values.max() <= high, name


@pytest.mark.parametrize("name", ["wide-words", "wide-words-low"])
@pytest.mark.parametrize("ends", [(-LARGE, LARGE), (-LARGE, 2**31), (0, LARGE)])
def test_the_extremes_are_others_by_the_low_words_alone(name: str, ends: tuple[int, int]) -> None:
    values = drawn(*ends)[name]
    low = of_low_words(values)
    wrong_least = values[low.argmin()] != values.min()
    wrong_most = values[low.argmax()] != values.max()
    assert wrong_least or wrong_most
    assert values.max() - values.min() < 2**32


def test_words_are_fed_where_the_range_holds_them() -> None:
    assert "wide-words" in drawn(-LARGE, 2**31)
    assert "wide-words-low" in drawn(0, LARGE)
    assert "wide-words" not in drawn(0, 2**31)
    assert "wide-words-low" not in drawn(0, 2**33 - 1)
    assert "wide-words" in drawn(0, LARGE)


def test_products_of_two_are_rounded_by_float32_and_held_by_int32() -> None:
    values = drawn(-LARGE, LARGE)["wide-products"].astype(np.int64)
    products = values[:, None] * values
    assert (products.astype(np.float32).astype(np.int64) != products).any()
    assert products.max() < 2**31
    assert "wide-products" not in drawn(0, 1023)


def test_the_ends_come_beside_each_choice_of_bools() -> None:
    texts = ("x:int64[]", "first:bool[3]", "second:bool[]")
    found = merge_inputs([parse_input(text) for text in texts], {})
    values = ValueRange(low=-LARGE, high=LARGE, chosen=True, usual=(0, 1))
    wide = replace(found, inputs=(replace(found.inputs[0], values=values), *found.inputs[1:]))
    feeds = {feed.name: feed.arrays for feed in draw_wide_feeds(wide)}
    for name in ("wide-high", "wide-low", "wide-products"):
        mine = [arrays for one, arrays in feeds.items() if one.startswith(name)]
        ways = [(a["first"].tolist(), a["second"].tolist()) for a in mine]
        assert sorted(ways) == sorted(([a] * 3, b) for a in (False, True) for b in (False, True))
        assert all(arrays["x"].shape == () for arrays in mine)


def test_differences_of_neighbours_are_as_wide_as_the_range() -> None:
    values = drawn(-(2**31), 2**31 - 1)["wide-apart"]
    assert (np.abs(np.diff(values)) == 2**32 - 1).all()


@pytest.mark.parametrize("divisor", [60, 3600, 7])
def test_float32_divides_some_neighbours_of_multiples_wrongly(divisor: int) -> None:
    feeds = drawn(0, 2**31 - 1)
    values = np.concatenate([feeds["wide-quotients-1"], feeds["wide-quotients-2"]])
    rough = np.floor(values.astype(np.float32) / np.float32(divisor)).astype(np.int64)
    assert (rough != values // divisor).any()


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("divisor", [60, 3600, 86400, 7, 10, 1000, 3, 24, 100])
def test_each_usual_divisor_is_shown_to_an_input_of_few_elements(divisor: int, rows: int) -> None:
    spec = f"x:int64[{rows}]{{0..{2**31 - 1}}}"
    feeds = draw_wide_feeds(merge_inputs([parse_input(spec)], {}))
    values = np.concatenate([one.arrays["x"] for one in feeds if "quotients" in one.name])
    assert (values % divisor == divisor - 1).any()
    rough = np.floor(values.astype(np.float32) / np.float32(divisor)).astype(np.int64)
    assert (rough != values // divisor).any()
