"""Scripts with shapes, lists and dicts are searched as any other."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from modelc.pipeline.debug.localise_file import localise_file

from .conftest import Conversions


@pytest.fixture(scope="module")
def script(conversions: Conversions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "net.torchscript.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.script(conversions.nets.build("listed"))
    torch.jit.save(module, str(path))
    return path


def test_no_layer_of_a_script_with_lists_is_named(script: Path, conversions: Conversions) -> None:
    found = localise_file(script, conversions.source("listed", trust=True))
    assert (found.guilty, found.notes) == ("", ())
    assert {"first", "end"} <= {module for module, _ in found.curve}


@pytest.mark.parametrize("layer", ["first", "end"])
def test_a_fault_in_a_script_with_lists_is_named(
    layer: str, script: Path, conversions: Conversions, tmp_path: Path
) -> None:
    module = torch.jit.load(str(script))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        module.state_dict()[f"{layer}.weight"].mul_(1.1)
    torch.jit.save(module, str(tmp_path / "net.torchscript.pt"))
    found = localise_file(tmp_path / "net.torchscript.pt", conversions.source("listed", trust=True))
    assert found.guilty == layer
    assert f"{layer}.weight" in found.cause
