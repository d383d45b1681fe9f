"""`modelc validate OUT --outside`: what it takes, what it shows, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from modelc.core.installation import CheckState
from modelc.pipeline.order import Order, Source, Wanted
from modelc.pipeline.run_order import run
from modelc.runtimes.outside_programs import check_programs

Door = Callable[..., CompletedProcess[str]]


@pytest.fixture
def folder(gate_source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exported ONNX, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run(Order(source=gate_source, wanted=(Wanted(target="onnx"),), out=tmp_path / "out"))
    return tmp_path / "out"


def test_a_file_is_usage(door: Door, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    ran = door("validate", tmp_path / "model.onnx", "--outside")
    assert (ran.returncode, "--outside" in ran.stderr) == (2, True)


@pytest.mark.parametrize("option", [("--rejudge",), ("--device", "cuda"), ("--report", "html")])
def test_options_without_effect_are_usage(
    door: Door, tmp_path: Path, option: tuple[str, ...]
) -> None:
    ran = door("validate", tmp_path, "--outside", *option)
    assert (ran.returncode, option[0] in ran.stderr) == (2, True)


def test_a_missing_compiler_is_a_missing_requirement(
    door: Door, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = door("validate", folder, "--outside", "-q")
    assert ran.returncode == 4


@pytest.mark.slow
@pytest.mark.skipif(check_programs().state is not CheckState.OK, reason=check_programs().detail)
def test_the_verdict_is_shown_and_recorded(door: Door, folder: Path) -> None:
    ran = door("validate", folder, "--outside", "--json", "-q")
    assert ran.returncode == 0
    (judged,) = json.loads(ran.stdout)["judged"]
    assert judged["runtime"] == "c++ onnxruntime"
    (recorded,) = json.loads((folder / "manifest.json").read_text("utf-8"))["external"]
    assert recorded["versions"] == judged["versions"]
    assert recorded["verdict"]["state"] == "passed"
