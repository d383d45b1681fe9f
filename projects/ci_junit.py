"""A whole run as JUnit XML: a suite for each model, a test case for each artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from .. import __version__
from ..core.errors import ModelcError
from ..reports.junit import add_properties, join_suites, make_case, make_suite
from ..reports.rows import Outcome
from ..reports.words import escape_control
from .faults import split_faults
from .regression_records import MeasureChange
from .run_record import ArtifactRun, ModelRun, RunRecord

_STATE_OUTCOMES = {
    "passed": Outcome.PASSED,
    "failed": Outcome.FAILED,
    "error": Outcome.ERROR,
    "pending": Outcome.PENDING,
    "not-run": Outcome.SKIPPED,
}
_MODEL_CASE = "model"  # the case of what stopped a whole model
_BASE_SUITE = "base"  # the suite of what the project no longer makes as well as it did
_RUN_SUITE = "run"


@dataclass(frozen=True, kw_only=True)
class _JunitCase:
    """A test case, and what is printed with it."""

    name: str
    outcome: Outcome
    reason: str = ""
    told: str = ""


def write_junit(record: RunRecord) -> str:
    """The run's record, with what got worse as failures of their artifacts."""
    worse = () if record.regression is None else record.regression.worse
    suites = []
    for model in record.models:
        mine = [one for one in worse if one.model == model.name]
        facts = {"modelc": record.modelc, "folder": model.folder}
        suites.append(
            _make_suite(model.name, tuple(_model_cases(model, mine)), facts, seconds=model.seconds)
        )
    if not suites:
        suites = [
            _make_suite(
                _RUN_SUITE, (_empty_case(),), {"modelc": record.modelc}, seconds=record.seconds
            )
        ]
    return join_suites(suites)


def refusal_junit(error: ModelcError) -> str:
    """A run that did not begin: one suite, each fault an error."""
    cases = [
        _JunitCase(
            name=f"fault {number}",
            outcome=Outcome.ERROR,
            reason=f"{one.text} (hint: {one.hint})",
        )
        for number, one in enumerate(split_faults(error), start=1)
    ]
    return join_suites([_make_suite(_RUN_SUITE, cases, {"modelc": __version__}, seconds=0.0)])


def _empty_case() -> _JunitCase:
    return _JunitCase(
        name=_RUN_SUITE, outcome=Outcome.ERROR, reason="the run made and judged nothing"
    )


def _make_suite(
    name: str, cases: Sequence[_JunitCase], facts: Mapping[str, str], *, seconds: float
) -> ET.Element:
    suite = make_suite(name, [case.outcome for case in cases], seconds=seconds)
    add_properties(suite, facts)
    for case in cases:
        element = make_case((name, case.name), case.outcome, case.reason)
        if case.told:
            ET.SubElement(element, "system-out").text = escape_control(case.told)
        suite.append(element)
    return suite


def _model_cases(model: ModelRun, worse: Sequence[MeasureChange]) -> Iterator[_JunitCase]:
    """What stopped the model, its artifacts, and what no longer is one of them."""
    names = {one.name for one in model.artifacts}
    if model.error or not names:
        reason = f"{model.error} (hint: {model.hint})" if model.error else _model_reason(model)
        outcome = _STATE_OUTCOMES[model.state]  # of a model without artifacts none has passed
        outcome = Outcome.ERROR if outcome is Outcome.PASSED else outcome
        yield _JunitCase(name=_MODEL_CASE, outcome=outcome, reason=reason)
    for one in model.artifacts:
        yield _artifact_case(one, model, worse)
    for name in dict.fromkeys(one.artifact for one in worse if one.artifact not in names):
        reason = "; ".join(_change_text(one) for one in worse if one.artifact == name)
        yield _JunitCase(name=name or _BASE_SUITE, outcome=Outcome.FAILED, reason=reason)


def _model_reason(model: ModelRun) -> str:
    return "the run did not come to it" if model.state == "not-run" else "nothing is on record"


def _artifact_case(one: ArtifactRun, model: ModelRun, worse: Sequence[MeasureChange]) -> _JunitCase:
    """An artifact; proven ones that break a gate or are worse than the base have failed."""
    reasons = [one.reason] if one.reason else []
    broken = [b.message for b in model.breaches if b.artifact == one.name]
    lost = [_change_text(change) for change in worse if change.artifact == one.name]
    outcome = _STATE_OUTCOMES[one.state]
    if (broken or lost) and outcome in (Outcome.PASSED, Outcome.PENDING):
        outcome = Outcome.FAILED
    told = f"{one.source}, {one.size} bytes" if one.source else ""
    return _JunitCase(
        name=one.name, outcome=outcome, reason="; ".join((*reasons, *broken, *lost)), told=told
    )


def _change_text(one: MeasureChange) -> str:
    why = f" ({one.why})" if one.why else ""
    return f"worse than the base: {one.measure} {one.before} before, {one.after} now{why}"
