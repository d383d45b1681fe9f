"""The SQNR that is shown: of the outputs that are held to a limit, the same on every surface."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from modelc.cli.render import show_verdict
from modelc.cli.render_manifest import show_manifest
from modelc.core.manifest import Manifest
from modelc.core.verdict import Excuse, OutputVerdict, State, Verdict
from modelc.projects.ci_markdown import write_summary
from modelc.projects.project_records import ModelOutcome
from modelc.projects.run_record import make_record
from modelc.reports import junit
from modelc.reports.comparison import compare_manifests
from modelc.reports.result_rows import sqnr_text

from .records import render_html, render_markdown


@pytest.fixture
def rough(records: ModuleType) -> OutputVerdict:
    """A feed on which large terms cancel: 0 dB, and the judge excuses it."""
    made: OutputVerdict = records.measured(
        "zeros", 21.0, sqnr=0.0, excuse=Excuse.ILL_CONDITIONED, moved=0.8
    )
    return made


@pytest.fixture
def detector(records: ModuleType, rough: OutputVerdict) -> Manifest:
    """Boxes at 120 dB, one ill-conditioned feed, indices that swap where scores tie."""
    tied = records.measured(
        "sample", None, "keep", dtype="int64", exact=False, sqnr=0.0, undecided=2
    )
    verdict = records.judged("onnx", records.measured("sample", 30.0), rough, tied)
    made: Manifest = records.manifest(
        artifacts=(records.artifact("onnx"),), verdicts=(verdict,), steps=("onnx",)
    )
    return made


def _printed(show: object, *args: object) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream):
        show(*args)  # type: ignore[operator]
    return stream.getvalue()


def test_an_ill_conditioned_feed_is_not_the_figure(detector: Manifest) -> None:
    verdict = detector.verdicts[0]
    assert verdict.sqnr == 120.0
    assert sqnr_text(verdict) == "120.0"


def test_indices_that_roundoff_decides_are_not_the_figure(records: ModuleType) -> None:
    tied = records.measured("sample", None, dtype="int64", exact=False, sqnr=0.0, undecided=2)
    exact = records.measured("sample", None, "boxes")
    verdict = records.judged("onnx", exact, tied)
    assert verdict.sqnr is None
    assert sqnr_text(verdict) == "exact"


def test_indices_that_are_wrong_are_where_no_float_differs(records: ModuleType) -> None:
    boxes = records.measured("sample", -5.0, "boxes")
    wrong = records.measured("sample", None, dtype="int64", exact=False, sqnr=3.0, passed=False)
    verdict = records.judged("onnx", wrong, state=State.FAILED, reason="other indices")
    assert verdict.sqnr == 3.0
    assert verdict.sqnr_limit is None
    verdict = records.judged("onnx", wrong, boxes, state=State.FAILED, reason="other boxes")
    assert verdict.sqnr == 85.0
    assert verdict.sqnr_limit == 90.0


def test_floats_that_the_judge_excuses_are_not_exact_because_indices_are(
    records: ModuleType, rough: OutputVerdict
) -> None:
    same = records.measured("sample", None, "keep", dtype="int64")
    verdict = records.judged("onnx", rough, same)
    assert (verdict.sqnr, verdict.is_excused, verdict.exact) == (0.0, True, False)


def test_where_the_judge_excuses_all_the_figure_says_so(
    records: ModuleType, rough: OutputVerdict
) -> None:
    verdict: Verdict = records.judged("onnx", rough)
    assert verdict.sqnr == 0.0
    assert verdict.is_excused
    assert sqnr_text(verdict) == "0.0 (excused)"


def test_every_surface_shows_the_same_figure(detector: Manifest) -> None:
    """0.0 dB is in the details alone, and marked there."""
    ended = ModelOutcome(name="det", folder="out/det", manifest=detector, seconds=2.5)
    record = make_record([ended], seconds=1.0)
    assert record.models[0].artifacts[0].sqnr == 120.0
    for text in (
        _printed(show_manifest, detector, "out"),
        _printed(show_verdict, detector.verdicts[0]),
        render_markdown(detector),
        write_summary(record),
    ):
        assert "120.0" in text
        assert " 0.0 " not in text
        assert "excused" not in text
    page = render_html(detector)
    assert "120.0 dB" in page.partition('id="reasons"')[0]
    assert "ill-conditioned" in page


def test_junit_has_the_figure_and_marks_the_feed(detector: Manifest) -> None:
    suite = ET.fromstring(junit.render_junit(detector))[0]
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["sqnr_db"] == "120.0"
    outs = {case.get("name"): case.findtext("system-out") or "" for case in suite.iter("testcase")}
    assert "ill-conditioned" in outs["zeros"]


def test_a_comparison_takes_the_same_figure(detector: Manifest, records: ModuleType) -> None:
    fine = records.judged("onnx", records.measured("sample", 30.0), records.measured("zeros", 40.0))
    before: Manifest = records.manifest(
        artifacts=detector.artifacts, verdicts=(fine,), steps=("onnx",)
    )
    found = {one.measure: one for one in compare_manifests(before, detector).measures}
    assert found["SQNR"].now == 120.0
