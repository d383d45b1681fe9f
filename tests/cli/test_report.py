"""`modelc report` and `--report`: what is written, what is shown, how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from modelc.core.manifest import Manifest
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import write_manifest
from modelc.reports.report_formats import REPORT_FORMATS

from ..reasons import because

Ran = subprocess.CompletedProcess[str]
Door = Callable[..., Ran]
ALL = sorted(one.file for one in REPORT_FORMATS)
NAMES = ",".join(one.name for one in REPORT_FORMATS)
ALONE = """
import json, sys
from modelc.cli.app import run_cli
code = run_cli(sys.argv[1:])
heavy = {"torch", "numpy", "onnx", "onnxruntime", "openvino", "nncf", "transformers"}
print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def full(records: ModuleType, tmp_path: Path) -> Path:
    """A folder with the manifest of one of everything."""
    (tmp_path / "full").mkdir()
    write_manifest(records.full(), tmp_path / "full")
    return tmp_path / "full"


@pytest.fixture
def worse(records: ModuleType, tmp_path: Path) -> Path:
    """The same run with its best artifact refused."""
    manifest: Manifest = records.full()
    bad = replace(manifest.verdicts[0], state=State.FAILED, reasons=because("SQNR 3.0 dB < 90"))
    (tmp_path / "worse").mkdir()
    write_manifest(replace(manifest, verdicts=(bad, *manifest.verdicts[1:])), tmp_path / "worse")
    return tmp_path / "worse"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("report"))


def test_a_report_is_html_in_the_folder_and_says_where(door: Door, full: Path) -> None:
    ran = door("report", full)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f"report · {full}/report.html\n"
    assert names(full) == ["report.html"]


def test_all_reports_are_written_where_asked(door: Door, full: Path, tmp_path: Path) -> None:
    ran = door("report", full / "manifest.json", "--report", NAMES, "-o", tmp_path / "new")
    assert ran.returncode == 0, ran.stderr
    assert names(tmp_path / "new") == ALL
    assert names(full) == []


def test_a_file_may_be_named_by_its_suffix(door: Door, full: Path, tmp_path: Path) -> None:
    ran = door("report", full, "-o", tmp_path / "pull.md")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "pull.md").read_text().startswith("<!-- modelc report -->")


def test_json_is_the_manifest_on_stdout(door: Door, full: Path) -> None:
    ran = door("report", full, "--json")
    found = json.loads(ran.stdout)
    assert found.pop("exit_code") == 0
    assert found == json.loads((full / "manifest.json").read_text())
    assert names(full) == []


def test_what_got_worse_is_a_table_and_an_exit_code_if_asked(
    door: Door, full: Path, worse: Path
) -> None:
    ran = door("report", full, worse)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [
        "onnx",
        "verdict",
        "passed",
        "rejected",
        "worse",
        "SQNR",
        "3.0",
        "dB",
        "<",
        "90",
    ] in lines
    assert ran.stdout.splitlines()[-1].startswith("1 measure worse, 0 better")
    assert door("report", full, worse, "--fail-on-regression").returncode == 1
    assert door("report", worse, full, "--fail-on-regression").returncode == 0
    assert names(worse) == []


def test_a_comparison_can_be_read_by_machines(door: Door, full: Path, worse: Path) -> None:
    ran = door("report", full, worse, "--json", "--fail-on-regression")
    found = json.loads(ran.stdout)
    assert ran.returncode == 1
    bad = [one for one in found["measures"] if one["change"] == "worse"]
    assert [(one["artifact"], one["measure"]) for one in bad] == [("onnx", "verdict")]


def test_a_comparison_is_written_beside_the_newer_run(door: Door, full: Path, worse: Path) -> None:
    ran = door("report", full, worse, "--report", "md,html")
    assert ran.returncode == 0, ran.stderr
    assert (worse / "comparison.md").read_text().count("**Worse**") == 1
    assert "worse" in (worse / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere",), "nowhere"),
        (("bare",), "manifest.json"),
        (("full", "--report", "pdf"), "'pdf'"),
        (("full", "full", "full"), "3 folders"),
        (("full", "--fail-on-regression"), "--fail-on-regression"),
        (("full", "full", "--report", "junit"), "--report junit"),
        (("full", "--report", "md,html", "-o", "one.md"), "-o one.md"),
        (("full/manifest.json/x",), "manifest.json/x"),
    ],
)
def test_what_cannot_be_reported_is_refused(
    refuse: Callable[..., str], full: Path, arguments: tuple[str, ...], named: str
) -> None:
    (full.parent / "bare").mkdir()
    assert named in refuse("report", *arguments, code=2)


