"""The first table of a report: an artifact a row, with what decides whether it may be deployed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..core.findings import Accuracy
from ..core.manifest import Manifest
from ..core.records import Artifact
from ..core.verdict import Verdict
from .artifact_warnings import list_warnings
from .rows import REJECTED_PREFIX, Outcome, ResultRow, count_outcomes, sqnr_text
from .words import NO_VALUE, count_text, decibel_text, milliseconds_text, one_line, size_text

WORST_FIRST = (Outcome.FAILED, Outcome.ERROR, Outcome.PENDING, Outcome.PASSED)
# A column called `>name` is of figures; the first two are given their form by each document.
SUMMARY_HEAD = ("artifact", "verdict", ">headroom", "format", ">size", "SQNR or accuracy (limit)",
        ">latency (fp32)", "domain")  # fmt: skip

_ALL_TEXTS = {1: "this artifact", 2: "both artifacts"}


@dataclass(frozen=True, kw_only=True)
class SummaryLine:
    """One artifact or step as text; `place` is its place among all rows, which anchors know."""

    name: str
    place: int
    outcome: Outcome
    headroom: str = NO_VALUE
    format: str = NO_VALUE
    size: str = NO_VALUE
    figures: tuple[str, ...] = ()
    latency: str = NO_VALUE
    domain: str = NO_VALUE

    @property
    def cells(self) -> tuple[str, ...]:
        """What stands below `HEAD`, from the third column on."""
        figures = "; ".join(self.figures) or NO_VALUE
        return (self.headroom, self.format, self.size, figures, self.latency, self.domain)


def summary_lines(rows: Sequence[ResultRow]) -> list[SummaryLine]:
    """A line for each row, what did not pass first."""
    lines = [_summary_line(row, place) for place, row in enumerate(rows)]
    return sorted(lines, key=lambda line: WORST_FIRST.index(line.outcome))


def deployment_answer(rows: Sequence[ResultRow], manifest: Manifest) -> str:
    """Whether this may be deployed, in one or two sentences."""
    if not rows:
        return "No: the run made and judged nothing."
    found = count_outcomes(tuple(rows))
    good = found[Outcome.PASSED]
    faults = "; ".join(_deployment_faults(rows))
    if not good and found[Outcome.PENDING] == len(rows):
        return f"Not yet: {faults}."
    if not good:
        return f"No: {faults}."
    names = _join_names([row.name for row in rows if row.outcome is Outcome.PASSED])
    notes = _warnings_text(rows, manifest)
    if good == len(rows):
        what = _ALL_TEXTS.get(good, f"all {good} artifacts")
        return f"Yes: {what} may be deployed, for inputs within the domain.{notes}"
    return f"In part: {names} may be deployed, within the domain; {faults}.{notes}"


def _deployment_faults(rows: Sequence[ResultRow]) -> Iterator[str]:
    """What may not be deployed, and why in a word."""
    texts = {
        Outcome.FAILED: ("was judged and is wrong", "were judged and are wrong"),
        Outcome.ERROR: ("could not be judged", "could not be judged"),
        Outcome.PENDING: ("waits for another host", "wait for another host"),
    }
    for outcome, (one, several) in texts.items():
        names = [row.name.removeprefix(REJECTED_PREFIX) for row in rows if row.outcome is outcome]
        if names:
            yield f"{_join_names(names)} {one if len(names) == 1 else several}"


def _warnings_text(rows: Sequence[ResultRow], manifest: Manifest) -> str:
    """The artifacts that passed and that a reader is warned of."""
    names = [
        row.name
        for row in rows
        if row.outcome is Outcome.PASSED and row.artifact and list_warnings(row.artifact, manifest)
    ]
    return f" Read the notes on {_join_names(names)} first." if names else ""


def _join_names(names: Sequence[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`; of many the first, and how many more."""
    shown = [one_line(name, 60) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {count_text(len(names) - most, 'other')}"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _summary_line(row: ResultRow, place: int) -> SummaryLine:
    artifact, verdict = row.artifact, row.verdict
    if artifact is None:
        pending = row.pending
        made = f"{pending.target} {pending.precision}" if pending else NO_VALUE
        return SummaryLine(name=row.name, place=place, outcome=row.outcome, format=made)
    return SummaryLine(
        name=row.name,
        place=place,
        outcome=row.outcome,
        headroom=decibel_text(None if verdict is None else verdict.headroom),
        format=f"{artifact.target} {artifact.precision}",
        size=size_text(artifact.size),
        figures=tuple(_figure_texts(artifact, verdict)),
        latency=_latency_text(artifact),
        domain=NO_VALUE if artifact.domain is None else artifact.domain.describe(),
    )


def _figure_texts(artifact: Artifact, verdict: Verdict | None) -> Iterator[str]:
    """Accuracy first where it was measured, then SQNR; each with its limit."""
    if artifact.accuracy is not None:
        yield _accuracy_text(artifact.accuracy)
    if verdict is not None and verdict.outputs:
        text = sqnr_text(verdict, " dB")
        least = verdict.sqnr_limit
        yield text if verdict.sqnr is None or least is None else f"{text} ({least:g})"


def _accuracy_text(one: Accuracy) -> str:
    limit = "" if one.max_drop is None else f" ({one.max_drop:g})"
    return f"{one.metric} {one.artifact:.4g}, drop {one.drop:.3g}{limit}"


def _latency_text(artifact: Artifact) -> str:
    one = artifact.latency
    if one is None:
        return NO_VALUE
    return f"{milliseconds_text(one.milliseconds)} ({milliseconds_text(one.parent)})"
