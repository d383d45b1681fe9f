"""The forecast: what half precision cannot hold, on real feeds, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelc.converters.onnx_half_ranges import measure_ranges
from modelc.core.kinds import Precision

from .conftest import OnnxFile, forecast, load

ONE = {"x": np.ones((2, 4), np.float32)}
FP16, BF16 = Precision.FP16, Precision.BF16
EYE = np.eye(4, dtype=np.float32)


def big(onnx_file: OnnxFile, *, factor: float) -> Path:
    return onnx_file(
        """g (float[N,4] x) => (float[N,4] y) {
            [up] a = MatMul(x, w)
            [act] b = Relu(a)
            [down] y = Mul(b, s)
        }""",
        modules={"up": "mlp.up", "act": "mlp.act", "down": "mlp.down"},
        w=EYE * 300,
        s=np.float32(factor),
    )


def test_an_activation_beyond_fp16_is_named_by_module(onnx_file: OnnxFile) -> None:
    feed = {"x": np.full((2, 4), -400, np.float32)}
    (found,) = forecast(big(onnx_file, factor=1e-2), [feed], FP16)
    assert str(found).startswith("mlp.up (MatMul up): ")
    assert str(found).endswith(" 1.2e+05 > 65504")
    assert found.value == 120000
    assert found.keep == ("up", "act")


def test_the_largest_feed_decides_and_neighbours_are_kept(onnx_file: OnnxFile) -> None:
    path = big(onnx_file, factor=1e-2)
    feeds = [ONE, {"x": np.full((3, 4), 400, np.float32)}, ONE]
    found = forecast(path, feeds, FP16)
    assert {name for one in found for name in one.keep} == {"up", "act", "down"}
    assert not forecast(path, [ONE, ONE], FP16)
    assert not forecast(path, feeds, BF16)  # it has float32's range


def test_fusion_does_not_hide_what_lies_between_two_nodes(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        """g (float[N,2,6,6] x) => (float[N,2,6,6] y) {
            [conv] a = Conv<pads=[1,1,1,1]>(x, w)
            [relu] y = Relu(a)
        }""",
        w=np.full((2, 2, 3, 3), -1e5, np.float32),
    )
    ranges = measure_ranges(load(path), path.parent, [{"x": np.ones((1, 2, 6, 6), np.float32)}])
    assert ranges["a"].low == pytest.approx(-1.8e6)
    assert ranges["y"].peak == 0


def test_an_empty_tensor_has_no_range(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (float[N,4] x) => (float[N,4] y) { [n] y = Neg(x) }")
    ranges = measure_ranges(load(path), path.parent, [{"x": np.zeros((0, 4), np.float32)}])
    assert ranges["y"].peak == 0


def test_float64_is_measured_too(onnx_file: OnnxFile) -> None:
    """AutoCast makes it half precision like float32."""
    path = onnx_file(
        """g (double[N,4] x) => (double[N,4] y) { [up] a = MatMul(x, w) [down] y = Mul(a, s) }""",
        w=EYE.astype(np.float64) * 1e6,
        s=np.float64(1e-12),
    )
    found = forecast(path, [{"x": np.ones((2, 4))}], FP16)
    assert {one.tensor for one in found} == {"w", "s", "a", "y"}


def test_a_model_without_floats_has_no_range(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (int64[N] x) => (int64[N] y) { [n] y = Neg(x) }")
    assert not forecast(path, [{"x": np.ones(2, np.int64)}], FP16)


def test_activations_that_are_all_tiny_are_found(onnx_file: OnnxFile) -> None:
    (found,) = forecast(big(onnx_file, factor=1e-10), [ONE], FP16)[1:]
    assert " 3.0e-08" in found.reason
    assert found.keep == ("down",)


PRODUCT = "g (float[N,4] x) => (float[N,4] y) { [linear] y = MatMul(x, w) }"


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (np.full((4, 4), 1e5), r"weights are up to 1e\+05 > 65504"),
        (np.full((4, 4), -3.4e38), r"a mask constant of -3\.4e\+38, beyond 65504"),
        (np.triu(np.full((4, 4), -1e9)), r"a mask constant of -1e\+09, beyond 65504"),
        (np.full((4, 4), 1e-9), "100% of the weights become 0, the largest is 1.0e-09"),
        (np.full((4, 4), 2e-7), "weights stay below 2.0e-07, where FP16 loses precision"),
    ],
)
def test_weights_that_fp16_cannot_hold_are_named(
    onnx_file: OnnxFile, weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]], reason: str
) -> None:
    path = onnx_file(PRODUCT, modules={"linear": "head"}, w=weights.astype(np.float32))
    found = forecast(path, [{"x": np.full((1, 4), 1e3, np.float32)}], FP16)[0]
    assert (found.module, found.keep) == ("head", ("linear",))
    assert found.reason == reason.replace("\\", "")


def test_one_tiny_weight_among_others_is_no_loss(onnx_file: OnnxFile) -> None:
    weights = EYE.copy()
    weights[0, 1] = 1e-9
    assert forecast(onnx_file(PRODUCT, w=weights), [ONE], FP16) == ()


def test_weights_in_a_file_of_their_own_are_read(onnx_file: OnnxFile) -> None:
    path = onnx_file(PRODUCT, external=True, w=EYE * 1e5)
    assert (path.parent / "model.data").exists()
    assert forecast(path, [ONE], FP16)[0].tensor == "w"


def test_an_infinite_constant_is_no_overflow(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        "g (float[N,4] x) => (float[N,4] y) { [least] y = Min(x, w) }", w=np.float32(np.inf)
    )
    assert forecast(path, [ONE], FP16) == ()


def test_a_guard_of_a_division_is_kept_up_to_the_division(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] z) {
            [square] a = Mul(x, x)
            [guard] b = Add(a, eps)
            [root] c = Sqrt(b)
            [divide] y = Div(x, c)
            [after] z = Relu(y)
        }""",
        eps=np.float32(1e-12),
    )
    (found,) = forecast(path, [ONE], FP16)
    assert found.keep == ("guard", "root", "divide")


