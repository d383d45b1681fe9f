"""Integers of a checkpoint in ONNX: the same integers, scales and zero points, and only these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from modelc.checkpoints.torchao_weights import _MATRICES
from modelc.converters import onnx_files
from modelc.converters.onnx_block_rewriter import keep_integers, pack_integers
from modelc.converters.onnx_blocks import read_integer_weights
from modelc.core.weights import QuantizedMatrix

ROWS = 24


def make_matrix(columns: int, block: int, bits: int) -> QuantizedMatrix:
    """Return random integers with a zero point and a scale for each block."""
    rng = np.random.default_rng(columns + block + bits)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    blocks = columns // block
    return QuantizedMatrix(
        integers=rng.integers(low, high, (ROWS, columns), np.int8),
        scales=rng.uniform(0.01, 0.02, (ROWS, blocks)).astype(np.float32),
        zeros=rng.integers(low, high, (ROWS, blocks), np.int8),
        bits=bits,
        source="test",
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("columns", "block", "size"),
    [(64, 32, 32), (96, 96, 128), (100, 100, 128), (48, 16, 16), (10, 10, 16), (288, 96, 32)],
)
def test_blocks_hold_the_integers_and_repeat_scales(
    bits: int, columns: int, block: int, size: int
) -> None:
    """Checked with an unpacking of its own."""
    matrix = make_matrix(columns, block, bits)

    blocks = pack_integers(matrix)

    assert blocks is not None
    assert blocks.size == size
    assert blocks.zeros is not None
    packed, zeros = blocks.packed.reshape(ROWS, -1), blocks.zeros
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], -1).reshape(ROWS, -1)
        zeros = np.stack([zeros & 15, zeros >> 4], -1).reshape(ROWS, -1)
    middle = 1 << (bits - 1)
    assert np.array_equal(packed[:, :columns].astype(int) - middle, matrix.integers)
    groups = np.arange(blocks.scales.shape[1]) * size // block
    assert np.array_equal(blocks.scales, matrix.scales[:, groups])
    assert np.array_equal(zeros[:, : len(groups)].astype(int) - middle, matrix.zeros[:, groups])


def test_groups_that_no_block_divides_stay_floats() -> None:
    """MatMulNBits has blocks of 16 or more, a power of two."""
    assert pack_integers(make_matrix(48, 24, 4)) is None


def write_product(path: Path, *weights: np.ndarray) -> None:
    """Write x @ weights.T for one weight after the other, as the exporter writes a Linear."""
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, weights[0].shape[1]])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, weights[-1].shape[0]])
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(one.T), f"w{number}")
        for number, one in enumerate(weights)
    ]
    names = ["x", *(f"y{number}" for number in range(1, len(weights))), "y"]
    nodes = [
        helper.make_node(
            "MatMul", [names[number], f"w{number}"], [names[number + 1]], name=f"p{number}"
        )
        for number in range(len(weights))
    ]
    graph = helper.make_graph(nodes, "net", [given], [made], constants)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)


def test_a_constant_with_the_same_values_becomes_integers_and_another_does_not(
    tmp_path: Path,
) -> None:
    """One weight that differs in its last bit is not the checkpoint's."""
    matrix = make_matrix(64, 32, 4)
    module = torch.nn.Linear(64, ROWS)
    setattr(module, _MATRICES, {"weight": matrix})
    path, given = tmp_path / "model.onnx", np.ones((2, 64), np.float32)
    write_product(path, matrix.dequantize())

    notes = keep_integers(path, module, tmp_path)

    assert [node.op_type for node in onnx.load(path).graph.node] == ["MatMulNBits"]
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": given})
    assert np.allclose(found, given @ matrix.dequantize().T, atol=1e-5)
    assert len(notes) == 1

    altered = matrix.dequantize()
    altered[3, 5] = np.nextafter(altered[3, 5], np.float32(9))
    write_product(path, altered)
    notes = keep_integers(path, module, tmp_path)
    assert [node.op_type for node in onnx.load(path).graph.node] == ["MatMul"]
    assert any("weight" in note for note in notes[1:])


def test_weights_that_are_in_several_files_become_integers_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx_ir

    monkeypatch.setattr(onnx_files, "FILE_LIMIT", 4096)
    matrix, module, path = make_matrix(64, 32, 4), torch.nn.Linear(64, ROWS), tmp_path / "m.onnx"
    setattr(module, _MATRICES, {"weight": matrix})
    write_product(path, matrix.dequantize(), np.ones((ROWS, ROWS), np.float32))
    parts = onnx_files.save_model(onnx_ir.load(path), path, external_data=True)
    assert len(parts) > 2

    keep_integers(path, module, tmp_path)

    assert onnx_files.name_files(path) == (("m.onnx", "model"), ("m.onnx.data", "data"))
    assert {one.name for one in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    given = np.ones((2, 64), np.float32)
    (found,) = onnxruntime.InferenceSession(path).run(None, {"x": given})
    meant = given @ matrix.dequantize().T @ np.ones((ROWS, ROWS), np.float32)
    assert np.allclose(found, meant, atol=1e-4)


@pytest.mark.needs("openvino")
@pytest.mark.parametrize("block", [64, 128])
def test_openvino_reads_the_same_weights_with_one_block_in_a_row_and_with_two(
    tmp_path: Path, block: int
) -> None:
    """A single zero point of 4 bits leaves half a byte empty, which OpenVINO's reader cuts off."""
    import openvino

    from modelc.converters.openvino_weights import read_integer_weights

    matrix, module, path = make_matrix(128, block, 4), torch.nn.Linear(128, ROWS), tmp_path / "m"
    setattr(module, _MATRICES, {"weight": matrix})
    write_product(path.with_suffix(".onnx"), matrix.dequantize())
    keep_integers(path.with_suffix(".onnx"), module, tmp_path)
    read = openvino.Core().read_model(path.with_suffix(".onnx"))
    openvino.save_model(read, path.with_suffix(".xml"), compress_to_fp16=False)

    (found,) = read_integer_weights(path.with_suffix(".xml"))

    assert np.allclose(found.read_all().values, matrix.dequantize(), atol=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_blocks_of_other_rows_than_neighbours_are_not_read(tmp_path: Path, ordered: bool) -> None:
    """An input with the block of each row (act-order) gives other weights than those in a row."""
    matrix, module, path = make_matrix(64, 32, 4), torch.nn.Linear(64, ROWS), tmp_path / "m.onnx"
    setattr(module, _MATRICES, {"weight": matrix})
    write_product(path, matrix.dequantize())
    keep_integers(path, module, tmp_path)
    model = onnx.load(path)
    if ordered:
        order = numpy_helper.from_array(np.arange(64, dtype=np.int32) % 2, "order")
        model.graph.initializer.append(order)
        model.graph.node[0].input.append("order")
    onnx.save(model, path)

    assert len(list(read_integer_weights(path))) == (not ordered)
