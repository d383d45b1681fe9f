"""The verdict where the file itself fails with its runtime's default options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from modelc.converters import onnx_half
from modelc.core.kinds import Precision, ReasonCode
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run

from ..conftest import saved


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()


def _order(folder: Path) -> Order:
    source = Source(
        checkpoint=saved("layer", build(), folder),
        model=f"{__name__}:build",
        inputs=("x:float32[batch=1..4,seq=2..16,32]",),
    )
    wanted = Wanted(target="onnx", precision=Precision.FP16)
    return Order(source=source, wanted=(wanted,), out=folder / "out")


def test_half_attention_opens_with_default_options(tmp_path: Path) -> None:
    assert run(_order(tmp_path)).passed


def test_crash_of_the_file_itself_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_half, "separate_transposes", lambda _: 0)
    verdict = run(_order(tmp_path)).verdicts[-1]
    assert not verdict.passed
    assert [one.code for one in verdict.reasons] == [ReasonCode.DEFAULT_SESSION]
    assert "SIGSEGV" in verdict.reasons[0].text


class Detector(nn.Module):
    """Gives the rows above a threshold, as many as there are."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x * self.scale
        return rows[rows[:, 0] > self.threshold]


def detector(threshold: float) -> nn.Module:
    return Detector(threshold)


@pytest.mark.parametrize(("threshold", "codes"), [("0.0", []), ("1e30", [ReasonCode.NOT_MEASURED])])
def test_detector_that_finds_nothing_is_not_passed(
    tmp_path: Path, threshold: str, codes: list[ReasonCode]
) -> None:
    source = Source(
        checkpoint=saved("detector", Detector(0), tmp_path),
        model=f"{__name__}:detector",
        model_args={"threshold": threshold},
        inputs=("x:float32[n=1..8,4]{-1..1}",),
    )
    wanted = Wanted(target="onnx", precision=Precision.FP32)
    found = run(Order(source=source, wanted=(wanted,), out=tmp_path / "out"))
    assert [one.code for one in found.verdicts[-1].reasons] == codes
