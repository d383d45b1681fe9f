"""The memory estimate, against sums that can be done by hand."""

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


def test_input_and_output_live_at_the_largest_sizes() -> None:
    assert of(model_of("y = Add(x, x)")).activations == 2 * TENSOR


def test_a_tensor_is_freed_after_its_last_reader() -> None:
    chain = model_of("a = Add(x, x) b = Add(a, a) c = Add(b, b) y = Add(c, c)")
    assert of(chain).activations == 4 * TENSOR  # x, y, and two of the chain


def test_a_tensor_lives_until_its_last_reader() -> None:
    skip = model_of("a = Add(x, x) b = Add(a, a) c = Add(b, b) y = Add(c, a)")
    assert of(skip).activations == 5 * TENSOR  # x, y, a, and b and c while c is made


def test_an_activation_function_takes_no_memory_of_its_own() -> None:
    plain = model_of("a = Add(x, x) b = Relu(a) y = Add(b, b)")
    assert of(plain).activations == 3 * TENSOR


def test_an_activation_function_that_shares_its_input_does() -> None:
    shared = model_of("a = Add(x, x) b = Relu(a) y = Add(b, a)")
    assert of(shared).activations == 4 * TENSOR


def test_another_shape_takes_no_memory_of_its_own() -> None:
    view = model_of("a = Add(x, x) b = Flatten(a) y = Add(b, a)")
    assert of(view).activations == 3 * TENSOR


def test_what_is_made_of_constants_alone_is_no_activation() -> None:
    weights = "float[8] w = {1,2,3,4,5,6,7,8}"
    folded = model_of("v = Add(w, w) y = Add(x, v)", weights=weights)
    assert of(folded).activations == 2 * TENSOR
    assert of(folded).weights == 8 * FLOAT


@pytest.mark.parametrize(
    ("dtype", "width"), [("float16", 2), ("double", 4), ("int64", 8), ("bool", 1)]
)
def test_weights_count_at_the_width_that_the_device_has(dtype: str, width: int) -> None:
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


def test_a_shape_that_inference_cannot_tell_comes_from_the_exporter() -> None:
    nodes = "i = Cast <to: int = 7> (x) r = ReduceMax <keepdims = 0> (i) y = Range(o, r, o)"
    model = model_of(nodes, outputs="int64[n] y", weights="int64 o = {1}")
    assert of(model).unknown == 0
    assert of(model).largest_name == "x"


def test_without_a_name_of_the_inputs_it_stays_unknown() -> None:
    nodes = "i = Cast <to: int = 7> (x) r = ReduceMax <keepdims = 0> (i) y = Range(o, r, o)"
    assert of(model_of(nodes, outputs="int64[k] y", weights="int64 o = {1}")).unknown == 1
