"""Measures: each formula on numbers that can be checked by hand."""

from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.validators.metrics import (
    BLOCK,
    fill_limit,
    iter_blocks,
    measure_arrays,
    measure_with_fill,
    to_decibel,
)

if TYPE_CHECKING:
    from modelc.core.contract import Array

F = np.float32


def test_errors_are_measured_in_float64() -> None:
    found = measure_arrays(np.array([1.0, -2.0, 4.0], F), np.array([1.5, -2.0, 3.0], F))
    assert found.max_abs == 1.0
    assert found.mean_abs == 0.5
    assert found.max_rel == 0.5
    assert found.peak == 4.0


def test_relative_l2_is_the_norm_of_the_error_over_that_of_eager() -> None:
    found = measure_arrays(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert found.relative_l2 == pytest.approx(0.1)


def test_sqnr_is_signal_over_noise_in_decibel() -> None:
    found = measure_arrays(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    assert found.sqnr == pytest.approx(20.0)
    assert (found.signal, found.noise) == (12.5, 0.125)


def test_cosine_is_that_of_the_angle() -> None:
    assert measure_arrays(np.array([1.0, 0.0]), np.array([1.0, 1.0])).cosine == pytest.approx(
        0.5**0.5
    )


def test_equal_arrays_are_exact_and_have_no_sqnr() -> None:
    found = measure_arrays(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    assert found.exact
    assert found.sqnr is None
    assert found.max_abs == 0.0


def test_a_zero_reference_has_neither_cosine_nor_relative_errors() -> None:
    found = measure_arrays(np.zeros(2), np.ones(2))
    assert (found.cosine, found.relative_l2, found.max_rel, found.sqnr) == (None,) * 4
    assert found.max_abs == 1.0


def test_negative_zero_equals_zero() -> None:
    assert measure_arrays(np.array([0.0]), np.array([-0.0])).exact


def test_nan_matches_nan_and_infinity_its_own_sign() -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1.0])
    found = measure_arrays(array, array.copy())
    assert found.exact
    assert (found.nonfinite_eager, found.nonfinite_artifact, found.nonfinite_mismatch) == (3, 3, 0)


@pytest.mark.parametrize(
    ("eager", "artifact"), [(1.0, np.nan), (np.nan, 1.0), (np.inf, -np.inf), (np.inf, np.nan)]
)
def test_other_nonfinite_values_are_mismatches(eager: float, artifact: float) -> None:
    found = measure_arrays(np.array([eager, 1.0]), np.array([artifact, 1.0]))
    assert found.nonfinite_mismatch == 1
    assert not found.exact


def test_errors_are_over_elements_finite_in_both() -> None:
    found = measure_arrays(np.array([np.inf, 2.0, 3.0]), np.array([1.0, np.nan, 3.5]))
    assert found.compared == 1
    assert found.max_abs == 0.5


def test_argmax_agreement_is_the_share_of_rows() -> None:
    eager = np.array([[1.0, 2.0], [2.0, 1.0], [0.0, 5.0], [5.0, 0.0]], F)
    artifact = eager.copy()
    artifact[0] = [3.0, 2.0]
    assert measure_arrays(eager, artifact).argmax_agreement == 0.75


@pytest.mark.parametrize("shape", [(4,), (3, 1), (0, 4), ()])
def test_argmax_agreement_is_undefined_without_rows_of_classes(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, F)
    assert measure_arrays(array, array.copy()).argmax_agreement is None


def test_an_empty_array_is_exact_and_has_no_errors() -> None:
    found = measure_arrays(np.zeros((0, 3)), np.zeros((0, 3)))
    assert found.exact
    assert (found.size, found.max_abs, found.peak, found.sqnr) == (0, None, None, None)


def test_a_scalar_array_is_measured() -> None:
    assert measure_arrays(np.array(2.0), np.array(2.5)).max_abs == 0.5


def test_large_integers_that_float64_cannot_tell_apart_are_not_exact() -> None:
    found = measure_arrays(np.array([2**53]), np.array([2**53 + 1]))
    assert found.differing == 1
    assert not found.exact


def test_unsigned_integers_do_not_wrap() -> None:
    assert measure_arrays(np.array([0], np.uint8), np.array([255], np.uint8)).max_abs == 255.0


def test_bools_are_measured_as_zero_and_one() -> None:
    assert measure_arrays(np.array([True, False]), np.array([True, True])).differing == 1


def test_half_precision_does_not_overflow() -> None:
    found = measure_arrays(np.array([60000.0], np.float16), np.array([-60000.0], np.float16))
    assert found.max_abs == 120_000.0


def test_complex_numbers_count_as_two_real_ones() -> None:
    found = measure_arrays(np.array([1 + 2j]), np.array([1 + 2.5j]))
    assert found.max_abs == 0.5
    assert found.size == 2


def test_float64_near_its_end_gives_no_warning_and_no_nan() -> None:
    found = measure_arrays(np.array([1e308]), np.array([-1e308]))
    assert found.max_abs == math.inf
    assert found.relative_l2 is None


def test_elements_up_to_a_magnitude_are_measured_alone() -> None:
    eager, artifact = np.array([-1e9, 1.0, 2.0], F), np.array([-2e9, 1.0, 2.5], F)
    found = measure_arrays(eager, artifact, upto=2.0)
    assert (found.peak, found.compared, found.max_abs) == (2.0, 2, 0.5)
    assert (found.size, found.differing) == (3, 2)


def test_elements_above_a_magnitude_are_measured_alone() -> None:
    found = measure_arrays(np.array([-1e9, 1.0]), np.array([-2e9, 5.0]), above=1.0)
    assert (found.max_abs, found.compared) == (1e9, 1)


def test_fill_is_found_by_magnitude_though_no_two_are_equal() -> None:
    logits = np.array([0.5, -0.7, 0.9, -9999.7, -10000.4])
    assert 1 < fill_limit(logits) < 9999
    assert measure_with_fill(logits, logits + 0.25).answers.peak == 0.9


@pytest.mark.parametrize(
    "array", [np.array([1.0, 4e3]), np.array([1e4, 2e5, -3e5]), np.zeros(3), np.zeros(0)]
)
def test_other_arrays_have_no_fill(array: Array) -> None:
    assert fill_limit(array) == math.inf
    assert measure_with_fill(array, array).fill is None


def test_other_shapes_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match=r"\(2, 1\)"):
        measure_arrays(np.ones(2), np.ones((2, 1)))


