"""Exact integers of 32 bits, and correctly rounded quotients, in OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.converters.openvino_arithmetic import (
    keep_discrete_quotients,
    keep_float_remainders,
    keep_wide_integers,
)
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

from .conftest import run_openvino

if TYPE_CHECKING:
    import openvino

    from modelc.core.contract import Array

pytestmark = pytest.mark.needs("openvino")
MAX = 2**31 - 1
RNG = np.random.default_rng(5)
WIDE = RNG.integers(-MAX, MAX, (40, 50))
SMALL = RNG.integers(1, 1000, (40, 50)) * RNG.choice([-1, 1], (40, 50))
MULTIPLES = RNG.integers(-MAX // 3600, MAX // 3600, (40, 50)) * 3600 + RNG.integers(-1, 2, (40, 50))


def signature(values: str) -> Signature:
    return merge_inputs([parse_input(f"x:int64[40,50]{{{values}}}")], {})


def model_of(write: Callable[..., Any], *arrays: Array) -> openvino.Model:
    import openvino
    from openvino import opset13 as op

    inputs = [op.parameter([-1] * one.ndim, one.dtype.type) for one in arrays]
    return openvino.Model([write(op, *inputs)], inputs)


def truncated(a: Array, b: Array) -> Array:
    found: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return found


def divide(op: Any, a: Any, b: Any) -> Any:
    return op.divide(a, b)


CASES: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = {
    "divide": (divide, truncated),
    "mod": (lambda op, a, b: op.mod(a, b), np.fmod),
    "floor_mod": (lambda op, a, b: op.floor_mod(a, b), np.mod),
    "less": (lambda op, a, b: op.less(a, b), np.less),
    "less_equal": (lambda op, a, b: op.less_equal(a, b), np.less_equal),
    "greater": (lambda op, a, b: op.greater(a, b), np.greater),
    "greater_equal": (lambda op, a, b: op.greater_equal(a, b), np.greater_equal),
    "equal": (lambda op, a, b: op.equal(a, b), np.equal),
    "not_equal": (lambda op, a, b: op.not_equal(a, b), np.not_equal),
    "select": (
        lambda op, a, b: op.select(op.logical_not(op.greater(a, b)), a, b),
        lambda a, b: np.where(a > b, b, a),
    ),
    "select_and_divide": (
        lambda op, a, b: op.divide(op.select(op.less(a, b), a, b), b),
        lambda a, b: truncated(np.minimum(a, b), b),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (WIDE, SMALL),
        (MULTIPLES, np.full_like(MULTIPLES, 3600)),
        (WIDE, WIDE - 1),
        (WIDE, WIDE[::-1]),
    ],
    ids=["small", "multiples", "neighbours", "wide"],
)
def test_wide_integers_are_exact(name: str, a: Array, b: Array) -> None:
    write, expected = CASES[name]
    b = np.where(b == 0, 1, b)
    model = model_of(write, a, b)
    keep_wide_integers(model, signature(f"{-MAX}..{MAX}"))
    np.testing.assert_array_equal(run_openvino(model, a, b)[0], expected(a, b))


def test_openvino_alone_divides_in_float32() -> None:
    """What the rewrite is for: once this fails, remove it."""
    (found,) = run_openvino(model_of(divide, MULTIPLES, SMALL), MULTIPLES, SMALL)
    assert (found != truncated(MULTIPLES, SMALL)).any()


@pytest.mark.parametrize(
    ("write", "arrays", "values"),
    [
        (divide, (WIDE, SMALL), "0..30000"),
        (
            lambda op, a: op.divide(op.shape_of(a), op.constant(2, dtype="int64")),
            (WIDE,),
            f"0..{MAX}",
        ),
    ],
    ids=["small", "sizes"],
)
def test_small_integers_and_sizes_stay(
    write: Callable[..., Any], arrays: tuple[Array, ...], values: str
) -> None:
    model = model_of(write, *arrays)
    before = len(model.get_ops())
    keep_wide_integers(model, signature(values))
    assert len(model.get_ops()) == before


def quotient(divisor: float | None = None, *, discrete: bool = True) -> openvino.Model:
    """A quotient and, if `discrete`, ten times that, rounded down."""
    import openvino
    from openvino import opset13 as op

    a, b = (op.parameter([-1], np.float32, name=name) for name in "ab")
    if divisor is not None:
        b = op.constant(np.float32(divisor))
    found = op.divide(a, b)
    end = op.convert(op.floor(op.multiply(found, np.float32(10))), "i64")
    outputs = [found, end] if discrete else [found]
    return openvino.Model(outputs, [a] if divisor is not None else [a, b], "quotient")


def run_file(model: openvino.Model, folder: Path, *given: Array) -> list[Array]:
    """The outputs of the file, as the user's OpenVINO reads it."""
    import openvino

    path = str(folder / "model.xml")
    openvino.save_model(model, path, compress_to_fp16=False)
    return run_openvino(openvino.Core().read_model(path), *given)


