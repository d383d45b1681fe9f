"""Rewrites of OpenVINO models: what its CPU computes differently from ONNX, and what stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters.openvino_reader import read_openvino
from modelc.converters.openvino_rewrites import (
    keep_lengths,
    keep_lone_columns,
    keep_lone_keys,
    keep_order_of_equals,
    keep_remainders,
    keep_signed_joins,
    keep_small_softplus,
    keep_truth_of_nan,
)

from .conftest import OnnxFile, operators, run_openvino

if TYPE_CHECKING:
    import openvino

    from modelc.core.contract import Array

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]


def read(file: OnnxFile, text: str, **weights: Array) -> openvino.Model:
    """An ONNX as OpenVINO reads it by itself."""
    import openvino

    return openvino.Core().read_model(str(file(text, opset=18, **weights)))


TOPK = "g (float[2,180] x, bool yes) => (int64[2,20] places) {{ {body} }}"
IF = """places = If(yes) <then_branch = a () => (int64[2,20] p) {{ {node} }},
                         else_branch = b () => (int64[2,20] p) {{ {node} }}>"""
SORTED, UNSORTED = (f"o, p = TopK<axis=-1, sorted={flag}>(x, k)" for flag in (1, 0))


@pytest.mark.parametrize(
    ("body", "stable"),
    [
        (SORTED.replace("o, p", "o, places"), [True]),
        (IF.format(node=SORTED), [True, True]),
        (UNSORTED.replace("o, p", "o, places"), [False]),
    ],
    ids=["sorted", "branches", "unsorted"],
)
def test_sorting_topk_becomes_stable(onnx_file: OnnxFile, body: str, stable: list[bool]) -> None:
    model = read(onnx_file, TOPK.format(body=body), k=np.array([20]))
    keep_order_of_equals(model)
    found = model.get_ordered_ops()
    for node in [node for node in found if node.get_type_name() == "If"]:
        for branch in (node.get_then_body(), node.get_else_body()):
            found += branch.get_ordered_ops()
    topk = [node for node in found if node.get_type_name() == "TopK"]
    assert [node.get_attributes()["stable"] for node in topk] == stable
    model.validate_nodes_and_infer_types()


def test_equal_elements_are_ordered_by_index(onnx_file: OnnxFile) -> None:
    text = "g (float[2,180] x) => (int64[2,20] p) {" + SORTED + "}"
    model = read(onnx_file, text, k=np.array([20]))
    keep_order_of_equals(model)
    (places,) = run_openvino(model, np.zeros((2, 180), np.float32))
    assert places.tolist() == [list(range(20))] * 2


def test_small_values_of_a_softplus_are_exact(onnx_file: OnnxFile) -> None:
    model = read(onnx_file, "g (float[n] x) => (float[n] y) { y = Softplus(x) }")
    keep_small_softplus(model)
    x = np.concatenate([np.linspace(-80, 80, 4001), [np.nan, np.inf, -np.inf]]).astype(np.float32)
    (found,) = run_openvino(model, x)
    assert model.output("y") is not None
    exact = x.astype(np.float64)
    wanted = np.maximum(exact, 0) + np.log1p(np.exp(-np.abs(exact)))
    np.testing.assert_allclose(found, wanted, rtol=5e-7, equal_nan=True)


def test_the_softplus_of_a_mish_stays(onnx_file: OnnxFile) -> None:
    text = "g (float[n] x) => (float[n] y) { a = Softplus(x) b = Tanh(a) y = Mul(x, b) }"
    model = read(onnx_file, text)
    keep_small_softplus(model)
    assert "SoftPlus" in operators(model)


@pytest.mark.parametrize("sign", [1, -1])
def test_remainders_of_sizes_are_exact(sign: int) -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([openvino.Dimension(32, 72)], dtype=np.float32, name="x")
    size = op.multiply(op.shape_of(x), op.constant(np.array([sign], np.int64)))
    rest = op.floor_mod(size, op.constant(np.array([4], np.int64)))
    model = openvino.Model([op.broadcast(op.constant(np.float32(1)), rest)], [x])
    keep_remainders(model)
    model.reshape([openvino.Dimension(32, 72)])
    for length in (32, 53, 54, 55, 72):
        (found,) = run_openvino(model, np.ones(length, np.float32))
        assert found.shape == (sign * length % 4,)


def test_the_bounds_of_a_size_minus_its_remainder_are_positive(onnx_file: OnnxFile) -> None:
    """How torch.export writes (size - 1) // 8, the last cell of a grid."""
    import openvino

    text = """g (float[n] x) => (int64[m] y) {
        shape = Shape(x) size = Squeeze(shape) last = Sub(size, one) rest = Mod(last, eight)
        whole = Sub(last, rest) cells = Div(whole, eight) sizes = Reshape(cells, line)
        y = Expand(eight, sizes)
    }"""
    model = read(onnx_file, text, one=np.array(1), eight=np.array(8), line=np.array([1]))
    keep_remainders(model)
    model.reshape([openvino.Dimension(50, 320)])
    for length in (50, 57, 64, 65, 320):
        (found,) = run_openvino(model, np.ones(length, np.float32))
        assert found.shape == ((length - 1) // 8,)


@pytest.mark.parametrize(
    ("dtype", "step", "values"),
    [
        (np.uint8, 200, [199, 150, 255, 3]),
        (np.int8, 100, [99, 50, -1, -128, 127]),
        (np.int32, 1_000_003, [2**31 - 1, -(2**31), 5, -5]),
        (np.int64, 1000, [987_654_321, -987_654_321, 2**24 + 1]),
    ],
)
def test_remainders_of_values_are_exact(dtype: type, step: int, values: list[int]) -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([-1], dtype, name="x")
    model = openvino.Model([op.floor_mod(x, op.constant(np.array(step, dtype)))], [x])
    keep_remainders(model)
    given: Array = np.array(values, dtype)
    (found,) = run_openvino(model, given)
    np.testing.assert_array_equal(found, np.mod(given.astype(np.int64), step))


def test_nan_is_true() -> None:
    import openvino
    from openvino import opset13 as op

    x = op.parameter([4], dtype=np.float32, name="x")
    model = openvino.Model([op.convert(x, "boolean")], [x])
    keep_truth_of_nan(model)
    (found,) = run_openvino(model, np.array([np.nan, 0.0, -0.0, 1e-30], np.float32))
    assert found.tolist() == [True, False, False, True]


@pytest.mark.parametrize("name", ["greater", "greater_equal", "less", "less_equal"])
def test_nan_is_not_greater(name: str) -> None:
    import openvino
    from openvino import opset13 as op

    a, b = (op.parameter([6], dtype=np.float32, name=name) for name in "ab")
    model = openvino.Model([getattr(op, name)(a, b)], [a, b])
    keep_truth_of_nan(model)
    x = np.array([np.nan, 1, np.nan, 1, 2, 1], np.float32)
    y = np.array([np.nan, np.nan, 1, 1, 1, 2], np.float32)
    (found,) = run_openvino(model, x, y)
    np.testing.assert_array_equal(found, getattr(np, name)(x, y))


def attention(keys: tuple[int, int]) -> openvino.Model:
    """Of queries (1, n, 16), with these bounds of the number of keys."""
    import openvino
    from openvino import opset13 as op

    q = op.parameter([1, 1, -1, 16], np.float32, name="q")
    k, v = (op.parameter([1, 1, openvino.Dimension(*keys), 16], np.float32) for _ in "kv")
    shares = op.softmax(op.matmul(q, k, False, True), -1)
    return openvino.Model([op.matmul(shares, v, False, False)], [q, k, v])


def test_attention_is_right_after_a_first_run_with_one_key() -> None:
    import openvino

    def feed(queries: int, keys: int) -> list[Array]:
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
    assert "Unsqueeze" not in operators(model)


def int8_convolution(*width: int, channels: int = 16) -> openvino.Model:
    """Of kernels of 8 x 8 that do not overlap, its input and weights quantized."""
    import openvino
    from openvino import opset13 as op

    draw = np.random.default_rng(0)
    weights = draw.integers(-127, 128, (16, channels, 8, 8)).astype(np.int8)
    scale = op.constant(np.full((16, 1, 1, 1), 0.01, np.float32))
    x = op.parameter(
        [openvino.Dimension(1, 4), channels, -1, openvino.Dimension(*width)], np.float32
    )
    low, high = (op.constant(np.float32(0.03 * end)) for end in (-120, 135))
    rounded = op.fake_quantize(x, low, high, low, high, 256)
    factors = op.multiply(op.convert(op.constant(weights), "f32"), scale)
    made = op.convolution(rounded, factors, [8, 8], [0, 0], [0, 0], [1, 1])
    return openvino.Model([op.relu(made)], [x])


@pytest.mark.parametrize("width", [(8,), (8, 128)], ids=["static", "dynamic"])
def test_an_int8_convolution_as_wide_as_its_input_is_exact(width: tuple[int, ...]) -> None:
    import openvino

    def compiled(mode: str, model: openvino.Model) -> openvino.CompiledModel:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": mode}
        return openvino.Core().compile_model(model, "CPU", settings)

    rewritten = int8_convolution(*width)
    keep_lone_columns(rewritten)
    floats, bytes_ = compiled("NO", int8_convolution(*width)), compiled("YES", rewritten)
    sizes = [(8, 8), (16, 8), (12, 8), (8, 16), (9, 12)]
    for height, columns in sizes if len(width) > 1 else sizes[:3]:
        x = np.random.default_rng(1).standard_normal((2, 16, height, columns)).astype(np.float32)
        wanted, found = floats(x)[0], bytes_(x)[0]
        assert wanted.shape == found.shape
        assert np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()
    facts = [node.get_rt_info() for node in bytes_.get_runtime_model().get_ordered_ops()]
    (kernel,) = (
        one["primitiveType"].astype(str)
        for one in facts
        if one["layerType"].astype(str) == "Convolution"
    )
    assert kernel.endswith("I8")


@pytest.mark.parametrize(("least", "channels"), [(9, 16), (8, 64), (8, 3)])
def test_other_int8_convolutions_stay(least: int, channels: int) -> None:
    model = int8_convolution(least, 128, channels=channels)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    keep_lone_columns(model)
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before


def int8_concat(*, relu: bool, zero: int | None) -> openvino.Model:
    """A Concat of two inputs, in Q/DQ of int8, and a convolution that reads it."""
    import openvino
    from openvino import opset13 as op

    scale, shift = 0.03, zero or 0
    given = [op.parameter([openvino.Dimension(1, 4), 32, 8, 8], np.float32) for _ in range(2)]
    joined = op.concat(given, 1)
    ends = (-128 - shift) * scale, (127 - shift) * scale, -128, 127
    bounds = [op.constant(np.float32(end)) for end in ends]
    quantized = op.fake_quantize(op.relu(joined) if relu else joined, *bounds, 256)
    back = op.convert(op.convert(quantized, "i8"), "f32")
    if zero is not None:
        back = op.subtract(back, op.convert(op.constant(np.int8(zero)), "f32"))
    read = op.multiply(back, op.constant(np.float32(scale)))
    numbers = np.random.default_rng(0).integers(-127, 128, (16, 64, 1, 1)).astype(np.int8)
    factor = op.constant(np.full((16, 1, 1, 1), 0.003, np.float32))
    weights = op.multiply(op.convert(op.constant(numbers), "f32"), factor)
    return openvino.Model([op.convolution(read, weights, [1, 1], [0, 0], [0, 0], [1, 1])], given)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("zero", [None, 0, -20])
def test_signed_q_dq_after_a_concat_is_exact(*, relu: bool, zero: int | None) -> None:
    draw = np.random.default_rng(1).standard_normal
    feed = [draw((2, 32, 8, 8)).astype(np.float32) for _ in range(2)]
    plain, rewritten = (int8_concat(relu=relu, zero=zero) for _ in range(2))
    keep_signed_joins(rewritten)
    (wanted,) = run_openvino(plain, *feed, LP_TRANSFORMS_MODE="NO")
    (found,) = run_openvino(rewritten, *feed, LP_TRANSFORMS_MODE="YES")
    assert np.abs(found - wanted).max() < 1e-2 * np.abs(wanted).max()


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUTS = 5, 3


def recurrent(
    kind: str, direction: str, *, steps: int | str = "steps", lengths: str = "short"
) -> tuple[str, dict[str, Array]]:
    """Of x [steps, rows, 3] and the length of each row; all states, the last ones, cells."""
    rng = np.random.default_rng(0)
    ways, rows = 2 if direction == "bidirectional" else 1, GATES[kind] * HIDDEN
    shapes = {"w": (ways, rows, INPUTS), "r": (ways, rows, HIDDEN), "b": (ways, 2 * rows)}
    more, given = (", cell", ", float[a,b,c] cell") if kind == "LSTM" else ("", "")
    reset = ", linear_before_reset=1" if kind == "GRU" else ""
    text = f"""g (float[{steps},rows,{INPUTS}] x, int64[rows] lengths)
        => (float[a,b,c,d] states, float[a,b,c] last{given}) {{
        short = Cast<to=6>(lengths)
        states, last{more} = {kind}<hidden_size={HIDDEN}, direction="{direction}"{reset}>
            (x, w, r, b{lengths and f", {lengths}"})
    }}"""
    return text, {n: rng.standard_normal(one).astype(np.float32) for n, one in shapes.items()}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_sequence_ends_at_its_length(onnx_file: OnnxFile, kind: str, direction: str) -> None:
    import onnxruntime

    text, weights = recurrent(kind, direction)
    path = onnx_file(text, opset=18, **weights)
    session = onnxruntime.InferenceSession(str(path))
    model = read_openvino(path)
    keep_lengths(model)
    rng = np.random.default_rng(1)
    for steps, lengths in ((8, [8, 3]), (5, [1, 5, 2]), (6, [4, 2])):
        x = 30 * rng.standard_normal((steps, len(lengths), INPUTS)).astype(np.float32)
        feed: dict[str, Array] = {"x": x, "lengths": np.array(lengths, np.int64)}
        found = run_openvino(model, x, feed["lengths"])
        for output, one, wanted in zip(model.outputs, found, session.run(None, feed), strict=True):
            np.testing.assert_allclose(one, wanted, atol=2e-5, err_msg=output.any_name)


@pytest.mark.parametrize(
    ("steps", "lengths"), [(8, "short"), (-1, "")], ids=["static", "without lengths"]
)
def test_static_sizes_and_sequences_without_lengths_stay(
    onnx_file: OnnxFile, steps: int, lengths: str
) -> None:
    declared = "steps" if steps < 0 else steps
    text, weights = recurrent("GRU", "forward", steps=declared, lengths=lengths)
    model = read_openvino(onnx_file(text, opset=18, **weights))
    model.reshape({"x": [steps, 2, INPUTS], "lengths": [2]})
    before = len(model.get_ops())
    keep_lengths(model)
    assert len(model.get_ops()) == before
