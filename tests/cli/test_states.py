"""A step has one state, in the terminal and in every document."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from modelc.cli.render_manifest import show_manifest
from modelc.core.kinds import Precision
from modelc.core.manifest import Failure, Manifest, Pending
from modelc.core.verdict import State
from modelc.pipeline.manifest_file import encode_json
from modelc.projects.ci_documents import write_junit
from modelc.projects.ci_markdown import write_summary
from modelc.projects.index_page import index_lines
from modelc.projects.project_records import ModelOutcome
from modelc.projects.project_results import ProjectResults
from modelc.projects.run_record import make_record, read_record
from modelc.reports.html_page import render_html
from modelc.reports.junit import render_junit
from modelc.reports.markdown import OUTCOME_MARKS, render_markdown
from modelc.reports.result_rows import Outcome, make_rows

JUNIT_KINDS = {
    Outcome.REJECTED: "failure", Outcome.FAILED: "error", Outcome.PENDING: "skipped",
    Outcome.SKIPPED: "skipped",
}  # fmt: skip


def manifest_with(state: Outcome, records: ModuleType) -> Manifest:
    """A manifest whose only step, pt2, has the state."""
    failure = Failure(step="pt2", message="torch rejects it", hint="--capture script", exit_code=5)
    pending = Pending(
        step="pt2", target="pt2", precision=Precision.FP32, made_from="onnx", parent="",
        reason="no GPU", command="modelc build-trt",
    )  # fmt: skip
    verdict = records.judged("pt2", records.measured("opt", 9.0), reason="SQNR 9 dB")
    rejected = records.artifact("rejected/pt2", rejected=True)
    changes: dict[Outcome, dict[str, object]] = {
        Outcome.PASSED: {"artifacts": (records.artifact("pt2"),), "verdicts": (verdict,)},
        Outcome.REJECTED: {
            "artifacts": (rejected,),
            "verdicts": (replace(verdict, artifact=rejected.name, state=State.FAILED),),
        },
        Outcome.FAILED: {"failures": (failure,)},
        Outcome.SKIPPED: {"failures": (replace(failure, orphan_of="onnx"),)},
        Outcome.PENDING: {"pending": (pending,)},
    }
    made: Manifest = records.manifest(steps=("pt2",), **changes[state])
    return made


def junit_kinds(text: str) -> set[str]:
    """The elements of the first test case that say how it ended."""
    case = next(ET.fromstring(text.partition("\n")[2]).iter("testcase"))
    return {one.tag for one in case} & {"failure", "error", "skipped"}


@pytest.mark.parametrize("state", Outcome)
def test_a_step_has_one_state_everywhere(
    state: Outcome, records: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = manifest_with(state, records)
    kinds = {JUNIT_KINDS[state]} if state in JUNIT_KINDS else set()
    assert [row.outcome for row in make_rows(manifest)] == [state]
    assert f'class="pill {state}"' in render_html(manifest)
    assert OUTCOME_MARKS[state] in render_markdown(manifest)
    assert junit_kinds(render_junit(manifest)) == kinds
    show_manifest(manifest, "out")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [state in row for row in rows if row[:1] == ["pt2"]] == [True]

    ended = ModelOutcome(name="net", folder="out/net", manifest=manifest)
    record = read_record(encode_json(make_record((ended,), seconds=1.0)))
    assert [one.state for one in record.models[0].artifacts] == [state]
    assert OUTCOME_MARKS[state] in write_summary(record)
    assert junit_kinds(write_junit(record)) == kinds
    results = ProjectResults(folder=Path(), record=record, manifests={"net": manifest})
    assert [one.line.outcome for one in index_lines(results)] == [state]
