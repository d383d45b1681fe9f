"""The comment on a pull request: short, with a mark that a bot finds it by to write it anew."""

from __future__ import annotations

from ..core.errors import ModelcError
from ..reports.differences import Change
from ..reports.markdown_text import Block, fitted, folded
from .ci_summary import (
    artifacts,
    changes,
    headline,
    reasons,
    refusal_headline,
    refusal_reasons,
    titled,
)
from .regression_records import Regression
from .run_record import RunRecord

MARK = "<!-- modelc run: comment -->"
_LINES = 20  # of each part: the summary has them all
_LIMIT = 16_000  # bytes


def comment_of(record: RunRecord, *, link: str = "") -> str:
    """What a reviewer needs: how it ended, why, what got worse; the table folded.

    `link` is where the whole log is, if it is anywhere.
    """
    regression = record.regression
    blocks = [
        Block("summary", [headline(record), ""]),
        Block("reasons", titled("Why", _first(reasons(record)))),
        Block("worse", titled("Worse than the base", changes(regression, Change.WORSE))),
        Block("changes", folded("Other changes from the base", _other(regression))),
        Block("artifacts", folded("All artifacts", artifacts(record.models))),
        _link(link),
    ]
    return fitted(MARK, [block for block in blocks if block.lines], _LIMIT, see="summary.md")


def refusal_of(error: ModelcError, *, link: str = "") -> str:
    """The same of a run that did not begin: what was refused."""
    blocks = [
        Block("summary", [refusal_headline(error), ""]),
        Block("reasons", titled("Why", _first(refusal_reasons(error)))),
        _link(link),
    ]
    return fitted(MARK, [block for block in blocks if block.lines], _LIMIT, see="summary.md")


def _link(link: str) -> Block:
    return Block("link", [f"[The whole run]({link})"] if link else [])


def _other(regression: Regression | None) -> list[str]:
    others = (Change.BETTER, Change.NEW, Change.TOLD)
    return [line for change in others for line in changes(regression, change)]


def _first(lines: list[str]) -> list[str]:
    """The first lines, and how many there are beyond them."""
    rest = len(lines) - _LINES
    return [*lines[:_LINES], *([f"- and {rest} more"] if rest > 0 else [])]
