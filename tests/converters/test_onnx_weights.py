"""Weights held beside a graph: the same numbers, one copy for all sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from modelc.converters.onnx_files import detach_weights
from modelc.converters.onnx_sessions import open_session, run_session

pytestmark = pytest.mark.needs("onnx")
WIDE = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def model(*weights: str) -> onnx.ModelProto:
    """y = (x · w) reshaped, with more weights than it reads."""
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,64] x) => (float[?,?] y)'
        " { z = MatMul(x, w)  y = Reshape(z, shape) }"
    )
    for name in weights:
        made.graph.initializer.append(numpy_helper.from_array(WIDE, name))
    made.graph.initializer.append(numpy_helper.from_array(np.array([4, 32]), "shape"))
    return made


def test_a_session_with_held_weights_gives_what_the_whole_model_gives() -> None:
    feed = {"x": np.ones((2, 64), np.float32)}
    whole = run_session(open_session(model("w"), Path()), feed)["y"]
    slim, held = detach_weights(model("w"))
    for _ in range(2):  # the second session reads the same memory
        made = run_session(open_session(slim, Path(), held=held), feed)["y"]
        assert np.array_equal(made, whole)


def test_large_weights_leave_the_graph_and_small_constants_stay() -> None:
    slim, held = detach_weights(model("w"))
    assert list(held.arrays) == ["w"]
    assert np.array_equal(held.arrays["w"], WIDE)
    assert held.arrays["w"].ctypes.data % 64 == 0
    assert slim.ByteSize() < 1000
    shape = next(one for one in slim.graph.initializer if one.name == "shape")
    assert list(numpy_helper.to_array(shape)) == [4, 32]


def test_a_weight_that_nothing_reads_keeps_no_session_from_opening() -> None:
    slim, held = detach_weights(model("w", "unread"))
    made = run_session(open_session(slim, Path(), held=held), {"x": np.ones((2, 64), np.float32)})
    assert made["y"].shape == (4, 32)


def test_weights_that_are_put_back_are_those_of_before() -> None:
    slim, held = detach_weights(model("w"))
    held.put_back(slim.graph)
    assert np.array_equal(numpy_helper.to_array(slim.graph.initializer[0]), WIDE)
    onnx.checker.check_model(slim)
