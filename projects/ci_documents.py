"""What a run leaves for a forge beside run.json: a summary, JUnit, the comment of a bot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ModelcError
from ..pipeline.report_files import check_own, write_document
from . import ci_junit, ci_summary, comment
from .run_record import RunRecord, folder_errors


@dataclass(frozen=True, kw_only=True)
class CiDocument:
    """One of them; `mark` stands near its beginning.

    `render` is given the record and a link, `refused` what kept a run from beginning and a link.
    """

    file: str
    mark: str
    render: Callable[[RunRecord, str], str]
    refused: Callable[[ModelcError, str], str]


SUMMARY_DOCUMENT = CiDocument(
    file="summary.md",
    mark=ci_summary.SUMMARY_MARK,
    render=lambda record, _: ci_summary.write_summary(record),
    refused=lambda error, _: ci_summary.refusal_summary(error),
)
CI_DOCUMENTS = (
    SUMMARY_DOCUMENT,
    CiDocument(
        file="junit.xml",
        mark='<testsuites name="modelc"',
        render=lambda record, _: ci_junit.write_junit(record),
        refused=lambda error, _: ci_junit.refusal_junit(error),
    ),
    CiDocument(
        file="comment.md",
        mark=comment.COMMENT_MARK,
        render=lambda record, link: comment.write_comment(record, link=link),
        refused=lambda error, link: comment.refusal_comment(error, link=link),
    ),
)


def clear_documents(out: Path) -> None:
    """Remove those of an earlier run, so that no success of it outlives a run that breaks.

    Raises:
        UsageError: a file of somebody else has the name of one, or the folder cannot be written.
    """
    with folder_errors(out):
        for one in CI_DOCUMENTS:
            check_own(out / one.file, one)
            (out / one.file).unlink(missing_ok=True)


def write_documents(record: RunRecord, out: Path, *, link: str = "") -> tuple[Path, ...]:
    """Write them into the folder of all models; `link` leads to the whole log.

    Raises:
        UsageError: one cannot be written.
    """
    return tuple(
        write_document(one.render(record, link), out / one.file, one) for one in CI_DOCUMENTS
    )


def write_refusal(error: ModelcError, one: CiDocument, out: Path, *, link: str = "") -> Path:
    """Write one of them for a run that did not begin; that of an earlier run goes in any case.

    Raises:
        UsageError: it cannot be written.
    """
    path = out / one.file
    with folder_errors(out):
        check_own(path, one)
        path.unlink(missing_ok=True)
        return write_document(one.refused(error, link), path, one)
