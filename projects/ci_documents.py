"""The CI documents that a project run writes: summary, JUnit XML and comment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from .. import __version__
from ..core.errors import ModelcError
from ..pipeline.report_files import check_own, write_document
from ..reports.junit import add_properties, join_suites, make_case, make_suite
from ..reports.result_rows import Outcome
from ..reports.text_format import escape_control
from . import ci_markdown
from .project_faults import split_faults
from .project_records import NOT_STARTED, MeasureChange
from .run_record import ArtifactRun, ModelRun, RunRecord, folder_errors


@dataclass(frozen=True, kw_only=True)
class CiDocument:
    """One document; `mark` occurs near its beginning.

    `render` takes the run record and a link; `render_error` takes the error that kept a run from
    starting and a link.
    """

    file: str
    mark: str
    render: Callable[[RunRecord, str], str]
    render_error: Callable[[ModelcError, str], str]


SUMMARY_DOCUMENT = CiDocument(
    file="summary.md",
    mark=ci_markdown.SUMMARY_MARK,
    render=lambda record, _: ci_markdown.write_summary(record),
    render_error=lambda error, _: ci_markdown.error_summary(error),
)
CI_DOCUMENTS = (
    SUMMARY_DOCUMENT,
    CiDocument(
        file="junit.xml",
        mark='<testsuites name="modelc"',
        render=lambda record, _: write_junit(record),
        render_error=lambda error, _: error_junit(error),
    ),
    CiDocument(
        file="comment.md",
        mark=ci_markdown.COMMENT_MARK,
        render=lambda record, link: ci_markdown.write_comment(record, link=link),
        render_error=lambda error, link: ci_markdown.error_comment(error, link=link),
    ),
)


def clear_documents(out: Path) -> None:
    """Remove the documents of an earlier run, so that its success does not outlive a crash.

    Raises:
        UsageError: another program's file has the name of one, or the folder cannot be written.
    """
    with folder_errors(out):
        for one in CI_DOCUMENTS:
            check_own(out / one.file, one)
            (out / one.file).unlink(missing_ok=True)


def write_documents(record: RunRecord, out: Path, *, link: str = "") -> tuple[Path, ...]:
    """Write the documents to the folder of all models; `link` is the URL of the log.

    Raises:
        UsageError: a document cannot be written.
    """
    return tuple(
        write_document(one.render(record, link), out / one.file, one) for one in CI_DOCUMENTS
    )


def write_error_document(error: ModelcError, one: CiDocument, out: Path, *, link: str = "") -> Path:
    """Write the document of a run that did not start; always remove that of an earlier run.

    Raises:
        UsageError: it cannot be written.
    """
    path = out / one.file
    with folder_errors(out):
        check_own(path, one)
        path.unlink(missing_ok=True)
        return write_document(one.render_error(error, link), path, one)


_MODEL_CASE = "model"  # the case of an error that stopped a whole model
_BASE_SUITE = "base"  # the suite of regressions of artifacts that are not in this run
_RUN_SUITE = "run"
_WORSE = "worse than the base: "


@dataclass(frozen=True, kw_only=True)
class _JunitCase:
    """A test case and its output."""

    name: str
    outcome: Outcome
    reason: str = ""
    output: str = ""


def write_junit(record: RunRecord) -> str:
    """Render the run record as JUnit XML, with regressions as failures of their artifacts."""
    worse = () if record.regression is None else record.regression.worse
    suites = []
    for model in record.models:
        mine = [one for one in worse if one.model == model.name]
        facts = {"modelc": record.modelc, "folder": model.folder}
        suites.append(
            _make_suite(model.name, tuple(_model_cases(model, mine)), facts, seconds=model.seconds)
        )
    if not suites:
        reason = "the run built no artifact"
        case = _JunitCase(name=_RUN_SUITE, outcome=Outcome.FAILED, reason=reason)
        facts = {"modelc": record.modelc}
        suites = [_make_suite(_RUN_SUITE, (case,), facts, seconds=record.seconds)]
    return join_suites(suites)


def error_junit(error: ModelcError) -> str:
    """Render a run that did not start: one suite with an error per fault."""
    cases = [
        _JunitCase(
            name=f"fault {number}",
            outcome=Outcome.FAILED,
            reason=f"{one.text} (hint: {one.hint})",
        )
        for number, one in enumerate(split_faults(error), start=1)
    ]
    return join_suites([_make_suite(_RUN_SUITE, cases, {"modelc": __version__}, seconds=0.0)])


def _make_suite(
    name: str, cases: Sequence[_JunitCase], facts: Mapping[str, str], *, seconds: float
) -> ET.Element:
    suite = make_suite(name, [case.outcome for case in cases], seconds=seconds)
    add_properties(suite, facts)
    for case in cases:
        element = make_case((name, case.name), case.outcome, case.reason)
        if case.output:
            ET.SubElement(element, "system-out").text = escape_control(case.output)
        suite.append(element)
    return suite


def _model_cases(model: ModelRun, worse: Sequence[MeasureChange]) -> Iterator[_JunitCase]:
    """Yield the cases of the model's error, its artifacts, and artifacts that it lost."""
    names = {one.name for one in model.artifacts}
    if model.error or not names:
        reason = f"{model.error} (hint: {model.hint})" if model.error else _model_reason(model)
        # A model without artifacts has not passed any.
        outcome = Outcome.FAILED if model.state is Outcome.PASSED else model.state
        yield _JunitCase(name=_MODEL_CASE, outcome=outcome, reason=reason)
    for one in model.artifacts:
        yield _artifact_case(one, model, worse)
    for name in dict.fromkeys(one.artifact for one in worse if one.artifact not in names):
        reason = "; ".join(f"{_WORSE}{one.text}" for one in worse if one.artifact == name)
        yield _JunitCase(name=name or _BASE_SUITE, outcome=Outcome.REJECTED, reason=reason)


def _model_reason(model: ModelRun) -> str:
    return NOT_STARTED if model.state is Outcome.SKIPPED else "no artifact was made"


def _artifact_case(one: ArtifactRun, model: ModelRun, worse: Sequence[MeasureChange]) -> _JunitCase:
    """Make the case of an artifact; one that breaks a gate or regressed has failed."""
    reasons = [one.reason] if one.reason else []
    broken = [b.message for b in model.breaches if b.artifact == one.name]
    lost = [f"{_WORSE}{change.text}" for change in worse if change.artifact == one.name]
    outcome = one.state
    if (broken or lost) and outcome is not Outcome.FAILED:
        outcome = Outcome.REJECTED
    output = f"{one.source}, {one.size} bytes" if one.source else ""
    return _JunitCase(
        name=one.name, outcome=outcome, reason="; ".join((*reasons, *broken, *lost)), output=output
    )
