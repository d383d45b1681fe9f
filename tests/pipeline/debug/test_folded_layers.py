"""Faults in layers whose weights the exporter changed: folded a BatchNorm, or merged equal ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from modelc.core.kinds import Precision
from modelc.pipeline.debug.localise_file import localise_file
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

from ...conftest import saved
from .conftest import Conversions


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3)
        nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.norm(self.first(x)).relu())
        return out


def build() -> nn.Module:
    torch.manual_seed(0)
    return Folded().eval()


def test_the_convolution_is_named_and_not_its_batch_norm(tmp_path: Path) -> None:
    source = Source(
        checkpoint=saved("folded", build(), tmp_path),
        model=f"{__name__}:build",
        inputs=("x:float32[batch=1..2,3,12,12]",),
    )
    wanted = Wanted(target="onnx", precision=Precision.FP32)
    assert run(Order(source=source, wanted=(wanted,), out=tmp_path / "out")).passed
    path = tmp_path / "out" / "model.onnx"
    model = onnx.load(str(path))
    weight = next(one for one in model.graph.initializer if one.name.endswith("first.weight"))
    array = numpy_helper.to_array(weight).copy()
    array.flat[5] *= np.float32(1.05)
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, str(path))
    found = localise_file(path, source)
    assert found.guilty == "first"
    assert found.layers[0].kind.endswith("Conv2d")


@pytest.mark.parametrize(("place", "layer"), [(0, "first"), (1, "second")])
def test_a_layer_that_shares_equal_weights_is_named(
    place: int, layer: str, conversions: Conversions, tmp_path: Path
) -> None:
    faulty = conversions.faulty("twins", tmp_path)
    products = [node for node in faulty.model.graph.node if node.op_type == "MatMul"]
    assert products[0].input[1] == products[1].input[1]
    faulty.weight(products[place].name, lambda array: array * np.float32(1.1))
    found = faulty.localise()
    assert found.guilty == layer
    assert f"{layer}.weight" in found.cause
