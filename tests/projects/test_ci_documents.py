"""What a run leaves for a forge: the summary, JUnit, the comment."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest
from junitparser import JUnitXml
from markdown_it import MarkdownIt

from modelc.core.errors import ErrorCode, UsageError
from modelc.projects.ci_documents import (
    CI_DOCUMENTS,
    clear_documents,
    write_documents,
    write_error_document,
    write_junit,
)
from modelc.projects.ci_markdown import COMMENT_MARK, write_comment, write_summary
from modelc.projects.project_faults import ProjectError
from modelc.projects.project_records import Breach, MeasureChange, Regression
from modelc.projects.run_record import ArtifactRun, ModelRun, RunRecord
from modelc.reports.comparison import Change
from modelc.reports.result_rows import Outcome

from ..reasons import has_code

WORSE = MeasureChange(model="net", artifact="onnx", measure="size", change=Change.WORSE,
                before="1 MB", after="2 MB")  # fmt: skip


def end(name: str, state: str = "passed", reason: str = "") -> ArtifactRun:
    return ArtifactRun(
        name=name, state=Outcome(state), source="made", size=5000, sqnr=120.0, reason=reason
    )


def model(name: str, *artifacts: ArtifactRun, **changes: object) -> ModelRun:
    made = ModelRun(
        name=name, folder=f"out/{name}", state=Outcome.PASSED, exit_code=0, seconds=2.5,
        artifacts=artifacts,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def run(*models: ModelRun, code: int = 0, regression: Regression | None = None) -> RunRecord:
    return RunRecord(
        modelc="0.1.0", exit_code=code, seconds=9.0, models=models, regression=regression
    )


MIXED = run(
    model("net", end("onnx"), end("pt2", "rejected", "SQNR 9.1 dB < 90")),
    model("two", end("onnx", "failed", "it crashed"), end("trt", "pending", "no GPU")),
    model("bad", state=Outcome.FAILED, error="bad.pt is cut short", hint="fetch it again"),
    model("last", state=Outcome.SKIPPED),
    code=1,
)


def cases(record: RunRecord) -> dict[str, str]:
    """Every test case by suite and name, with how it ended."""
    root = ET.fromstring(write_junit(record).partition("\n")[2])
    kinds = ("failure", "error", "skipped")
    return {
        f"{suite.get('name')}/{case.get('name')}": next(
            (kind for kind in kinds if case.find(kind) is not None), "passed"
        )
        for suite in root
        for case in suite.iter("testcase")
    }


def test_a_suite_is_a_model_and_a_case_an_artifact() -> None:
    assert cases(MIXED) == {
        "net/onnx": "passed",
        "net/pt2": "failure",
        "two/onnx": "error",
        "two/trt": "skipped",
        "bad/model": "error",
        "last/model": "skipped",
    }
    found = JUnitXml.fromstring(write_junit(MIXED).encode())
    assert (found.tests, found.failures, found.errors, found.skipped) == (6, 1, 2, 2)


def test_a_passed_artifact_that_breaks_a_gate_is_a_failure() -> None:
    breach = Breach(artifact="onnx", gate="max-size", message="2 MB > max-size 1 MB", told=None)
    assert cases(run(model("net", end("onnx"), breaches=(breach,)))) == {"net/onnx": "failure"}


@pytest.mark.parametrize("artifact", ["onnx", "pt2"])  # worse, missing now
def test_a_regression_is_a_failure(artifact: str) -> None:
    regression = Regression(base="b", changed=(replace(WORSE, artifact=artifact),), compared=2)
    found = cases(run(model("net", end("onnx")), regression=regression))
    assert found == {"net/onnx": "passed", f"net/{artifact}": "failure"}


def test_a_run_of_nothing_is_an_error() -> None:
    assert list(cases(run()).values()) == ["error"]
    assert cases(run(model("net"))) == {"net/model": "error"}


def test_the_summary_lists_reasons_before_the_table() -> None:
    text = write_summary(MIXED)
    for count in ("1 rejected", "1 pending", "1 of 4 models failed", "1 of 4 models skipped"):
        assert count in text
    assert text.index("SQNR 9.1 dB") < text.index("| model |")
    assert "bad.pt" in text
    assert text.count("<table>") == 0
    assert MarkdownIt().enable("table").render(text).count("<tr>") == 7  # a head and six rows


def test_the_summary_lists_each_warning_once() -> None:
    noted = replace(end("onnx-int8"), notes=("calibrated with 300 random samples",))
    both = (noted, replace(noted, name="openvino-int8"))
    text = write_summary(run(model("net", *both, notes=("eager rejects 2 of 9 feeds",))))
    assert text.count("random samples") == 1
    assert "- `net/onnx-int8`, `net/openvino-int8`: calibrated with 300 random samples" in text
    assert "- `net`: eager rejects 2 of 9 feeds" in text
    assert "<details>" not in text


def test_many_warnings_are_folded() -> None:
    noted = replace(end("onnx"), notes=tuple(f"note {n}" for n in range(9)))
    text = write_summary(run(model("net", noted)))
    assert "<details><summary>Warnings (9)</summary>" in text


def test_worse_measures_are_open_and_others_folded() -> None:
    better = replace(WORSE, change=Change.BETTER, measure="latency")
    regression = Regression(base="b", changed=(WORSE, better), compared=4, left_out=("two: left",))
    text = write_summary(run(model("net", end("onnx")), code=1, regression=regression))
    assert re.search(r"\b1 worse\b", text)
    assert text.index("1 MB") < text.index("<details>") < text.index("latency")
    assert "two: left" in text


def test_foreign_text_is_shown_as_text(records: ModuleType) -> None:
    hostile: str = records.HOSTILE
    noted = replace(end("onnx", "rejected", hostile), notes=(hostile,))
    record = run(model("net", noted, error=hostile, hint=hostile, notes=(hostile,)), code=1)
    for text in (write_summary(record), write_comment(record)):
        html = MarkdownIt().enable("table").render(text)
        assert "<script" not in html
        assert "<img" not in html
        assert 'href="javascript' not in html
        assert "\x1b" not in text
    ET.fromstring(write_junit(record).partition("\n")[2])


def test_a_comment_is_short_has_its_own_mark_and_links_to_the_log() -> None:
    many = [model(f"m{i}", end("onnx", "rejected", "x" * 300)) for i in range(300)]
    text = write_comment(run(*many, code=1), link="https://forge.example/run/1")
    assert text.startswith(COMMENT_MARK)
    assert len(text.encode()) <= 16_000
    assert "and 280 more" in text
    assert "see summary.md" in text
    assert "](https://forge.example/run/1)" in text


def test_only_documents_of_modelc_are_removed(tmp_path: Path) -> None:
    written = write_documents(MIXED, tmp_path)
    assert sorted(path.name for path in written) == ["comment.md", "junit.xml", "summary.md"]
    clear_documents(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / CI_DOCUMENTS[0].file).write_text("mine")
    with pytest.raises(
        UsageError, check=has_code(ErrorCode.FILE_EXISTS, naming=CI_DOCUMENTS[0].file)
    ):
        clear_documents(tmp_path)
    assert (tmp_path / CI_DOCUMENTS[0].file).read_text() == "mine"


def test_each_document_of_a_run_that_did_not_start_has_every_fault(tmp_path: Path) -> None:
    faults = [UsageError(f"f.toml:{n}: wrong", hint=f"fix {n}") for n in (4, 9)]
    for one in CI_DOCUMENTS:
        text = write_error_document(
            ProjectError(faults), one, tmp_path, link="https://j/1"
        ).read_text()
        assert one.mark in text
        assert all(f"f.toml:{n}: wrong" in text and f"fix {n}" in text for n in (4, 9))
    assert "](https://j/1)" in (tmp_path / "comment.md").read_text()
    found = JUnitXml.fromstring((tmp_path / "junit.xml").read_bytes())
    assert (found.tests, found.errors, found.failures) == (2, 2, 0)


def test_documents_with_many_faults_are_cut(records: ModuleType, tmp_path: Path) -> None:
    faults = [UsageError(records.HOSTILE + "x" * 900, hint=records.HOSTILE) for _ in range(500)]
    texts = {
        one.file: write_error_document(ProjectError(faults), one, tmp_path).read_text()
        for one in CI_DOCUMENTS
    }
    assert len(texts["comment.md"].encode()) <= 16_000
    assert len(texts["summary.md"].encode()) <= 60_000
    for name in ("comment.md", "summary.md"):
        assert "<script" not in MarkdownIt().render(texts[name])
    ET.fromstring(texts["junit.xml"].partition("\n")[2])
