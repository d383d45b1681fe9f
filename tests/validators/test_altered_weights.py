"""A weight with some elements altered is found among the constants; what is folded is not one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.validators.model_identity import find_altered_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Array = NDArray[Any]

RNG = np.random.default_rng(4)
_START = RNG.bit_generator.state
WEIGHT = RNG.standard_normal((20, 30)).astype(np.float32)
OTHER = RNG.standard_normal((20, 30)).astype(np.float32)
BIAS = RNG.standard_normal(20).astype(np.float32)
STATE = {"layer.weight": WEIGHT, "other.weight": OTHER, "layer.bias": BIAS}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """The same in whatever order tests run."""
    RNG.bit_generator.state = _START


def altered(array: Array, times: float = 1.001) -> Array:
    copy = array.copy()
    copy.flat[7] *= np.float32(times)
    return copy


def test_weights_as_they_are_and_turned_over_are_right() -> None:
    assert find_altered_weights(STATE, [WEIGHT.T, OTHER, BIAS]) == ()
    assert (
        find_altered_weights(STATE, [np.ascontiguousarray(WEIGHT.T), OTHER.reshape(-1), BIAS]) == ()
    )


@pytest.mark.parametrize("times", [1.1, 1.01, 1.001, 1.00001, -1.0])
@pytest.mark.parametrize("turn", [lambda a: a, lambda a: np.ascontiguousarray(a.T)])
def test_one_element_that_is_off_is_named(times: float, turn: Callable[[Array], Array]) -> None:
    (fault,) = find_altered_weights(STATE, [turn(altered(WEIGHT, times)), OTHER, BIAS])
    assert "layer.weight" in fault
    assert "1 of 600" in fault
    assert f"instead of {WEIGHT.flat[7]:.7g}" in fault


def test_one_element_of_a_bias_that_is_off_is_named() -> None:
    (fault,) = find_altered_weights(STATE, [WEIGHT, OTHER, altered(BIAS)])
    assert "layer.bias" in fault
    assert "1 of 20 elements" in fault


def test_a_fold_into_rows_or_columns_is_none() -> None:
    rows, columns = WEIGHT.copy(), WEIGHT.copy()
    rows[3] *= np.float32(1.5)
    columns[:, 4] *= np.float32(1.5)
    scaled = WEIGHT * RNG.standard_normal((20, 1)).astype(np.float32)
    for constant in (rows, columns, scaled, WEIGHT * np.float32(1.01)):
        assert find_altered_weights(STATE, [constant, OTHER, BIAS]) == ()


@pytest.mark.parametrize("times", [1.1, 1.001, 1.0001])
def test_an_element_that_is_off_beside_its_folded_row_is_named(times: float) -> None:
    scale = RNG.standard_normal((20, 1)).astype(np.float32)
    folded = altered(WEIGHT, times) * scale
    (fault,) = find_altered_weights(STATE, [folded, OTHER, BIAS])
    assert "layer.weight" in fault
    assert "1 of 600 elements" in fault
    assert find_altered_weights(STATE, [WEIGHT * scale, OTHER, BIAS]) == ()


def test_another_weight_of_that_size_is_no_fold() -> None:
    other = RNG.standard_normal((20, 30)).astype(np.float32)
    assert find_altered_weights({"w": WEIGHT}, [other, other * 2]) == ()


def test_rounding_and_flushed_denormals_are_none() -> None:
    ulp = WEIGHT.copy()
    ulp.flat[::50] = np.nextafter(ulp.flat[::50], np.float32(9))
    assert find_altered_weights(STATE, [ulp, OTHER, BIAS]) == ()
    small = WEIGHT.copy()
    small[0, 0] = 1e-40
    flushed = small.copy()
    flushed[0, 0] = 0
    assert find_altered_weights({"w": small}, [flushed]) == ()


def test_weights_that_are_split_joined_or_gone_say_nothing() -> None:
    assert find_altered_weights(STATE, [WEIGHT[:10], WEIGHT[10:], np.vstack([OTHER, WEIGHT])]) == ()
    assert find_altered_weights(STATE, []) == ()


def test_zeros_make_no_two_weights_alike() -> None:
    one, two = np.zeros((2, 40, 40), np.float32)
    one[0, :9] = 1.5
    two[0, :9] = 2.5
    assert find_altered_weights({"one": one}, [two]) == ()


def test_a_twin_of_another_weight_is_not_taken_for_it() -> None:
    twin = altered(WEIGHT)
    state = {"layer.weight": WEIGHT, "twin.weight": twin}
    assert find_altered_weights(state, [WEIGHT, twin]) == ()


def test_one_of_two_equal_weights_that_is_altered_is_named() -> None:
    state = {"one.weight": WEIGHT, "two.weight": WEIGHT.copy()}
    (fault,) = find_altered_weights(state, [WEIGHT, altered(WEIGHT)])
    assert "1 of 600 elements" in fault
    assert find_altered_weights(state, [WEIGHT]) == ()


@pytest.mark.parametrize("fold", [1.0, RNG.standard_normal((20, 1)).astype(np.float32)])
def test_what_eager_makes_of_a_weight_itself_is_not_altered(fold: Any) -> None:
    pruned = np.where(np.abs(WEIGHT) < 0.05, np.float32(0), WEIGHT)
    assert 0 < np.count_nonzero(pruned != WEIGHT) < 60
    made = [WEIGHT, WEIGHT.T, pruned]

    def faults_of(constant: Array) -> tuple[str, ...]:
        return find_altered_weights(
            {"w": WEIGHT}, [constant], computed=lambda test: any(map(test, made))
        )

    assert faults_of(pruned * fold) == ()
    assert faults_of(altered(pruned * fold)) != ()
    assert find_altered_weights({"w": WEIGHT}, [pruned * fold]) != ()


def test_rows_that_are_no_multiples_are_no_fold() -> None:
    tall = np.vstack([WEIGHT, OTHER])
    swapped = tall.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    (fault,) = find_altered_weights({"w": tall}, [swapped])
    assert "60 of 1200 elements" in fault


@pytest.mark.parametrize("times", [0.0, 1.1])
def test_a_row_of_an_embedding_that_is_off_is_named(times: float) -> None:
    other = WEIGHT.copy()
    other[3] *= np.float32(times)
    assert find_altered_weights({"w": WEIGHT}, [other]) == ()
    (fault,) = find_altered_weights({"w": WEIGHT}, [other], tables={"w"})
    assert "30 of 600 elements" in fault


def test_a_weight_of_bfloat16_that_is_stored_in_float16_is_not_altered() -> None:
    bits = WEIGHT.copy().view(np.uint32) & np.uint32(0xFFFF0000)
    weight = bits.view(np.float32)  # 8 bits of significand, which float16 holds
    weight[3, :9] = np.float32(2**-24 * 1.25)  # but not where it is subnormal
    stored = weight.astype(np.float16).astype(np.float32)
    assert 0 < np.count_nonzero(stored != weight) < 60
    assert find_altered_weights({"w": weight}, [stored]) == ()
    stored[5, 5] *= 2
    (fault,) = find_altered_weights({"w": weight}, [stored])
    assert "1 of 600 elements" in fault
