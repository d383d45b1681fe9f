"""A whole run as JUnit XML: a suite for each model, a test case for each artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from .. import __version__
from ..core.errors import ModelcError
from ..reports.junit import add_properties, case_of, document, suite_of
from ..reports.rows import Outcome
from ..reports.words import clean
from .faults import each_of
from .regression_records import Changed
from .run_record import ArtifactEnd, ModelEnd, RunRecord

_STATES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "error": Outcome.ERROR,
    "pending": Outcome.PENDING,
    "not-run": Outcome.SKIPPED,
}
_MODEL = "model"  # the case of what stopped a whole model
_BASE = "base"  # the suite of what the project no longer makes as well as it did
_RUN = "run"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A test case, and what is printed with it."""

    name: str
    outcome: Outcome
    reason: str = ""
    told: str = ""


def junit_of(record: RunRecord) -> str:
    """The run's record, with what got worse as failures of their artifacts."""
    worse = () if record.regression is None else record.regression.worse
    suites = []
    for model in record.models:
        mine = [one for one in worse if one.model == model.name]
        facts = {"modelc": record.modelc, "folder": model.folder}
        suites.append(_suite(model.name, tuple(_cases(model, mine)), facts, seconds=model.seconds))
    if not suites:
        suites = [_suite(_RUN, (_nothing(),), {"modelc": record.modelc}, seconds=record.seconds)]
    return document(suites)


def refusal_of(error: ModelcError) -> str:
    """A run that did not begin: one suite, each fault an error."""
    cases = [
        _Case(
            name=f"fault {number}",
            outcome=Outcome.ERROR,
            reason=f"{one.text} (hint: {one.hint})",
        )
        for number, one in enumerate(each_of(error), start=1)
    ]
    return document([_suite(_RUN, cases, {"modelc": __version__}, seconds=0.0)])


def _nothing() -> _Case:
    return _Case(name=_RUN, outcome=Outcome.ERROR, reason="the run made and judged nothing")


def _suite(
    name: str, cases: Sequence[_Case], facts: Mapping[str, str], *, seconds: float
) -> ET.Element:
    suite = suite_of(name, [case.outcome for case in cases], seconds=seconds)
    add_properties(suite, facts)
    for case in cases:
        element = case_of((name, case.name), case.outcome, case.reason)
        if case.told:
            ET.SubElement(element, "system-out").text = clean(case.told)
        suite.append(element)
    return suite


def _cases(model: ModelEnd, worse: Sequence[Changed]) -> Iterator[_Case]:
    """What stopped the model, its artifacts, and what no longer is one of them."""
    names = {one.name for one in model.artifacts}
    if model.error or not names:
        reason = f"{model.error} (hint: {model.hint})" if model.error else _why(model)
        outcome = _STATES[model.state]  # of a model without artifacts none has passed
        outcome = Outcome.ERROR if outcome is Outcome.PASSED else outcome
        yield _Case(name=_MODEL, outcome=outcome, reason=reason)
    for one in model.artifacts:
        yield _case(one, model, worse)
    for name in dict.fromkeys(one.artifact for one in worse if one.artifact not in names):
        reason = "; ".join(_told(one) for one in worse if one.artifact == name)
        yield _Case(name=name or _BASE, outcome=Outcome.FAILED, reason=reason)


def _why(model: ModelEnd) -> str:
    return "the run did not come to it" if model.state == "not-run" else "nothing is on record"


def _case(one: ArtifactEnd, model: ModelEnd, worse: Sequence[Changed]) -> _Case:
    """An artifact; proven ones that break a gate or are worse than the base have failed."""
    reasons = [one.reason] if one.reason else []
    broken = [b.message for b in model.breaches if b.artifact == one.name]
    lost = [_told(change) for change in worse if change.artifact == one.name]
    outcome = _STATES[one.state]
    if (broken or lost) and outcome in (Outcome.PASSED, Outcome.PENDING):
        outcome = Outcome.FAILED
    told = f"{one.source}, {one.size} bytes" if one.source else ""
    return _Case(
        name=one.name, outcome=outcome, reason="; ".join((*reasons, *broken, *lost)), told=told
    )


def _told(one: Changed) -> str:
    why = f" ({one.why})" if one.why else ""
    return f"worse than the base: {one.measure} {one.before} before, {one.after} now{why}"
