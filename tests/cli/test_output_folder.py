"""What an order that fails leaves in the output folder: what was there, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Door = Callable[..., "subprocess.CompletedProcess[str]"]
Refuse = Callable[..., str]
Contents = Callable[[Path], dict[str, bytes | None]]
TO = ("--to", "torchscript", "-o")


def test_a_file_in_the_way_is_told_and_kept(
    refuse: Refuse, digits: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("mine")
    assert "output folder out: File exists" in refuse("export", *digits, *TO, "out", code=2)
    assert "output folder out/in" in refuse("export", *digits, *TO, "out/in", code=2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(
    refuse: Refuse, digits: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    assert "Permission denied" in refuse("export", *digits, *TO, "out", code=2)


def test_artifacts_of_another_checkpoint_are_named_and_kept(
    door: Door, gate: tuple[str, ...], digits_copy: Path, contents: Contents
) -> None:
    before = _without_logs(contents(digits_copy))
    ran = door("export", *gate, *TO, digits_copy)
    assert ran.returncode == 2
    assert "holds artifacts of another checkpoint (" in ran.stderr
    assert _without_logs(contents(digits_copy)) == before


def test_artifacts_with_other_inputs_are_named_and_kept(
    door: Door, digits: tuple[str, ...], digits_copy: Path, contents: Contents
) -> None:
    before = _without_logs(contents(digits_copy))
    other = (*digits[:-1], "x:float32[batch=1..2,1,8,8]")
    ran = door("export", *other, *TO, digits_copy)
    assert ran.returncode == 2
    assert "holds artifacts with other inputs: x:float32[batch=1..8,1,8,8]" in ran.stderr
    assert _without_logs(contents(digits_copy)) == before


def test_with_overwrite_they_are_moved_away(
    door: Door, gate: tuple[str, ...], digits_copy: Path
) -> None:
    ran = door("export", *gate, *TO, digits_copy, "--overwrite")
    assert ran.returncode == 0
    assert (digits_copy / "replaced" / "model.onnx").is_file()
    assert not (digits_copy / "model.onnx").exists()


def test_a_damaged_artifact_is_moved_to_rejected(door: Door, digits_copy: Path) -> None:
    with (digits_copy / "model.onnx").open("ab") as stream:
        stream.write(b"\0")
    ran = door("validate", digits_copy)
    assert ran.returncode == 1
    assert "rejected/onnx: model.onnx was changed after it was proven" in ran.stdout
    assert (digits_copy / "rejected" / "model.onnx").is_file()
    assert not (digits_copy / "model.onnx").exists()


def _without_logs(found: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {name: data for name, data in found.items() if not name.startswith("logs")}
