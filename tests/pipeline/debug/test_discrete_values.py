"""Integers and bools are compared exactly, except for ties."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions, FaultyOnnx

pytestmark = pytest.mark.needs("onnx")


def _node(faulty: FaultyOnnx, operator: str) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = list(faulty.model.graph.node)
    return next(node for node in nodes if node.op_type == operator)


FAULTS = [
    ("label", "ArgMax", "ArgMin", "(model)", ["argmin", "argmax"]),
    ("above", "Greater", "Less", "(model)", ["lt", "gt"]),
    ("chosen", "ArgMax", "ArgMin", "(model)", ["argmin", "argmax"]),
    ("chooser", "ArgMax", "ArgMin", "choose", ["argmin", "argmax"]),
]


@pytest.mark.parametrize(("net", "before", "after", "guilty", "operations"), FAULTS)
def test_a_wrong_operator_that_gives_integers_or_bools_is_named(
    net: str,
    before: str,
    after: str,
    guilty: str,
    operations: list[str],
    conversions: Conversions,
    tmp_path: Path,
) -> None:
    faulty = conversions.faulty(net, tmp_path)
    _node(faulty, before).op_type = after
    found = faulty.localise()
    worst = found.layers[0]
    assert (found.guilty, worst.operator) == (guilty, after)
    assert set(operations) <= set(re.findall(r"\w+", found.cause))
    source = Path(str(conversions.nets.__file__)).read_text().splitlines()
    assert any(word in source[worst.line - 1] for word in ("argmax", "> 0.1", "choose"))


def test_a_cast_that_rounds_is_named(conversions: Conversions, tmp_path: Path) -> None:
    faulty = conversions.faulty("bucket", tmp_path)
    cast = _node(faulty, "Cast")
    place = list(faulty.model.graph.node).index(cast)
    rounded = helper.make_node("Round", [cast.input[0]], ["rounded"], "round")
    faulty.model.graph.node.insert(place, rounded)
    cast = _node(faulty, "Cast")
    cast.input[0] = "rounded"
    found = faulty.localise()
    assert (found.guilty, found.layers[0].operator) == ("(model)", "Cast")
    assert {"round", "truncates"} <= set(found.cause.split())


def test_differing_integers_of_unknown_cause_are_counted(
    conversions: Conversions, tmp_path: Path
) -> None:
    faulty = conversions.faulty("label", tmp_path)
    graph = faulty.model.graph
    node = _node(faulty, "ArgMax")
    (output,) = node.output
    node.output[0] = "place"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(7), "seven"))
    graph.node.append(helper.make_node("Add", ["place", "seven"], [output], "more"))
    found = faulty.localise()
    assert (found.guilty, found.layers[0].node) == ("(model)", "more")
    assert "int64" in found.cause
    assert "12 of 12" in found.cause


@pytest.mark.parametrize("net", ["label", "above", "bucket", "chosen", "chooser", "tied"])
def test_no_layer_of_a_good_conversion_with_integers_is_named(
    net: str, conversions: Conversions
) -> None:
    folder, source = conversions.folder(net), conversions.source(net)
    assert localise_file(folder / "model.onnx", source).guilty == ""


@pytest.mark.parametrize("file", ["model.xml", "model.torchscript.pt"])
def test_no_layer_of_a_good_conversion_in_another_format_is_named(
    file: str, conversions: Conversions
) -> None:
    folder = conversions.folder("chooser")
    found = localise_file(folder / file, conversions.source("chooser"))
    assert found.guilty == ""
    assert "choose" in {layer.module for layer in found.layers}


def test_a_choice_among_equal_scores_is_no_fault(conversions: Conversions, tmp_path: Path) -> None:
    faulty = conversions.faulty("tied", tmp_path)
    faulty.attribute(_node(faulty, "ArgMax").name, "select_last_index", 1)
    assert faulty.localise().guilty == ""
