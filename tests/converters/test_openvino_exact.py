"""Equal elements in OpenVINO's TopK, the lower index first; small values of a softplus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters.openvino_rewrites import (
    keep_lone_columns,
    keep_lone_keys,
    keep_order_of_equals,
    keep_remainders,
    keep_signed_joins,
    keep_small_softplus,
    keep_truth_of_nan,
)

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    import openvino

    from modelc.core.contract import Array

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]


def topk(output: str, *, sort: int = 1) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("TopK", ["x", "k"], ["", output], axis=-1, sorted=sort)


def read(path: Path, nodes: list[onnx.NodeProto], outputs: list[str]) -> openvino.Model:
    import onnx
    import openvino
    from onnx import TensorProto, helper

    k = helper.make_tensor("k", TensorProto.INT64, [1], [20])
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 180]),
        helper.make_tensor_value_info("yes", TensorProto.BOOL, []),
    ]
    told = [helper.make_tensor_value_info(name, TensorProto.INT64, [2, 20]) for name in outputs]
    graph = helper.make_graph(nodes, "main", inputs, told, [k])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return openvino.Core().read_model(str(path))


def branch(name: str) -> onnx.GraphProto:
    from onnx import TensorProto, helper

    output = helper.make_tensor_value_info(name, TensorProto.INT64, [2, 20])
    return helper.make_graph([topk(name)], name, [], [output])


def test_equal_elements_come_in_the_order_of_their_indices(tmp_path: Path) -> None:
    import openvino
    from onnx import helper

    identity = helper.make_node("Identity", ["yes"], ["same"])
    model = read(tmp_path / "m.onnx", [topk("places"), identity], ["places"])
    keep_order_of_equals(model)
    compiled = openvino.Core().compile_model(model, "CPU")
    (places,) = compiled({"x": np.zeros((2, 180), np.float32), "yes": np.array(True)}).values()
    assert places.tolist() == [list(range(20))] * 2


def test_in_the_arms_of_an_if_too(tmp_path: Path) -> None:
    from onnx import helper

    node = helper.make_node(
        "If", ["yes"], ["places"], then_branch=branch("a"), else_branch=branch("b")
    )
    model = read(tmp_path / "m.onnx", [node], ["places"])
    keep_order_of_equals(model)
    (arms,) = [one for one in model.get_ordered_ops() if one.get_type_name() == "If"]
    for body in (arms.get_then_body(), arms.get_else_body()):
        found = [one for one in body.get_ordered_ops() if one.get_type_name() == "TopK"]
        assert [one.get_attributes()["stable"] for one in found] == [True]


def test_what_is_not_sorted_stays_as_it_is(tmp_path: Path) -> None:
    from onnx import helper

    identity = helper.make_node("Identity", ["yes"], ["same"])
    model = read(tmp_path / "m.onnx", [topk("places", sort=0), identity], ["places"])
    keep_order_of_equals(model)
    (found,) = [one for one in model.get_ordered_ops() if one.get_type_name() == "TopK"]
    assert found.get_attributes()["stable"] is False
    model.validate_nodes_and_infer_types()


def softplus(nodes: list[onnx.NodeProto]) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "main", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_a_softplus_keeps_what_is_small(tmp_path: Path) -> None:
    import onnx
    import openvino
    from onnx import helper

    onnx.save(softplus([helper.make_node("Softplus", ["x"], ["y"])]), tmp_path / "m.onnx")
    model = openvino.Core().read_model(str(tmp_path / "m.onnx"))
    keep_small_softplus(model)

    config = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    x = np.concatenate([np.linspace(-80, 80, 4001), [np.nan, np.inf, -np.inf]]).astype(np.float32)
    found = compiled({"x": x})["y"]  # under the name that the output had
    exact = x.astype(np.float64)
    wanted = np.maximum(exact, 0) + np.log1p(np.exp(-np.abs(exact)))
    np.testing.assert_allclose(found, wanted, rtol=5e-7, equal_nan=True)


def test_the_softplus_of_a_mish_stays(tmp_path: Path) -> None:
    import onnx
    import openvino
    from onnx import helper

    chain = [("Softplus", ["x"], ["a"]), ("Tanh", ["a"], ["b"]), ("Mul", ["x", "b"], ["y"])]
    nodes = [helper.make_node(*one) for one in chain]
    onnx.save(softplus(nodes), tmp_path / "m.onnx")
    model = openvino.Core().read_model(str(tmp_path / "m.onnx"))
    keep_small_softplus(model)
    assert "SoftPlus" in {node.get_type_name() for node in model.get_ordered_ops()}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_remainder_is_that_of_each_size(sign: int) -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([openvino.Dimension(32, 72)], dtype=np.float32, name="x")
    size = op.multiply(op.shape_of(x), op.constant(np.array([sign], np.int64)))
    rest = op.floor_mod(size, op.constant(np.array([4], np.int64)))
    model = openvino.Model([op.broadcast(op.constant(np.float32(1)), rest)], [x])
    keep_remainders(model)
    model.reshape([openvino.Dimension(32, 72)])
    run = openvino.Core().compile_model(model, "CPU")
    for length in (32, 53, 54, 55, 72):
        assert run(np.ones(length, np.float32))[0].shape == (sign * length % 4,)


def test_a_size_less_its_remainder_has_bounds_that_reshape_takes(tmp_path: Path) -> None:
    import onnx
    import openvino
    from onnx import TensorProto, helper, numpy_helper

    numbers = {"one": 1, "eight": 8, "line": [1]}
    told = [numpy_helper.from_array(np.array(n, np.int64), name) for name, n in numbers.items()]
    chain = (  # how torch.export writes (size - 1) // 8, the last cell of a grid
        ("Shape", ["x"], "shape"), ("Squeeze", ["shape"], "size"), ("Sub", ["size", "one"], "last"),
        ("Mod", ["last", "eight"], "rest"), ("Sub", ["last", "rest"], "whole"),
        ("Div", ["whole", "eight"], "cells"), ("Reshape", ["cells", "line"], "sizes"),
        ("Expand", ["eight", "sizes"], "y"),
    )  # fmt: skip
    nodes = [helper.make_node(kind, inputs, [output]) for kind, inputs, output in chain]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, ["m"])
    graph = helper.make_graph(nodes, "main", [x], [y], told)
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "grid.onnx")
    model = openvino.Core().read_model(str(tmp_path / "grid.onnx"))
    keep_remainders(model)
    model.reshape([openvino.Dimension(50, 320)])
    run = openvino.Core().compile_model(model, "CPU")
    for length in (50, 57, 64, 65, 320):
        assert run(np.ones(length, np.float32))[0].shape == ((length - 1) // 8,)


@pytest.mark.parametrize(
    ("dtype", "step", "values"),
    [
        (np.uint8, 200, [199, 150, 255, 3]),
        (np.int8, 100, [99, 50, -1, -128, 127]),
        (np.int32, 1_000_003, [2**31 - 1, -(2**31), 5, -5]),
        (np.int64, 1000, [987_654_321, -987_654_321, 2**24 + 1]),
    ],
)
def test_remainders_of_values_are_right(dtype: type, step: int, values: list[int]) -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([-1], dtype, name="x")
    model = openvino.Model([op.floor_mod(x, op.constant(np.array(step, dtype)))], [x])
    keep_remainders(model)
    given: Array = np.array(values, dtype)
    found = openvino.Core().compile_model(model, "CPU")([given])[0]
    np.testing.assert_array_equal(found, np.mod(given.astype(np.int64), step))


def test_nan_is_true() -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([4], dtype=np.float32, name="x")
    model = openvino.Model([op.convert(x, "boolean")], [x])
    keep_truth_of_nan(model)
    (found,) = (
        openvino.Core()
        .compile_model(model, "CPU")(np.array([np.nan, 0.0, -0.0, 1e-30], np.float32))
        .values()
    )
    assert found.tolist() == [True, False, False, True]


@pytest.mark.parametrize("name", ["greater", "greater_equal", "less", "less_equal"])
def test_nan_is_not_greater(name: str) -> None:
    import openvino
    from openvino import opset13 as op

    a, b = (op.parameter([6], dtype=np.float32, name=name) for name in "ab")
    model = openvino.Model([getattr(op, name)(a, b)], [a, b])
    keep_truth_of_nan(model)
    run = openvino.Core().compile_model(model, "CPU")
    x = np.array([np.nan, 1, np.nan, 1, 2, 1], np.float32)
    y = np.array([np.nan, np.nan, 1, 1, 1, 2], np.float32)
    (found,) = run([x, y]).values()
    np.testing.assert_array_equal(found, getattr(np, name)(x, y))


def attention(keys: tuple[int, int]) -> openvino.Model:
    """Of queries (1, n, 16) over so many keys, least and most."""
    import openvino
    from openvino import opset13 as op

    some = openvino.Dimension(*keys)
    q = op.parameter([1, 1, -1, 16], np.float32, name="q")
    k, v = (op.parameter([1, 1, some, 16], np.float32, name=name) for name in "kv")
    shares = op.softmax(op.matmul(q, k, False, True), -1)
    return openvino.Model([op.matmul(shares, v, False, False)], [q, k, v])


def test_attention_is_right_after_a_first_run_with_one_key() -> None:
    import openvino

    def feed(queries: int, keys: int) -> list[np.ndarray]:
        draw = np.random.default_rng(keys).standard_normal
        return [draw((1, 1, n, 16)).astype(np.float32) for n in (queries, keys, keys)]

    model = attention((1, 64))
    keep_lone_keys(model)
    run = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    run(feed(64, 1))
    for keys in (30, 5, 64):
        q, k, v = feed(2496, keys)
        shares = np.exp(q @ k.swapaxes(-1, -2))
        wanted = shares / shares.sum(-1, keepdims=True) @ v
        assert np.abs(run([q, k, v])[0] - wanted).max() < 1e-4


def test_attention_that_never_has_one_key_stays_one_kernel() -> None:
    model = attention((2, 64))
    keep_lone_keys(model)
    assert "Unsqueeze" not in {node.get_type_name() for node in model.get_ordered_ops()}


def convolution_in_8_bits(width: openvino.Dimension, *, channels: int = 16) -> openvino.Model:
    """Of kernels of 8 x 8 that do not overlap, its input and weights quantized."""
    import openvino
    from openvino import opset13 as op

    draw = np.random.default_rng(0)
    weights = draw.integers(-127, 128, (16, channels, 8, 8)).astype(np.int8)
    scale = op.constant(np.full((16, 1, 1, 1), 0.01, np.float32))
    x = op.parameter([openvino.Dimension(1, 4), channels, -1, width], np.float32)
    low, high = (op.constant(np.float32(0.03 * end)) for end in (-120, 135))
    rounded = op.fake_quantize(x, low, high, low, high, 256)
    factors = op.multiply(op.convert(op.constant(weights), "f32"), scale)
    made = op.convolution(rounded, factors, [8, 8], [0, 0], [0, 0], [1, 1])
    return openvino.Model([op.relu(made)], [x])


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_convolution_in_8_bits_as_wide_as_its_input_is_right(*, dynamic: bool) -> None:
    import openvino

    def compiled(mode: str, *, kept: bool) -> openvino.CompiledModel:
        model = convolution_in_8_bits(
            openvino.Dimension(8, 128) if dynamic else openvino.Dimension(8)
        )
        if kept:
            keep_lone_columns(model)
        settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": mode}
        return openvino.Core().compile_model(model, "CPU", settings)

    in_floats, in_8_bits = compiled("NO", kept=False), compiled("YES", kept=True)
    for height, width in ((8, 8), (16, 8), (12, 8), *(((8, 16), (9, 12)) if dynamic else ())):
        x = np.random.default_rng(1).standard_normal((2, 16, height, width)).astype(np.float32)
        wanted, found = in_floats(x)[0], in_8_bits(x)[0]
        assert wanted.shape == found.shape
        assert np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()
    run = [node.get_rt_info() for node in in_8_bits.get_runtime_model().get_ordered_ops()]
    made = [
        info["primitiveType"].astype(str)
        for info in run
        if info["layerType"].astype(str) == "Convolution"
    ]
    assert len(made) == 1
    assert made[0].endswith("I8")


@pytest.mark.parametrize(("least", "channels"), [(9, 16), (8, 64), (8, 3)])
def test_other_convolutions_in_8_bits_stay_as_they_are(least: int, channels: int) -> None:
    import openvino

    model = convolution_in_8_bits(openvino.Dimension(least, 128), channels=channels)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    keep_lone_columns(model)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before


def joined_in_8_bits(*, relu: bool, zero: int | None) -> openvino.Model:
    """Two inputs joined, in Q/DQ of int8, and a convolution that reads them."""
    import openvino
    from openvino import opset13 as op

    scale, shift = 0.03, zero or 0
    given = [op.parameter([openvino.Dimension(1, 4), 32, 8, 8], np.float32) for _ in range(2)]
    joined = op.concat(given, 1)
    ends = (-128 - shift) * scale, (127 - shift) * scale, -128, 127
    bounds = [op.constant(np.float32(end)) for end in ends]
    taken = op.relu(joined) if relu else joined
    back = op.convert(op.convert(op.fake_quantize(taken, *bounds, 256), "i8"), "f32")
    if zero is not None:
        back = op.subtract(back, op.convert(op.constant(np.int8(zero)), "f32"))
    read = op.multiply(back, op.constant(np.float32(scale)))
    numbers = np.random.default_rng(0).integers(-127, 128, (16, 64, 1, 1)).astype(np.int8)
    factor = op.constant(np.full((16, 1, 1, 1), 0.003, np.float32))
    weights = op.multiply(op.convert(op.constant(numbers), "f32"), factor)
    return openvino.Model([op.convolution(read, weights, [1, 1], [0, 0], [0, 0], [1, 1])], given)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("zero", [None, 0, -20])
def test_signed_q_dq_behind_a_join_is_right(*, relu: bool, zero: int | None) -> None:
    import openvino

    draw = np.random.default_rng(1).standard_normal
    feed = [draw((2, 32, 8, 8)).astype(np.float32) for _ in range(2)]

    def run(mode: str, *, kept: bool) -> np.ndarray:
        model = joined_in_8_bits(relu=relu, zero=zero)
        if kept:
            keep_signed_joins(model)
        settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": mode}
        return np.asarray(openvino.Core().compile_model(model, "CPU", settings)(feed)[0])

    wanted, found = run("NO", kept=False), run("YES", kept=True)
    assert np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()
