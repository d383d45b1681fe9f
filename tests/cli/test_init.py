"""`modelc init`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Ran


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_writes_a_project_and_names_the_lines_to_edit(
    door: Callable[..., Ran], weights: Path, tmp_path: Path
) -> None:
    ran = door("init", weights)
    assert ran.returncode == 0, ran.stderr
    lines = (tmp_path / "modelc.toml").read_text(encoding="utf-8").splitlines()
    edits = [line for line in ran.stdout.splitlines() if line.startswith("edit ")]
    numbers = [int(line.partition("modelc.toml:")[2].partition(" ")[0]) for line in edits]
    assert len(edits) == 2
    assert all("EDIT:" in lines[number - 1] for number in numbers)
    assert "input: EDIT_HEIGHT, EDIT_WIDTH, name, sizes, values" in ran.stdout


def test_what_it_wrote_is_a_project_of_modelc_config(
    door: Callable[..., Ran], weights: Path
) -> None:
    door("init", weights, "-o", "mine.toml")
    ran = door("config", "digits", "-f", "mine.toml")
    assert ran.returncode == 0, ran.stderr
    assert "mine.toml:" in ran.stdout


def test_a_file_that_is_there_is_left_alone(
    door: Callable[..., Ran], refuse: Callable[..., str], weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "modelc.toml").write_text("# mine\n")
    assert "add --force" in refuse("init", weights, code=2)
    assert door("init", weights, "--force", "-q").stdout == ""
    assert "[models.digits]" in (tmp_path / "modelc.toml").read_text(encoding="utf-8")


def test_what_is_no_checkpoint_is_refused(refuse: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello, this is no checkpoint")
    assert "notes.txt" in refuse("init", "notes.txt", code=3)
    assert "none.pt" in refuse("init", "none.pt", code=2)


def test_a_folder_that_is_not_there_is_told(refuse: Callable[..., str], weights: Path) -> None:
    assert "nowhere/modelc.toml" in refuse("init", weights, "-o", "nowhere/modelc.toml", code=2)