def test_a_sound_model_has_no_forecast(onnx_file: OnnxFile) -> None:
    assert forecast(onnx_file(PRODUCT, w=EYE), [ONE], FP16) == ()


@pytest.mark.parametrize("precision", [FP16, BF16])
def test_large_angles_and_what_computes_them_are_kept(
    onnx_file: OnnxFile, precision: Precision
) -> None:
    """Rotary positions: half a step of float16 at 1000 radians is a quarter of a radian."""
    path = onnx_file(
        """g (int64[N] p, float[N,4] x) => (float[N,4] y) {
            [cast] f = Cast<to=1>(p)
            [column] c = Unsqueeze(f, last)
            [angle] a = MatMul(c, inverse)
            [cos] t = Cos(a)
            [turn] y = Mul(x, t)
        }""",
        last=np.array([1]),
        inverse=np.array([[1, 0.1, 0.01, 0.001]], np.float32),
    )
    x = np.ones((2, 4), np.float32)
    (found,) = forecast(path, [{"p": np.array([3, 999]), "x": x}], precision)
    assert found.keep == ("cos", "angle", "column", "cast")
    assert not forecast(path, [{"p": np.array([0, 3]), "x": x}], precision)


def test_a_product_of_activations_is_no_angle(onnx_file: OnnxFile) -> None:
    """A layer before a sine keeps its own layers before it in half precision."""
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] y) {
            [first] a = MatMul(x, w)
            [act] b = Relu(a)
            [second] c = MatMul(b, w)
            [sin] y = Sin(c)
        }""",
        w=EYE * 3,
    )
    (found,) = forecast(path, [ONE], FP16)
    assert found.keep == ("sin", "second")
