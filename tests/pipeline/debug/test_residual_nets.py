"""Residual nets: no layer of a good conversion is named, and a planted fault is found."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from modelc.calibration.calibration_options import CalibrationOptions
from modelc.core.contract import Array
from modelc.core.findings import Localisation
from modelc.core.kinds import Precision
from modelc.pipeline.api import export
from modelc.pipeline.debug.localise_file import localise_file
from modelc.pipeline.order import Judging, Lowering, Source
from modelc.tests.nets.zoo import build, checkpoint

NETS = ("basic", "zero-gamma", "preactivation", "scripted")
FILES = ("model.onnx", "model.xml", "model.torchscript.pt")


def _export(name: str, folder: Path, to: list[str], lowering: Lowering | None = None) -> Path:
    source = checkpoint(name, folder)
    with warnings.catch_warnings(record=True):
        export(
            source.checkpoint, to=to, out=folder / name, model=source.model, lowering=lowering,
            model_args=source.model_args, inputs=source.inputs, judging=Judging(sensitivity=0),
        )  # fmt: skip
    return folder / name


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a net's good conversions."""
    folder, made = tmp_path_factory.mktemp("nets"), dict[str, Path]()

    def take(name: str) -> Path:
        if name not in made:
            made[name] = _export(name, folder, ["torchscript", "onnx", "openvino"])
        return made[name]

    return take


def _source(folder: Path) -> Source:
    name = folder.name
    return Source(
        checkpoint=folder.parent / f"{name}-0-2.pt",
        model="modelc.tests.nets.zoo:build",
        model_args={"name": name},
        inputs=("image:float32[batch=1..4,3,16,16]",),
        trust=True,
    )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", NETS)
def test_no_layer_of_a_residual_net_that_passed_is_named(
    name: str, file: str, nets: Callable[[str], Path]
) -> None:
    found = localise_file(nets(name) / file)
    assert (found.passed, found.guilty, found.deviating) == (True, "", "")
    assert len(found.curve) >= 17


