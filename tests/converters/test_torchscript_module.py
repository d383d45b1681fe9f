"""TorchScript files: the debug files are removed in place, and inputs are described."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelc.converters.torchscript_module import inspect, strip_debug_files

Save = Callable[[nn.Module, Path], None]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x) + torch.arange(3.0)
        return out


def scripted(module: nn.Module, path: Path) -> None:
    torch.jit.save(torch.jit.script(module), str(path), _extra_files={"modelc.json": "{}"})


def traced(module: nn.Module, path: Path) -> None:
    made = torch.jit.trace(module, torch.zeros(2, 4))  # type: ignore[no-untyped-call]
    torch.jit.save(made, str(path), _extra_files={"modelc.json": "{}"})


def places(path: Path) -> dict[str, int]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {entry.filename: entry.header_offset for entry in archive.infolist()}


@pytest.mark.parametrize("save", [scripted, traced])
def test_debug_files_are_removed_in_place_once(save: Save, tmp_path: Path) -> None:
    module, path = Net().eval(), tmp_path / "model.torchscript.pt"
    save(module, path)
    whole, before = path.stat(), places(path)
    strip_debug_files(path)
    after = places(path)
    assert [name for name in before if not name.endswith(".debug_pkl")] == list(after)
    assert len(after) < len(before)
    assert path.stat().st_ino == whole.st_ino
    assert path.stat().st_size < whole.st_size
    weights = [name for name in before if "/data/" in name]
    assert len(weights) >= 4
    assert all(after[name] == before[name] for name in weights)

    once = path.read_bytes()
    strip_debug_files(path)
    assert path.read_bytes() == once

    x = torch.randn(3, 4)
    extra: dict[str, Any] = {"modelc.json": ""}
    loaded = torch.jit.load(str(path), _extra_files=extra)  # type: ignore[no-untyped-call]
    assert torch.equal(loaded(x), module(x))
    assert extra["modelc.json"] == b"{}"


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        ('{"signature": ["x:float32[batch=1..8,4]"]}', ("float32", ("batch=1..8", "4"))),
        ("{}", ("Tensor", ())),
    ],
)
def test_inputs_are_described_as_in_the_record(
    record: str, shown: tuple[str, tuple[str, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "model.torchscript.pt"
    torch.jit.save(torch.jit.script(Net()), str(path), _extra_files={"modelc.json": record})
    (found,) = inspect(path).inputs
    assert (found.name, found.dtype, found.dims) == ("x", *shown)
