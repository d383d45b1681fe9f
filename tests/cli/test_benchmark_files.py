"""The files of `modelc bench`: none that is read or recorded is replaced."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from modelc.core.errors import UsageError
from modelc.pipeline.benchmark import run_benchmark
from modelc.pipeline.benchmark.benchmark_records import BenchmarkMachine, BenchmarkReport

Door = Callable[..., "subprocess.CompletedProcess[str]"]
MACHINE = BenchmarkMachine(processor="", cores=1, memory=0, system="", python="3.12", versions={})
REPORT = BenchmarkReport(
    schema_version=1, modelc="0.1", date="2026-11-26", folder="out", checkpoint="ab", device="cpu",
    threads=1, seconds=1, machine=MACHINE, rows=(),
)  # fmt: skip
PROJECT = """
out = "res"
[models.one]
checkpoint = "net.pt"
model = "modelc.tests.nets.small_nets:Net"
to = ["onnx"]
input = ["x:float32[2]"]
[models.two]
checkpoint = "net.pt"
model = "modelc.tests.nets.small_nets:Net"
to = ["onnx"]
input = ["x:float32[2]"]
"""


@pytest.fixture(name="measured", autouse=True)
def measured_fixture(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were measured, in no time."""
    found: list[Path] = []

    def measure(folder: Path, *_: object) -> BenchmarkReport:
        found.append(folder)
        return replace(REPORT, folder=str(folder))

    monkeypatch.setattr(run_benchmark, "benchmark_folder", measure)
    return found


@pytest.mark.parametrize("option", ["--html", "--csv"])
@pytest.mark.parametrize("name", ["manifest.json", "model.onnx"])
def test_no_recorded_file_is_replaced(
    door: Door, digits_copy: Path, measured: list[Path], option: str, name: str
) -> None:
    before = (digits_copy / name).read_bytes()
    ran = door("bench", digits_copy, option, digits_copy / name)
    assert ran.returncode == UsageError.exit_code
    assert option in ran.stderr
    assert not measured
    assert (digits_copy / name).read_bytes() == before


@pytest.mark.parametrize("other", ["--csv", "--checkpoint", "--samples"])
def test_no_other_file_of_the_call_is_replaced(
    door: Door, tmp_path: Path, measured: list[Path], other: str
) -> None:
    ran = door("bench", tmp_path, other, tmp_path / "file", "--html", tmp_path / "file")
    assert ran.returncode == UsageError.exit_code
    assert "--html" in ran.stderr
    assert not measured
    assert list(tmp_path.iterdir()) == []


def test_the_earlier_benchmark_is_not_replaced(door: Door, tmp_path: Path) -> None:
    file = tmp_path / "before.json"
    ran = door("bench", tmp_path, "--json")
    file.write_text(ran.stdout, encoding="utf-8")
    ran = door("bench", tmp_path, "--compare", file, "--csv", file)
    assert ran.returncode == UsageError.exit_code
    assert json.loads(file.read_text(encoding="utf-8"))["folder"] == str(tmp_path)
    found = json.loads(door("bench", tmp_path, "--compare", file, "--json").stdout)
    assert found["compared"] == []
    assert len(found["notes"]) == 1


def test_a_project_with_one_run_model_is_a_list(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits_copy: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    (tmp_path / "modelc.toml").write_text(PROJECT, encoding="utf-8")
    (tmp_path / "res").mkdir()
    digits_copy.rename(tmp_path / "res" / "one")
    ran = door("bench", "modelc.toml", "--json", "--html", "page.html")
    assert ran.returncode == 0, ran.stderr
    assert [Path(one["folder"]).name for one in json.loads(ran.stdout)["benchmarks"]] == ["one"]
    assert "two: not measured" in ran.stderr
    assert (tmp_path / "page-one.html").is_file()
    assert not (tmp_path / "page.html").exists()
    ran = door("bench", "modelc.toml", "--checkpoint", "net.pt", "--json")
    assert ran.returncode == UsageError.exit_code
    assert json.loads(ran.stdout)["errors"][0]["option"] == "checkpoint"


def test_options_of_the_export_are_refused_with_a_folder(
    door: Door, digits_copy: Path, measured: list[Path]
) -> None:
    ran = door("bench", digits_copy, "--overwrite", "--json")
    assert ran.returncode == UsageError.exit_code
    assert json.loads(ran.stdout)["errors"][0]["option"] == "overwrite"
    assert not measured


def test_a_size_outside_of_the_domain_is_found_before_the_export(
    door: Door, tmp_path: Path, measured: list[Path]
) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "net.pt")
    model = ("--model", "modelc.tests.nets.small_nets:Net", "--input", "x:float32[n=1..4]")
    ran = door("bench", tmp_path / "net.pt", *model, "--size", "n=9", "-o", tmp_path / "out")
    assert ran.returncode == UsageError.exit_code
    assert "n=9" in ran.stderr
    assert not measured
    assert not (tmp_path / "out").exists()


def test_the_files_that_were_written_are_named(door: Door, tmp_path: Path) -> None:
    ran = door("bench", tmp_path, "--csv", tmp_path / "rows.csv", "--html", tmp_path / "page.html")
    assert [line.split()[-1] for line in ran.stdout.splitlines() if line.startswith("wrote")] == [
        str(tmp_path / "rows.csv"), str(tmp_path / "page.html"),
    ]  # fmt: skip
    assert "wrote" not in door("bench", tmp_path, "--csv", tmp_path / "rows.csv", "--quiet").stdout