def test_text_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="<U1"):
        measure_arrays(np.array(["a"]), np.array(["a"]))


def test_decibel_is_undefined_at_zero() -> None:
    assert to_decibel(100.0, 1.0) == 20.0
    assert to_decibel(0.0, 1.0) is None
    assert to_decibel(1.0, 0.0) is None


def test_blocks_cover_every_element_once_whatever_the_strides() -> None:
    array = np.arange(9 * BLOCK, dtype=np.int32).reshape(1, 3, -1).transpose(2, 1, 0)
    pieces = [piece for piece, _ in iter_blocks(array, array)]
    assert all(piece.size <= 100_000 and np.shares_memory(piece, array) for piece in pieces)
    assert sum(int(piece.sum(dtype=np.int64)) for piece in pieces) == array.sum(dtype=np.int64)


def test_a_big_array_gives_the_same_measures_as_numpy() -> None:
    eager = np.random.default_rng(0).standard_normal((3, 17, 500)).astype(F)
    artifact = (eager * F(1.001)).astype(F)
    error = artifact.astype(np.float64) - eager
    found = measure_arrays(eager, artifact)
    assert found.max_abs == np.abs(error).max()
    assert found.mean_abs == pytest.approx(np.abs(error).mean())
    assert found.argmax_agreement == 1.0


def test_a_row_of_classes_longer_than_a_block_is_ranked_as_one() -> None:
    eager = np.zeros((2, 3 * BLOCK), F)
    eager[:, -1] = 1
    artifact = eager.copy()
    artifact[0, 0] = 2
    assert measure_arrays(eager, artifact).argmax_agreement == 0.5


def test_temporaries_stay_below_64_mb() -> None:
    eager = np.zeros((3, 1024, 1024), F).transpose(2, 0, 1)
    artifact = np.ones((3, 1024, 1024), F).transpose(2, 0, 1)
    tracemalloc.start()
    measure_arrays(eager, artifact)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6
