"""Lengths of recurrent sequences in OpenVINO, beside what ONNX Runtime makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from modelc.converters.openvino_reader import read_openvino
from modelc.converters.openvino_rewrites import keep_lengths

if TYPE_CHECKING:
    from pathlib import Path

    import onnx

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUTS = 5, 3


def recurrent(kind: str, direction: str, steps: int | str = "steps") -> onnx.ModelProto:
    """Of x [steps, rows, 3] and the length of each row; all states, the last ones, cells."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    ways, rows = 2 if direction == "bidirectional" else 1, GATES[kind] * HIDDEN
    shapes = {"w": (ways, rows, INPUTS), "r": (ways, rows, HIDDEN), "b": (ways, 2 * rows)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    outputs = ["states", "last", "cell"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(
        kind, ["x", "w", "r", "b", "short"], outputs,
        hidden_size=HIDDEN, direction=direction,
    )  # fmt: skip
    if kind == "GRU":
        node.attribute.append(helper.make_attribute("linear_before_reset", 1))
    cast = helper.make_node("Cast", ["lengths"], ["short"], to=TensorProto.INT32)
    graph = helper.make_graph(
        [cast, node],
        "main",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, "rows", INPUTS]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, ["rows"]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", GATES)
def test_a_row_ends_at_its_length(kind: str, direction: str, tmp_path: Path) -> None:
    import onnx
    import onnxruntime
    import openvino

    path = tmp_path / "m.onnx"
    onnx.save(recurrent(kind, direction), path)
    session = onnxruntime.InferenceSession(str(path))
    model = read_openvino(path)
    keep_lengths(model)
    run = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    rng = np.random.default_rng(1)
    for steps, lengths in ((8, [8, 3]), (5, [1, 5, 2]), (6, [4, 2])):
        x = 30 * rng.standard_normal((steps, len(lengths), INPUTS)).astype(np.float32)
        feed = {"x": x, "lengths": np.array(lengths, np.int64)}
        for wanted, output in zip(session.run(None, feed), run.outputs, strict=True):
            np.testing.assert_allclose(
                run(feed)[output], wanted, atol=2e-5, err_msg=output.any_name
            )


def test_static_sizes_and_lengths_of_the_whole_stay(tmp_path: Path) -> None:
    import onnx

    whole = recurrent("GRU", "forward")
    whole.graph.node[1].input[4] = ""
    for name, model in (("static", recurrent("GRU", "forward", 8)), ("whole", whole)):
        path = tmp_path / f"{name}.onnx"
        onnx.save(model, path)
        read_model = read_openvino(path)
        read_model.reshape({"x": [8 if name == "static" else -1, 2, INPUTS], "lengths": [2]})
        before = len(read_model.get_ops())
        keep_lengths(read_model)
        assert len(read_model.get_ops()) == before
