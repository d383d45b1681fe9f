"""The index of a project: a row an artifact, links that work wherever the folder lies."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

from modelc.core.errors import ErrorCode, UsageError
from modelc.core.manifest import Failure, Manifest
from modelc.pipeline.manifest_file import write_manifest
from modelc.projects.index_page import (
    INDEX_FILE,
    clear_index,
    index_lines,
    render_index,
    write_project_reports,
)
from modelc.projects.project_records import Breach, MeasureChange, ModelOutcome, Regression
from modelc.projects.project_results import compare_projects, is_project_folder, read_results
from modelc.projects.run_record import RunRecord, make_record, write_record
from modelc.reports.comparison import Change
from modelc.reports.report_formats import find_format
from modelc.reports.result_rows import Outcome

from ..reasons import has_code

HTML = [find_format("html")]
STOPPED = "bad.pt is cut short"


@pytest.fixture
def good(records: ModuleType) -> Manifest:
    """One proven artifact."""
    made: Manifest = records.manifest(
        artifacts=(records.artifact("onnx"),),
        verdicts=(records.judged("onnx", records.measured("sample", 30.0)),),
        steps=("onnx",),
    )
    return made


@pytest.fixture
def project(tmp_path: Path, records: ModuleType, good: Manifest) -> Path:
    """Three models with results, one of them of all kinds, and one that stopped."""
    full: Manifest = records.full()
    ended = [
        ModelOutcome(name="net", folder="out/net", manifest=good, seconds=2.0),
        ModelOutcome(name="a b", folder="out/a b", manifest=good),
        ModelOutcome(name="all", folder="out/all", manifest=full),
        ModelOutcome(name="bad", folder="out/bad", error=UsageError(STOPPED, hint="x")),
    ]
    out = tmp_path / "out"
    for one in ended:
        if one.manifest is not None:
            (out / one.name).mkdir(parents=True)
            write_manifest(one.manifest, out / one.name)
    write_record(make_record(ended, seconds=3.0), out)
    return out


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page leads to, and the places in them."""
    found = re.findall(r'href="([^"#]+)#([^"]+)"', page.read_text(encoding="utf-8"))
    return [(page.parent / unquote(file), place) for file, place in found]


def test_every_artifact_links_to_its_card_wherever_the_folder_lies(
    project: Path, tmp_path: Path
) -> None:
    write_project_reports(project, HTML)
    found = links(Path(shutil.move(project, tmp_path / "else where")) / INDEX_FILE)
    assert {file.parent.name for file, _ in found} == {"net", "a b", "all"}
    for file, place in found:
        assert f'id="{place}"' in file.read_text(encoding="utf-8")


def test_what_did_not_pass_is_first_with_its_reason(project: Path) -> None:
    lines = index_lines(read_results(project))
    outcomes = [one.line.outcome for one in lines]
    assert outcomes == sorted(outcomes, key=list(dict.fromkeys(outcomes)).index)
    assert outcomes[0] is Outcome.REJECTED
    assert outcomes[-1] is Outcome.PASSED
    (stopped,) = [one for one in lines if one.model == "bad"]
    assert (stopped.reason, stopped.link) == (STOPPED, "")
    page = render_index(read_results(project))
    assert "4 of 9" in page
    assert STOPPED in page


def test_an_older_success_of_a_failed_model_is_no_row(project: Path, good: Manifest) -> None:
    (project / "bad").mkdir()
    write_manifest(good, project / "bad")
    lines = [one for one in index_lines(read_results(project)) if one.model == "bad"]
    assert [one.line.outcome for one in lines] == [Outcome.FAILED]


def test_an_artifact_that_breaks_a_gate_may_not_be_deployed(project: Path) -> None:
    results = read_results(project)
    breach = Breach(artifact="onnx", gate="max-size", message="too large", told=None)
    models = tuple(
        replace(one, breaches=(breach,)) if one.name == "net" else one
        for one in results.record.models
    )
    lines = index_lines(replace(results, record=replace(results.record, models=models)))
    (line,) = [one for one in lines if one.model == "net"]
    assert (line.line.outcome, line.said, line.reason) == (
        Outcome.REJECTED, "gate broken", "too large",
    )  # fmt: skip