def test_a_broken_manifest_is_refused(refuse: Callable[..., str], full: Path) -> None:
    (full / "manifest.json").write_text('{"schema_version": 2, "verdicts": 3}')
    assert "manifest.json" in refuse("report", "full", code=2)


def test_a_file_of_somebody_else_is_not_replaced(refuse: Callable[..., str], full: Path) -> None:
    (full / "report.html").write_text("<h1>mine</h1>")
    assert "report.html" in refuse("report", "full", code=2)


def test_no_framework_is_loaded_for_a_report(
    full: Path, worse: Path, surroundings: dict[str, str]
) -> None:
    for arguments in (["report", full, "--report", NAMES], ["report", full, worse]):
        ran = subprocess.run(
            [sys.executable, "-c", ALONE, *map(str, arguments)],
            env=surroundings, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(ran.stderr.splitlines()[-1]) == []


@pytest.mark.slow
def test_a_refused_run_is_reported_and_ends_as_it_would(
    door: Door, gate: tuple[str, ...], tmp_path: Path
) -> None:
    wanted = ("--to", "torchscript", "--capture", "trace", "-o", tmp_path / "out")
    ran = door("export", *gate, *wanted, "--report", NAMES)
    assert ran.returncode == 1, ran.stderr
    assert names(tmp_path / "out") == ALL
    assert "<failure" in (tmp_path / "out" / "report.junit.xml").read_text()
    assert ran.stdout.splitlines()[-1] == f"report · {tmp_path}/out/report.json"


@pytest.mark.slow
def test_a_run_that_breaks_leaves_no_older_success(
    door: Door, digits: tuple[str, ...], tmp_path: Path
) -> None:
    wanted = ("--to", "torchscript", "-o", tmp_path / "out", "--report", "junit")
    good = door("export", *digits, *wanted)
    assert (good.returncode, names(tmp_path / "out")) == (0, ["report.junit.xml"])
    broken = (*digits[:4], "x:float32[batch=1..8,3]")
    bad = door("export", *broken, *wanted)
    assert bad.returncode not in (0, 1)
    assert names(tmp_path / "out") == []


@pytest.mark.slow
def test_a_folder_that_is_validated_is_reported(
    door: Door, digits: tuple[str, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert door("export", *digits, "--to", "torchscript", "-o", out).returncode == 0
    ran = door("validate", out, "--report", "html", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema_version"] == 2
    assert names(out) == ["report.html"]
    single = door("validate", out / "model.torchscript.pt", "--report", "html")
    assert single.returncode == 2
    assert "--report" in single.stderr


def test_an_unknown_report_is_refused_before_the_run(
    refuse: Callable[..., str], digits: tuple[str, ...]
) -> None:
    assert "'html'" in refuse("export", *digits, "--to", "torchscript", "--report", "htm", code=2)


@pytest.fixture
def project(full: Path, worse: Path) -> Path:
    """The folder above two runs is a project's."""
    assert full.parent == worse.parent
    return full.parent


def test_a_project_has_an_index_above_the_page_of_each_model(door: Door, project: Path) -> None:
    ran = door("report", str(project))
    assert ran.returncode == 0, ran.stderr
    index = (project / "index.html").read_text(encoding="utf-8")
    assert 'href="full/report.html#row-0"' in index
    assert names(project / "full") == names(project / "worse") == ["report.html"]
    assert str(project / "index.html") in ran.stdout


def test_the_pages_of_a_project_stay_beside_each_other(door: Door, project: Path) -> None:
    ran = door("report", str(project), "-o", str(project / "x.html"))
    assert ran.returncode == 2
    assert f"-o {project / 'x.html'}" in ran.stderr


def test_two_projects_are_compared_model_by_model(door: Door, project: Path) -> None:
    other = project.parent / "branch"
    shutil.copytree(project, other)
    shutil.rmtree(other / "worse")
    ran = door("report", str(project), str(other), "--fail-on-regression")
    assert ran.returncode == 1
    assert "gone: worse/onnx, worse/onnx-int8," in ran.stdout
    back = door("report", str(other), str(project), "--fail-on-regression")
    assert back.returncode == 0
    assert "better" not in back.stdout
    assert "new: worse/" in back.stdout