def test_a_recorded_verdict_does_not_apply_to_another_eager(
    nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    source = _source(folder)
    weights = torch.load(source.checkpoint)
    name = next(one for one in weights if one.endswith("conv1.weight"))
    weights[name] *= 2
    torch.save(weights, tmp_path / "other.pt")
    before = (folder / "manifest.json").read_bytes()
    found = localise_file(folder / "model.onnx", replace(source, checkpoint=tmp_path / "other.pt"))
    assert found.passed is None
    assert found.guilty
    assert (folder / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("name", ["basic", "zero-gamma"])
def test_no_layer_of_a_quantized_residual_net_is_named(name: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for number in range(32):
        image = draw.normal(size=(1, 3, 16, 16)).astype(np.float32)
        np.savez(tmp_path / "images" / f"{number}.npz", image=image)
    calibration = CalibrationOptions(source=str(tmp_path / "images"))
    lowering = Lowering(calibration=calibration, quantizer="onnxruntime")
    out = _export(name, tmp_path, ["onnx:int8"], lowering)
    assert "Relu" not in {n.op_type for n in onnx.load(out / "model.int8.onnx").graph.node}
    found = localise_file(out / "model.int8.onnx")
    assert (found.passed, found.guilty, found.deviating) == (True, "", "")
    assert sum(layer.module.endswith("relu") for layer in found.layers) == 13
    path = tmp_path / "alone.onnx"
    shutil.copy(out / "model.int8.onnx", path)
    shutil.copy(out / "model.int8.debug.json", path.with_suffix(".debug.json"))
    found = localise_file(path, _source(out), precision=Precision.INT8)
    assert found.passed is None


def _downsample(model: onnx.ModelProto) -> None:
    _weight(model, "downsample.0.weight", lambda array: array * np.float32(1.05))


def _weight(model: onnx.ModelProto, name: str, change: Callable[[Array], Array]) -> None:
    (tensor,) = [one for one in model.graph.initializer if one.name.endswith(f"layer2.0.{name}")]
    changed = change(numpy_helper.to_array(tensor))
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))


def _node(model: onnx.ModelProto, operator: str, place: int) -> onnx.NodeProto:
    nodes: list[onnx.NodeProto] = [one for one in model.graph.node if one.op_type == operator]
    return nodes[place]


def _no_relu(model: onnx.ModelProto) -> None:
    _node(model, "Relu", 6).op_type = "Identity"


def _sum(model: onnx.ModelProto) -> None:
    node = _node(model, "Add", 2)
    node.input[1] = node.input[0]


def _difference(model: onnx.ModelProto) -> None:
    _node(model, "Add", 2).op_type = "Sub"


def _pads(model: onnx.ModelProto) -> None:
    node = _node(model, "Conv", 5)
    (pads,) = [one for one in node.attribute if one.name == "pads"]
    pads.ints[:] = [0, 0, 2, 2]


FAULTS = [
    (_downsample, ("layer2.0.downsample.1", "layer2.0.downsample.0")),
    (_no_relu, ("layer2.0.relu",)),
    (_sum, ("layer2.0",)),
    (_difference, ("layer2.0",)),
    (_pads, ("layer2.0.conv1", "layer2.0.conv1")),
    (lambda m: _weight(m, "conv1.weight", lambda a: a[::-1].copy()), ("layer2.0.conv1",)),
    (lambda m: _weight(m, "conv1.weight_bias", lambda a: a + np.float32(0.1)), ("layer2.0.conv1",)),
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
def test_a_fault_in_a_residual_block_is_named(
    number: int, nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    plant, right = FAULTS[number]
    model = onnx.load(folder / "model.onnx")
    plant(model)
    onnx.save(model, tmp_path / "model.onnx")
    shutil.copy(folder / "model.debug.json", tmp_path)
    assert _found(tmp_path / "model.onnx", folder).guilty in right


def _found(path: Path, folder: Path) -> Localisation:
    return localise_file(path, _source(folder))


@pytest.mark.parametrize(
    ("weight", "right"),
    [
        ("blocks.1.downsample.0.weight", "blocks.1.downsample.0"),
        ("blocks.2.bn1.bias", "blocks.2.bn1"),
        ("gate.weight", "gate"),  # in a branch on tensor data
    ],
)
def test_a_fault_in_a_script_is_named(
    weight: str, right: str, nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("scripted")
    script = torch.jit.load(str(folder / "model.torchscript.pt"))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        script.state_dict()[weight].mul_(1.1)
    torch.jit.save(script, str(tmp_path / "model.torchscript.pt"))
    found = _found(tmp_path / "model.torchscript.pt", folder)
    assert found.guilty == right
    assert f"{weight} differs" in found.cause


@pytest.mark.parametrize("scripted", [False, True])
def test_a_foreign_model_is_matched_by_the_scopes_in_its_names(
    scripted: bool, nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    module: torch.nn.Module = build("basic")
    if scripted:
        module = torch.jit.script(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.ones(1, 3, 16, 16),), str(tmp_path / "foreign.onnx"), dynamo=False,
            input_names=["image"], output_names=["output"],
            dynamic_axes={"image": {0: "batch"}, "output": {0: "batch"}},
        )  # fmt: skip
    good = _found(tmp_path / "foreign.onnx", folder)
    assert (good.guilty, good.named_by) == ("", "scopes")
    assert len(good.curve) >= 17
    model = onnx.load(tmp_path / "foreign.onnx")
    (node,) = [one for one in model.graph.node if one.name.endswith("layer2.0/Add")] or [
        one for one in model.graph.node if one.name.endswith("layer2/0/Add")
    ]
    node.op_type = "Sub"
    onnx.save(model, tmp_path / "foreign.onnx")
    assert _found(tmp_path / "foreign.onnx", folder).guilty == "layer2.0"


def test_a_foreign_model_without_scopes_is_matched_by_its_weights(
    nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    model = onnx.load(folder / "model.onnx")
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    for tensor in model.graph.initializer:  # as the user's own export names them
        _rename(model, tensor, tensor.name.removeprefix("model."))
    _weight(model, "conv2.weight", lambda array: array * np.float32(1.05))
    onnx.save(model, tmp_path / "foreign.onnx")
    found = _found(tmp_path / "foreign.onnx", folder)
    assert (found.guilty, found.named_by) == ("layer2.0.conv2", "weights")


def test_a_foreign_model_without_names_is_matched_by_values(
    nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    model = onnx.load(folder / "model.onnx")
    _weight(model, "conv1.weight", lambda array: array * np.float32(1.05))
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    for number, tensor in enumerate(model.graph.initializer):
        _rename(model, tensor, f"w{number}")
    onnx.save(model, tmp_path / "foreign.onnx")
    found = _found(tmp_path / "foreign.onnx", folder)
    assert (found.guilty, found.named_by) == ("layer2.0.bn1", "values")


@pytest.mark.parametrize("sidecar", [True, False])
def test_an_openvino_model_needs_no_sidecar(
    sidecar: bool, nets: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = nets("basic")
    for name in ("model.xml", "model.bin", *(["model.debug.json"] if sidecar else [])):
        shutil.copy(folder / name, tmp_path / name)
    found = _found(tmp_path / "model.xml", folder)
    assert (found.guilty, found.named_by) == ("", "scopes" if sidecar else "weights")


def _rename(model: onnx.ModelProto, tensor: onnx.TensorProto, name: str) -> None:
    for node in model.graph.node:
        node.input[:] = [name if one == tensor.name else one for one in node.input]
    tensor.name = name
