"""Modules beside modelc.toml stand in for nobody's: not in the command, nor in its children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
[models.net]
checkpoint = "net.pt"
model = "nets:build"
input = ["x:float32[4,8]"]
to = ["torchscript", "onnx"]
feeds = 8
"""
NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        import lazily  # the user's own, beside this file
        return lazily.twice(self.inner(x))

def build():
    torch.manual_seed(0)
    return Net()
"""
STANDS_IN = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nraise OSError\n"
NAMES = ("onnx", "psutil", "openvino", "tensorrt", "filelock", "msgspec", "rich", "numpy")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    import torch

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "modelc.toml").write_text(PROJECT)
    (folder / "nets.py").write_text(NETS)
    (folder / "lazily.py").write_text("def twice(x):\n    return 2 * x\n")
    for name in NAMES:
        (folder / f"{name}.py").write_text(STANDS_IN)
    torch.manual_seed(0)
    net = torch.nn.Module()
    net.inner = torch.nn.Linear(8, 4)
    torch.save(net.state_dict(), folder / "net.pt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_modules_beside_the_project_file_stand_in_for_no_library(
    project: Path, surroundings: dict[str, str], *, inside: bool
) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "modelc", "run", "-f", project / "modelc.toml", "--no-cache"],
        cwd=project if inside else project.parent,
        env={**surroundings, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in project.glob("*.ran")) == []


@pytest.fixture(scope="module")
def surroundings() -> dict[str, str]:
    paths = [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(p.absolute()) for p in paths)}
