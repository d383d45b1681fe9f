"""What `modelc bench` takes: a checkpoint, which is exported first, a folder, or a project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modelc.core.errors import UsageError

from .conftest import DIGITS, SAMPLE_MODELS
from .test_benchmark_page_option import Door

QUICK = ("--seconds", "0.1", "--threads", "1", "--compile", "none", "--json")
PROJECT = """\
out = "made"

[defaults]
to = ["onnx"]
model = "modelc.sample_models.digits:build"
input = ["x:float32[batch=1..8,1,8,8]"]

[models.one]
checkpoint = "{checkpoint}"

[models.other]
checkpoint = "{checkpoint}"
"""


def read(text: str) -> Any:
    return json.loads(text)


@pytest.mark.needs("onnx")
def test_a_checkpoint_is_exported_and_measured(door: Door, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = door("bench", *DIGITS, "--to", "onnx", "-o", out, *QUICK)
    found = read(ran.stdout)
    assert (ran.returncode, found["exit_code"]) == (0, 0)
    assert [row["name"] for row in found["rows"]] == ["eager", "onnx"]
    assert (out / "manifest.json").is_file()
    again = door("bench", out, *QUICK, "--row", "onnx")
    assert [row["name"] for row in read(again.stdout)["rows"]] == ["onnx"]


@pytest.mark.needs("onnx")
def test_the_models_of_a_project_that_were_run_are_measured(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "modelc.toml"
    checkpoint = (SAMPLE_MODELS / "digits.safetensors").as_posix()
    file.write_text(PROJECT.format(checkpoint=checkpoint), encoding="utf-8")
    before = door("bench", file, *QUICK)
    assert before.returncode == UsageError.exit_code
    assert f"modelc run -f {file}" in before.stderr
    assert door("run", "-f", file, "-q", "--no-cache").returncode == 0
    csv, html = tmp_path / "rows.csv", tmp_path / "page.html"
    ran = door("bench", file, *QUICK, "--row", "onnx", "--csv", csv, "--html", html)
    found = read(ran.stdout)
    assert (ran.returncode, found["exit_code"]) == (0, 0)
    assert [Path(one["folder"]).name for one in found["benchmarks"]] == ["one", "other"]
    lines = csv.read_text(encoding="utf-8").splitlines()
    assert [Path(line.split(",")[0]).name for line in lines[1:]] == ["one", "other"]
    pages = sorted(one.name for one in tmp_path.glob("*.html"))
    assert pages == ["page-one.html", "page-other.html"]


@pytest.mark.parametrize("option", ["--model", "--to", "--out", "--calib"])
def test_an_option_of_the_export_has_no_effect_on_a_folder(
    door: Door, exported_digits: Path, option: str
) -> None:
    ran = door("bench", exported_digits, option, "onnx", *QUICK)
    assert ran.returncode == UsageError.exit_code
    assert option in ran.stderr
