"""Weights held beside a graph: the same numbers, one copy for all sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper, parser

from modelc.converters.onnx_files import detach_weights
from modelc.converters.onnx_sessions import open_session, run_session
from modelc.core.kinds import Capture
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

from ..nets import composed_nets

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


@pytest.mark.parametrize("capture", [Capture.EXPORT, Capture.TRACE, Capture.SCRIPT])
def test_tied_weights_are_stored_once(tmp_path: Path, capture: Capture) -> None:
    """An embedding that the last product reads too; the oracle is torch on the written files."""
    torch.manual_seed(0)
    net = composed_nets.Tied().eval()
    torch.save(net.state_dict(), tmp_path / "tied.pt")
    source = Source(
        checkpoint=tmp_path / "tied.pt", model="modelc.tests.nets.composed_nets:build",
        model_args={"kind": "tied"}, method="decode",
        inputs=("ids:int64[batch=1..3,seq=2..9]{0..2499}", "memory:float32[batch,seq,32]"),
    )  # fmt: skip
    wanted = (Wanted.parse("onnx"), Wanted.parse("openvino"))
    out = tmp_path / "out"
    assert run(Order(source=source, wanted=wanted, out=out, capture=capture)).passed
    size = net.embed.weight.nbytes
    for name in ("model.onnx", "model.bin"):
        assert size < (out / name).stat().st_size < 1.2 * size
    ids, memory = np.array([[0, 5, 2499, 7]]), WIDE[:4, :32][None]
    (found,) = onnxruntime.InferenceSession(out / "model.onnx").run(
        None, {"ids": ids, "memory": memory}
    )
    with torch.no_grad():
        expected = net.decode(torch.tensor(ids), torch.tensor(memory)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
