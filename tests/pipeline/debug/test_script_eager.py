"""A scripted checkpoint has no hooks: only its outputs are compared, with a note."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from modelc.pipeline.debug.localise_file import localise_file
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run

from .conftest import Conversions

pytestmark = pytest.mark.needs("onnx")


@pytest.fixture(scope="module")
def scripted(
    conversions: Conversions, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Source]:
    """The conversions of a script, and the script."""
    folder = tmp_path_factory.mktemp("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(conversions.nets.build("chain")), str(folder / "net.pt"))
    source = Source(checkpoint=folder / "net.pt", inputs=(conversions.nets.INPUT,), trust=True)
    wanted = (Wanted(target="torchscript"), Wanted(target="onnx"))
    with warnings.catch_warnings(record=True):
        run(Order(source=source, wanted=wanted, out=folder / "out", judging=Judging(sensitivity=0)))
    return folder / "out", source


@pytest.mark.parametrize("file", ["model.onnx", "model.torchscript.pt"])
def test_no_layer_of_a_converted_script_is_named(file: str, scripted: tuple[Path, Source]) -> None:
    folder, source = scripted
    found = localise_file(folder / file, source)
    assert found.guilty == ""
    assert len(found.curve) == 1
    assert "script" in found.notes[0]


def test_a_fault_beside_a_script_is_found(scripted: tuple[Path, Source], tmp_path: Path) -> None:
    folder, source = scripted
    model = onnx.load(folder / "model.onnx")
    tensor = next(one for one in model.graph.initializer if len(one.dims) > 1)
    changed = numpy_helper.to_array(tensor) * np.float32(1.1)
    tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, tmp_path / "model.onnx")
    shutil.copy(folder / "model.debug.json", tmp_path)
    assert localise_file(tmp_path / "model.onnx", source).guilty == "(model)"
