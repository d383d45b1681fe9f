"""Integers and bools are compared exactly: the first that is wrong is named, a tie is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions, Spoiled

pytestmark = pytest.mark.needs("onnx")


def _node(spoiled: Spoiled, operator: str) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = list(spoiled.model.graph.node)
    return next(node for node in nodes if node.op_type == operator)


FAULTS = [
    ("label", "ArgMax", "ArgMin", "(model)", "argmin instead of argmax"),
    ("above", "Greater", "Less", "(model)", "compares by lt instead of gt"),
    ("chosen", "ArgMax", "ArgMin", "(model)", "argmin instead of argmax"),
    ("chooser", "ArgMax", "ArgMin", "choose", "argmin instead of argmax"),
]


@pytest.mark.parametrize(("net", "before", "after", "guilty", "cause"), FAULTS)
def test_a_wrong_operator_that_gives_integers_or_bools_is_named(
    net: str,
    before: str,
    after: str,
    guilty: str,
    cause: str,
    conversions: Conversions,
    tmp_path: Path,
) -> None:
    spoiled = conversions.spoiled(net, tmp_path)
    _node(spoiled, before).op_type = after
    found = spoiled.look()
    worst = found.layers[0]
    assert (found.guilty, worst.operator) == (guilty, after)
    assert cause in found.cause
    source = Path(str(conversions.nets.__file__)).read_text().splitlines()
    assert any(word in source[worst.line - 1] for word in ("argmax", "> 0.1", "choose"))


def test_a_cast_that_rounds_is_named(conversions: Conversions, tmp_path: Path) -> None:
    spoiled = conversions.spoiled("bucket", tmp_path)
    cast = _node(spoiled, "Cast")
    place = list(spoiled.model.graph.node).index(cast)
    rounded = helper.make_node("Round", [cast.input[0]], ["rounded"], "round")
    spoiled.model.graph.node.insert(place, rounded)
    cast = _node(spoiled, "Cast")
    cast.input[0] = "rounded"
    found = spoiled.look()
    assert (found.guilty, found.layers[0].operator) == ("(model)", "Cast")
    assert found.cause == "rounds by round before the cast, where eager truncates"


def test_integers_that_differ_without_a_known_reason_are_counted(
    conversions: Conversions, tmp_path: Path
) -> None:
    spoiled = conversions.spoiled("label", tmp_path)
    graph = spoiled.model.graph
    node = _node(spoiled, "ArgMax")
    (output,) = node.output
    node.output[0] = "place"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(7), "seven"))
    graph.node.append(helper.make_node("Add", ["place", "seven"], [output], "more"))
    found = spoiled.look()
    assert (found.guilty, found.layers[0].node) == ("(model)", "more")
    assert "values of int64 differ: " in found.cause


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
    spoiled = conversions.spoiled("tied", tmp_path)
    spoiled.attribute(_node(spoiled, "ArgMax").name, "select_last_index", 1)
    assert spoiled.look().guilty == ""
