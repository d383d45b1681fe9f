"""The tolerance table, and what a user may put in its place."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.kinds import Precision
from modelc.validators.tolerance import TOLERANCES, tolerance_for

from ..reasons import has_code


@pytest.mark.parametrize("precision", Precision)
def test_every_precision_has_a_tolerance(precision: Precision) -> None:
    assert tolerance_for(precision) == TOLERANCES[precision]


def test_half_is_allowed_more_than_single() -> None:
    half, single = TOLERANCES[Precision.FP16], TOLERANCES[Precision.FP32]
    assert (half.atol, half.rtol) > (single.atol, single.rtol)
    assert half.min_sqnr < single.min_sqnr


def test_a_given_value_stands_in_for_the_table_alone() -> None:
    usual = TOLERANCES[Precision.FP32]
    expected = replace(usual, rtol=0.5, floor_factor=None)
    assert tolerance_for(Precision.FP32, rtol=0.5) == expected


def test_zero_is_a_value_and_not_the_default() -> None:
    zero = tolerance_for(Precision.FP32, atol=0, rtol=0, min_sqnr=0)
    assert (zero.atol, zero.rtol, zero.min_sqnr) == (0, 0, 0)


@pytest.mark.parametrize("value", [-1e-3, math.nan, math.inf])
def test_a_tolerance_that_is_no_tolerance_is_rejected(value: float) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="atol")):
        tolerance_for(Precision.FP32, atol=value)


def test_min_sqnr_must_be_finite() -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.INVALID_VALUE, naming="min_sqnr")):
        tolerance_for(Precision.FP32, min_sqnr=math.nan)
