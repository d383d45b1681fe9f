"""FP8 and INT4 for TensorRT: by ModelOpt on the CPU, compared with torch's own 8-bit floats."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, parser

from modelc.converters import onnx_model, tensorrt_onnx
from modelc.converters.onnx_coverage import measure_coverage
from modelc.converters.onnx_sessions import open_onnx
from modelc.converters.quantizers import modelopt_ptq
from modelc.converters.quantizers.quantization_checks import NothingQuantizedError
from modelc.core.contract import Quantized, QuantizeJob
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import merge_inputs
from modelc.validators.scaled_blocks import find_scaled_blocks

from .conftest import Feeds, ready

if TYPE_CHECKING:
    from numpy.typing import NDArray

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own; the pipeline logs them
    ready("modelopt"),
]
DRAW = np.random.default_rng(5)
GEMM, MATMUL = DRAW.normal(0, 0.1, (192, 256)), DRAW.normal(0, 0.1, (192, 128))
ODD = DRAW.normal(0, 0.1, (128, 100))
X = np.random.default_rng(6).normal(0, 1, (16, 256)).astype(np.float32)
Quantize = Callable[..., Quantized]


@pytest.fixture
def quantize(tmp_path: Path) -> Quantize:
    """`quantize(precision, model, method=..., keep=...)`: the result on a Gemm and MatMuls."""

    def run(
        precision: Precision, model: onnx.ModelProto | None = None, **changes: object
    ) -> Quantized:
        onnx.save(model or products(), tmp_path / "parent.onnx")
        folder = tmp_path / f"{precision}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        signature = merge_inputs([parse_input("x:float32[batch=1..16,256]")], {})
        job = QuantizeJob(
            parent=tmp_path / "parent.onnx", consumer="tensorrt-onnx", folder=folder,
            signature=signature.with_outputs(("z",)), calibration=Feeds(sample, 16),
            precision=precision, **changes,  # type: ignore[arg-type]  # fields of the job
        )  # fmt: skip
        return modelopt_ptq.quantize(job)

    return run


def sample(index: int) -> dict[str, NDArray[np.generic]]:
    return {"x": np.random.default_rng(index).normal(0, 1, (1, 256)).astype(np.float32)}


def products() -> onnx.ModelProto:
    """`x (256) -> transposed Gemm, Relu (192) -> MatMul (128) -> MatMul (100)`; 100 is no block."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1"], ["h"], name="gemm", transB=1),
        helper.make_node("Relu", ["h"], ["a"], name="relu"),
        helper.make_node("MatMul", ["a", "w2"], ["y"], name="matmul"),
        helper.make_node("MatMul", ["y", "w3"], ["u"], name="wide"),
        helper.make_node("MatMul", ["u", "w4"], ["z"], name="odd"),
    ]
    weights = {"w1": GEMM, "w2": MATMUL, "w3": ODD, "w4": DRAW.normal(0, 0.1, (100, 64))}
    tensors = [
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 256), ("z", 64))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def odd_products() -> onnx.ModelProto:
    """The same with a batch of matrices, a vector and a product in float64 at its end."""
    model = products()
    graph = model.graph
    weights: dict[str, NDArray[np.generic]] = {
        "batch": DRAW.normal(0, 0.1, (4, 64, 128)).astype(np.float32),
        "vector": DRAW.normal(0, 0.1, 128).astype(np.float32),
        "double": DRAW.normal(0, 0.1, (64, 64)),
    }
    graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in weights.items())
    graph.node.extend([
        helper.make_node("MatMul", ["z0", "batch"], ["b"], name="batched"),
        helper.make_node("MatMul", ["b", "vector"], ["v"], name="dot"),
        helper.make_node("ReduceMean", ["v"], ["m"], name="mean"),
        helper.make_node("Add", ["z0", "m"], ["s"], name="sum"),
        helper.make_node("Cast", ["s"], ["d"], name="wider", to=TensorProto.DOUBLE),
        helper.make_node("MatMul", ["d", "double"], ["e"], name="doubled"),
        helper.make_node("Cast", ["e"], ["z"], name="narrower", to=TensorProto.FLOAT),
    ])  # fmt: skip
    graph.node[4].output[0] = "z0"
    return model


def transposed(node: onnx.NodeProto) -> bool:
    return any(one.name == "transB" and one.i for one in node.attribute)


