"""Where Q/DQ go: through chains of convolutions, past residual sums and masks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.onnx_topology import PRODUCTS, GraphWiring
from modelc.converters.quantizers.qdq_placement import (
    explain_empty,
    place_for_cpu,
    place_for_tensorrt,
)
from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.core.contract import Feed, QuantizeJob
from modelc.core.grammar import parse_input
from modelc.core.signature import merge_inputs

from .conftest import Feeds, FloatModel, Quantize

if TYPE_CHECKING:
    from modelc.converters.quantizers.qdq_placement import QdqPlacement

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


def block() -> onnx.ModelProto:
    """A residual block with a convolution in its shortcut, then a pooled classifier."""
    draw = np.random.default_rng(0)

    def conv(source: str, result: str) -> onnx.NodeProto:
        return helper.make_node(
            "Conv", [source, f"{result}.w", f"{result}.b"], [result], name=result
        )

    nodes = [
        conv("x", "first"),
        helper.make_node("Relu", ["first"], ["relu"], name="relu"),
        conv("relu", "second"),
        conv("x", "shortcut"),
        helper.make_node("Add", ["second", "shortcut"], ["sum"], name="sum"),
        helper.make_node("Relu", ["sum"], ["end"], name="end"),
        helper.make_node("GlobalAveragePool", ["end"], ["pool"], name="pool"),
        helper.make_node("Flatten", ["pool"], ["flat"], name="flat"),
        helper.make_node("Gemm", ["flat", "head.w", "head.b"], ["y"], name="head"),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        f"{n}.w": (16, 16, 1, 1) for n in ("first", "second", "shortcut")
    }
    shapes |= {f"{n}.b": (16,) for n in ("first", "second", "shortcut", "head")}
    shapes["head.w"] = (16, 16)
    constants = [
        numpy_helper.from_array(draw.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 16])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def chains(model: onnx.ModelProto, *keep: str) -> QdqPlacement:
    return place_for_cpu(model.graph, GraphWiring(model.graph), keep, PRODUCTS)


def fusion(model: onnx.ModelProto, batch: int, *keep: str) -> QdqPlacement:
    return place_for_tensorrt(model.graph, GraphWiring(model.graph), keep, {"batch": batch})


def test_all_between_convolutions_is_in_the_chain() -> None:
    assert chains(block()).nodes == {
        "first", "relu", "second", "shortcut", "sum", "end", "pool", "head",
    }  # fmt: skip


def test_a_kept_convolution_ends_the_chain() -> None:
    assert chains(block(), "shortcut").nodes == {"first", "relu", "second", "head"}


def test_a_residual_of_a_transformer_is_in_no_chain(bert: FloatModel) -> None:
    model = onnx.load(bert.parent)
    placed = chains(model)
    kinds = {node.op_type for node in model.graph.node if node.name in placed.nodes}
    assert kinds == {"MatMul", "Gemm"}
    assert placed.chained == frozenset()


def test_fusion_takes_products_and_sums() -> None:
    placed = fusion(block(), 32)
    assert placed.nodes == {"first", "second", "shortcut", "sum", "head"}
    assert placed.sums == {"sum"}


def test_a_product_of_few_rows_is_left_out_of_fusion() -> None:
    assert "head" not in fusion(block(), 4).nodes


def test_an_empty_placement_has_a_reason_of_its_own() -> None:
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    branch = helper.make_graph([product], "branch", [], [])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    graphs = [helper.make_graph(nodes, "g", [], []) for nodes in ([], [choice], [product])]
    reasons = {*(explain_empty(one, ()) for one in graphs), explain_empty(graphs[2], ["product"])}
    reasons |= {explain_empty(graphs[2], (), ["Conv"])}
    assert len(reasons) == 5


@pytest.fixture
def fused(tmp_path: Path) -> onnx.ModelProto:
    """The block quantized for TensorRT."""
    onnx.save(block(), tmp_path / "block.onnx")
    folder = tmp_path / "made"
    folder.mkdir()

    def feed(index: int) -> Feed:
        draw = np.random.default_rng(index)
        return {"x": draw.normal(size=(1, 16, 8, 8)).astype(np.float32)}

    signature = merge_inputs([parse_input("x:float32[batch=1..32,16,8,8]")], {}).with_outputs(
        ("y",)
    )
    job = QuantizeJob(
        parent=tmp_path / "block.onnx",
        consumer="tensorrt-onnx",
        signature=signature,
        calibration=Feeds(feed, 8),
        folder=folder,
    )
    return onnx.load(find_quantizer("onnxruntime").quantize(job).path)


def test_tensorrt_gets_the_residual_quantized_and_the_products_own_output_not(
    fused: onnx.ModelProto,
) -> None:
    wiring = GraphWiring(fused.graph)
    (total,) = [node for node in fused.graph.node if node.name == "sum"]
    assert sorted(wiring.before(name) or name for name in total.input) == ["second", "shortcut"]
    assert "second" in total.input


def test_tensorrt_gets_only_symmetric_scales_and_float_biases(fused: onnx.ModelProto) -> None:
    zeros = [
        numpy_helper.to_array(tensor)
        for tensor in fused.graph.initializer
        if "zero_point" in tensor.name
    ]
    assert zeros
    assert all(array.dtype == np.int8 and not array.any() for array in zeros)
    assert not [t for t in fused.graph.initializer if t.data_type == TensorProto.INT32]


def test_pairs_without_a_reader_are_removed(fused: onnx.ModelProto) -> None:
    read = {name for node in fused.graph.node for name in node.input}
    read |= {value.name for value in fused.graph.output}
    assert {name for node in fused.graph.node for name in node.output} <= read


def test_residual_sums_of_a_transformer_read_floats(quantized: Quantize) -> None:
    graph = onnx.load(quantized("onnxruntime", "bert", "onnx").path).graph
    wiring = GraphWiring(graph)
    sums = [node for node in graph.node if node.op_type == "Add"]
    assert sums
    assert not [name for node in sums for name in node.input if wiring.before(name)]
