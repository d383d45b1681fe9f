"""A removed node: the layer without a counterpart is named, not the one after it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import onnx
import pytest
import torch

from modelc.core.findings import Localisation
from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions

pytestmark = pytest.mark.needs("onnx")
STYLES = ("scopes", "weights", "values")
REMOVED = [
    ("Relu", 0, "act", "relu of act", "self.first(x)"),
    ("Relu", 1, "act", "relu of act", "self.norm(h)"),
    ("LayerNormalization", 0, "norm", "layer_norm of norm", "self.norm(h)"),
    ("Sigmoid", 0, "(model)", "sigmoid of the model's forward", "torch.sigmoid"),
    ("Softmax", 0, "(model)", "softmax of the model's forward", "torch.softmax"),
]


@pytest.fixture(scope="module")
def foreign(conversions: Conversions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chain as the user's own export writes it."""
    path = tmp_path_factory.mktemp("foreign") / "foreign.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            conversions.nets.build("chain"), (torch.ones(2, 3, 8),), str(path), dynamo=False,
            input_names=["x"], output_names=["output"],
            dynamic_axes={"x": {0: "batch"}, "output": {0: "batch"}},
        )  # fmt: skip
    return path


def _remove(model: onnx.ModelProto, operator: str, place: int) -> None:
    graph = model.graph
    node = [one for one in graph.node if one.op_type == operator][place]
    before, after = node.input[0], node.output[0]
    graph.node.remove(node)
    for one in graph.node:
        one.input[:] = [before if name == after else name for name in one.input]
        if after in {value.name for value in graph.output}:
            one.output[:] = [after if name == before else name for name in one.output]


def _as_written(model: onnx.ModelProto, style: str) -> None:
    """Without scopes, and without names of weights."""
    for number, node in enumerate(model.graph.node):
        node.name = node.name if style == "scopes" else f"n{number}"
    for number, tensor in enumerate(model.graph.initializer if style == "values" else ()):
        for node in model.graph.node:
            names = [f"w{number}" if name == tensor.name else name for name in node.input]
            node.input[:] = names
        tensor.name = f"w{number}"


def _look(model: onnx.ModelProto, folder: Path, conversions: Conversions) -> Localisation:
    onnx.save(model, folder / "changed.onnx")
    return localise_file(folder / "changed.onnx", conversions.source("chain"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("operator", "place", "guilty", "what", "code"), REMOVED)
def test_the_layer_without_a_counterpart_is_named(
    operator: str,
    place: int,
    guilty: str,
    what: str,
    code: str,
    style: str,
    foreign: Path,
    conversions: Conversions,
    tmp_path: Path,
) -> None:
    model = onnx.load(foreign)
    _as_written(model, style)
    _remove(model, operator, place)
    found = _look(model, tmp_path, conversions)
    assert (found.guilty, found.named_by) == (guilty, style)
    assert found.cause.startswith(f"{what} ")
    assert "counterpart" in found.cause
    source = Path(str(conversions.nets.__file__)).read_text().splitlines()
    assert code in source[found.layers[0].line - 1]


def test_an_identity_in_place_of_an_operator_has_no_effect(
    foreign: Path, conversions: Conversions, tmp_path: Path
) -> None:
    model = onnx.load(foreign)
    node = next(one for one in model.graph.node if one.op_type == "Relu")
    node.op_type = "Identity"
    found = _look(model, tmp_path, conversions)
    assert found.guilty == "act"
    assert {"relu", "act", "effect"} <= set(re.findall(r"\w+", found.cause))


def test_a_node_that_reads_the_wrong_tensor_is_named(
    foreign: Path, conversions: Conversions, tmp_path: Path
) -> None:
    model = onnx.load(foreign)
    relu = next(one for one in model.graph.node if one.op_type == "Relu")
    readers = [one for one in model.graph.node if relu.output[0] in one.input]
    mix = next(one for one in readers if one.op_type in ("MatMul", "Gemm"))
    mix.input[0] = relu.input[0]
    found = _look(model, tmp_path, conversions)
    assert found.guilty == "mix"
    assert relu.input[0] in found.cause
    assert found.cause.split()[-1] == "act"


@pytest.mark.parametrize("style", STYLES)
def test_no_layer_of_a_good_conversion_is_named(
    style: str, foreign: Path, conversions: Conversions, tmp_path: Path
) -> None:
    model = onnx.load(foreign)
    _as_written(model, style)
    assert _look(model, tmp_path, conversions).guilty == ""
