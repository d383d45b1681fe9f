"""Models of several parts in modelc.toml, and what a run reuses and builds again of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modelc.core.errors import ModelcError
from modelc.projects.model_orders import PlannedProject, plan_project
from modelc.projects.project_faults import split_faults
from modelc.projects.setting_layers import Overrides

NETS = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(30, 8), nn.Linear(8, 5)

    def encode(self, ids):
        return self.table(ids).mean(1)

    def decode(self, h):
        return self.head(h)

def build():
    return Net()
"""
PIPELINE = """\
import numpy as np

def run(parts, ids):
    return {"y": parts["decoder"](np.tanh(parts["encoder"](ids)))}
"""
MODEL = """\
[models.net]
checkpoint = "net.pt"
model = "nets_of_parts:build"
input = "ids:int64[batch=1..4,seq=2..9]{0..29}"
to = "torchscript"
sensitivity = 0
"""
PARTS = """\
compose = "pipeline_of_parts:run"
[models.net.parts]
encoder = "encode"
decoder = "decode"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of one model, with its weights and its code."""
    (tmp_path / "nets_of_parts.py").write_text(NETS, encoding="utf-8")
    (tmp_path / "pipeline_of_parts.py").write_text(PIPELINE, encoding="utf-8")
    (tmp_path / "modelc.toml").write_text(MODEL + PARTS, encoding="utf-8")
    store(tmp_path, seed=0)
    return tmp_path


def store(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = {"table.weight": (30, 8), "head.weight": (5, 8), "head.bias": (5,)}
    torch.save({name: torch.randn(size) for name, size in sizes.items()}, folder / "net.pt")


@pytest.fixture
def plan(folder: Path) -> Callable[..., PlannedProject]:
    """`plan(text)`: the project of that text."""

    def of(text: str = MODEL + PARTS, **given: Any) -> PlannedProject:
        (folder / "modelc.toml").write_text(text, encoding="utf-8")
        return plan_project(folder / "modelc.toml", given=Overrides(**given))

    return of


def test_each_part_has_the_steps_and_the_whole_is_judged(
    plan: Callable[..., PlannedProject],
) -> None:
    (model,) = plan(MODEL.replace('"torchscript"', '["onnx", "onnx:fp16"]') + PARTS).models
    assert model.artifact_names == (
        "encoder/onnx", "encoder/onnx-fp16", "decoder/onnx", "decoder/onnx-fp16",
        "whole/onnx", "whole/onnx-fp16",
    )  # fmt: skip
    assert model.parts is not None
    assert model.parts.methods == {"encoder": "encode", "decoder": "decode"}


def test_parts_may_be_set_beside_the_file(plan: Callable[..., PlannedProject]) -> None:
    sets = ("net.parts.decoder=head", "net.compose=other.module:fn")
    (model,) = plan(sets=sets).models
    assert model.parts is not None
    assert model.parts.methods["decoder"] == "head"
    assert model.parts.compose == "other.module:fn"


def test_a_gate_may_be_for_a_part_or_the_whole(plan: Callable[..., PlannedProject]) -> None:
    gates = '[models.net.gates."decoder/*"]\nmax-size = "1 kB"\n'
    (model,) = plan(f"{MODEL}{PARTS}{gates}").models
    assert [gate.pattern for gate in model.gates] == ["decoder/*"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PARTS.replace("encoder =", '"../x" ='), "'../x' cannot be the name of a part"),
        (PARTS.replace("encoder =", "whole ="), "'whole' cannot be the name of a part"),
        (PARTS.partition("\n")[2], "--part has no effect without --compose"),
        (PARTS.partition("\n")[0], "--compose has no effect without --part"),
        (PARTS.replace('"encode"', "3"), "3 is not a string"),
        (f'method = "encode"\n{PARTS}', "--method has no effect with --part"),
        (PARTS + "[models.net.tolerance.y]\nmin-sqnr = 60\n", "--tolerance y: parts and the"),
        ('parts = "encode"', "parts is not a table"),
        (PARTS.replace("models.net.parts", "defaults.parts"), "unknown key 'parts'"),
        (PARTS + '[models.net.gates."unet/*"]\nmax-size = 1\n', "it matches no artifact"),
    ],
)
def test_what_is_wrong_has_its_line(
    plan: Callable[..., PlannedProject], text: str, message: str
) -> None:
    with pytest.raises(ModelcError) as caught:
        plan(MODEL + text)
    found = split_faults(caught.value)
    assert any(message in one.message for one in found), [one.text for one in found]
    assert all(one.place is not None and one.place.line for one in found)


def run(
    folder: Path, *words: str, cwd: Path | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """Run a command in the folder, or in `cwd`; the sources of its artifacts by name."""
    command = [sys.executable, "-m", "modelc", *words]
    ran = subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True, check=False)
    path = folder / "out" / "run.json"
    models = json.loads(path.read_bytes())["models"] if path.is_file() else []
    return ran, {one["name"]: one["source"] for model in models for one in model["artifacts"]}


ALL = ("encoder/torchscript", "decoder/torchscript", "whole/torchscript")


@pytest.mark.slow
def test_a_run_builds_again_what_changed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    ran, sources = run(folder, "run", "-q", "--report", "html")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert sources == dict.fromkeys(ALL, "made")
    assert "whole/torchscript" in (folder / "out/net/report.html").read_text(encoding="utf-8")
    assert run(folder, "verify", "out", "-q")[0].returncode == 0

    assert run(folder, "run", "-q")[1] == dict.fromkeys(ALL, "kept")
    elsewhere = ("run", "-f", str(folder / "modelc.toml"))
    assert run(folder, *elsewhere, cwd=folder.parent)[1] == dict.fromkeys(ALL, "kept")

    changed = PIPELINE.replace('return {"y": ', 'return {"y": 2 * ')
    (folder / "pipeline_of_parts.py").write_text(changed, encoding="utf-8")
    ran, sources = run(folder, "run")
    assert "rebuild: pipeline_of_parts.py changed" in ran.stderr
    assert sources == {**dict.fromkeys(ALL, "kept"), "whole/torchscript": "made"}

    shutil.copytree(folder / "out/net/decoder", folder / "old")
    store(folder, seed=1)
    assert run(folder, "run", "-q")[1] == dict.fromkeys(ALL, "made")
    shutil.rmtree(folder / "out/net/decoder")
    (folder / "old").rename(folder / "out/net/decoder")
    ran, _ = run(folder, "verify", "out", "-q")
    assert ran.returncode == 1
    assert "decoder " in ran.stdout
    assert "sha256 " in ran.stdout
    ran, sources = run(folder, "run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "rebuild: decoder " in ran.stderr
    assert sources["encoder/torchscript"] == "kept"
    assert sources["whole/torchscript"] == "made"
    assert run(folder, "verify", "out", "-q")[0].returncode == 0
