"""`modelc config`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ran

ROOT = Path(__file__).parents[2]
TEXT = """\
jobs = 2
[defaults]
seed = 1
[models.digits]
checkpoint = "d.pt"
to = ["onnx", "openvino:fp16"]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modelc.toml").write_text(TEXT)
    return tmp_path / "modelc.toml"


def row(ran: Ran, key: str) -> str:
    line = next(line for line in ran.stdout.splitlines() if line.split()[:1] == [key])
    return " ".join(line.split())


def test_each_value_is_shown_with_who_said_it(
    door: Callable[..., Ran], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file.is_file()
    monkeypatch.setenv("MODELC_SEED", "3")
    ran = door("config", "--set", "digits.feeds=7")
    assert ran.returncode == 0, ran.stderr
    assert row(ran, "seed") == "seed 3 env MODELC_SEED"
    assert row(ran, "feeds") == "feeds 7 --set"
    assert row(ran, "to") == "to onnx, openvino:fp16 modelc.toml:6 [models.digits]"
    assert row(ran, "jobs") == "jobs 2 modelc.toml:1"
    assert row(ran, "precision") == "precision fp32 default"


def test_one_model_is_shown_alone(door: Callable[..., Ran], file: Path) -> None:
    ran = door("config", "digits", "-f", file)
    assert "the run" not in ran.stdout
    assert "checkpoint" in ran.stdout


def test_the_document_says_the_same(door: Callable[..., Ran], file: Path) -> None:
    ran = door("config", "--json", "-f", file)
    document = json.loads(ran.stdout)
    seed = next(one for one in document["models"]["digits"] if one["key"] == "seed")
    assert seed == {"key": "seed", "value": 1, "layer": "file", "from": f"{file}:3 [defaults]"}
    assert {one["key"] for one in document["run"]} == {"out", "jobs", "keep-going"}


def test_a_variable_that_means_nothing_is_told(
    door: Callable[..., Ran], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELC_SEDE", "3")
    ran = door("config", "-f", file)
    assert ran.returncode == 0
    assert "MODELC_SEED?" in ran.stderr


def test_every_fault_has_its_line_of_error_and_of_hint(
    door: Callable[..., Ran], file: Path
) -> None:
    file.write_text(f"{TEXT}sede = 3\nfeeds = 1\n")
    ran = door("config", "-f", file)
    lines = ran.stderr.splitlines()
    assert ran.returncode == 2
    assert [line.split()[0] for line in lines] == ["error:", "hint:"] * 2
    assert f"{file}:7 [models.digits]: unknown key 'sede'" in lines[0]
    assert "'seed'" in lines[1]
    assert ran.stdout == ""


def test_an_unknown_model_is_told_with_the_nearest(refuse: Callable[..., str], file: Path) -> None:
    assert file.is_file()
    told = refuse("config", "digit", code=2)
    assert "'digit'" in told
    assert "'digits'" in told


def test_the_schema_is_the_one_that_ships(door: Callable[..., Ran]) -> None:
    ran = door("config", "--schema")
    shipped = (ROOT / "projects" / "modelc.schema.json").read_text(encoding="utf-8")
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    data = package["tool"]["setuptools"]["package-data"]
    assert ran.stdout == shipped
    assert data["modelc.projects"] == ["modelc.schema.json"]


def test_export_reads_its_limits_beside_models(
    door: Callable[..., Ran], file: Path, digits: tuple[str, ...]
) -> None:
    file.write_text(f"{TEXT}[tolerance]\natol = 1e-3\n")
    ran = door("export", *digits, "--to", "onnx", "--dry-run")
    assert ran.returncode == 0, ran.stderr


def test_no_framework_is_loaded_to_show_it(file: Path, surroundings: dict[str, str]) -> None:
    code = (
        "import json, sys\n"
        "from modelc.cli.app import run_cli\n"
        "run_cli(['config'])\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=file.parent, env=surroundings, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(json.loads(ran.stderr.splitlines()[-1]))
    heavy = {"torch", "numpy", "onnx", "onnxruntime", "openvino", "msgspec", "safetensors", "PIL"}
    assert "modelc.projects.setting_layers" in loaded
    assert not heavy & loaded