def test_quotients_of_sizes_are_the_nearest_float32(tmp_path: Path) -> None:
    a, b = (one.ravel().astype(np.float32) for one in np.mgrid[0:401, 1:401])
    model = quotient()
    found, _ = run_file(model, tmp_path, a, b)
    assert (found != a / b).any()  # once OpenVINO rounds them correctly, remove the rewrite
    keep_discrete_quotients(model)
    found, end = run_file(model, tmp_path, a, b)
    assert np.array_equal(found, a / b)
    assert np.array_equal(end, np.floor(a / b * np.float32(10)).astype(np.int64))


@pytest.mark.parametrize("divisor", [3600, 365.25, 0.1, 7])
def test_quotients_by_a_constant_are_the_nearest_float32(divisor: float, tmp_path: Path) -> None:
    a = np.arange(100_000, dtype=np.float32)
    model = quotient(divisor)
    keep_discrete_quotients(model)
    found, _ = run_file(model, tmp_path, a)
    assert np.array_equal(found, a / np.float32(divisor))


def test_quotients_of_zeros_infinities_and_nan_are_exact(tmp_path: Path) -> None:
    ends = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan, 1e20], np.float32)
    a, b = (one.ravel() for one in np.meshgrid(ends, ends))
    model = quotient()
    keep_discrete_quotients(model)
    found, _ = run_file(model, tmp_path, a, b)
    with np.errstate(all="ignore"):
        assert np.array_equal(found, a / b, equal_nan=True)


def test_a_quotient_that_stays_a_float_stays_a_division() -> None:
    model = quotient(discrete=False)
    before = len(model.get_ops())
    keep_discrete_quotients(model)
    assert len(model.get_ops()) == before


def remainder_model() -> openvino.Model:
    import openvino
    from openvino import opset13 as op

    a, b = (op.parameter([-1], np.float32, name=name) for name in "ab")
    return openvino.Model([op.mod(a, b)], [a, b], "remainder")


RAW = RNG.normal(size=5000).astype(np.float32)
REMAINDERS: dict[str, tuple[Array, Array]] = {
    "tenths": (np.arange(-6000, 6000) * np.float32(0.1), np.full(12000, -0.1, np.float32)),
    "drawn": (RAW * 1000, RAW[::-1]),
    "far": (RNG.integers(1, 2**22, 5000) * np.float32(0.1), np.full(5000, 0.1, np.float32)),
    "whole": (np.arange(-5000, 5000, dtype=np.float32) * 97, np.full(10000, 7, np.float32)),
    "within": (RAW * np.float32(1e-3), RAW[::-1] * np.float32(1e36)),
}


@pytest.mark.parametrize("name", REMAINDERS)
def test_remainders_of_floats_are_exact(name: str, tmp_path: Path) -> None:
    a, b = (one.astype(np.float32) for one in REMAINDERS[name])
    model = remainder_model()
    keep_float_remainders(model)
    (found,) = run_file(model, tmp_path, a, b)
    near = np.abs(a / b) < 2**23
    assert np.array_equal(found[near], np.fmod(a, b)[near])


def test_remainders_of_infinities_and_nan_are_those_of_fmod(tmp_path: Path) -> None:
    ends = np.array([0, 1, -2, np.inf, -np.inf, np.nan], np.float32)
    a, b = (one.ravel() for one in np.meshgrid(ends, ends))
    model = remainder_model()
    keep_float_remainders(model)
    (found,) = run_file(model, tmp_path, a, b)
    with np.errstate(all="ignore"):
        assert np.array_equal(found, np.fmod(a, b), equal_nan=True)


def test_openvino_alone_divides_for_a_remainder(tmp_path: Path) -> None:
    """What the rewrite is for: once this fails, remove it."""
    a, b = (one.astype(np.float32) for one in REMAINDERS["tenths"])
    (found,) = run_file(remainder_model(), tmp_path, a, b)
    assert not np.array_equal(found, np.fmod(a, b))
