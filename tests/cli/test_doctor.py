"""`modelc doctor`: its table, its JSON, its exit code."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.cli.render_setup import show_diagnosis
from modelc.converters.registry import TARGETS
from modelc.core.installation import Buildable, Check, CheckState, Diagnosis

Door = Callable[..., "subprocess.CompletedProcess[str]"]
GOOD = Check(name="torch", state=CheckState.OK, detail="2.13.0", fix="not to be shown")
CLASH = Check(
    name="onnxruntime", state=CheckState.BROKEN, detail="two [of] them", fix="pip uninstall"
)
ENGINE = Buildable(name="tensorrt", makes="fp16", ready=False, detail="no driver", fix="find one")


@pytest.mark.slow
def test_it_says_what_can_be_built_here(door: Door) -> None:
    ran = door("doctor")
    assert ran.returncode in (0, 4)
    assert all(target.NAME in ran.stdout for target in TARGETS)
    assert ran.stderr == ""
    assert re.match(r"\d+ of \d+ formats", ran.stdout.splitlines()[-1])


@pytest.mark.slow
def test_its_json_is_one_document_with_every_check(door: Door) -> None:
    ran = door("doctor", "--json")
    found = json.loads(ran.stdout)
    assert {"name", "state", "detail", "fix"} == set(found["checks"][0])
    assert {one["state"] for one in found["checks"]} <= {state.value for state in CheckState}
    assert [one["name"] for one in found["targets"]] == [target.NAME for target in TARGETS]


def test_what_is_broken_is_named_last(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnosis(Diagnosis(checks=(GOOD, CLASH), targets=(ENGINE,)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("broken: onnxruntime; 0 of 1 ")


def test_a_fix_is_shown_for_what_is_to_be_fixed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    show_diagnosis(Diagnosis(checks=(GOOD, CLASH), targets=(ENGINE,)))
    told = capsys.readouterr().out
    assert GOOD.fix not in told
    assert "pip uninstall" in told
    assert "two [of] them" in told


@pytest.mark.parametrize(("checks", "code"), [((GOOD,), 0), ((GOOD, CLASH), 4)])
def test_only_what_is_broken_changes_the_exit_code(checks: tuple[Check, ...], code: int) -> None:
    assert Diagnosis(checks=checks, targets=()).exit_code == code


@pytest.mark.slow
def test_a_gpu_report_is_written_and_says_what_is_in_it(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    ran = door("doctor", "--gpu-report", str(file))
    assert ran.returncode == 0
    found = json.loads(file.read_bytes())
    assert all(text in " ".join(ran.stdout.split()) for text in found["contains"])
    printed = door("doctor", "--gpu-report", str(file), "--json")
    assert json.loads(printed.stdout) == json.loads(file.read_bytes())


def test_a_folder_without_a_report_is_refused(door: Door, tmp_path: Path) -> None:
    ran = door("doctor", str(tmp_path))
    assert ran.returncode == 2
