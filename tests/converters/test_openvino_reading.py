"""Of what OpenVINO refuses, the operator that the rest follows from is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from modelc.converters.capture.causes import RefusedError
from modelc.converters.openvino_reading import read, root_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.needs("openvino"), pytest.mark.needs("onnx")]


def saved(path: Path) -> Path:
    """An STFT of a signal of any length, and a sum over what it gives."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    numbers = {"step": np.array(4), "window": np.ones(8, np.float32), "length": np.array(8)}
    graph = helper.make_graph(
        [
            helper.make_node("STFT", ["x", "step", "window", "length"], ["bands"]),
            helper.make_node("ReduceL2", ["bands"], ["y"], keepdims=0),
        ],
        "main",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, "n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def test_the_operator_behind_the_others_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        read(saved(tmp_path / "m.onnx"))
    assert caught.value.message.startswith("OpenVINO refused the model: STFT: Shape of signal")
    assert "--static" in caught.value.hint


def test_what_names_no_operator_is_told_as_it_is(tmp_path: Path) -> None:
    assert root_of("Exception from core.cpp:84:\nno such file") == ""
    with pytest.raises(RefusedError, match="Could not open the file"):
        read(tmp_path / "none.onnx")