def dequantized_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The weights that the products of a file compute with, by node; decoded here."""
    graph = onnx.load(path).graph
    made = {node.output[0]: node for node in graph.node}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        source = made.get(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
        if source is None:
            continue
        inner = made.get(source.input[0])  # FP8 may lie before a Q, which this decodes as well
        scale = constants[source.input[1]].astype(np.float32)
        stored = constants[source.input[0] if inner is None else inner.input[0]]
        if inner is not None:
            stored = stored / (scale[:, None] if transposed(node) else scale[None, :])
            stored = torch.from_numpy(stored).to(torch.float8_e4m3fn).float().numpy()
        stored = stored.astype(np.float32)
        attributes = {one.name: one.i for one in source.attribute}
        axis = attributes.get("axis", 1)
        if block := attributes.get("block_size", 0):
            scale = np.repeat(scale, block, axis=axis)
        elif scale.ndim:
            scale = scale[:, None] if axis == 0 else scale[None, :]
        found[node.name] = (stored * scale).T if transposed(node) else stored * scale
    return found


def test_fp8_computes_what_torch_computes_with_its_8_bit_floats(quantize: Quantize) -> None:
    path = quantize(Precision.FP8).path
    graph = onnx.load(path).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = {node.input[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    values, weights = torch.from_numpy(X), dequantized_weights(path)
    for name, tensor in (("gemm", "x"), ("matmul", "a"), ("wide", "y"), ("odd", "u")):
        scale = float(constants[readers[tensor].input[1]])
        values = values.relu() if tensor == "a" else values
        rounded = (values / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        values = rounded @ torch.from_numpy(weights[name].astype(np.float32))
    runner = open_onnx(path, "cpu")
    np.testing.assert_allclose(runner.run({"x": X})["z"], values.numpy(), rtol=2e-3, atol=2e-3)
    assert np.linalg.norm(weights["gemm"] - GEMM.T) < 0.05 * np.linalg.norm(GEMM)
    assert measure_coverage(path, {"x": X}).layers == {"fp8": 4}


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_int4_weights_are_in_blocks_of_the_rows_that_are_summed(
    method: str, quantize: Quantize
) -> None:
    made = quantize(Precision.INT4, method=method)
    graph = onnx.load(made.path).graph
    weights = made.options["weights"].split()
    assert weights == ["int4", "in", "blocks", "of", "64"]  # 192 rows are no multiple of 128
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert [tensors[node.input[0]].data_type for node in nodes] == [TensorProto.INT4] * 3
    for node in nodes:
        rows, columns = tensors[node.input[0]].dims
        assert list(tensors[node.input[1]].dims) == [rows // 64, columns]
    assert "odd" in made.notes[0]
    assert measure_coverage(made.path, {"x": X}).layers == {"int4": 3, "fp32": 1}


def test_a_weight_that_is_an_output_is_stored_as_it_is(quantize: Quantize) -> None:
    model = products()
    model.graph.output.append(helper.make_tensor_value_info("w1", TensorProto.FLOAT, GEMM.shape))
    found = open_onnx(quantize(Precision.INT4, model).path, "cpu").run({"x": X})
    np.testing.assert_array_equal(found["w1"], GEMM.astype(np.float32))


def test_round_to_nearest_errs_by_half_a_step_at_most(quantize: Quantize) -> None:
    weights = dequantized_weights(quantize(Precision.INT4, method="rtn").path)
    for name, exact in (("gemm", GEMM.T), ("matmul", MATMUL), ("wide", ODD)):
        blocks = exact.reshape(-1, 64, exact.shape[1])
        error = np.abs(weights[name] - exact).reshape(blocks.shape).max(axis=1)
        assert (error <= np.abs(blocks).max(axis=1) / 14 * 1.01).all()


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.INT4])
def test_a_kept_product_stays_in_floating_point(precision: Precision, quantize: Quantize) -> None:
    weights = dequantized_weights(quantize(precision, keep=("matmul",)).path)
    assert "matmul" not in weights
    assert "gemm" in weights


@pytest.mark.parametrize("precision", [Precision.INT8, Precision.FP8, Precision.INT4])
def test_weights_that_are_no_matrices_of_float32_stay_in_floating_point(
    precision: Precision, quantize: Quantize
) -> None:
    """ModelOpt scales them along a wrong axis, or in float64, or fails."""
    made = quantize(precision, odd_products())
    quantized = {
        node.name
        for node in onnx.load(made.path).graph.node
        if any("DequantizeLinear" in name for name in node.input[1:2])
    }
    assert {"gemm", "matmul", "wide"} <= quantized
    assert quantized.isdisjoint({"batched", "dot", "doubled"})
    named = [set(re.split("[ ,]+", note)) for note in made.notes]
    assert any({"batched", "dot", "doubled"} <= names for names in named)
    onnx.checker.check_model(str(made.path), full_check=True)  # infers the types too


def test_nothing_that_may_be_int4_is_an_error(quantize: Quantize) -> None:
    with pytest.raises(NothingQuantizedError):
        quantize(Precision.INT4, keep=("gemm", "matmul", "wide"))


def test_int4_writes_nothing_into_the_package(quantize: Quantize) -> None:
    folder = Path(str(importlib.import_module("modelopt").__file__)).parent / "onnx"
    before = set(folder.rglob("*.so"))
    quantize(Precision.INT4, method="rtn")
    assert set(folder.rglob("*.so")) == before


@pytest.mark.parametrize("precision", [Precision.FP8, Precision.INT4])
def test_inspection_says_the_precision(precision: Precision, quantize: Quantize) -> None:
    assert onnx_model.inspect(quantize(precision).path).quantized is precision


TIED = """<ir_version: 10, opset_import: ["": 20]>
g (float[batch,256] x) => (float[batch,256] z) {
    [one] a = Gemm<transB = 1>(x, w, b) [act] r = Relu(a) [two] y = Gemm<transB = 1>(r, v, c)
    [three] h = Gemm<transB = 1>(y, w, b) [again] q = Relu(h) [four] z = Gemm<transB = 1>(q, v)
}"""


@pytest.mark.parametrize("method", ["awq", "rtn"])
def test_products_that_share_weights_are_right(method: str, quantize: Quantize) -> None:
    model, draw = parser.parse_model(TIED), np.random.default_rng(9)
    w, v = draw.uniform(-0.06, 0.06, (128, 256)), draw.uniform(-0.09, 0.09, (256, 128))
    b, c = draw.uniform(-0.06, 0.06, 128), draw.uniform(-0.09, 0.09, 256)
    for name, array in (("w", w), ("b", b), ("v", v), ("c", c)):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    path = quantize(Precision.INT4, model, method=method).path
    found = open_onnx(path, "cpu").run({"x": X})["z"]
    y = np.maximum(X @ w.T + b, 0) @ v.T + c
    wanted = np.maximum(y @ w.T + b, 0) @ v.T
    assert np.linalg.norm(found - wanted) < 0.25 * np.linalg.norm(wanted)  # 12 dB


def test_weights_that_are_no_float32_matrix_stay(quantize: Quantize) -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[batch,256] x) => (float[batch,1,256] z, double[batch,256] d) {
            [one] a = MatMul(x, w) [wide] x3 = Unsqueeze(a, k) [stack] z = MatMul(x3, t)
            [cast] xd = Cast<to = 11>(x) [double] d = MatMul(xd, v)
        }""")
    draw = np.random.default_rng(9)
    for name, array in (
        ("w", draw.normal(0, 0.06, (256, 256)).astype(np.float32)), ("k", np.array([1])),
        ("t", draw.normal(0, 0.06, (1, 256, 256)).astype(np.float32)),
        ("v", draw.normal(0, 0.06, (256, 256))),
    ):  # fmt: skip
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = quantize(Precision.INT4, model)
    assert measure_coverage(made.path, {"x": X}).layers == {"int4": 1, "fp32": 1, "fp64": 1}
    assert {"stack", "double"} <= set(re.split("[ ,]+", made.notes[0]))


