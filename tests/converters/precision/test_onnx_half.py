"""FP16 and BF16 ONNX: what is cast, what stays in FP32, names and metadata."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from modelc.converters import onnx_model
from modelc.converters.onnx_autocast import run_autocast, write_draft
from modelc.converters.onnx_half_emulation import half_types
from modelc.converters.onnx_topology import node_bodies
from modelc.core.contract import Converted, Feed
from modelc.core.errors import ConversionError, ErrorCode, UsageError
from modelc.core.kinds import Precision

from ...reasons import has_code
from .conftest import JobFor, OnnxFile, dtype_of, load, nodes_of, run, sqnr

pytestmark = pytest.mark.filterwarnings("ignore")  # ModelOpt's own; the pipeline logs them
Made = Callable[..., tuple[Path, Converted]]
FP16, BF16 = Precision.FP16, Precision.BF16
RANDOM = np.random.default_rng(0)
FEED: Feed = {"x": RANDOM.standard_normal((2, 4), np.float32)}
WIDE: Feed = {"x": RANDOM.standard_normal((2, 4), np.float32) * 500}

MLP = """g (float[N,4] x) => (float[N,4] y) {
    [up] a = MatMul(x, w)
    [act] b = Relu(a)
    [down] c = MatMul(b, v)
    [out] y = Neg(c)
}"""
MODULES = {"up": "layers.0.up", "act": "layers.0.act", "down": "layers.0.down", "out": "head"}


@pytest.fixture
def mlp(onnx_file: OnnxFile) -> Path:
    """Inner activations are 500 times as large as the feed and the output."""
    weights = RANDOM.standard_normal((4, 4)).astype(np.float32)
    return onnx_file(MLP, modules=MODULES, w=weights * 500, v=weights / 500)


@pytest.mark.parametrize(
    ("precision", "code", "least"), [(FP16, "FLOAT16", 50), (BF16, "BFLOAT16", 30)]
)
def test_inner_tensors_are_half_and_inputs_and_outputs_float32(
    mlp: Path, made: Made, precision: Precision, code: str, least: float
) -> None:
    half, _ = made(mlp, precision, FEED)
    assert [dtype_of(half, name) for name in ("x", "a", "c", "y")] == ["FLOAT", code, code, "FLOAT"]
    assert least < sqnr(run(mlp, FEED)["y"], run(half, FEED)["y"]) < least + 40


def test_an_overflow_is_kept_in_fp32_and_named_by_module(mlp: Path, made: Made) -> None:
    half, converted = made(mlp, FP16, WIDE)
    modules = [re.findall(r"layers\.0\.(\w+)", note) for note in converted.notes]
    assert modules == [["up"], ["act"], ["down"]]
    assert all("65504" in note for note in converted.notes)
    assert "3 nodes" in converted.options.values()
    assert sqnr(run(mlp, WIDE)["y"], run(half, WIDE)["y"]) > 50


def test_the_same_model_cast_without_the_forecast_overflows(
    mlp: Path, job_for: JobFor, tmp_path: Path
) -> None:
    job = job_for(mlp, FP16, WIDE)
    naive = run_autocast(write_draft(load(mlp), mlp, job.folder / "draft"), job, keep=())
    path = tmp_path / "naive.onnx"
    path.write_bytes(naive.SerializeToString())
    assert sqnr(run(mlp, WIDE)["y"], run(path, WIDE)["y"]) < 10


@pytest.mark.parametrize("pattern", ["layers.0.up", "up", "layers.*.u?"])
def test_what_the_user_keeps_stays_fp32(mlp: Path, made: Made, pattern: str) -> None:
    half, converted = made(mlp, FP16, FEED, keep=(pattern,))
    assert dtype_of(half, "a") == "FLOAT"
    assert dtype_of(half, "c") == "FLOAT16"
    (note,) = converted.notes
    assert {"FP32", "layers.0.up"} <= set(re.split(r"[ ,]+", note))


def test_an_operator_can_be_kept(mlp: Path, made: Made) -> None:
    half, _ = made(mlp, FP16, FEED, keep=("MatMul",))
    assert [dtype_of(half, name) for name in ("a", "b", "c")] == ["FLOAT", "FLOAT16", "FLOAT"]


def test_a_pattern_without_a_match_is_an_error(mlp: Path, made: Made) -> None:
    with pytest.raises(UsageError, match=r"layers\.7"):
        made(mlp, FP16, FEED, keep=("layers.7",))


def test_nodes_keep_their_names_and_the_sidecar_is_copied(mlp: Path, made: Made) -> None:
    half, converted = made(mlp, FP16, FEED)
    assert {file.name for file in half.parent.iterdir()} == {name for name, _ in converted.files}
    assert nodes_of(mlp).keys() <= nodes_of(half).keys()
    assert ("model.fp16.debug.json", "debug") in converted.files
    assert (half.parent / "model.fp16.debug.json").read_bytes() == (
        mlp.parent / "model.debug.json"
    ).read_bytes()


def test_the_metadata_is_replaced(mlp: Path, made: Made) -> None:
    model = load(mlp)
    for key in ("modelc.precision", "modelc.capture", "theirs"):
        model.metadata_props.add(key=key, value="fp32")
    mlp.write_bytes(model.SerializeToString())
    half, _ = made(mlp, FP16, FEED)
    wanted = {"modelc.precision": "fp16", "theirs": "fp32"}
    assert onnx_model.inspect(half).metadata == wanted


@pytest.mark.parametrize(
    ("precision", "code", "least"), [(FP16, "FLOAT16", 50), (BF16, "BFLOAT16", 30)]
)
def test_half_io_makes_inputs_and_outputs_half_and_the_runner_casts(
    mlp: Path, made: Made, precision: Precision, code: str, least: float
) -> None:
    half, converted = made(mlp, precision, FEED, half_io=True)
    assert [dtype_of(half, name) for name in ("x", "y")] == [code, code]
    outputs = run(half, FEED)
    assert outputs["y"].dtype == np.float32
    assert sqnr(run(mlp, FEED)["y"], outputs["y"]) > least
    assert converted.options["io"] == precision


DOUBLES = """g (double[N,4] x) => (double[N,4] y, float[N,4] b, double[N,4] z) {
    [in] a = Cast<to=1>(x)
    [one] b = MatMul(a, w)
    [out] y = Cast<to=11>(b)
    [sum] z = Add(y, x)
}"""


@pytest.mark.parametrize(("half_io", "code"), [(False, "FLOAT"), (True, "FLOAT16")])
def test_inputs_and_outputs_of_float64_keep_their_type(
    onnx_file: OnnxFile, made: Made, half_io: bool, code: str
) -> None:
    path = onnx_file(DOUBLES, w=RANDOM.standard_normal((4, 4)).astype(np.float32))
    feed = {"x": FEED["x"].astype(np.float64)}
    half, _ = made(path, FP16, feed, half_io=half_io)
    assert [dtype_of(half, name) for name in "xybz"] == ["DOUBLE", "DOUBLE", code, "DOUBLE"]
    wanted, found = run(path, feed), run(half, feed)
    for name, dtype in (("y", np.float64), ("b", np.float32), ("z", np.float64)):
        assert found[name].dtype == dtype
        assert 50 < sqnr(wanted[name], found[name]) < 90


@pytest.mark.parametrize("half_io", [False, True])
def test_an_output_may_also_be_read_within(onnx_file: OnnxFile, made: Made, half_io: bool) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] a, float[N,4] y, int64[N,4] n) {
            [one] a = MatMul(x, w) [two] y = MatMul(a, w) [whole] n = Cast<to=7>(a)
        }""",
        w=RANDOM.standard_normal((4, 4)).astype(np.float32),
    )
    half, _ = made(path, FP16, FEED, half_io=half_io)
    wanted, found = run(path, FEED), run(half, FEED)
    assert all(50 < sqnr(wanted[name], found[name]) < 90 for name in ("a", "y"))
    np.testing.assert_array_equal(found["n"], wanted["n"])