def test_regressions_are_on_the_page(project: Path) -> None:
    results = read_results(project)
    worse = MeasureChange(model="net", artifact="onnx", measure="size", change=Change.WORSE,
                    before="1 MB", after="2 MB", why="grown")  # fmt: skip
    regression = Regression(base="main", changed=(worse,), compared=4)
    page = render_index(replace(results, record=replace(results.record, regression=regression)))
    assert "1 measure worse" in page
    assert "net/onnx" in page
    assert re.search(r"\b4 measures\b[^<]*\bmain\b", page)


def test_folders_without_the_record_of_a_run_have_an_index_as_well(project: Path) -> None:
    (project / "run.json").unlink()
    assert is_project_folder(project)
    write_project_reports(project, HTML)
    assert len(links(project / INDEX_FILE)) > 2
    assert not is_project_folder(project / "net")


def test_an_empty_project_says_no(tmp_path: Path) -> None:
    write_record(RunRecord(modelc="0.1.0", exit_code=0, seconds=0.0, models=()), tmp_path)
    assert 'class="banner failed"' in render_index(read_results(tmp_path))


def test_a_record_that_leads_out_of_the_folder_is_rejected(project: Path) -> None:
    text = (project / "run.json").read_text()
    (project / "run.json").write_text(text.replace('"name": "net"', '"name": "../net"'))
    with pytest.raises(UsageError, check=has_code(ErrorCode.CORRUPT_FILE, naming="../net")):
        read_results(project)


def test_a_foreign_page_is_not_replaced(project: Path) -> None:
    (project / INDEX_FILE).write_text("<h1>mine</h1>")
    with pytest.raises(UsageError) as caught:
        write_project_reports(project, HTML)
    assert "-o" not in caught.value.hint  # modelc report takes none for a project
    with pytest.raises(UsageError):
        clear_index(project, wanted=True)
    clear_index(project, wanted=False)  # of a run that writes none
    assert (project / INDEX_FILE).read_text() == "<h1>mine</h1>"


def test_two_projects_name_what_is_gone_and_what_is_new(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "branch"
    shutil.copytree(project, other)
    shutil.rmtree(other / "net")
    found = compare_projects(read_results(project), read_results(other))
    assert found.artifacts_lost == ("net/onnx",)
    assert found.has_regressions
    back = compare_projects(read_results(other), read_results(project))
    assert [one.artifact for one in back.of(Change.NEW)] == ["net/onnx"]
    assert not back.has_regressions


def test_what_was_replaced_after_the_run_is_not_deployed(
    project: Path, records: ModuleType, good: Manifest
) -> None:
    other = replace(
        good, artifacts=(records.artifact("torchscript"),),
        verdicts=(records.judged("torchscript", records.measured("sample", 30.0)),),
        steps=("torchscript",),
    )  # fmt: skip
    write_manifest(other, project / "net")
    lines = {one.line.name: one for one in index_lines(read_results(project)) if one.model == "net"}
    assert list(lines) == ["onnx"]  # an export of another format is not of the run
    assert (lines["onnx"].line.outcome, lines["onnx"].linked) == (Outcome.FAILED, False)
    (artifact,) = good.artifacts
    files = (replace(artifact.files[0], sha256="0" * 64), *artifact.files[1:])
    changed = replace(good, artifacts=(replace(artifact, files=files),))
    write_manifest(changed, project / "net")
    (line,) = [one for one in index_lines(read_results(project)) if one.model == "net"]
    assert line.line.outcome is Outcome.FAILED
    assert line.reason


@pytest.mark.parametrize("state", [Outcome.FAILED, Outcome.PENDING])
def test_an_artifact_of_a_later_export_is_not_a_success_of_the_run(
    project: Path, good: Manifest, state: Outcome
) -> None:
    results = read_results(project)
    (end,) = [one for one in results.record.models if one.name == "net"]
    stopped = replace(end.artifacts[0], state=state, digest="", reason="no memory")
    models = (replace(end, state=state, artifacts=(stopped,)),)
    results = replace(results, record=replace(results.record, models=models))
    (line,) = index_lines(results)  # a later export made it
    assert (line.line.outcome, line.said) == (Outcome.FAILED, "changed since")
    failure = Failure(step="onnx", message="no memory", hint="", exit_code=5)
    manifest = replace(good, failures=(failure,))  # it was made before, and stands beside it
    (line,) = index_lines(replace(results, manifests={"net": manifest}))
    assert (line.line.outcome, line.reason) == (Outcome.FAILED, "no memory")
