"""JUnit XML: a suite for each artifact or step, a test case for each feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from ..core.manifest import Manifest
from .result_rows import FeedCase, Outcome, ResultRow, excuse_text, make_rows, sqnr_text
from .text_format import day_text, decibel_text, escape_control, figure_text, one_line, ratio

_ROOT_SUITE = "modelc"
_WHOLE_CASE = "verdict"  # the case of what no single feed explains


def render_junit(manifest: Manifest) -> str:
    """The manifest as JUnit XML.

    `failure` was judged and is wrong, `error` could not be judged, `skipped` is pending or a feed
    that eager rejects. Where nothing at all was judged there is one error, as no tests
    would count as a success.
    """
    rows = make_rows(manifest) or (_empty_row(),)
    return join_suites([_row_suite(row, manifest) for row in rows])


def join_suites(suites: Sequence[ET.Element]) -> str:
    """Suites as one document, with their sums."""
    root = ET.Element("testsuites", name=_ROOT_SUITE)
    root.extend(suites)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _empty_row() -> ResultRow:
    reason = "the run made and judged nothing"
    return ResultRow(name="run", outcome=Outcome.ERROR, reason=reason)


def _row_suite(row: ResultRow, manifest: Manifest) -> ET.Element:
    cases = [*row.cases]
    if row.is_unexplained:
        cases.insert(0, FeedCase(feed=_WHOLE_CASE, outcome=row.outcome, reason=row.reason))
    made = 0.0 if row.artifact is None else row.artifact.seconds
    judged = 0.0 if row.verdict is None else row.verdict.seconds
    suite = make_suite(row.name, [case.outcome for case in cases], seconds=made + judged)
    suite.set("timestamp", _timestamp(manifest.created))
    add_properties(suite, _row_properties(row, manifest))
    suite.extend(_feed_case(case, row) for case in cases)
    return suite


def make_suite(name: str, outcomes: Sequence[Outcome], *, seconds: float) -> ET.Element:
    """A suite with the counts of its cases, which are still to be added."""
    return ET.Element(
        "testsuite",
        name=escape_control(name),
        tests=str(len(outcomes)),
        failures=str(outcomes.count(Outcome.FAILED)),
        errors=str(outcomes.count(Outcome.ERROR)),
        skipped=str(sum(o in (Outcome.SKIPPED, Outcome.PENDING) for o in outcomes)),
        time=f"{seconds:.3f}",
    )


def add_properties(suite: ET.Element, found: Mapping[str, str]) -> None:
    """What is on record of a suite beside its cases."""
    properties = ET.SubElement(suite, "properties")
    for name, value in found.items():
        ET.SubElement(
            properties, "property", name=escape_control(name), value=escape_control(value)
        )


def _timestamp(created: str) -> str:
    """ISO 8601 without a zone, as the schemas of JUnit readers want it."""
    return created[:19] if day_text(created) != one_line(created) else ""


def _row_properties(row: ResultRow, manifest: Manifest) -> dict[str, str]:
    found = {"modelc": manifest.modelc, "checkpoint.sha256": manifest.checkpoint.digest}
    if row.artifact is not None:
        artifact = row.artifact
        found |= {"target": artifact.target, "precision": str(artifact.precision)}
        found |= (
            {"file": artifact.files[0].name, "sha256": artifact.digest} if artifact.files else {}
        )
        found |= {f"version.{name}": text for name, text in artifact.versions.items()}
    if row.verdict is not None:
        found |= {"device": row.verdict.device, "sqnr_db": sqnr_text(row.verdict)}
    return found | {f"environment.{name}": text for name, text in manifest.environment.items()}


def _feed_case(case: FeedCase, row: ResultRow) -> ET.Element:
    reason = case.reason or row.reason or "no reason is on record"
    whole = f"{reason}\n{row.reason}" if row.reason not in reason else reason
    element = make_case((row.name, case.feed), case.outcome, reason, whole=whole)
    measured = [_measure_lines(case)] if case.outputs else []
    if measured:
        ET.SubElement(element, "system-out").text = escape_control("\n".join(measured))
    return element


def make_case(
    name: tuple[str, str], outcome: Outcome, reason: str, *, whole: str = ""
) -> ET.Element:
    """A test case by class and name; `reason` is why it did not pass, `whole` all of that."""
    element = ET.Element(
        "testcase", classname=escape_control(name[0]), name=escape_control(name[1])
    )
    kind = {
        Outcome.FAILED: "failure",
        Outcome.ERROR: "error",
        Outcome.SKIPPED: "skipped",
        Outcome.PENDING: "skipped",
    }.get(outcome)
    if kind is not None:
        told = ET.SubElement(element, kind, message=one_line(reason))
        if kind != "skipped":
            told.set("type", str(outcome))
            told.text = escape_control(whole or reason)
    return element


def _measure_lines(case: FeedCase) -> str:
    """A line for each output with what was measured."""
    return "\n".join(
        f"{o.output}: max abs {figure_text(o.max_abs)}, "
        f"SQNR {'exact' if o.exact else ratio(o.sqnr)}, "
        f"headroom {decibel_text(o.headroom)}{', form only' if o.loose else ''}"
        f"{', ' if o.is_excused else ''}{excuse_text(o)}"
        for o in case.outputs
    )