def test_shapes_are_those_of_the_parent(quantize: Quantize) -> None:
    """ModelOpt takes the products of each row with each other for three dims: (batch, 16, 1)."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[batch,256] x) => (float[batch,16] z) <int64[1] k = {-1}, int64[1] m = {16}> {
            [one] a = MatMul(x, w)
            [rows] n = Shape<start = 0, end = 1>(x) [all] s = Concat<axis = 0>(n, m, m)
            [split] r = Reshape(a, s) [two] h = MatMul(x, v) [column] u = Unsqueeze(h, k)
            [each] c = MatMul(r, u) [less] d = Squeeze(c, k) [bias] z = Add(d, b)
        }""")
    draw = np.random.default_rng(9)
    for name, shape in (("w", (256, 256)), ("v", (256, 16)), ("b", (16,))):
        array = draw.normal(0, 0.06, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    made = onnx.load(quantize(Precision.FP8, onnx.shape_inference.infer_shapes(model)).path)
    onnx.checker.check_model(made, full_check=True)
    assert made.graph.output[0] == model.graph.output[0]


@pytest.mark.parametrize("method", ["awq", "rtn"])
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_one_wrong_scale_of_int4_is_found_by_the_weights(
    quantize: Quantize, method: str, factor: float
) -> None:
    path = quantize(Precision.INT4, method=method).path
    known = {"gemm": GEMM.astype(np.float32), "matmul": MATMUL.astype(np.float32)}
    read = tensorrt_onnx.integer_weights
    assert [one.shape for one in read(path)] == [(256, 192), (192, 128), (128, 100)]
    assert find_scaled_blocks(known, read(path)) == ()
    model = onnx.load(path)
    node = next(one for one in model.graph.node if one.op_type == "DequantizeLinear")
    tensor = next(one for one in model.graph.initializer if one.name == node.input[1])
    scales = numpy_helper.to_array(tensor).copy()
    scales[1, 5] *= factor
    tensor.CopyFrom(numpy_helper.from_array(scales, tensor.name))
    onnx.save(model, path)
    (text,) = find_scaled_blocks(known, read(path))
    assert "gemm" in text
