"""`modelc bench --html`: checked before anything is measured, and written as a whole."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from modelc.core.errors import UsageError
from modelc.pipeline.benchmark import run_benchmark
from modelc.pipeline.benchmark.benchmark_records import BenchmarkMachine, BenchmarkReport

Door = Callable[..., "subprocess.CompletedProcess[str]"]
REPORT = BenchmarkReport(
    schema_version=1,
    modelc="0.1",
    date="2026-11-26",
    folder="out",
    checkpoint="ab",
    device="cpu",
    threads=1,
    seconds=1,
    machine=BenchmarkMachine(
        processor="", cores=1, memory=0, system="", python="3.12", versions={}
    ),
    rows=(),
)


@pytest.fixture(name="measured")
def measured_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were measured, in no time."""
    found: list[Path] = []

    def measure(folder: Path, *_: object) -> BenchmarkReport:
        found.append(folder)
        return REPORT

    monkeypatch.setattr(run_benchmark, "benchmark_folder", measure)
    return found


@pytest.mark.parametrize("option", ["--html", "--csv"])
@pytest.mark.parametrize("place", [".", "missing/file"])
def test_a_place_for_no_file_is_an_error_before_measuring(
    door: Door, tmp_path: Path, measured: list[Path], option: str, place: str
) -> None:
    ran = door("bench", tmp_path, option, tmp_path / place)
    assert ran.returncode == UsageError.exit_code
    assert option in ran.stderr
    assert not measured
    assert list(tmp_path.iterdir()) == []


def test_the_page_replaces_a_file_as_a_whole(
    door: Door, tmp_path: Path, measured: list[Path]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before", encoding="utf-8")
    ran = door("bench", tmp_path, "--html", page)
    assert (ran.returncode, measured) == (0, [tmp_path])
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!doctype html>")
    assert html.endswith("</html>\n")
    assert list(tmp_path.iterdir()) == [page]
