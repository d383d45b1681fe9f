"""The comment on a pull request: short, with a mark that a bot finds it by to write it anew."""

from __future__ import annotations

from ..core.errors import ModelcError
from ..reports.differences import Change
from ..reports.markdown_text import MarkdownBlock, fit_blocks, fold_lines
from .ci_summary import (
    add_title,
    artifact_table,
    change_table,
    reason_lines,
    refusal_headline,
    refusal_reasons,
    run_headline,
)
from .regression_records import Regression
from .run_record import RunRecord

COMMENT_MARK = "<!-- modelc run: comment -->"
_COMMENT_LINES = 20  # of each part: the summary has them all
_COMMENT_LIMIT = 16_000  # bytes


def write_comment(record: RunRecord, *, link: str = "") -> str:
    """What a reviewer needs: how it ended, why, what got worse; the table folded.

    `link` is where the whole log is, if it is anywhere.
    """
    regression = record.regression
    blocks = [
        MarkdownBlock("summary", [run_headline(record), ""]),
        MarkdownBlock("reasons", add_title("Why", _first_lines(reason_lines(record)))),
        MarkdownBlock(
            "worse", add_title("Worse than the base", change_table(regression, Change.WORSE))
        ),
        MarkdownBlock(
            "changes", fold_lines("Other changes from the base", _other_changes(regression))
        ),
        MarkdownBlock("artifacts", fold_lines("All artifacts", artifact_table(record.models))),
        _link_block(link),
    ]
    return fit_blocks(
        COMMENT_MARK, [block for block in blocks if block.lines], _COMMENT_LIMIT, see="summary.md"
    )


def refusal_comment(error: ModelcError, *, link: str = "") -> str:
    """The same of a run that did not begin: what was refused."""
    blocks = [
        MarkdownBlock("summary", [refusal_headline(error), ""]),
        MarkdownBlock("reasons", add_title("Why", _first_lines(refusal_reasons(error)))),
        _link_block(link),
    ]
    return fit_blocks(
        COMMENT_MARK, [block for block in blocks if block.lines], _COMMENT_LIMIT, see="summary.md"
    )


def _link_block(link: str) -> MarkdownBlock:
    return MarkdownBlock("link", [f"[The whole run]({link})"] if link else [])


def _other_changes(regression: Regression | None) -> list[str]:
    others = (Change.BETTER, Change.NEW, Change.TOLD)
    return [line for change in others for line in change_table(regression, change)]


def _first_lines(lines: list[str]) -> list[str]:
    """The first lines, and how many there are beyond them."""
    rest = len(lines) - _COMMENT_LINES
    return [*lines[:_COMMENT_LINES], *([f"- and {rest} more"] if rest > 0 else [])]
