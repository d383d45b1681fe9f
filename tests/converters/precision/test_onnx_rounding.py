"""Half precision on the CPU: rounded as the file says, not as ONNX Runtime would have it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

from modelc.converters.onnx_half_emulation import cast_ends, computes_in_half

from .conftest import OnnxFile, load, run

HUGE = np.full((1, 2), 300, np.float32)


@pytest.fixture
def squares(onnx_file: OnnxFile) -> Path:
    """300 squared twice and rooted twice: beyond FP16 in between, 300 at the end."""
    return onnx_file("""g (float[N,2] x) => (float[N,2] y) {
        [down] a = Cast<to=10>(x)
        [one] b = Mul(a, a)
        [root] c = Sqrt(b)
        [up] y = Cast<to=1>(c)
    }""")


def test_our_runner_shows_an_overflow_that_onnx_runtime_hides(squares: Path) -> None:
    session = onnxruntime.InferenceSession(squares, providers=["CPUExecutionProvider"])
    assert np.array_equal(session.run(None, {"x": HUGE})[0], HUGE)
    assert np.isinf(run(squares, {"x": HUGE})["y"]).all()


@pytest.mark.parametrize(("code", "step"), [(10, 2.0**-10), (16, 2.0**-7)])
def test_each_half_output_is_rounded(onnx_file: OnnxFile, code: int, step: float) -> None:
    path = onnx_file(f"""g (float[N] x) => (float[N] y) {{
        [down] a = Cast<to={code}>(x)
        [half] b = Mul(a, a)
        [up] y = Cast<to=1>(b)
    }}""")
    found = run(path, {"x": np.array([1 + step, 1 + step / 4], np.float32)})["y"]
    assert np.array_equal(found, [1 + 2 * step, 1])


def test_half_weights_and_constants_are_read_as_they_are(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        """g (float[N] x) => (float[N] y) {
            [k] k = Constant<value = float[1] {2}>()
            [down] a = Cast<to=10>(x)
            [times] b = Mul(a, k)
            [plus] c = Add(b, w)
            [up] y = Cast<to=1>(c)
        }""",
        w=np.array([0.5], np.float16),
    )
    model = load(path)
    constant = model.graph.node[0].attribute[0].t
    constant.CopyFrom(numpy_helper.from_array(np.array([2], np.float16)))
    path.write_bytes(model.SerializeToString())
    assert np.array_equal(run(path, {"x": np.array([1, 3], np.float32)})["y"], [2.5, 6.5])


def test_a_model_that_takes_half_takes_half(onnx_file: OnnxFile) -> None:
    path = onnx_file("g (float16[N] x) => (float16[N] y) { [one] a = Exp(x) [two] y = Log(a) }")
    found = run(path, {"x": np.array([1, 12], np.float16)})["y"]
    assert found.dtype == np.float16
    assert np.isinf(found[1])


def test_bodies_are_rounded_as_well(onnx_file: OnnxFile) -> None:
    path = onnx_file("""g (float[N] x, bool c) => (float[N] y) {
        [down] a = Cast<to=10>(x)
        [branch] b = If (c) <
            then_branch = t () => (float16[N] p) { [square] s = Mul(a, a) [root] p = Sqrt(s) },
            else_branch = e () => (float16[N] q) { [same] q = Identity(a) }>
        [up] y = Cast<to=1>(b)
    }""")
    x = np.array([300, 2], np.float32)
    assert np.array_equal(run(path, {"x": x, "c": np.array(True)})["y"], [np.inf, 2])
    assert np.array_equal(run(path, {"x": x, "c": np.array(False)})["y"], x)


def test_a_model_in_which_only_casts_are_half_runs_as_it_is(onnx_file: OnnxFile) -> None:
    path = onnx_file("""g (float[N] x) => (float[N] y) {
        [down] a = Cast<to=16>(x)
        [up] b = Cast<to=1>(a)
        [twice] y = Add(b, b)
    }""")
    assert not computes_in_half(load(path))
    assert run(path, {"x": np.array([1.001], np.float32)})["y"] == 2


def test_one_operator_in_half_is_found_in_a_body(onnx_file: OnnxFile) -> None:
    path = onnx_file("""g (float[N] x, bool c) => (float[N] y) {
        [down] a = Cast<to=16>(x)
        [branch] b = If (c) <
            then_branch = t () => (bfloat16[N] p) { [root] p = Sqrt(a) },
            else_branch = e () => (bfloat16[N] q) { [same] q = Cast<to=16>(a) }>
        [up] y = Cast<to=1>(b)
    }""")
    assert computes_in_half(load(path))


def test_bfloat16_outputs_of_a_model_that_computes_in_it(onnx_file: OnnxFile) -> None:
    path = onnx_file(
        """g (float[N] x) => (bfloat16[N] y) {
            [in] h = Cast<to=16>(x) [double] y = Add(h, h) }"""
    )
    x = np.array([1.0, 1 + 2**-9], np.float32)
    np.testing.assert_array_equal(run(path, {"x": x})["y"], [2.0, 2.0])


def test_float_ends_on_a_half_model_only_cast(onnx_file: OnnxFile) -> None:
    """For devices that have half kernels of their own."""
    path = onnx_file("g (float16[N] x) => (float16[N] y) { [n] y = Neg(x) }")
    model = load(path)
    cast_ends(model, (*model.graph.input, *model.graph.output))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (found,) = session.run(None, {"x": np.array([1, 2], np.float32)})
    assert found.dtype == np.float32
    assert np.array_equal(found, [-1, -2])
