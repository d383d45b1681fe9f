"""The comparison of two runs as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from .comparison import Comparison, Run
from .differences import Change, Measure
from .html_page import page
from .html_verdicts import pill
from .markdown import MARK
from .markdown_text import Block, code, fitted, folded, prose
from .markdown_text import table as markdown_table
from .markup import Markup, join, table, tag
from .rows import Outcome
from .words import counted, day_text, short

TITLES = {
    Change.WORSE: "Worse",
    Change.BETTER: "Better",
    Change.NEW: "New",
    Change.TOLD: "For information",
    Change.NOISE: "Within the margin",
    Change.SAME: "The same",
}
_HEAD = ("artifact", "measure", ">before", ">after", "why")
_PILLS = {Change.WORSE: Outcome.FAILED, Change.BETTER: Outcome.PASSED}


def headline(comparison: Comparison) -> str:
    """What came of it, in one line; artifacts that only one of the runs has are named."""
    worse, better = (len(comparison.of(change)) for change in (Change.WORSE, Change.BETTER))
    if not comparison.measures:
        return "nothing to compare"
    told = f"{counted(worse, 'measure')} worse, {better} better" if worse or better else "no change"
    new = tuple(one.artifact for one in comparison.of(Change.NEW))
    named = (("gone", comparison.gone), ("new", new))
    return "; ".join([told, *(f"{what}: {', '.join(names)}" for what, names in named if names)])


def run_text(run: Run) -> str:
    """Which run it is."""
    what = f"{run.checkpoint} {short(run.digest)}".strip()
    return f"{run.name} ({what}, {day_text(run.created)})"


def as_markdown(comparison: Comparison) -> str:
    """What got worse first, what got better, the rest folded; under 60 kB."""
    sign = "❌" if comparison.regressed else "✅"
    blocks = [
        Block("summary", [
            f"### {sign} modelc: {prose(headline(comparison))}", "",
            f"{prose(run_text(comparison.before))} → {prose(run_text(comparison.after))}", "",
            *(f"- {prose(note)}" for note in comparison.notes), "",
        ]),
    ]  # fmt: skip
    for change in (Change.WORSE, Change.BETTER, Change.NEW):
        found = comparison.of(change)
        lines = [f"**{TITLES[change]}**", "", *_rows(found)] if found else []
        blocks.append(Block(TITLES[change].lower(), lines))
    for change in (Change.TOLD, Change.NOISE, Change.SAME):
        found = comparison.of(change)
        lines = folded(f"{TITLES[change]} ({len(found)})", _rows(found)) if found else []
        blocks.append(Block(TITLES[change].lower(), lines))
    return fitted(MARK, [block for block in blocks if block.lines])


def _rows(measures: Sequence[Measure]) -> list[str]:
    return markdown_table(
        _HEAD,
        (
            (code(m.artifact), prose(m.measure), prose(m.before), prose(m.after), prose(m.why))
            for m in measures
        ),
    )


def as_html(comparison: Comparison) -> str:
    """The comparison as a page of its own."""
    worse = comparison.regressed
    outcome = Outcome.FAILED if worse else Outcome.PASSED
    telling = tag("p", pill(outcome, "worse" if worse else "not worse"), " ", headline(comparison),
                  class_="telling")  # fmt: skip
    notes = [tag("p", note, class_="note") for note in comparison.notes]
    banner = tag("div", telling, notes, class_=f"banner {outcome}")
    said = f"{run_text(comparison.before)} before, {run_text(comparison.after)} now"
    sections = [
        (str(change), title, _table(title, comparison.of(change)))
        for change, title in TITLES.items()
    ]
    return page(f"{comparison.before.name} to {comparison.after.name}", said, banner, sections)


def _table(title: str, measures: Sequence[Measure]) -> Markup | None:
    if not measures:
        return None
    rows = [
        (m.artifact, join([m.measure, " ", _pill(m)]), m.before, m.after, m.why) for m in measures
    ]
    return table(title, *_HEAD, rows=rows)


def _pill(measure: Measure) -> Markup | None:
    outcome = _PILLS.get(measure.change)
    return None if outcome is None else pill(outcome, str(measure.change))
