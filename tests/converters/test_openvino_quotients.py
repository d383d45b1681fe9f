"""Quotients in OpenVINO that something discrete is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters.openvino_arithmetic import keep_discrete_quotients

if TYPE_CHECKING:
    from pathlib import Path

    import openvino

    from modelc.core.contract import Array

pytestmark = [pytest.mark.needs("openvino")]


def quotient(divisor: float | None = None, *, discrete: bool = True) -> openvino.Model:
    """The quotient and, where asked for, ten times that, rounded down."""
    import openvino
    from openvino import opset13 as op

    a, b = (op.parameter([-1], np.float32, name=name) for name in "ab")
    if divisor is not None:
        b = op.constant(np.float32(divisor))
    found = op.divide(a, b)
    end = op.convert(op.floor(op.multiply(found, np.float32(10))), "i64")
    ends = [found, end] if discrete else [found]
    return openvino.Model(ends, [a] if divisor is not None else [a, b], "quotient")


def run(model: openvino.Model, folder: Path, *given: Array) -> list[Array]:
    """The outputs of the file, as the user's OpenVINO reads it."""
    import openvino

    openvino.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
    told = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.compile_model(str(folder / "model.xml"), "CPU", told)
    return [np.array(one) for one in compiled(list(given)).values()]


def test_each_quotient_of_two_sizes_is_the_nearest_float32(tmp_path: Path) -> None:
    a, b = (one.ravel().astype(np.float32) for one in np.mgrid[0:401, 1:401])
    found, end = run(quotient(), tmp_path, a, b)
    assert (found != a / b).any()  # else OpenVINO divides by now, and all of this can go
    model = quotient()
    keep_discrete_quotients(model)
    found, end = run(model, tmp_path, a, b)
    assert np.array_equal(found, a / b)
    assert np.array_equal(end, np.floor(a / b * np.float32(10)).astype(np.int64))


@pytest.mark.parametrize("divisor", [3600, 365.25, 0.1, 7])
def test_each_quotient_by_a_constant_is_the_nearest_float32(divisor: float, tmp_path: Path) -> None:
    a = np.arange(100_000, dtype=np.float32)
    model = quotient(divisor)
    keep_discrete_quotients(model)
    found, _ = run(model, tmp_path, a)
    assert np.array_equal(found, a / np.float32(divisor))


def test_zeros_infinities_and_nan_stay(tmp_path: Path) -> None:
    ends = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan, 1e20], np.float32)
    a, b = (one.ravel() for one in np.meshgrid(ends, ends))
    model = quotient()
    keep_discrete_quotients(model)
    found, _ = run(model, tmp_path, a, b)
    with np.errstate(all="ignore"):
        expected = a / b
    assert np.array_equal(found, expected, equal_nan=True)


def test_what_stays_a_float_stays_a_division() -> None:
    model = quotient(discrete=False)
    before = len(model.get_ops())
    keep_discrete_quotients(model)
    assert len(model.get_ops()) == before
