"""JUnit XML: a suite for each artifact or step, a test case for each feed."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from ..core.manifest import Manifest
from .rows import Case, Outcome, Row, rows_of
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
    root = ET.Element("testsuites", name=_ROOT)
    suites = [_suite(row, manifest) for row in rows]
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
    outcomes = [case.outcome for case in cases]
    made = 0.0 if row.artifact is None else row.artifact.seconds
    judged = 0.0 if row.verdict is None else row.verdict.seconds
    suite = ET.Element(
        "testsuite",
        name=clean(row.name),
        tests=str(len(cases)),
        failures=str(outcomes.count(Outcome.FAILED)),
        errors=str(outcomes.count(Outcome.ERROR)),
        skipped=str(sum(o in (Outcome.SKIPPED, Outcome.PENDING) for o in outcomes)),
        time=f"{made + judged:.3f}",
        timestamp=_timestamp(manifest.created),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(row, manifest).items():
        ET.SubElement(properties, "property", name=clean(name), value=clean(value))
    suite.extend(_case(case, row) for case in cases)
    return suite


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
        found["device"] = row.verdict.device
    return found | {f"environment.{name}": text for name, text in manifest.environment.items()}


def _case(case: Case, row: Row) -> ET.Element:
    element = ET.Element("testcase", classname=clean(row.name), name=clean(case.feed))
    kind = {
        Outcome.FAILED: "failure",
        Outcome.ERROR: "error",
        Outcome.SKIPPED: "skipped",
        Outcome.PENDING: "skipped",
    }.get(case.outcome)
    if kind is not None:
        reason = case.reason or row.reason or "no reason is on record"
        told = ET.SubElement(element, kind, message=one_line(reason))
        if kind != "skipped":
            told.set("type", str(case.outcome))
            told.text = clean(f"{reason}\n{row.reason}" if row.reason not in reason else reason)
    measured = [_measures(case)] if case.outputs else []
    if measured:
        ET.SubElement(element, "system-out").text = clean("\n".join(measured))
    return element


def _measures(case: Case) -> str:
    """A line for each output with what was measured."""
    return "\n".join(
        f"{o.output}: max abs {figure(o.max_abs)}, "
        f"SQNR {'exact' if o.exact else ratio(o.sqnr)}, "
        f"headroom {decibels(o.headroom)}{', form only' if o.loose else ''}"
        for o in case.outputs
    )
