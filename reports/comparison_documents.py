"""The comparison of two runs as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from .comparison import Change, ComparedRun, Comparison, Measure
from .html_page import make_page
from .html_verdicts import pill
from .markdown import (
    REPORT_MARK,
    MarkdownBlock,
    as_prose,
    code_span,
    fit_blocks,
    fold_lines,
    markdown_table,
)
from .markup import Markup, join, table_tag, tag
from .result_rows import Outcome
from .text_format import count_text, day_text, digest_text

CHANGE_TITLES = {
    Change.WORSE: "Worse",
    Change.BETTER: "Better",
    Change.NEW: "New",
    Change.INFO: "For information",
    Change.NOISE: "Within the margin",
    Change.SAME: "The same",
}
_COMPARISON_HEAD = ("artifact", "measure", ">before", ">after", "why")
_CHANGE_OUTCOMES = {Change.WORSE: Outcome.REJECTED, Change.BETTER: Outcome.PASSED}


def headline(comparison: Comparison) -> str:
    """Return the result in one line, with the artifacts that only one run has."""
    worse, better = (len(comparison.of(change)) for change in (Change.WORSE, Change.BETTER))
    if not comparison.measures:
        return "nothing to compare"
    result = (
        f"{count_text(worse, 'measure')} worse, {better} better" if worse or better else "no change"
    )
    new = tuple(one.artifact for one in comparison.of(Change.NEW))
    named = (("gone", comparison.artifacts_lost), ("new", new))
    return "; ".join([result, *(f"{what}: {', '.join(names)}" for what, names in named if names)])


def run_text(run: ComparedRun) -> str:
    """Describe a run."""
    what = f"{run.checkpoint} {digest_text(run.digest)}".strip()
    return f"{run.name} ({what}, {day_text(run.created)})"


def comparison_markdown(comparison: Comparison) -> str:
    """Render the comparison as Markdown under 60 kB: worse first, unchanged measures folded."""
    sign = "❌" if comparison.has_regressions else "✅"
    blocks = [
        MarkdownBlock("summary", [
            f"### {sign} modelc: {as_prose(headline(comparison))}", "",
            f"{as_prose(run_text(comparison.before))} → {as_prose(run_text(comparison.after))}", "",
            *(f"- {as_prose(note)}" for note in comparison.notes), "",
        ]),
    ]  # fmt: skip
    for change, title in CHANGE_TITLES.items():
        found = comparison.of(change)
        if not found:
            continue
        lines = _markdown_rows(found)
        is_open = change in (Change.WORSE, Change.BETTER, Change.NEW)
        lines = (
            [f"**{title}**", "", *lines]
            if is_open
            else fold_lines(f"{title} ({len(found)})", lines)
        )
        blocks.append(MarkdownBlock(title.lower(), lines))
    return fit_blocks(REPORT_MARK, blocks)


def _markdown_rows(measures: Sequence[Measure]) -> list[str]:
    rows = (
        (code_span(m.artifact), *map(as_prose, (m.measure, m.before, m.after, m.why)))
        for m in measures
    )
    return markdown_table(_COMPARISON_HEAD, rows)


def comparison_page(comparison: Comparison) -> str:
    """Render the comparison as a page."""
    worse = comparison.has_regressions
    outcome = Outcome.REJECTED if worse else Outcome.PASSED
    answer = tag("p", pill(outcome, "worse" if worse else "not worse"), " ", headline(comparison),
                  class_="answer")  # fmt: skip
    notes = [tag("p", note, class_="note") for note in comparison.notes]
    banner = tag("div", answer, notes, class_=f"banner {outcome}")
    subtitle = f"{run_text(comparison.before)} before, {run_text(comparison.after)} now"
    sections = [
        (str(change), title, _change_table(title, comparison.of(change)))
        for change, title in CHANGE_TITLES.items()
    ]
    return make_page(
        f"{comparison.before.name} to {comparison.after.name}", subtitle, banner, sections
    )


def _change_table(title: str, measures: Sequence[Measure]) -> Markup | None:
    if not measures:
        return None
    rows = [
        (m.artifact, join([m.measure, " ", _change_pill(m)]), m.before, m.after, m.why)
        for m in measures
    ]
    return table_tag(title, *_COMPARISON_HEAD, rows=rows)


def _change_pill(measure: Measure) -> Markup | None:
    outcome = _CHANGE_OUTCOMES.get(measure.change)
    return None if outcome is None else pill(outcome, str(measure.change))