@pytest.mark.parametrize("precision", [FP16, BF16])
def test_constant_outputs_stay_float32_and_exact(
    onnx_file: OnnxFile, made: Made, precision: Precision
) -> None:
    weights = RANDOM.standard_normal((4, 4)).astype(np.float32)
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] y, float[4,4] w, float[3] k) {
            [one] y = MatMul(x, w) }""",
        w=weights,
        k=np.arange(3, dtype=np.float32) / 3,
    )
    half, _ = made(path, precision, FEED)
    found = run(half, FEED)
    assert 30 < sqnr(FEED["x"] @ weights, found["y"]) < 90
    np.testing.assert_array_equal(found["w"], weights)
    np.testing.assert_array_equal(found["k"], np.arange(3, dtype=np.float32) / 3)


def test_an_output_that_is_kept_and_read_stays_exact(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] a, float[N,4] y) {
            [one] a = Mul(x, big) [two] y = MatMul(a, w)
        }""",
        big=np.float32(1e30),
        w=RANDOM.standard_normal((4, 4)).astype(np.float32) * np.float32(1e-30),
    )
    half, _ = made(path, FP16, FEED)
    np.testing.assert_array_equal(run(half, FEED)["a"], run(path, FEED)["a"])


def test_an_output_that_overflows_cannot_be_half(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file("g (float[N,4] x) => (float[N,4] y) { [up] y = Mul(x, w) }", w=np.float32(1e5))
    with pytest.raises(
        ConversionError, check=has_code(ErrorCode.UNSUPPORTED, option="half-io", naming="Mul up")
    ):
        made(path, FP16, FEED, half_io=True)


def test_a_weight_that_two_layers_share_is_stored_once(onnx_file: OnnxFile, made: Made) -> None:
    weights = RANDOM.standard_normal((64, 64)).astype(np.float32)
    path = onnx_file(
        "g (float[N,64] x) => (float[N,64] y) { [one] a = MatMul(x, w) [two] y = MatMul(a, w) }",
        w=weights / 64,
    )
    feed = {"x": np.ones((1, 64), np.float32)}
    half, _ = made(path, FP16, feed)
    assert half.stat().st_size < path.stat().st_size * 0.6


def test_external_weights_stay_external(onnx_file: OnnxFile, made: Made) -> None:
    weights = RANDOM.standard_normal((64, 64)).astype(np.float32)
    path = onnx_file(
        "g (float[N,64] x) => (float[N,64] y) { [one] y = MatMul(x, w) }", external=True, w=weights
    )
    feed = {"x": np.ones((1, 64), np.float32)}
    half, converted = made(path, FP16, feed, external_data=True)
    assert (half.name + ".data", "data") in converted.files
    assert sqnr(run(path, feed)["y"], run(half, feed)["y"]) > 50


def test_a_layer_norm_that_autocast_fuses_keeps_its_last_nodes_name(
    onnx_file: OnnxFile, made: Made
) -> None:
    path = onnx_file(
        """g (float[N,8] x) => (float[N,8] z) {
            [mean] m = ReduceMean<axes=[-1]>(x)
            [centre] c = Sub(x, m)
            [square] s = Pow(c, two)
            [var] v = ReduceMean<axes=[-1]>(s)
            [guard] g = Add(v, eps)
            [root] r = Sqrt(g)
            [norm] n = Div(c, r)
            [scale] w = Mul(n, gain)
            [shift] y = Add(w, bias)
            [end] z = Relu(y)
        }""",
        opset=17,
        modules={"shift": "norm"},
        two=np.float32(2),
        eps=np.float32(1e-3),
        gain=np.ones(8, np.float32),
        bias=np.zeros(8, np.float32),
    )
    feed = {"x": RANDOM.standard_normal((2, 8), np.float32)}
    half, _ = made(path, FP16, feed)
    assert nodes_of(half)["shift"].op_type == "LayerNormalization"
    assert sqnr(run(path, feed)["z"], run(half, feed)["z"]) > 50


def test_an_infinite_constant_stays_infinite(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] y) {
            [one] a = Max(x, least) [two] y = Max(a, least)
        }""",
        least=np.array([-np.inf, 0, -np.inf, 0], np.float32),
    )
    half, _ = made(path, FP16, FEED)
    feed = {"x": np.full((1, 4), -np.inf, np.float32)}
    assert np.array_equal(run(half, feed)["y"], [[-np.inf, 0, -np.inf, 0]])


BRANCH = """g (float[N,4] x, bool c) => (float[N,4] y) {
    [body] a = MatMul(x, w)
    [branch] b = If (c) <
        then_branch = t () => (float[N,4] p) { [yes] p = MatMul(a, w) },
        else_branch = e () => (float[N,4] q) { [no] q = Neg(a) }>
    [end] y = Tanh(b)
}"""


@pytest.mark.parametrize("precision", [FP16, BF16])
@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_run_and_stay_float32(
    onnx_file: OnnxFile, made: Made, precision: Precision, *, condition: bool
) -> None:
    path = onnx_file(BRANCH, w=RANDOM.standard_normal((4, 4)).astype(np.float32))
    feed = {**FEED, "c": np.array(condition)}
    half, _ = made(path, precision, feed)
    assert sqnr(run(path, feed)["y"], run(half, feed)["y"]) > 30
    assert half_types(load(half).graph)
    bodies = [body for node in load(half).graph.node for body in node_bodies(node)]
    assert [half_types(body) for body in bodies] == [(), ()]  # so no transpose in them is separated


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_may_have_constants_and_another_rank(
    onnx_file: OnnxFile, made: Made, *, condition: bool
) -> None:
    path = onnx_file(
        """g (float[N,4] x, bool c) => (float[M,4] y) {
            [one] a = MatMul(x, w) [wide] u = Unsqueeze(a, first)
            [branch] b = If (c) <
                then_branch = t () => (float[N,4] p) {
                    [axes] k = Constant<value = int64[1] {0}>() [less] p = Squeeze(u, k) },
                else_branch = e () => (float[M,N,4] q) { [same] q = Identity(u) }>
            [end] y = Reshape(b, rows)
        }""",
        w=RANDOM.standard_normal((4, 4)).astype(np.float32),
        first=np.array([0]),
        rows=np.array([-1, 4]),
    )
    feed = {**FEED, "c": np.array(condition)}
    half, _ = made(path, FP16, feed)
    assert sqnr(run(path, feed)["y"], run(half, feed)["y"]) > 50


def test_values_of_a_loop_stay_fp32(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] y) {
            [first] a = MatMul(x, w)
            [set] go = Constant<value = bool {1}>()
            [loop] b = Loop (count, go, a) <
                body = turn (int64 i, bool on, float[N,4] before) => (bool still, float[N,4] after)
                { [outer] still = Identity(go) [step] after = MatMul(before, w) }>
            [end] y = Tanh(b)
        }""",
        w=RANDOM.standard_normal((4, 4)).astype(np.float32) / 2,
        count=np.int64(3),
    )
    half, _ = made(path, FP16, FEED)
    assert dtype_of(half, "a") == "FLOAT16"
    assert sqnr(run(path, FEED)["y"], run(half, FEED)["y"]) > 50


def test_a_model_that_autocast_rejects(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(MLP, w=np.eye(4, dtype=np.float32), v=np.eye(4, dtype=np.float32))
    model = load(path)
    model.graph.node[3].op_type = "Unheard"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ConversionError):
        made(path, FP16, FEED)


def test_a_quantized_model_keeps_its_nodes(onnx_file: OnnxFile, made: Made) -> None:
    path = onnx_file(
        """g (float[N,4] x) => (float[N,4] y) {
            [q] a = QuantizeLinear(x, scale, zero)
            [dq] y = DequantizeLinear(a, scale, zero)
        }""",
        modules={"q": "stem"},
        scale=np.float32(0.1),
        zero=np.int8(0),
    )
    copy, converted = made(path, Precision.INT8, FEED)
    assert [node.name for node in load(copy).graph.node] == ["q", "dq"]
    assert onnx_model.inspect(copy).metadata == {"modelc.precision": "int8"}
    assert converted.files == (("model.int8.onnx", "model"), ("model.int8.debug.json", "debug"))
    assert np.array_equal(run(copy, FEED)["y"], run(path, FEED)["y"])
