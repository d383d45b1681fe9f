"""The summary table of a report, the deployment answer, and the warnings on artifacts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..calibration.calibration_options import RANDOM
from ..core.kinds import QUANTIZED, Precision, ReasonCode
from ..core.manifest import Manifest
from ..core.part_records import WHOLE
from ..core.records import Artifact, CalibrationRecord, Coverage, size_text
from ..core.verdict import Tolerance, Verdict
from ..validators.tolerance import TOLERANCES
from .result_rows import (
    REJECTED_PREFIX,
    WORST_FIRST,
    Outcome,
    ResultRow,
    count_outcomes,
    sqnr_text,
)
from .text_format import (
    NO_VALUE,
    count_text,
    decibel_text,
    figure_text,
    milliseconds_text,
    one_line,
    percent_text,
    ratio,
    readable_sizes,
)

# `>` marks a right-aligned column; each document formats the first two itself.
SUMMARY_HEAD = ("artifact", "verdict", ">margin", "format", ">size", "SQNR or accuracy (limit)",
        ">latency (fp32)", "domain")  # fmt: skip

_WHOLE = f"{WHOLE}/"  # what the names of all parts together begin with
_NOTHING = ("No: the run built no artifact.", "Not yet: the parts were not judged together.")
_ALL_TEXTS = {1: "this artifact", 2: "both artifacts"}


@dataclass(frozen=True, kw_only=True)
class SummaryLine:
    """One artifact or step as text; `place` is its index among all rows, used in anchors."""

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
        """Return the cells below `SUMMARY_HEAD`, from the third column on."""
        figures = "; ".join(self.figures) or NO_VALUE
        return (self.headroom, self.format, self.size, figures, self.latency, self.domain)


def summary_lines(rows: Sequence[ResultRow]) -> list[SummaryLine]:
    """Return a line per row, the worst first."""
    lines = [_summary_line(row, place) for place, row in enumerate(rows)]
    return sorted(lines, key=lambda line: WORST_FIRST.index(line.outcome))


def deployment_answer(rows: Sequence[ResultRow], manifest: Manifest) -> str:
    """Return in one or two sentences which artifacts may be deployed.

    Of several parts, that is what passed together: a part alone is no model.
    """
    notes = _warnings_text(rows, manifest)
    if manifest.order.get("part"):
        rows = [
            row for row in rows
            if row.name.startswith(_WHOLE) or row.outcome is not Outcome.PASSED
        ]  # fmt: skip
    if not rows:
        return _NOTHING[bool(manifest.artifacts)]
    found = count_outcomes(tuple(rows))
    names = [row.name for row in rows if row.outcome is Outcome.PASSED]
    good = len(names)
    faults = "; ".join(_deployment_faults(rows))
    if not good and found[Outcome.PENDING] == len(rows):
        return f"Not yet: {faults}."
    if not good:
        return f"No: {faults}.{_blame_text(rows)}"
    if good == len(rows):
        what = _ALL_TEXTS.get(good, f"all {good} artifacts")
        return f"Yes: {what} may be deployed, for inputs within the domain.{notes}"
    what, blame = _join_names(names), _blame_text(rows)
    return f"In part: {what} may be deployed, for inputs within the domain; {faults}.{blame}{notes}"


def _blame_text(rows: Sequence[ResultRow]) -> str:
    """Say which parts are wrong, as the first rejection of the whole does."""
    reasons = (reason for row in rows if row.verdict for reason in row.verdict.reasons)
    text = next((one.text for one in reasons if one.code is ReasonCode.PART_DIFFERS), "")
    return text and f" Reason: {text}."


def _deployment_faults(rows: Sequence[ResultRow]) -> Iterator[str]:
    """Name what may not be deployed, by state."""
    verbs = {
        Outcome.REJECTED: ("was rejected", "were rejected"),
        Outcome.FAILED: ("failed", "failed"),
        Outcome.SKIPPED: ("was skipped", "were skipped"),
        Outcome.PENDING: ("is pending on another host", "are pending on another host"),
    }
    for outcome, (singular, plural) in verbs.items():
        names = [row.name.removeprefix(REJECTED_PREFIX) for row in rows if row.outcome is outcome]
        if names:
            yield f"{_join_names(names)} {singular if len(names) == 1 else plural}"


def _warnings_text(rows: Sequence[ResultRow], manifest: Manifest) -> str:
    """Name the passed artifacts that have warnings."""
    names = [
        row.name
        for row in rows
        if row.outcome is Outcome.PASSED and row.artifact and list_warnings(row.artifact, manifest)
    ]
    return f" Read the notes on {_join_names(names)} first." if names else ""


def _join_names(names: Sequence[str], most: int = 4) -> str:
    """Join names as `a`, `a and b`, `a, b and c`; count those beyond `most`."""
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
    one = artifact.latency
    times = () if one is None else map(milliseconds_text, (one.milliseconds, one.parent))
    return SummaryLine(
        name=row.name,
        place=place,
        outcome=row.outcome,
        headroom=decibel_text(None if verdict is None else verdict.headroom),
        format=f"{artifact.target} {artifact.precision}",
        size=size_text(artifact.size),
        figures=tuple(_figure_texts(artifact, verdict)),
        latency="{} ({})".format(*times) if one else NO_VALUE,
        domain=NO_VALUE if artifact.domain is None else artifact.domain.describe(),
    )


def _figure_texts(artifact: Artifact, verdict: Verdict | None) -> Iterator[str]:
    """Yield the accuracy, if measured, then the SQNR, each with its limit."""
    one = artifact.accuracy
    if one is not None:
        limit = "" if one.max_drop is None else f" ({one.max_drop:g})"
        yield f"{one.metric} {one.artifact:.4g}, drop {one.drop:.3g}{limit}"
    if verdict is not None and verdict.outputs:
        text = sqnr_text(verdict, " dB")
        least = verdict.sqnr_limit
        yield text if verdict.sqnr is None or least is None else f"{text} ({least:g})"


_LOW_SHARE = 0.5  # of the work: with less in INT8, an INT8 artifact gets a warning
_LIMIT_OPTIONS = {"atol": "atol", "rtol": "rtol", "min_sqnr": "min-sqnr"}


def list_warnings(artifact: Artifact, manifest: Manifest) -> tuple[str, ...]:
    """Return the warnings on the calibration, then the notes, without duplicates."""
    record = artifact.calibration
    found = () if record is None else (random_warning(record), *list_sample_findings([artifact]))
    return tuple(dict.fromkeys(filter(None, (*found, *list_notes(artifact, manifest)))))


def list_shared_warnings(manifest: Manifest) -> tuple[str, ...]:
    """Return the warning on declared sizes that eager rejects, which concerns all artifacts."""
    gaps = [feed.name for feed in manifest.feeds.drawn if feed.gap]
    if not gaps:
        return ()
    many = f"{len(gaps)} of {len(manifest.feeds.drawn)} feeds within the declared sizes"
    return (f"eager rejects {many}, so they are not compared: {', '.join(gaps)}",)


def random_warning(record: CalibrationRecord) -> str:
    """Warn of random calibration samples; empty if they are real."""
    if record.kind != RANDOM:
        return ""
    return f"calibrated with {record.used} random samples: real data may be much less accurate"


def list_sample_findings(artifacts: Iterable[Artifact]) -> tuple[str, ...]:
    """Return the findings in the calibration samples, without duplicates."""
    records = [one.calibration for one in artifacts if one.calibration is not None]
    found = (finding for record in records for finding in record.findings)
    return tuple(f"calibration: {finding}" for finding in dict.fromkeys(found))


def list_notes(artifact: Artifact, manifest: Manifest) -> tuple[str, ...]:
    """Return notes on compute dtype, limits and verdict; of a passed artifact also its own."""
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        return ()
    own = () if artifact.rejected else artifact.notes
    share = _share_warning(artifact.precision, artifact.coverage)
    floor = _floor_warnings(artifact, verdict, manifest.order)
    notes = map(readable_sizes, (*verdict.notes, *own))
    return tuple(dict.fromkeys(filter(None, (share, *floor, *notes))))


def _share_warning(precision: Precision, coverage: Coverage | None) -> str:
    """Warn if most of the work of a quantized artifact is not quantized."""
    if precision not in QUANTIZED or coverage is None or not coverage.share:
        return ""
    mine = coverage.share.get(precision, 0.0)
    if mine >= _LOW_SHARE:
        return ""
    others = sorted(coverage.share.items(), key=lambda item: -item[1])
    rest = ", ".join(
        f"{percent_text(part)} in {name}" for name, part in others if name != precision
    )
    return f"only {percent_text(mine)} of its work ({coverage.work}) is in {precision}, {rest}"


def _floor_warnings(
    artifact: Artifact, verdict: Verdict, order: Mapping[str, str]
) -> Iterator[str]:
    """Warn of limits that replace the noise floor, and name their outputs."""
    if artifact.limit_precision is not Precision.FP32:
        return
    factor = TOLERANCES[Precision.FP32].floor_factor or 0.0
    outputs = list(dict.fromkeys(one.output for one in verdict.outputs if one.is_floating))
    owners: dict[str, list[str]] = {}
    for name in outputs:
        within = verdict.tolerance.of(name)
        if within.floor_factor is None:
            owners.setdefault(_limits_in_order(within, order), []).append(name)
    for limits, names in owners.items():
        whose = "" if names == outputs else f"output {', '.join(map(repr, names))}: "
        yield (
            f"{whose}{limits} the noise floor, which may be stricter "
            f"(add floor-factor={factor:g} to keep it)"
        )


def _limits_in_order(within: Tolerance, order: Mapping[str, str]) -> str:
    """Return the limits that were requested or differ from the defaults, with a verb."""
    usual, mine = vars(TOLERANCES[Precision.FP32]), vars(within)
    given = [name for name in _LIMIT_OPTIONS if mine[name] != usual[name] or order.get(name)]
    limits = [f"{_LIMIT_OPTIONS[name]} {mine[name]:g}" for name in given or _LIMIT_OPTIONS]
    return f"{', '.join(limits)} {'replaces' if len(limits) == 1 else 'replace'}"


PIPELINE_HEAD = ("output", "feed", ">max abs", ">SQNR dB", ">allowed", ">other classes or numbers")


def pipeline_rows(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return how far the model is from the user's Python pipeline, a row for each output."""
    drifts = () if manifest.pipeline is None else manifest.pipeline.drifts
    return [
        (
            one.output,
            one.feed,
            figure_text(one.max_abs) if one.max_abs else "equal",
            NO_VALUE if one.is_whole else figure_text(one.sqnr, ".1f"),
            figure_text(one.allowed, ".1f"),
            f"{one.differing} of {one.compared}" if one.compared else NO_VALUE,
        )
        for one in drifts
    ]


def pipeline_text(manifest: Manifest) -> str:
    """Return one sentence on the user's Python pipeline; empty if there was none."""
    found = manifest.pipeline
    if found is None:
        return ""
    parts = []
    for one in found.drifts:
        level = "" if one.is_whole else ratio(one.sqnr) if one.max_abs else "equal"
        what = "" if one.is_whole else "best classes "
        other = f"{one.differing} of {one.compared} {what}differ" if one.compared else ""
        parts.append(f"{one.output} {', '.join(filter(None, (level, other)))}")
    return (
        f"the model agrees with {found.function} on {count_text(found.feeds, 'feed')}: "
        f"{'; '.join(parts)}"
    )
