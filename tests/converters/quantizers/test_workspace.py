"""The copy that libraries work on: named, raised, and the parent untouched."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from modelc.converters.quantizers.quantizer_registry import find_quantizer
from modelc.converters.quantizers.quantizer_workspace import create_workspace
from modelc.core.errors import ConversionError

from .conftest import Subject, job_in

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own; the pipeline logs them


def changed(digits: Subject, folder: Path, *, opset: int = 20, named: bool = True) -> Path:
    model = onnx.load(digits.parent)
    model.opset_import[0].version = opset
    for node in model.graph.node:
        node.name = node.name if named else ""
    path = folder / "changed.onnx"
    onnx.save(model, path)
    return path


def test_nodes_without_a_name_get_one_of_their_own(digits: Subject, tmp_path: Path) -> None:
    parent = changed(digits, tmp_path, named=False)
    folder = tmp_path / "made"
    folder.mkdir()
    place = create_workspace(job_in(digits, folder, "onnx", parent=parent), opset=13)
    names = [node.name for node in place.load().graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


def test_an_opset_that_is_too_low_is_raised_and_names_stay(digits: Subject, tmp_path: Path) -> None:
    parent = changed(digits, tmp_path, opset=17)
    folder = tmp_path / "made"
    folder.mkdir()
    place = create_workspace(job_in(digits, folder, "onnx", parent=parent), opset=19)
    made = place.load()
    assert made.opset_import[0].version == 19
    before = {node.name for node in onnx.load(parent).graph.node}
    assert before <= {node.name for node in made.graph.node}


def test_an_opset_that_cannot_be_raised_says_what_to_do(digits: Subject, tmp_path: Path) -> None:
    apart, folder = tmp_path / "apart", tmp_path / "made"
    apart.mkdir()
    folder.mkdir()
    model = onnx.load(changed(digits, tmp_path, opset=12))
    onnx.save(model, str(apart / "m.onnx"), save_as_external_data=True, location="m.data")
    job = job_in(digits, folder, "onnx", parent=apart / "m.onnx")
    with pytest.raises(ConversionError, match="opset 12") as caught:
        find_quantizer("onnxruntime").quantize(job)
    assert "--opset 21" in caught.value.hint


def test_constant_nodes_become_weights(digits: Subject, tmp_path: Path) -> None:
    model = onnx.load(digits.parent)
    weights = model.graph.initializer[0]
    node = onnx.helper.make_node("Constant", [], [weights.name], name="c", value=weights)
    model.graph.initializer.remove(weights)
    model.graph.node.insert(0, node)
    onnx.save(model, tmp_path / "m.onnx")
    folder = tmp_path / "made"
    folder.mkdir()
    job = job_in(digits, folder, "onnx", parent=tmp_path / "m.onnx")
    made = create_workspace(job, opset=13).load()
    assert "Constant" not in {node.op_type for node in made.graph.node}
    assert node.output[0] in {tensor.name for tensor in made.graph.initializer}


def test_two_nodes_of_one_name_are_told_apart(digits: Subject, tmp_path: Path) -> None:
    model = onnx.load(digits.parent)
    twice = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "Relu")][:3]
    for node, name in zip(twice, ("one", "one", "one_2"), strict=True):
        node.name = name
    onnx.save(model, tmp_path / "changed.onnx")
    folder = tmp_path / "made"
    folder.mkdir()
    job = job_in(digits, folder, "onnx", parent=tmp_path / "changed.onnx")
    made = create_workspace(job, opset=13).load()
    names = [node.name for node in made.graph.node]
    assert len(set(names)) == len(names)
    assert {"one", "one_2", "one_3"} <= set(names)
