"""JUnit XML: a suite for each artifact or step, a test case for each feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from ..core.manifest import Manifest
from .rows import Case, Outcome, Row, excuse_text, rows_of, sqnr_text
from .words import clean, day_text, decibels, figure, one_line, ratio

_ROOT = "modelc"
_WHOLE = "verdict"  # the case of what no single feed explains


def render(manifest: Manifest) -> str:
    """The manifest as JUnit XML.

    `failure` was judged and is wrong, `error` could not be judged, `skipped` is pending or a feed
    that eager rejects. Where nothing at all was judged there is one error, as no tests
    would count as a success.
    """
    rows = rows_of(manifest) or (_nothing(),)
    return document([_suite(row, manifest) for row in rows])


def document(suites: Sequence[ET.Element]) -> str:
    """Suites as one document, with their sums."""
    root = ET.Element("testsuites", name=_ROOT)
    root.extend(suites)
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in suites):.3f}")
    ET.indent(root)
    body = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _nothing() -> Row:
    reason = "the run made and judged nothing"
    return Row(name="run", outcome=Outcome.ERROR, reason=reason)


def _suite(row: Row, manifest: Manifest) -> ET.Element:
    cases = [*row.cases]
    if row.unexplained:
        cases.insert(0, Case(feed=_WHOLE, outcome=row.outcome, reason=row.reason))
    made = 0.0 if row.artifact is None else row.artifact.seconds
    judged = 0.0 if row.verdict is None else row.verdict.seconds
    suite = suite_of(row.name, [case.outcome for case in cases], seconds=made + judged)
    suite.set("timestamp", _timestamp(manifest.created))
    add_properties(suite, _properties(row, manifest))
    suite.extend(_case(case, row) for case in cases)
    return suite


def suite_of(name: str, outcomes: Sequence[Outcome], *, seconds: float) -> ET.Element:
    """A suite with the counts of its cases, which are still to be added."""
    return ET.Element(
        "testsuite",
        name=clean(name),
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
        ET.SubElement(properties, "property", name=clean(name), value=clean(value))


def _timestamp(created: str) -> str:
    """ISO 8601 without a zone, as the schemas of JUnit readers want it."""
    return created[:19] if day_text(created) != one_line(created) else ""


def _properties(row: Row, manifest: Manifest) -> dict[str, str]:
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


def _case(case: Case, row: Row) -> ET.Element:
    reason = case.reason or row.reason or "no reason is on record"
    whole = f"{reason}\n{row.reason}" if row.reason not in reason else reason
    element = case_of((row.name, case.feed), case.outcome, reason, whole=whole)
    measured = [_measures(case)] if case.outputs else []
    if measured:
        ET.SubElement(element, "system-out").text = clean("\n".join(measured))
    return element


def case_of(name: tuple[str, str], outcome: Outcome, reason: str, *, whole: str = "") -> ET.Element:
    """A test case by class and name; `reason` is why it did not pass, `whole` all of that."""
    element = ET.Element("testcase", classname=clean(name[0]), name=clean(name[1]))
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
            told.text = clean(whole or reason)
    return element


def _measures(case: Case) -> str:
    """A line for each output with what was measured."""
    return "\n".join(
        f"{o.output}: max abs {figure(o.max_abs)}, "
        f"SQNR {'exact' if o.exact else ratio(o.sqnr)}, "
        f"headroom {decibels(o.headroom)}{', form only' if o.loose else ''}"
        f"{', ' if o.excused else ''}{excuse_text(o)}"
        for o in case.outputs
    )
