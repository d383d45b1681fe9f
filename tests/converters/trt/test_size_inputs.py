"""Inputs that set a size, found in the ONNX."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from modelc.converters.trt.engine_profiles import read_size_inputs
from modelc.converters.trt.trt_installation import TrtLibrary, load_tensorrt

# name: (the graph's head, its weights, its nodes, the inputs that set a size)
GRAPHS = {
    "TopK": ("(float[4,8] x, int64[1] k) => (float[4,m] y)", "", "y, i = TopK(x, k)", ["k"]),
    "Range of a sum": (
        "(int64 a, int64 b) => (int64[m] y)", "int64 z = {0}, int64 o = {1}",
        "c = Add(a, b) y = Range(z, c, o)", ["a", "b"],
    ),
    "Reshape to parts": (
        "(float[4,8] x, int64[1] r) => (float[p,q] y)", "int64[1] rest = {-1}",
        "s = Concat<axis = 0>(r, rest) y = Reshape(x, s)", ["r"],
    ),
    "Resize": (
        "(float[1,2,4,4] x, int64[2] hw) => (float[1,2,h,w] y)", "int64[2] front = {1, 2}",
        "s = Concat<axis = 0>(front, hw) y = Resize(x, , , s)", ["hw"],
    ),
    "Tile": ("(float[4,8] x, int64[2] r) => (float[p,q] y)", "", "y = Tile(x, r)", ["r"]),
    "Pad": ("(float[4,8] x, int64[4] p) => (float[a,b] y)", "", "y = Pad(x, p)", ["p"]),
    "int32": (
        "(float[8] x, int32[1] e) => (float[m] y)", "int64[1] z = {0}",
        "c = Cast<to = 7>(e) y = Slice(x, z, c)", ["e"],
    ),
    "shape of an input": (
        "(float[4,8] x, int64[3] like) => (float[4,m] y)", "",
        "k = Shape(like) y, i = TopK(x, k)", [],
    ),
    "indices": ("(float[4,8] x, int64[3] i) => (float[3,8] y)", "", "y = Gather(x, i)", []),
    "values": ("(int64[3] a, int64[3] b) => (int64[3] y)", "", "y = Add(a, b)", []),
}  # fmt: skip


def saved(folder: Path, name: str) -> Path:
    head, weights, nodes, _ = GRAPHS[name]
    text = f'<ir_version: 10, opset_import: ["" : 20]> g {head} <{weights}> {{ {nodes} }}'
    onnx.save_model(parser.parse_model(text), str(folder / "m.onnx"))
    return folder / "m.onnx"


@pytest.mark.parametrize("name", GRAPHS)
def test_inputs_that_set_a_size_are_found(tmp_path: Path, name: str) -> None:
    assert list(read_size_inputs(saved(tmp_path, name))) == GRAPHS[name][3]


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_parser_finds_the_same(tmp_path: Path, name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    trt = load_tensorrt(TrtLibrary.RTX, builds_only=True)
    log = trt.Logger(trt.Logger.ERROR)
    network = trt.Builder(log).create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    assert trt.OnnxParser(network, log).parse_from_file(str(saved(tmp_path, name)))
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    assert [one.name for one in inputs if one.is_shape_tensor] == GRAPHS[name][3]
