"""A fault in a loop of the artifact: the loop is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelc.converters.onnx_topology import all_nodes
from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions, FaultyOnnx

pytestmark = pytest.mark.needs("onnx")
NETS = ("looped", "stacked")


def _inside(faulty: FaultyOnnx, operator: str) -> onnx.NodeProto:
    top = {node.name for node in faulty.model.graph.node}
    return next(
        node
        for node in all_nodes(faulty.model.graph)
        if node.name not in top and node.op_type == operator
    )


@pytest.mark.parametrize("net", NETS)
def test_a_fault_in_a_loop_names_the_loop_and_its_modules(
    net: str, conversions: Conversions, tmp_path: Path
) -> None:
    faulty = conversions.faulty(net, tmp_path)
    _inside(faulty, "Tanh").op_type = "Sigmoid"
    found = faulty.localise()
    worst = found.layers[0]
    assert found.guilty in ("step", "(model)")
    assert worst.operator == "Loop"
    assert worst.node in found.cause
    assert "step.mix, step" in found.cause
    source = Path(str(conversions.nets.__file__)).read_text().splitlines()
    assert any(word in source[worst.line - 1] for word in ("self.step(h)", "torch.tanh"))


@pytest.mark.parametrize("net", NETS)
def test_a_weight_that_a_loop_reads_is_named(
    net: str, conversions: Conversions, tmp_path: Path
) -> None:
    faulty = conversions.faulty(net, tmp_path)
    name = _inside(faulty, "MatMul").input[1]
    (tensor,) = [one for one in faulty.model.graph.initializer if one.name == name]
    array = numpy_helper.to_array(tensor) * np.float32(1.1)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    found = faulty.localise()
    worst = found.layers[0]
    assert worst.operator == "Loop"
    values = (worst.node, "step.mix.weight", "64 of 64")
    assert [value for value in values if value not in found.cause] == []


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("file", ["model.onnx", "model.xml", "model.torchscript.pt"])
def test_no_layer_of_a_good_conversion_with_a_loop_is_named(
    net: str, file: str, conversions: Conversions
) -> None:
    folder = conversions.folder(net)
    if not (folder / file).is_file():
        pytest.skip("the format has no such loops")
    assert localise_file(folder / file, conversions.source(net)).guilty == ""
