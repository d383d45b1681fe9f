"""A model with one layer that rounding ruins passes with that layer in floating point."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from modelc.checkpoints.rounded_layers import LayerRounding, list_active_modules, round_layers
from modelc.pipeline.api import export


class Outlier(nn.Module):
    """Products of which the third has columns of large weights, for inputs that are 0."""

    shown: torch.Tensor

    def __init__(self, size: float = 5.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
        self.register_buffer("shown", (torch.arange(64) % 16 != 0).float())
        with torch.no_grad():
            for index in range(0, 64, 16):
                self.matrix(2)[:, index] = size if index % 32 else -size

    def matrix(self, index: int) -> torch.Tensor:
        layer = self.layers[index]
        assert isinstance(layer, nn.Linear)
        return layer.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x * self.shown if index == 2 else x)
        return x


def test_half_precision_changes_only_what_a_module_itself_computes() -> None:
    module, x = Outlier().eval(), torch.randn(3, 64)
    found: dict[str, None] = {}
    with torch.no_grad():
        exact = module(x)
        with list_active_modules(module, found):
            module(x)
        with round_layers(module, ["layers.5"], LayerRounding(bits=11)):
            last = module(x)
        with round_layers(module, [], LayerRounding(bits=11)):
            assert torch.equal(module(x), exact)
        assert torch.equal(module(x), exact)
    assert list(found) == [f"layers.{index}" for index in range(6)]
    assert torch.equal(last.half().float(), last)
    assert not torch.equal(last, exact)


def test_blocks_are_rounded_by_half_a_step_and_restored() -> None:
    module = Outlier().eval()
    before = module.matrix(0).detach().clone()
    with round_layers(module, ["layers.0"], LayerRounding(bits=4, size=32)):
        moved = (module.matrix(0).detach() - before).abs().reshape(64, 2, 32)
    blocks = before.reshape(64, 2, 32)
    step = (blocks.amax(-1).clamp(min=0) - blocks.amin(-1).clamp(max=0)) / 15
    assert 0 < float((moved / step[..., None]).max()) <= 0.51
    assert torch.equal(module.matrix(0), before)


@pytest.mark.parametrize(("precision", "size"), [("int8-weights", 5.0), ("int4", 0.8)])
def test_the_layer_that_costs_most_stays_in_floating_point(
    tmp_path: Path, precision: str, size: float
) -> None:
    torch.save(Outlier(size).state_dict(), tmp_path / "net.pt")
    manifest = export(
        tmp_path / "net.pt",
        to=["onnx", f"onnx:{precision}"],
        out=tmp_path / "out",
        model=f"{__name__}:Outlier",
        model_args={"size": str(size)},
        inputs=["x:float32[batch=1..4,64]"],
    ).manifest
    verdict = manifest.verdict_of(f"onnx-{precision}")
    assert verdict is not None
    assert verdict.passed, verdict.reason
    (note,) = [one for one in verdict.notes if one.startswith("kept in floating point")]
    assert "layers.2" in note
    assert "layers.0" not in note
