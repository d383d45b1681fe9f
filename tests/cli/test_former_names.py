"""`--samples` was `--inputs`: the old name works everywhere, and nothing offers it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from modelc.projects.setting_keys import FORMER_KEYS, MODEL_KEYS

Ran = Callable[..., "subprocess.CompletedProcess[str]"]
LINEAR = ("--model", "torch.nn:Linear", "--model-arg", "in_features=3", "--model-arg",
          "out_features=2", "--to", "torchscript")  # fmt: skip
PROJECT = """\
[models.net]
checkpoint = "net.pt"
model = "torch.nn:Linear"
model-arg = ["in_features=3", "out_features=2"]
to = "torchscript"
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Linear(3, 2).state_dict(), "net.pt")
    np.savez("one.npz", input=np.ones((2, 3), np.float32))
    return tmp_path


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    "option", [("--samples", "one.npz"), ("--inputs", "one.npz"), ("--inputs=one.npz",)]
)
def test_samples_are_given_by_either_name(door: Ran, option: tuple[str, ...]) -> None:
    ran = door("export", "net.pt", *LINEAR, *option, "-o", "out", "--dry-run")
    assert ran.returncode == 0, ran.stderr
    refused = door("export", "net.pt", *LINEAR, *(one.replace("one", "none") for one in option))
    assert "none.npz" in refused.stderr


def test_no_help_offers_the_former_name(door: Ran) -> None:
    told = door("export", "--help").stdout
    assert "--samples" in told
    assert "--inputs" not in told


@pytest.mark.parametrize("key", ["samples", "inputs"])
def test_modelc_toml_takes_either_name(door: Ran, net: Path, key: str) -> None:
    (net / "modelc.toml").write_text(f'{PROJECT}{key} = "one.npz"\n')
    ran = door("config", "--json")
    assert ran.returncode == 0, ran.stderr
    assert '"samples"' in ran.stdout
    assert json.loads(ran.stdout)


def test_both_names_in_one_table_are_refused(door: Ran, net: Path) -> None:
    (net / "modelc.toml").write_text(f'{PROJECT}samples = "one.npz"\ninputs = "one.npz"\n')
    ran = door("config", "--check")
    assert ran.returncode == 2
    assert "inputs " in ran.stderr
    assert " samples" in ran.stderr


def test_a_setting_and_a_variable_take_either_name(
    door: Ran, net: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (net / "modelc.toml").write_text(PROJECT)
    assert "one.npz" in door("config", "--set", "net.inputs=one.npz").stdout
    monkeypatch.setenv("MODELC_INPUTS", "one.npz")
    ran = door("config")
    assert "one.npz" in ran.stdout
    assert "MODELC_INPUTS" not in ran.stderr


def test_a_former_name_is_no_key_of_its_own() -> None:
    assert not FORMER_KEYS.keys() & MODEL_KEYS.keys()
    assert set(FORMER_KEYS.values()) <= MODEL_KEYS.keys()
