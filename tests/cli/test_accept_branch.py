"""`--accept-branch` and untaken arms at the command line: exit codes and text."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.sample_models import gate

Door = Callable[..., "subprocess.CompletedProcess[str]"]


def gate_line() -> int:
    lines = Path(str(gate.__file__)).read_text().splitlines()
    return 1 + next(at for at, text in enumerate(lines) if "if x.mean() > 0" in text)


@pytest.fixture
def narrow(tmp_path: Path) -> tuple[str, ...]:
    """The sample model with an input range of which every feed takes one arm."""
    from safetensors.torch import save_file

    save_file(gate.gate().state_dict(), tmp_path / "gate.safetensors")
    return (
        str(tmp_path / "gate.safetensors"), "--model", "modelc.sample_models.gate:gate",
        "--input", "x:float32[batch=1..4,16]{0.5..1}", "--to", "torchscript",
        "-o", str(tmp_path / "out"),
    )  # fmt: skip


def test_a_traced_arm_that_no_feed_took_exits_with_one_and_names_the_line(
    door: Door, narrow: tuple[str, ...], tmp_path: Path
) -> None:
    ran = door("export", *narrow, "--capture", "trace")
    told = f"sample_models/gate.py:{gate_line()}: if x.mean() > 0: no feed took the false branch"
    assert ran.returncode == 1
    assert told in " ".join(ran.stdout.split())
    assert (tmp_path / "out" / "rejected" / "model.torchscript.pt").exists()
    assert not (tmp_path / "out" / "model.torchscript.pt").exists()


def test_a_scripted_one_is_kept_and_the_arm_is_a_note(door: Door, narrow: tuple[str, ...]) -> None:
    ran = door("export", *narrow)
    assert ran.returncode == 0
    assert "gate.py:24" in ran.stdout


def test_an_accepted_branch_exits_with_zero_and_again_when_validated(
    door: Door, narrow: tuple[str, ...], tmp_path: Path
) -> None:
    place = f"gate.py:{gate_line()}"
    ran = door("export", *narrow, "--capture", "trace", "--accept-branch", place)
    assert ran.returncode == 0
    assert "accepted" in ran.stdout
    assert door("validate", tmp_path / "out").returncode == 0


def test_a_place_without_a_branch_is_wrong_usage(door: Door, narrow: tuple[str, ...]) -> None:
    ran = door("export", *narrow, "--accept-branch", "gate.py:1")
    assert ran.returncode == 2
    assert f"gate.py:{gate_line()}" in ran.stderr
