"""JUnit XML: one suite per artifact or step, one test case per feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from ..core.manifest import Manifest
from .result_rows import FeedCase, Outcome, ResultRow, excuse_text, make_rows, sqnr_text
from .text_format import day_text, decibel_text, escape_control, figure_text, one_line, ratio

_ROOT_SUITE = "modelc"
_WHOLE_CASE = "verdict"  # the case for a reason that concerns no single feed


def render_junit(manifest: Manifest) -> str:
    """Render the manifest as JUnit XML.

    A rejected artifact is a `failure`, a failed step an `error`, a pending step or a feed that
    eager rejects `skipped`. An empty run is one `error`, as zero tests would count as success.
    """
    empty = ResultRow(name="run", outcome=Outcome.FAILED, reason="the run built no artifact")
    rows = make_rows(manifest) or (empty,)
    return join_suites([_row_suite(row, manifest) for row in rows])


def join_suites(suites: Sequence[ET.Element]) -> str:
    """Join suites into one document with the sums of their counts."""
    root = ET.Element("testsuites", name=_ROOT_SUITE)
    root.extend(suites)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _row_suite(row: ResultRow, manifest: Manifest) -> ET.Element:
    cases = [*row.cases]
    if row.is_unexplained:
        cases.insert(0, FeedCase(feed=_WHOLE_CASE, outcome=row.outcome, reason=row.reason))
    made = 0.0 if row.artifact is None else row.artifact.seconds
    judged = 0.0 if row.verdict is None else row.verdict.seconds
    suite = make_suite(row.name, [case.outcome for case in cases], seconds=made + judged)
    known = day_text(manifest.created) != one_line(manifest.created)
    suite.set("timestamp", manifest.created[:19] if known else "")  # schemas allow no zone
    add_properties(suite, _row_properties(row, manifest))
    suite.extend(_feed_case(case, row) for case in cases)
    return suite


def make_suite(name: str, outcomes: Sequence[Outcome], *, seconds: float) -> ET.Element:
    """Return a suite with the counts of its cases, without the cases."""
    return ET.Element(
        "testsuite",
        name=escape_control(name),
        tests=str(len(outcomes)),
        failures=str(outcomes.count(Outcome.REJECTED)),
        errors=str(outcomes.count(Outcome.FAILED)),
        skipped=str(sum(o in (Outcome.SKIPPED, Outcome.PENDING) for o in outcomes)),
        time=f"{seconds:.3f}",
    )


def add_properties(suite: ET.Element, found: Mapping[str, str]) -> None:
    """Add properties to a suite."""
    properties = ET.SubElement(suite, "properties")
    for name, value in found.items():
        ET.SubElement(
            properties, "property", name=escape_control(name), value=escape_control(value)
        )


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
    reason = case.reason or row.reason or "no reason was recorded"
    whole = f"{reason}\n{row.reason}" if row.reason not in reason else reason
    element = make_case((row.name, case.feed), case.outcome, reason, whole=whole)
    if case.outputs:
        ET.SubElement(element, "system-out").text = escape_control(_measure_lines(case))
    return element


def make_case(
    name: tuple[str, str], outcome: Outcome, reason: str, *, whole: str = ""
) -> ET.Element:
    """Return a test case; `name` is its class and name, `whole` the complete reason."""
    element = ET.Element(
        "testcase", classname=escape_control(name[0]), name=escape_control(name[1])
    )
    kind = {
        Outcome.REJECTED: "failure",
        Outcome.FAILED: "error",
        Outcome.SKIPPED: "skipped",
        Outcome.PENDING: "skipped",
    }.get(outcome)
    if kind is not None:
        result = ET.SubElement(element, kind, message=one_line(reason))
        if kind != "skipped":
            result.set("type", str(outcome))
            result.text = escape_control(whole or reason)
    return element


def _measure_lines(case: FeedCase) -> str:
    """Return a line of measurements per output."""
    return "\n".join(
        f"{o.output}: max abs {figure_text(o.max_abs)}, "
        f"SQNR {'exact' if o.exact else ratio(o.sqnr)}, "
        f"margin {decibel_text(o.headroom)}{', form only' if o.loose else ''}"
        f"{', ' if o.is_excused else ''}{excuse_text(o)}"
        for o in case.outputs
    )
