"""Every format that can be probed, on the digits."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest

from modelc.converters.onnx_probe import open_probe
from modelc.converters.registry import TARGETS
from modelc.core.contract import Feed
from modelc.core.signature import Signature
from modelc.core.target_extensions import Probe, Probed
from modelc.pipeline.manifest_file import read_manifest

from ..conftest import made_here

PROBED = [one for one in TARGETS if isinstance(one, Probed) and one.NAME != "tensorrt-onnx"]
Opened: TypeAlias = tuple[Probe, Probed, Path]
FEED: Feed = {"x": np.random.default_rng(0).random((2, 1, 8, 8), np.float32)}


def test_these_formats_can_be_probed() -> None:
    assert {one.NAME for one in TARGETS if isinstance(one, Probed)} == {
        "onnx", "openvino", "tensorrt-onnx", "torchscript",
    }  # fmt: skip


@pytest.fixture(params=PROBED, ids=lambda target: target.NAME)
def opened(request: pytest.FixtureRequest, exported_digits: Path) -> Opened:
    target: Probed = request.param
    if not made_here(target):
        pytest.skip(f"{target.NAME} cannot be made here")
    path = exported_digits / f"model{target.SUFFIX}"
    return target.open_probe(path, _signature(exported_digits)), target, path


def _signature(folder: Path) -> Signature:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest.signature


def _floating(probe: Probe) -> list[str]:
    forms = probe.forms(FEED)
    made = [out for node in probe.nodes for out in node.outputs]
    return [name for name in made if name in forms and forms[name].is_floating]


def test_nodes_know_the_modules_that_they_come_from(opened: Opened) -> None:
    modules = {node.module for node in opened[0].nodes}
    assert {"stem_relu", "pool1", "hidden", "head_relu"} <= modules


def test_forms_are_those_of_the_tensors(opened: Opened) -> None:
    probe = opened[0]
    names = _floating(probe)
    forms, found = probe.forms(FEED), probe.tap(FEED, names)
    assert {n: found[n].shape for n in names} == {n: forms[n].shape for n in names}


def test_tapping_does_not_change_the_outputs(opened: Opened) -> None:
    probe, target, path = opened
    with target.open_runner(path, "cpu", _signature(path.parent)) as runner:
        (expected,) = runner.run(FEED).values()
    found = probe.tap(FEED, _floating(probe))
    np.testing.assert_allclose(found[probe.outputs[0]], expected, rtol=1e-4, atol=1e-5)


def test_two_parts_compute_what_the_whole_computes(opened: Opened) -> None:
    probe = opened[0]
    names = _floating(probe)
    middle = names[len(names) // 2]
    before = probe.runs
    first = probe.part(FEED, [middle])
    assert probe.runs == before + 1
    last = probe.part({**FEED, **first}, [probe.outputs[0]])
    whole = probe.tap(FEED, [])
    np.testing.assert_allclose(
        last[probe.outputs[0]], whole[probe.outputs[0]], rtol=1e-4, atol=1e-5
    )


def test_a_given_tensor_is_computed_but_its_readers_read_the_given(opened: Opened) -> None:
    probe = opened[0]
    names = [node.outputs[0] for node in probe.nodes if node.module == "head_relu"]
    (made,) = probe.part(FEED, names[-1:]).values()
    nothing = {**FEED, names[-1]: np.zeros_like(made)}
    found = probe.part(nothing, [names[-1], probe.outputs[0]])
    np.testing.assert_allclose(found[names[-1]], made, rtol=1e-4, atol=1e-5)
    rows = found[probe.outputs[0]]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-5, atol=1e-6)  # without anything of x


def test_tensors_of_fp8_have_no_form(tmp_path: Path) -> None:
    fp8 = onnx.TensorProto.FLOAT8E4M3FN
    scale = onnx.helper.make_tensor("scale", onnx.TensorProto.FLOAT, [], [0.5])
    zero = onnx.helper.make_tensor("zero", fp8, [], [0.0])
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "fp8", ports[:1], ports[1:], [scale, zero])
    opsets = [onnx.helper.make_opsetid("", 19)]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)

    assert set(open_probe(path).forms({"x": np.ones(2, np.float32)})) == {"y"}


def test_bfloat16_tensors_are_float32_arrays(tmp_path: Path) -> None:
    """Only casts read and return bfloat16, so the model is probed as it is."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[2] x) => (bfloat16[2] y)'
        "{ h = Cast<to = 16>(x) t = Cast<to = 1>(h) n = Neg(t) y = Cast<to = 16>(n) }"
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    probe, feed = open_probe(path), {"x": np.array([1.0, 1 + 2**-9], np.float32)}
    assert {form.dtype for form in probe.forms(feed).values()} == {"float32"}
    tapped = probe.tap(feed, ["h", "y"])
    np.testing.assert_array_equal(tapped["h"], [1, 1])
    np.testing.assert_array_equal(tapped["y"], [-1, -1])
    given = {"h": np.array([2, 3], np.float32)}
    np.testing.assert_array_equal(probe.part(given, ["y"])["y"], [-2, -3])
