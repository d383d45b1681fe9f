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
    Change.TOLD: "For information",
    Change.NOISE: "Within the margin",
    Change.SAME: "The same",
}
_COMPARISON_HEAD = ("artifact", "measure", ">before", ">after", "why")
_CHANGE_OUTCOMES = {Change.WORSE: Outcome.FAILED, Change.BETTER: Outcome.PASSED}


def headline(comparison: Comparison) -> str:
    """What came of it, in one line; artifacts that only one of the runs has are named."""
    worse, better = (len(comparison.of(change)) for change in (Change.WORSE, Change.BETTER))
    if not comparison.measures:
        return "nothing to compare"
    told = (
        f"{count_text(worse, 'measure')} worse, {better} better" if worse or better else "no change"
    )
    new = tuple(one.artifact for one in comparison.of(Change.NEW))
    named = (("gone", comparison.artifacts_lost), ("new", new))
    return "; ".join([told, *(f"{what}: {', '.join(names)}" for what, names in named if names)])


def run_text(run: ComparedRun) -> str:
    """Which run it is."""
    what = f"{run.checkpoint} {digest_text(run.digest)}".strip()
    return f"{run.name} ({what}, {day_text(run.created)})"


def comparison_markdown(comparison: Comparison) -> str:
    """What got worse first, what got better, the rest folded; under 60 kB."""
    sign = "❌" if comparison.has_regressions else "✅"
    blocks = [
        MarkdownBlock("summary", [
            f"### {sign} modelc: {as_prose(headline(comparison))}", "",
            f"{as_prose(run_text(comparison.before))} → {as_prose(run_text(comparison.after))}", "",
            *(f"- {as_prose(note)}" for note in comparison.notes), "",
        ]),
    ]  # fmt: skip
    for change in (Change.WORSE, Change.BETTER, Change.NEW):
        found = comparison.of(change)
        lines = [f"**{CHANGE_TITLES[change]}**", "", *_markdown_rows(found)] if found else []
        blocks.append(MarkdownBlock(CHANGE_TITLES[change].lower(), lines))
    for change in (Change.TOLD, Change.NOISE, Change.SAME):
        found = comparison.of(change)
        lines = (
            fold_lines(f"{CHANGE_TITLES[change]} ({len(found)})", _markdown_rows(found))
            if found
            else []
        )
        blocks.append(MarkdownBlock(CHANGE_TITLES[change].lower(), lines))
    return fit_blocks(REPORT_MARK, [block for block in blocks if block.lines])


def _markdown_rows(measures: Sequence[Measure]) -> list[str]:
    return markdown_table(
        _COMPARISON_HEAD,
        (
            (
                code_span(m.artifact),
                as_prose(m.measure),
                as_prose(m.before),
                as_prose(m.after),
                as_prose(m.why),
            )
            for m in measures
        ),
    )


def comparison_page(comparison: Comparison) -> str:
    """The comparison as a page of its own."""
    worse = comparison.has_regressions
    outcome = Outcome.FAILED if worse else Outcome.PASSED
    telling = tag("p", pill(outcome, "worse" if worse else "not worse"), " ", headline(comparison),
                  class_="telling")  # fmt: skip
    notes = [tag("p", note, class_="note") for note in comparison.notes]
    banner = tag("div", telling, notes, class_=f"banner {outcome}")
    said = f"{run_text(comparison.before)} before, {run_text(comparison.after)} now"
    sections = [
        (str(change), title, _change_table(title, comparison.of(change)))
        for change, title in CHANGE_TITLES.items()
    ]
    return make_page(f"{comparison.before.name} to {comparison.after.name}", said, banner, sections)


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
