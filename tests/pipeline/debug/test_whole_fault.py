"""An artifact that is wrong only as a whole: the layers that are fused wrongly are named."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from modelc.cli.app import run_cli
from modelc.converters.onnx_probe import OnnxProbe
from modelc.core.contract import Feed, Outputs
from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions

pytestmark = pytest.mark.needs("onnx")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch, conversions: Conversions, tmp_path: Path) -> Path:
    """A good ONNX whose runtime is wrong as long as nobody reads what the norm gives."""
    faulty = conversions.faulty("chain", tmp_path)
    norm = next(n for n in faulty.model.graph.node if n.op_type == "LayerNormalization")
    tap = OnnxProbe.tap

    def wrong(self: OnnxProbe, feed: Feed, tensors: Collection[str]) -> Outputs:
        found = dict(tap(self, feed, tensors))
        if norm.output[0] not in tensors:
            found.update({name: found[name] * 1.5 for name in self.outputs})
        return found

    monkeypatch.setattr(OnnxProbe, "tap", wrong)
    return faulty.path


def test_layers_that_are_wrong_only_when_fused_are_named(
    fused: Path, conversions: Conversions
) -> None:
    found = localise_file(fused, conversions.source("chain"))
    assert found.guilty == ""
    assert "reading norm (" in found.whole
    assert "act (" not in found.whole


def test_debug_exits_with_1_for_a_fault_of_the_whole(
    fused: Path,
    conversions: Conversions,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = conversions.source("chain")
    arguments = [
        "debug", str(fused), "--against", str(source.checkpoint),
        "--model", source.model or "", "--model-arg", "name=chain",
        "--input", source.inputs[0], "--no-isolate",
    ]  # fmt: skip
    assert run_cli(arguments) == 1
    assert "norm (" in capsys.readouterr().out


def test_a_good_artifact_has_no_fault_of_the_whole(conversions: Conversions) -> None:
    path = conversions.folder("chain") / "model.onnx"
    assert localise_file(path, conversions.source("chain")).whole == ""
