"""The memory estimate, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir
import pytest
from onnx import parser

from modelc.converters.trt.engine_options import EngineOptions, Profile, ShapeRange
from modelc.converters.trt.trt_memory import MemoryEstimate, estimate_memory

FLOAT = 4
X = ShapeRange(name="x", low=(1, 8), opt=(2, 8), high=(4, 8))
TENSOR = 4 * 8 * FLOAT  # x at its largest


def model_of(nodes: str, outputs: str = "float[n,8] y", weights: str = "") -> onnx_ir.Model:
    """A model of one input `x` of [n, 8]; Adds do not fuse, so each makes a tensor."""
    header = '<ir_version: 9, opset_import: ["" : 20]>'
    text = f"{header} g (float[n,8] x) => ({outputs}) <{weights}> {{ {nodes} }}"
    return onnx_ir.from_proto(parser.parse_model(text))


def of(model: onnx_ir.Model, *profiles: Profile, workspace: int | None = None) -> MemoryEstimate:
    return estimate_memory(model, profiles or ((X,),), EngineOptions(workspace=workspace))


@pytest.mark.parametrize(
    ("nodes", "tensors"),
    [
        ("y = Add(x, x)", 2),
        ("a = Add(x, x) b = Add(a, a) c = Add(b, b) y = Add(c, c)", 4),  # x, y, two of the chain
        ("a = Add(x, x) b = Add(a, a) c = Add(b, b) y = Add(c, a)", 5),  # and a, read last
        ("a = Add(x, x) b = Relu(a) y = Add(b, b)", 3),  # fused
        ("a = Add(x, x) b = Relu(a) y = Add(b, a)", 4),  # not fused: a has another reader
        ("a = Add(x, x) b = Flatten(a) y = Add(b, a)", 3),  # a view
    ],
)
def test_tensors_live_from_their_producer_to_their_last_reader(nodes: str, tensors: int) -> None:
    assert of(model_of(nodes)).activations == tensors * TENSOR


def test_folded_constants_are_no_activations() -> None:
    weights = "float[8] w = {1,2,3,4,5,6,7,8}"
    folded = model_of("v = Add(w, w) y = Add(x, v)", weights=weights)
    assert of(folded).activations == 2 * TENSOR
    assert of(folded).weights == 8 * FLOAT


@pytest.mark.parametrize(
    ("dtype", "width"), [("float16", 2), ("double", 4), ("int64", 8), ("bool", 1)]
)
def test_weights_count_at_their_width_on_the_device(dtype: str, width: int) -> None:
    model = model_of(
        "i = Cast <to: int = 1> (w) y = Add(x, i)", weights=f"{dtype}[8] w = {{0,0,0,0,0,0,0,0}}"
    )
    assert of(model).weights == 8 * width


def test_a_weight_behind_a_q_counts_one_byte() -> None:
    weights = "float[8] w = {1,1,1,1,1,1,1,1}, float s = {0.1}, int8 z = {0}"
    model = model_of(
        "q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = Add(x, d)", weights=weights
    )
    assert of(model).weights == 8 + FLOAT + 1


def test_a_quantized_activation_counts_one_byte() -> None:
    weights = "float s = {0.1}, int8 z = {0}"
    pair = "q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)"
    model = model_of(f"a = Add(x, x) {pair} b = Add(d, d) y = Add(b, b)", weights=weights)
    whole = model_of("a = Add(x, x) b = Add(a, a) y = Add(b, b)")
    assert of(whole).activations - of(model).activations == TENSOR - TENSOR // FLOAT


def test_the_largest_shape_of_any_profile_counts() -> None:
    model = model_of("y = Add(x, x)")
    wide = replace(X, high=(16, 8))
    assert of(model, (X,), (wide,)).activations == 8 * TENSOR


def test_a_workspace_limit_counts_in_full() -> None:
    model = model_of("y = Add(x, x)")
    assert of(model, workspace=1 << 20).total == of(model).total + (1 << 20)


def test_the_largest_tensor_is_named() -> None:
    found = of(model_of("y = Concat <axis = 1> (x, x, x)", outputs="float[n,24] y"))
    assert (found.largest_name, found.largest) == ("y", 4 * 24)


def test_a_size_that_depends_on_data_is_counted_as_unknown() -> None:
    found = of(model_of("z = NonZero(x) y = Cast <to: int = 1> (z)", outputs="float[2,k] y"))
    assert found.unknown == 2
    assert found.activations == TENSOR


def test_the_model_is_not_changed() -> None:
    model = model_of("y = Add(x, x)")
    before = onnx_ir.to_proto(model).SerializeToString()
    of(model)
    assert onnx_ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(("dim", "unknown"), [("n", 0), ("k", 1)])
def test_a_shape_unknown_to_inference_comes_from_the_exporters_named_dims(
    dim: str, unknown: int
) -> None:
    nodes = "i = Cast <to: int = 7> (x) r = ReduceMax <keepdims = 0> (i) y = Range(o, r, o)"
    model = model_of(nodes, outputs=f"int64[{dim}] y", weights="int64 o = {1}")
    assert of(model).unknown == unknown
    assert of(model).largest_name == "x"
