"""Integers of 32 bits in OpenVINO: divisions, remainders and comparisons are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.converters.openvino_arithmetic import keep_wide_integers
from modelc.core.grammar import parse_input
from modelc.core.signature import Signature, merge_inputs

if TYPE_CHECKING:
    import openvino

    from modelc.core.contract import Array

pytestmark = pytest.mark.needs("openvino")
MOST = 2**31 - 1
RNG = np.random.default_rng(5)
WIDE = RNG.integers(-MOST, MOST, (40, 50))
SMALL = RNG.integers(1, 1000, (40, 50)) * RNG.choice([-1, 1], (40, 50))
TIMES = RNG.integers(-MOST // 3600, MOST // 3600, (40, 50)) * 3600 + RNG.integers(-1, 2, (40, 50))


def signature(values: str) -> Signature:
    return merge_inputs([parse_input(f"x:int64[40,50]{{{values}}}")], {})


def run(model: openvino.Model, *arrays: Array) -> Array:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    found: Array = compiled(list(arrays))[0]
    return found


def model_of(write: Callable[..., Any], *arrays: Array) -> openvino.Model:
    import openvino
    from openvino import opset13 as op

    inputs = [op.parameter([-1] * one.ndim, one.dtype.type) for one in arrays]
    return openvino.Model([write(op, *inputs)], inputs)


def truncated(a: Array, b: Array) -> Array:
    found: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return found


WRITTEN: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array]]] = {
    "divide": (lambda op, a, b: op.divide(a, b), truncated),
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


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(
    ("a", "b"),
    [(WIDE, SMALL), (TIMES, np.full_like(TIMES, 3600)), (WIDE, WIDE - 1), (WIDE, WIDE[::-1])],
    ids=["small", "times", "neighbours", "wide"],
)  # fmt: skip
def test_wide_integers_are_exact(name: str, a: Array, b: Array) -> None:
    write, expected = WRITTEN[name]
    b = np.where(b == 0, 1, b)
    model = model_of(write, a, b)
    keep_wide_integers(model, signature(f"{-MOST}..{MOST}"))
    np.testing.assert_array_equal(run(model, a, b), expected(a, b))


def test_openvino_alone_divides_in_float32() -> None:
    """What the rewrite is for: once this fails, remove it."""
    model = model_of(lambda op, a, b: op.divide(a, b), TIMES, SMALL)
    assert (run(model, TIMES, SMALL) != truncated(TIMES, SMALL)).any()


def test_small_integers_and_sizes_stay_as_they_are() -> None:
    write = WRITTEN["divide"][0]
    narrow = model_of(write, WIDE, SMALL)
    before = len(narrow.get_ops())
    keep_wide_integers(narrow, signature("0..30000"))
    assert len(narrow.get_ops()) == before

    def half_of_size(op: Any, a: Any) -> Any:
        return op.divide(op.shape_of(a), op.constant(2, dtype="int64"))

    sizes = model_of(half_of_size, WIDE)
    before = len(sizes.get_ops())
    keep_wide_integers(sizes, signature(f"0..{MOST}"))
    assert len(sizes.get_ops()) == before
