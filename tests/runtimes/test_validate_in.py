"""`modelc validate FOLDER --in RUNTIME==VERSION` as it is typed, and what it leaves behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from modelc.cli.app import run_cli
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.run_order import run

from .conftest import DOUBLED, RIGHT

pytestmark = [
    pytest.mark.usefixtures("index"),
    pytest.mark.skipif(os.name == "nt", reason="the wheels are for POSIX"),
    pytest.mark.slow,
]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(
    gate_source: Source, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("MODELC_CACHE_DIR", str(cache))
    out = tmp_path / "out"
    run(Order(source=gate_source, wanted=(Wanted.parse("onnx"),), out=out, judging=Judging()))
    return out


def validate(folder: Path, *arguments: str) -> int:
    runtimes = [f"--in=onnxruntime=={version}" for version in arguments]
    return run_cli(["validate", str(folder), *runtimes, "--json", "-q"])


def document(captured: Captured) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(captured.readouterr().out)
    return found


def test_right_and_wrong_releases_are_told_apart(folder: Path, capfd: Captured) -> None:
    assert validate(folder, RIGHT) == 0
    assert document(capfd)["drift"][0]["first"] == "here"

    assert validate(folder, RIGHT, DOUBLED) == 1
    states = [one["verdict"]["state"] for one in document(capfd)["judged"]]
    assert states == ["passed", "failed"]

    recorded = json.loads((folder / "manifest.json").read_text())
    assert len(recorded["external"]) == 2
    assert recorded["verdicts"][0]["state"] == "passed"


def test_a_release_that_is_not_there_ends_with_one_line(folder: Path, capfd: Captured) -> None:
    assert validate(folder, "1.2.3") == 4
    error = document(capfd)["error"]
    assert (error["code"], RIGHT in error["hint"]) == ("not-found", True)
    assert (
        "external" not in (folder / "manifest.json").read_text()
        or not json.loads((folder / "manifest.json").read_text())["external"]
    )


def test_the_environments_are_listed(folder: Path, cache: Path, capfd: Captured) -> None:
    assert validate(folder, RIGHT) == 0
    capfd.readouterr()
    assert run_cli(["cache", "runtimes", "--json"]) == 0
    found = [one["requirement"] for one in document(capfd)["environments"]]
    assert f"onnxruntime=={RIGHT}" in found
    assert list((cache / "runtimes").glob("*/environment.json"))
