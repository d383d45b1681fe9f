"""`--weights-key` at the command line, in modelc.toml and in the manifest."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MODEL = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3", "--model-arg",
         "out_features=2", "--input", "input:float32[batch=1..4,3]")  # fmt: skip


@pytest.fixture
def ema(tmp_path: Path) -> Path:
    def state(value: float) -> dict[str, torch.Tensor]:
        return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}

    torch.save({"state_dict": state(1.0), "state_dict_ema": state(2.0)}, tmp_path / "net.pt")
    return tmp_path / "net.pt"


def test_a_raw_and_an_ema_set_are_refused_and_a_key_picks_one(modelc: Run, ema: Path) -> None:
    out = ema.parent / "out"
    order = ("export", ema, *MODEL, "--to", "torchscript", "-o", out)
    refused = modelc(*order)
    assert refused.returncode == 3
    assert "'state_dict' and 'state_dict_ema'" in refused.stderr
    assert "hint:  add --weights-key state_dict" in refused.stderr
    made = modelc(*order, "--weights-key", "state_dict_ema")
    assert made.returncode == 0, made.stderr
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["checkpoint"]["weights_key"] == "state_dict_ema"
    loaded = torch.jit.load(out / manifest["artifacts"][0]["files"][0]["name"])  # type: ignore[no-untyped-call]
    assert float(loaded(torch.zeros(1, 3))[0][0, 0]) == 2.0
    assert modelc("validate", out).returncode == 0
    other = modelc(*order, "--weights-key", "state_dict")
    assert other.returncode == 2
    assert "--weights-key state_dict" in other.stderr


def test_inspect_lists_the_sets(modelc: Run, ema: Path) -> None:
    ran = modelc("inspect", ema)
    assert ran.returncode == 0, ran.stderr
    assert "state_dict_ema" in ran.stdout
    assert "100% from state_dict_ema" in ran.stdout
    found = json.loads(modelc("inspect", ema, "--json").stdout)
    assert [one["key"] for one in found["sets"]] == ["state_dict", "state_dict_ema"]
    assert found["sets"][0]["differs"] == {"state_dict_ema": 1.0}


def test_modelc_toml_has_the_key(modelc: Run, ema: Path) -> None:
    project = ema.parent / "modelc.toml"
    project.write_text(
        f'[models.net]\ncheckpoint = "{ema.name}"\nmodel = "torch.nn:Linear"\n'
        'model-arg = ["in_features=3", "out_features=2"]\nweights-key = "state_dict_ema"\n'
        'input = "input:float32[batch=1..4,3]"\nto = "torchscript"\n'
    )
    ran = modelc("run", cwd=ema.parent)
    assert ran.returncode == 0, ran.stderr
    manifest = json.loads((ema.parent / "out" / "net" / "manifest.json").read_text())
    assert manifest["checkpoint"]["weights_key"] == "state_dict_ema"
