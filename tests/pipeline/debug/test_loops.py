"""A fault in a loop of the artifact: the loop is named, and no cause that was not seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from modelc.converters.onnx_topology import all_nodes
from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions, Spoiled

pytestmark = pytest.mark.needs("onnx")
NETS = ("looped", "stacked")


def _inside(spoiled: Spoiled, operator: str) -> onnx.NodeProto:
    top = {node.name for node in spoiled.model.graph.node}
    return next(
        node
        for node in all_nodes(spoiled.model.graph)
        if node.name not in top and node.op_type == operator
    )


@pytest.mark.parametrize("net", NETS)
def test_an_operator_in_a_loop_is_told_with_the_loop(
    net: str, conversions: Conversions, tmp_path: Path
) -> None:
    spoiled = conversions.spoiled(net, tmp_path)
    _inside(spoiled, "Tanh").op_type = "Sigmoid"
    found = spoiled.look()
    worst = found.layers[0]
    assert found.guilty in ("step", "(model)")
    assert worst.operator == "Loop"
    assert found.cause.startswith(f"inside the loop {worst.node}")
    assert "debug does not look into it (it holds step.mix, step)" in found.cause
    source = Path(str(conversions.nets.__file__)).read_text().splitlines()
    assert any(word in source[worst.line - 1] for word in ("self.step(h)", "torch.tanh"))


@pytest.mark.parametrize("net", NETS)
def test_a_weight_that_a_loop_reads_is_named(
    net: str, conversions: Conversions, tmp_path: Path
) -> None:
    spoiled = conversions.spoiled(net, tmp_path)
    name = _inside(spoiled, "MatMul").input[1]
    (tensor,) = [one for one in spoiled.model.graph.initializer if one.name == name]
    array = numpy_helper.to_array(tensor) * np.float32(1.1)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    found = spoiled.look()
    worst = found.layers[0]
    assert worst.operator == "Loop"
    assert found.cause.startswith(
        f"inside the loop {worst.node}: the weight step.mix.weight differs in 64 of 64 elements"
    )


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("file", ["model.onnx", "model.xml", "model.torchscript.pt"])
def test_no_layer_of_a_good_conversion_with_a_loop_is_named(
    net: str, file: str, conversions: Conversions
) -> None:
    folder = conversions.folder(net)
    if not (folder / file).is_file():
        pytest.skip("the format has no such loops")
    assert localise_file(folder / file, conversions.source(net)).guilty == ""
