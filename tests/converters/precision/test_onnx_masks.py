"""Attention masks of -3.4e38: brought into half precision's range, or kept, never made wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelc.core.contract import Array, Converted, Feed
from modelc.core.kinds import Precision

from .conftest import OnnxFile, dtype_of, run, sqnr

pytestmark = pytest.mark.filterwarnings("ignore")  # ModelOpt's own; the pipeline logs them
Made = Callable[..., tuple[Path, Converted]]
LOWEST = float(np.finfo(np.float32).min)
FILL = """g (float[N,4] x, bool[N,4] hide) => (float[N,4] y) {
    [scores] s = MatMul(x, w)
    [fill] m = Where(hide, lowest, s)
    [softmax] p = Softmax(m)
    [end] y = MatMul(p, w)
}"""
ADD = """g (float[N,4] x, bool[N,4] hide) => (float[N,4] y) {
    [scores] s = MatMul(x, w)
    [fill] f = Where(hide, lowest, zero)
    [add] m = Add(s, f)
    [softmax] p = Softmax(m)
    [end] y = MatMul(p, w)
}"""
X = np.random.default_rng(0).standard_normal((3, 4), np.float32)
WEIGHTS = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32) * 4
SOME = np.array([[0, 1, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0]], bool)
FULL = np.array([[0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool)  # one row hides everything


def feed(hide: Array) -> Feed:
    return {"x": X, "hide": hide}


def masked(onnx_file: OnnxFile, graph: str, lowest: float = LOWEST) -> Path:
    return onnx_file(graph, w=WEIGHTS, lowest=np.float32(lowest), zero=np.float32(0))


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(("graph", "hide"), [(FILL, SOME), (FILL, FULL), (ADD, SOME), (ADD, FULL)])
@pytest.mark.parametrize("lowest", [LOWEST, -1e9])
def test_a_masked_softmax_is_right_in_half(
    onnx_file: OnnxFile, made: Made, precision: Precision, graph: str, hide: Array, lowest: float
) -> None:
    path = masked(onnx_file, graph, lowest)
    half, _ = made(path, precision, feed(hide))
    least = 45 if precision is Precision.FP16 else 27
    assert sqnr(run(path, feed(hide))["y"], run(half, feed(hide))["y"]) > least


@pytest.mark.parametrize(("graph", "hide"), [(FILL, SOME), (FILL, FULL), (ADD, SOME)])
def test_a_fill_of_the_lowest_float_keeps_nothing_in_fp32(
    onnx_file: OnnxFile, made: Made, graph: str, hide: Array
) -> None:
    half, converted = made(masked(onnx_file, graph), Precision.FP16, feed(hide))
    assert dtype_of(half, "m") == "FLOAT16"
    (note,) = converted.notes
    assert (note.split()[-1], "65504" in note) == ("lowest", True)


def test_a_row_that_an_added_fill_hides_whole_keeps_the_sum_in_fp32(
    onnx_file: OnnxFile, made: Made
) -> None:
    """-3.4e38 swallows the scores and leaves the mean, which no fill of float16 can do."""
    half, converted = made(masked(onnx_file, ADD), Precision.FP16, feed(FULL))
    assert dtype_of(half, "m") == "FLOAT"
    assert dtype_of(half, "s") == "FLOAT16"
    assert any(note.startswith("kept in FP32: Softmax") for note in converted.notes)


@pytest.mark.parametrize("graph", [FILL, ADD])
def test_a_fill_of_minus_infinity_stays_what_it_is(
    onnx_file: OnnxFile, made: Made, graph: str
) -> None:
    path = masked(onnx_file, graph, -np.inf)
    half, converted = made(path, Precision.FP16, feed(FULL))
    wanted, found = run(path, feed(FULL))["y"], run(half, feed(FULL))["y"]
    assert np.array_equal(np.isnan(wanted), np.isnan(found))
    assert np.isnan(found[1]).all()
    assert np.allclose(wanted[[0, 2]], found[[0, 2]], rtol=1e-2, atol=1e-2)
    assert converted.notes == ()


def test_a_fill_that_others_see_as_well_is_not_touched(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(
        """g (float[N,4] x, bool[N,4] hide) => (float[N,4] y, float[N,4] m) {
            [fill] m = Where(hide, lowest, x)
            [softmax] y = Softmax(m)
        }""",
        lowest=np.float32(LOWEST),
    )
    half, converted = made(path, Precision.FP16, feed(SOME))
    assert np.array_equal(run(half, feed(SOME))["m"][SOME], [LOWEST] * SOME.sum())
    assert any(" 3.4e+38 " in note for note in converted.notes)
