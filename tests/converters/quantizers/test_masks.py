"""The planted fault: a mask's fill sets a scale, and the scores behind it vanish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.quantizers.quantization_checks import (
    check_quantized,
    find_lost_tensors,
    observe_activations,
)
from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.converters.quantizers.quantizer_workspace import (
    CalibrationReader,
    calibration_samples,
    create_workspace,
)
from modelc.core.contract import Feed
from modelc.core.errors import ConversionError
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

from .conftest import FloatModel, sqnr

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


@pytest.fixture(scope="module")
def by_hand(additive: FloatModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The masked attention, quantized by ONNX Runtime's own selection."""
    from onnxruntime.quantization import quantize_static

    folder = tmp_path_factory.mktemp("by-hand")
    samples = calibration_samples(additive.job(folder, "onnx"), ("ids", "mask"))
    reader = CalibrationReader(samples, additive.signature)
    quantize_static(str(additive.parent), str(folder / "q.onnx"), reader)
    return folder / "q.onnx"


def test_the_librarys_own_selection_loses_the_scores(by_hand: Path, additive: FloatModel) -> None:
    assert sqnr(by_hand, additive) < 16


def test_the_lost_tensor_is_an_error_with_its_readers(
    by_hand: Path, additive: FloatModel, tmp_path: Path
) -> None:
    job = additive.job(tmp_path, "onnx")
    made = onnx.load(by_hand)
    found = observe_activations(
        create_workspace(job, opset=13), made, calibration_samples(job, ("ids", "mask"))
    )
    readers = {name for lost in find_lost_tensors(made, found.useful) for name in lost.readers}
    assert any("softmax" in name for name in readers)
    with pytest.raises(ConversionError, match="softmax") as caught:
        check_quantized(made, found.useful)
    assert "--keep-fp" in caught.value.hint


def masked_product(folder: Path) -> FloatModel:
    """A model whose fill reaches a product's own input: y = (x where it counts, else -1e4) @ W."""
    draw = np.random.default_rng(0)
    weights = [draw.normal(size=(32, 32)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("Where", ["counts", "x", "fill"], ["masked"], name="mask"),
        helper.make_node("MatMul", ["masked", "w0"], ["first"], name="first"),
        helper.make_node("MatMul", ["x", "w1"], ["second"], name="second"),
        helper.make_node("Add", ["first", "second"], ["output"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "masked",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 32]),
            helper.make_tensor_value_info("counts", TensorProto.BOOL, ["rows", 32]),
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["rows", 32])],
        [
            *(numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)),
            numpy_helper.from_array(np.array(-1e4, np.float32), "fill"),
        ],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), folder / "model.onnx")

    def feed(index: int) -> Feed:
        draw = np.random.default_rng(index)
        return {
            "x": draw.normal(size=(20, 32)).astype(np.float32),
            "counts": draw.random((20, 32)) > 0.1,
        }

    inputs = ("x:float32[rows=16..64,32]", "counts:bool[rows=16..64,32]")
    signature = merge_inputs([parse_input(text) for text in inputs], {}).with_outputs(("output",))
    return FloatModel(
        name="masked", parent=folder / "model.onnx", signature=signature, make=feed,
        held_out=(), expected=(),
    )  # fmt: skip


@pytest.mark.parametrize("quantizer", ["onnxruntime", "modelopt"])
def test_a_product_that_reads_a_fill_is_kept_in_floats_and_noted(
    quantizer: str, tmp_path: Path
) -> None:
    floats = masked_product(tmp_path)
    folder = tmp_path / "made"
    folder.mkdir()
    made = find_quantizer(quantizer).quantize(floats.job(folder, "tensorrt-onnx"))
    model = onnx.load(made.path)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    read = {node.name: makers.get(node.input[0]) for node in model.graph.node}
    assert read["first"] == "Where"
    assert read["second"] == "DequantizeLinear"
    assert any("first" in note for note in made.notes)


def test_openvinos_mask_is_not_quantized_either(additive: FloatModel, tmp_path: Path) -> None:
    import openvino

    made = find_quantizer("nncf").quantize(additive.job(tmp_path, "openvino"))
    model = openvino.Core().read_model(str(made.path))
    ends = [
        float(np.abs(op.input_value(i).get_node().data).max())
        for op in model.get_ordered_ops()
        if op.get_type_name() == "FakeQuantize"
        for i in (1, 2)
    ]
    assert made.options["model type"] == "transformer"
    assert max(ends) < 1e3
