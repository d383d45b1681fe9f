"""The copy of the model that libraries work on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.converters.quantizers.quantizer_workspace import create_workspace
from modelc.core.errors import ConversionError

from .conftest import FloatModel, job_in

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


def copied(
    model: onnx.ModelProto, digits: FloatModel, folder: Path, opset: int = 13
) -> onnx.ModelProto:
    """The workspace's copy of a model."""
    onnx.save(model, folder / "changed.onnx")
    (folder / "made").mkdir()
    job = job_in(digits, folder / "made", "onnx", parent=folder / "changed.onnx")
    return create_workspace(job, opset=opset).load()


@pytest.fixture
def model(digits: FloatModel) -> onnx.ModelProto:
    return onnx.load(digits.parent)


def test_nodes_without_a_name_get_unique_names(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    for node in model.graph.node:
        node.name = ""
    names = [node.name for node in copied(model, digits, tmp_path).graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_an_old_opset_is_converted_and_names_stay(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    model.opset_import[0].version = 17
    made = copied(model, digits, tmp_path, opset=19)
    assert made.opset_import[0].version == 19
    assert {node.name for node in model.graph.node} <= {node.name for node in made.graph.node}


def test_external_weights_stay_in_their_file_when_the_opset_is_raised(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    wanted = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    inputs = [one.name for one in model.graph.input]
    onnx.save(
        model, tmp_path / "parent.onnx", save_as_external_data=True, location="parent.data",
        size_threshold=0,
    )  # fmt: skip
    (tmp_path / "made").mkdir()
    job = job_in(digits, tmp_path / "made", "onnx", parent=tmp_path / "parent.onnx")
    place = create_workspace(job, opset=21)
    made = place.load()
    assert place.external
    assert place.model.stat().st_size < (tmp_path / "parent.data").stat().st_size
    assert made.opset_import[0].version == 21
    assert [one.name for one in made.graph.input] == inputs
    found = {one.name: numpy_helper.to_array(one) for one in made.graph.initializer}
    assert all(np.array_equal(found[name], array) for name, array in wanted.items())


def test_an_opset_that_cannot_be_converted_is_an_error(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    model.opset_import[0].version = 12
    model.graph.node[0].op_type = "Unknown"
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "made").mkdir()
    job = job_in(digits, tmp_path / "made", "onnx", parent=tmp_path / "m.onnx")
    with pytest.raises(ConversionError, match="opset 12") as caught:
        find_quantizer("onnxruntime").quantize(job)
    assert caught.value.option == "opset"


def test_constant_nodes_become_weights(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    weights = model.graph.initializer[0]
    node = onnx.helper.make_node("Constant", [], [weights.name], name="c", value=weights)
    model.graph.initializer.remove(weights)
    model.graph.node.insert(0, node)
    made = copied(model, digits, tmp_path)
    assert "Constant" not in {node.op_type for node in made.graph.node}
    assert node.output[0] in {tensor.name for tensor in made.graph.initializer}


def test_two_nodes_of_one_name_are_renamed(
    model: onnx.ModelProto, digits: FloatModel, tmp_path: Path
) -> None:
    twice = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "Relu")][:3]
    for node, name in zip(twice, ("one", "one", "one_2"), strict=True):
        node.name = name
    names = [node.name for node in copied(model, digits, tmp_path).graph.node]
    assert len(set(names)) == len(names)
    assert {"one", "one_2", "one_3"} <= set(names)
