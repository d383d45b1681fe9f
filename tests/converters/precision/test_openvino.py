"""OpenVINO in FP16 and INT8: weights that FP16 would clip, and what the device computes in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
import pytest

from modelc.converters import openvino_ir
from modelc.converters.openvino_precision import OPENVINO_SOURCE
from modelc.core.contract import Array, Converted, Feed, Job
from modelc.core.errors import UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs

from .conftest import JobFor, OnnxFile, sqnr

pytestmark = pytest.mark.needs("openvino")
RANDOM = np.random.default_rng(0)
FEED: Feed = {"x": RANDOM.standard_normal((2, 16), np.float32)}
SIGNATURE = merge_inputs([parse_input("x:float32[batch=1..4,16]")], {}).with_outputs(("y",))
SQUARE = RANDOM.standard_normal((16, 16)).astype(np.float32)
CLIPPED = np.where(np.arange(256).reshape(16, 16) == 0, np.float32(1e6), SQUARE)  # in float16
TWO = """g (float[batch,16] x) => (float[batch,16] y) {
    [one] a = MatMul(x, w)
    [two] y = MatMul(a, v)
}"""
MODULES = {"one": "layers.0", "two": "layers.1"}


def converted(job: Job) -> tuple[Path, Converted]:
    made = openvino_ir.convert(job)
    return job.folder / made.files[0][0], made


def run(path: Path) -> Array:
    with openvino_ir.open_runner(path, "cpu", SIGNATURE) as runner:
        return runner.run(FEED)["y"]


def test_a_clipped_weight_is_kept_in_fp32_and_named(onnx_file: OnnxFile, job_for: JobFor) -> None:
    path = onnx_file(TWO, modules=MODULES, w=CLIPPED, v=SQUARE)
    ir, made = converted(job_for(path, Precision.FP16, FEED, signature=SIGNATURE))
    (note,) = made.notes
    assert {"layers.0", "1e+06", "65504)"} <= set(note.split())
    assert openvino_ir.inspect(ir).weights == {"f32": 256, "f16": 256}
    full, _ = converted(job_for(path, Precision.FP32, FEED, signature=SIGNATURE))
    assert sqnr(run(full), run(ir)) > 50


def test_frequencies_of_sines_stay_fp32_and_matrices_before_a_sine_do_not(
    onnx_file: OnnxFile, job_for: JobFor
) -> None:
    """At position 2000 a rounded frequency turns the sine by up to a quarter of a radian."""
    graph = """g (float[batch,16] x) => (float[batch,16] y) {
        [scale] p = Mul(x, positions)
        [angle] a = Mul(p, frequencies)
        [turn] s = Sin(a)
        [mix] m = MatMul(x, w)
        [wave] t = Sin(m)
        [end] y = Add(s, t)
    }"""
    frequencies = (0.9 ** np.arange(16)).astype(np.float32)
    weights = {"positions": np.float32(2000), "frequencies": frequencies, "w": SQUARE}
    path = onnx_file(graph, modules={"turn": "rotary"}, **weights)
    half, made = converted(job_for(path, Precision.FP16, FEED, signature=SIGNATURE))
    assert openvino_ir.inspect(half).weights == {"f32": 17, "f16": 256}
    assert {note.split()[3] for note in made.notes} == {"rotary"}
    full, _ = converted(job_for(path, Precision.FP32, FEED, signature=SIGNATURE))
    assert sqnr(run(full), run(half)) > 50


def test_openvino_by_itself_clips_it(onnx_file: OnnxFile, tmp_path: Path) -> None:
    path = onnx_file(TWO, w=CLIPPED, v=SQUARE)
    model = openvino.Core().read_model(str(path))
    openvino.save_model(model, str(tmp_path / "naive.xml"), compress_to_fp16=True)
    assert sqnr(run(path.with_suffix(".onnx")), run(tmp_path / "naive.xml")) < 10


def test_weights_that_the_user_keeps_stay_fp32(onnx_file: OnnxFile, job_for: JobFor) -> None:
    path = onnx_file(TWO, modules=MODULES, w=SQUARE, v=SQUARE)
    job = job_for(path, Precision.FP16, FEED, signature=SIGNATURE, keep=("layers.1",))
    ir, made = converted(job)
    assert openvino_ir.inspect(ir).weights == {"f32": 256, "f16": 256}
    (note,) = made.notes
    assert note.split()[-1] == "layers.1"


def test_a_pattern_without_a_match_is_an_error(onnx_file: OnnxFile, job_for: JobFor) -> None:
    path = onnx_file(TWO, modules=MODULES, w=SQUARE, v=SQUARE)
    job = job_for(path, Precision.FP16, FEED, signature=SIGNATURE, keep=("layers.9",))
    with pytest.raises(UsageError, match=r"layers\.9"):
        openvino_ir.convert(job)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_half_weights_compute_in_float32(
    onnx_file: OnnxFile, job_for: JobFor, precision: Precision
) -> None:
    """The device says f16 of such a layer, and runs a float32 kernel."""
    path = onnx_file(TWO, w=SQUARE, v=SQUARE * 0.5)
    ir, _ = converted(job_for(path, precision, FEED, signature=SIGNATURE))
    found = openvino_ir.coverage(ir, FEED, "cpu")
    assert (found.layers, found.share) == ({"fp32": 2}, {"fp32": 1.0})
    assert found.source == OPENVINO_SOURCE


def test_the_share_is_of_time(onnx_file: OnnxFile) -> None:
    square = RANDOM.standard_normal((1024, 1024)).astype(np.float32)
    path = onnx_file(
        "g (float[N,1024] x) => (float[N,1024] y) { [one] y = MatMul(x, w) }", w=square
    )
    found = openvino_ir.coverage(path, {"x": np.ones((64, 1024), np.float32)}, "cpu")
    assert (found.layers, found.share, found.work) == ({"fp32": 1}, {"fp32": 1.0}, "time")


QUANTIZED = """g (float[batch,16] x) => (float[batch,16] y) {
    [xq] xq = QuantizeLinear(x, s, z) [xd] xd = DequantizeLinear(xq, s, z)
    [wd] wd = DequantizeLinear(w8, s, z)
    [one] a = MatMul(xd, wd)
    [two] y = MatMul(a, v)
}"""


@pytest.fixture
def quantized(onnx_file: OnnxFile) -> Path:
    eights = RANDOM.integers(-127, 128, (16, 16)).astype(np.int8)
    return onnx_file(QUANTIZED, s=np.float32(0.02), z=np.int8(0), w8=eights, v=SQUARE)


def test_int8_comes_from_an_onnx_with_q_and_dq(quantized: Path, job_for: JobFor) -> None:
    ir, _ = converted(job_for(quantized, Precision.INT8, FEED, signature=SIGNATURE))
    assert openvino_ir.inspect(ir).metadata == {"precision": "int8"}
    found = openvino_ir.coverage(ir, FEED, "cpu")
    assert found.layers == {"int8": 1, "fp32": 1}
    assert sum(found.share.values()) == pytest.approx(1)


def test_int8_comes_from_an_ir_as_well(quantized: Path, job_for: JobFor) -> None:
    first, _ = converted(job_for(quantized, Precision.FP32, FEED, signature=SIGNATURE))
    again, _ = converted(job_for(first, Precision.INT8, FEED, signature=SIGNATURE))
    assert openvino_ir.inspect(again).metadata == {"precision": "int8"}
    assert openvino_ir.inspect(again).inputs[0].dims == ("1..4", "16")
    assert np.array_equal(run(first), run(again))


ATTENTION = """g (float[batch,16] x, bool[batch,16] hide) => (float[batch,16] y) {
    [split] q = Reshape(x, heads)
    [turn] k = Transpose<perm=[0,1,3,2]>(q)
    [scores] s = MatMul(q, k)
    [mask] m = Reshape(hide, rows)
    [fill] f = Where(m, lowest, s)
    [softmax] p = Softmax(f)
    [mix] o = MatMul(p, q)
    [merge] y = Reshape(o, flat)
}"""


def test_a_boolean_mask_makes_no_attention_int8(onnx_file: OnnxFile) -> None:
    """OpenVINO says u8 of the fused attention of a float32 model, because of its mask."""
    path = onnx_file(
        ATTENTION,
        heads=np.array([0, 1, 4, 4], np.int64),
        rows=np.array([0, 1, 4, 4], np.int64),
        flat=np.array([0, 16], np.int64),
        lowest=np.float32(-1e4),
    )
    hide = RANDOM.integers(0, 2, (2, 16)).astype(bool)
    found = openvino_ir.coverage(path, {**FEED, "hide": hide}, "cpu")
    assert "int8" not in found.layers
    assert "int8" not in found.share
    assert found.layers["fp32"] >= 1
