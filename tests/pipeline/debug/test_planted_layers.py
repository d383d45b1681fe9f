"""Faults planted in one layer: the layer, the line and the cause are named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from modelc.core.contract import Array
from modelc.core.errors import ErrorCode, UsageError
from modelc.core.findings import Layer
from modelc.pipeline.debug.localise_file import DebugOptions, localise_file
from modelc.pipeline.order import Source

from ...reasons import has_code
from .conftest import FORMATS, FaultyOnnx

SOURCE = Path(__file__).parents[3] / "sample_models" / "encoder.py"


def line_of(layer: Layer) -> str:
    assert Path(layer.file).resolve() == SOURCE
    return SOURCE.read_text().splitlines()[layer.line - 1]


def _off(array: Array) -> Array:
    array.flat[5] *= np.float32(1.01)
    return array


@pytest.mark.parametrize("name", FORMATS)
def test_no_layer_of_a_good_conversion_is_named(name: str, bert: Path, bert_source: Source) -> None:
    files = {"onnx": "model.onnx", "openvino": "model.xml", "torchscript": "model.torchscript.pt"}
    found = localise_file(bert / files[name], bert_source)
    assert found.guilty == ""
    assert len(found.curve) >= 20
    assert found.reproducer == ""


def test_a_weight_that_differs_is_named_with_its_element(faulty: FaultyOnnx) -> None:
    faulty.weight("node_MatMul_92", _off)
    found = faulty.localise()
    assert found.guilty == "layers.1.attention.value"
    assert "layers.1.attention.value.weight" in found.cause
    assert "1 of 4096" in found.cause
    worst = found.layers[0]
    assert worst.kind == "torch.nn.modules.linear.Linear"
    assert "self.value(x)" in line_of(worst)
    assert worst.before is not None
    assert worst.local is not None
    assert worst.before > 120 > worst.local


@pytest.mark.parametrize(
    ("plant", "guilty", "values"),
    [
        (
            lambda faulty: faulty.weight("node_MatMul_69", lambda a: np.ascontiguousarray(a.T)),
            "layers.0.attention.out",
            ["transposed"],
        ),
        (
            lambda faulty: faulty.attribute("node_layer_norm_3", "epsilon", 1e-3),
            "layers.1.attention_norm",
            ["epsilon", "0.001", "1e-12"],
        ),
        (
            lambda faulty: faulty.attribute("node_gelu", "approximate", "tanh"),
            "layers.0.feed.1",
            ["GELU", "tanh"],
        ),
    ],
    ids=["transposed weight", "epsilon", "GELU"],
)
def test_another_way_to_compute_a_layer_is_recognised(
    plant: Callable[[FaultyOnnx], None], guilty: str, values: list[str], faulty: FaultyOnnx
) -> None:
    plant(faulty)
    found = faulty.localise()
    assert found.guilty == guilty
    assert [value for value in values if value not in found.cause] == []


def test_an_operation_of_forward_is_found_at_its_line(faulty: FaultyOnnx) -> None:
    faulty.attribute("node_softmax_1", "axis", -2)
    found = faulty.localise()
    assert found.guilty == "layers.1.attention"
    assert (found.layers[0].operator, found.layers[0].node) == ("Softmax", "node_softmax_1")
    assert ".softmax(dim=-1)" in line_of(found.layers[0])
    assert found.cause.index("axis 2") < found.cause.index("3")


def test_an_addition_between_modules_is_named_and_not_the_norm_after_it(faulty: FaultyOnnx) -> None:
    node = faulty.node("node_add_128")
    node.op_type = "Sub"
    found = faulty.localise()
    assert found.guilty == "layers.0"
    assert found.layers[0].node == "node_add_128"


def test_a_layer_in_half_precision_is_named(faulty: FaultyOnnx) -> None:
    graph = faulty.model.graph
    node = faulty.node("node_linear_4")
    output, node.output[0] = node.output[0], "wide"
    place = list(graph.node).index(node) + 1
    for taken, made, code in (("half", output, 1), ("wide", "half", 10)):
        graph.node.insert(place, onnx.helper.make_node("Cast", [taken], [made], made, to=code))
    found = faulty.localise()
    assert found.guilty == "layers.0.feed.0"
    assert "half precision" in found.cause


def test_a_saturated_quantizer_is_reported_with_its_scale(faulty: FaultyOnnx) -> None:
    graph = faulty.model.graph
    node = faulty.node("node_linear_4")
    output, node.output[0] = node.output[0], "wide"
    for name, array in (("scale", np.float32(0.002)), ("zero", np.int8(0))):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(array), name))
    place = list(graph.node).index(node) + 1
    for kind, taken, made in (("Dequantize", "q", output), ("Quantize", "wide", "q")):
        one = onnx.helper.make_node(f"{kind}Linear", [taken, "scale", "zero"], [made], kind)
        graph.node.insert(place, one)
    found = faulty.localise()
    assert found.guilty in ("layers.0.feed.0", "layers.0.feed.1")
    assert "saturates" in found.cause
    assert "scale 0.002" in found.cause


def test_the_first_of_two_faults_is_named_and_the_other_noted(faulty: FaultyOnnx) -> None:
    faulty.weight("node_MatMul_69", lambda array: array * np.float32(1.1))
    faulty.attribute("node_layer_norm_3", "epsilon", 1e-3)
    found = faulty.localise()
    assert found.guilty == "layers.0.attention.out"
    assert any("layers.1.attention_norm" in note for note in found.notes)


def test_less_memory_takes_more_runs_and_names_the_same_layer(faulty: FaultyOnnx) -> None:
    faulty.weight("node_MatMul_92", _off)
    roomy, tight = faulty.localise(), faulty.localise(memory=64 << 10)
    assert tight.guilty == roomy.guilty
    assert tight.runs > roomy.runs
    assert tight.memory < roomy.memory


def test_the_reproducer_runs_alone_and_prints_the_error(faulty: FaultyOnnx, tmp_path: Path) -> None:
    faulty.attribute("node_gelu", "approximate", "tanh")
    found = faulty.localise(out=tmp_path / "found")
    folder = tmp_path / "found" / found.reproducer
    part = onnx.load(folder / "model.onnx")
    assert [node.op_type for node in part.graph.node] == ["Gelu"]
    ran = subprocess.run(
        [sys.executable, "-I", folder / "reproduce.py"], capture_output=True, text=True, check=True
    )
    local = found.layers[0].local
    assert local is not None
    assert f"SQNR {local:.1f} dB" in ran.stdout


def test_without_a_sidecar_layers_are_matched_by_weights(faulty: FaultyOnnx) -> None:
    faulty.path.with_suffix(".debug.json").unlink()
    faulty.weight("node_MatMul_92", _off)
    found = faulty.localise()
    assert (found.guilty, found.named_by) == ("layers.1.attention.value", "weights")
    assert "layers.1.attention.value.weight" in found.cause
    assert "1 of 4096" in found.cause


def test_an_unknown_feed_is_an_error(faulty: FaultyOnnx, bert_source: Source) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNKNOWN_NAME, naming="'smallest'")):
        localise_file(faulty.path, bert_source, looking=DebugOptions(feed="smallest"))


def test_the_manifest_records_the_localisation(bert: Path) -> None:
    folder = bert.with_name("recorded")  # as deep, so that the checkpoint is found
    shutil.copytree(bert, folder)
    localise_file(folder / "model.onnx")
    found = localise_file(folder / "model.onnx")  # replaces the first
    kept = json.loads((folder / "manifest.json").read_text())["localisations"]
    assert found.artifact == "onnx"
    assert [one["artifact"] for one in kept].count("onnx") == 1
