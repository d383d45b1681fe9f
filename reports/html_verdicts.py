"""The page's first part: what was proven, the matrix of artifacts and feeds, and why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.manifest import Manifest
from ..core.verdict import OutputVerdict, Tolerance, Verdict
from .markup import Markup, code, details, join, scrolling, stacked_table, table, tag
from .rows import (
    Case,
    Outcome,
    Row,
    counts,
    domain_lines,
    excuse_text,
    feeds_of,
    overall,
    sensitivity_lines,
)
from .summary import HEAD, WORST_FIRST, answer, summary_lines
from .words import (
    counted,
    decibels,
    figure,
    one_line,
    percent,
    ratio,
    seconds_text,
    short,
    size_text,
)

SIGNS = {
    Outcome.PASSED: "✓",
    Outcome.FAILED: "✕",
    Outcome.ERROR: "!",
    Outcome.PENDING: "…",
    Outcome.SKIPPED: "–",  # noqa: RUF001 - a dash as a sign
}
WORDS = {
    Outcome.PASSED: "proven",
    Outcome.FAILED: "refused",
    Outcome.ERROR: "not judged",
    Outcome.PENDING: "pending",
    Outcome.SKIPPED: "skipped",
}
_STEPS = (3.0, 10.0, 20.0)  # dB of headroom at which the colour changes


def pill(outcome: Outcome, text: str = "") -> Markup:
    """The outcome as a sign and a word, coloured."""
    sign = tag("b", SIGNS[outcome], aria_hidden="true")
    return tag("span", sign, " ", text or WORDS[outcome], class_=f"pill {outcome}")


def banner(rows: tuple[Row, ...], manifest: Manifest) -> Markup:
    """Whether it may be deployed, in words; then the state of the whole run in numbers."""
    state = overall(rows)
    found = counts(rows)
    room = [row.verdict.headroom for row in rows if row.verdict and row.outcome is Outcome.PASSED]
    least = min((value for value in room if value is not None), default=None)
    numbers = [(str(found[one]), WORDS[one], str(one)) for one in WORST_FIRST if found[one]]
    numbers += [(decibels(least), "least headroom", "neutral")] if least is not None else []
    numbers += [(str(len(feeds_of(manifest))), "feeds", "neutral")]
    tiles = [
        tag("div", tag("b", value), tag("span", label), class_=f"tile {kind}")
        for value, label, kind in numbers
    ]
    verdict = tag("p", pill(state), " ", answer(rows, manifest), class_="telling")
    tiled = tag("div", tiles, class_="tiles")
    return tag("div", verdict, tiled, class_=f"banner {state}")


def summary(rows: Sequence[Row], manifest: Manifest) -> Markup:
    """An artifact a row, what did not pass first; each leads to where it is explained."""
    lines = [
        *domain_lines(manifest.artifacts, manifest.signature),
        *sensitivity_lines(row.verdict for row in rows),
    ]
    below = [tag("p", line, class_="quiet") for line in lines]
    cells = (
        (tag("a", one.name, href=f"#row-{one.place}"), pill(one.outcome), *one.cells)
        for one in summary_lines(rows)
    )
    drawn = stacked_table("Artifacts, and whether they may be deployed", *HEAD, rows=cells)
    return join([drawn, *below])


def matrix(rows: Sequence[Row], manifest: Manifest) -> Markup:
    """Artifacts by feeds, each cell with its headroom as colour and as text."""
    feeds = feeds_of(manifest)
    kinds = {feed.name: feed for feed in manifest.feeds.drawn}
    head = [tag("th", name, scope="col", class_="stay") for name in ("artifact",)]
    head += [tag("th", "verdict", scope="col")]
    for name in feeds:
        kind = kinds[name].kind if name in kinds else None
        head.append(tag("th", tag("span", name), scope="col", title=kind, class_="feed"))
    body = [_line(row, feeds, index) for index, row in enumerate(rows)]
    name = "Headroom of each artifact on each feed, in dB"
    caption = tag("caption", name, class_="aloud")
    drawn = tag(
        "table", caption, tag("thead", tag("tr", head)), tag("tbody", body), class_="matrix"
    )
    return tag("div", scrolling(name, drawn), _legend())


def _line(row: Row, feeds: Sequence[str], index: int) -> Markup:
    by_feed = {case.feed: case for case in row.cases}
    name = tag("a", row.name, href=f"#row-{index}")
    cells = [_cell(by_feed.get(feed)) for feed in feeds]
    return tag(
        "tr", tag("th", name, scope="row", class_="stay"), tag("td", pill(row.outcome)), cells
    )


def _cell(case: Case | None) -> Markup:
    if case is None:
        return tag("td", class_="cell none")
    kind, text = _shade(case)
    title = one_line(f"{case.feed}: {case.reason or WORDS[case.outcome]}")
    return tag("td", text, class_=f"cell {kind}", title=title)


def _shade(case: Case) -> tuple[str, str]:
    """The colour's class and the text of one cell."""
    sign = SIGNS[case.outcome]
    if case.outcome is Outcome.FAILED:
        room = case.headroom
        return (
            "failed",
            f"{sign} {decibels(room)}" if room is not None and room < 0 else f"{sign} fail",
        )
    if case.outcome is not Outcome.PASSED:
        return str(
            case.outcome
        ), f"{sign} {'error' if case.outcome is Outcome.ERROR else 'skipped'}"
    if case.loose:
        return "form", f"{sign} form"
    if case.headroom is None:
        return "room3", f"{sign} exact" if case.exact else f"{sign} pass"
    return f"room{sum(case.headroom >= step for step in _STEPS)}", decibels(case.headroom)


def _legend() -> Markup:
    parts = [
        ("failed", "✕ beyond a limit"),
        ("room0", f"under {_STEPS[0]:.0f} dB of headroom"),
        ("room1", f"{_STEPS[0]:.0f} to {_STEPS[1]:.0f}"),
        ("room2", f"{_STEPS[1]:.0f} to {_STEPS[2]:.0f}"),
        ("room3", f"{_STEPS[2]:.0f} and more, or exact"),
        ("form", "form alone was judged"),
        ("skipped", "eager rejects the feed"),
    ]
    swatches = [tag("span", tag("i", class_=kind), text) for kind, text in parts]
    return tag("div", swatches, class_="legend")


def reasons(rows: Sequence[Row]) -> Markup:
    """Why each row ended as it did, the worst first, with what was measured."""
    ranked = sorted(enumerate(rows), key=lambda one: WORST_FIRST.index(one[1].outcome))
    return tag("div", [_card(row, index) for index, row in ranked])


def _card(row: Row, index: int) -> Markup:
    head = tag("h3", tag("span", row.name, class_="name"), " ", pill(row.outcome))
    reasons = () if row.verdict is None else tuple(one.text for one in row.verdict.reasons)
    parts = reasons or ((row.reason,) if row.reason else ())
    told = [tag("p", part, class_=f"reason {row.outcome}") for part in parts]
    if row.pending is not None:
        told += [tag("p", warning, class_="note") for warning in row.pending.warnings]
    told += [tag("p", _facts(row), class_="quiet")] if row.artifact else []
    told += [tag("p", note, class_="note") for note in row.notes]
    if row.cases:
        summary = f"Measures on {counted(len(row.cases), 'feed')}"
        told.append(details(summary, _measures(row)))
    if row.verdict is not None and row.verdict.channels:
        told.append(details("Worst channels", _channels(row.verdict)))
    return tag("article", head, told, class_="card", id=f"row-{index}")


def _facts(row: Row) -> str:
    artifact, verdict = row.artifact, row.verdict
    if artifact is None:
        return ""
    parts = [f"{artifact.target} {artifact.precision}", size_text(artifact.size)]
    parts += [f"captured by {artifact.capture}"] if artifact.capture else []
    parts += [f"made in {seconds_text(artifact.seconds)}"]
    if verdict is not None:
        parts.append(f"judged on {verdict.device} in {seconds_text(verdict.seconds)}")
        parts.append(f"within {_limits(verdict.tolerance)}")
    if artifact.files:
        parts.append(f"{artifact.files[0].name} sha256 {short(artifact.digest)}")
    return " · ".join(parts)


def _limits(tolerance: Tolerance) -> str:
    """What was asked of every output; what is asked of some beside it."""
    table = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, {tolerance.min_sqnr:g} dB"
    said = [
        table
        if tolerance.floor_factor is None
        else f"{tolerance.floor_factor:g} times eager's own error ({table} without float64)"
    ]
    named = {"cosine": tolerance.min_cosine, "agreement": tolerance.min_agreement}
    said += [f"{name} {value:g}" for name, value in named.items() if value is not None]
    if tolerance.by_output:
        said.append(f"other limits for {', '.join(tolerance.by_output)}")
    return ", ".join(said)  # fmt: skip


def _measures(row: Row) -> Markup:
    """A row for each output on each feed; columns that nothing was measured for are left out."""
    cases = row.cases
    outputs = [output for case in cases for output in case.outputs]
    columns = [one for one in _COLUMNS if one.always or any(map(one.text, outputs))]
    rows = [line for case in cases for line in _measured(case, columns)]
    head = ("feed", "output", "verdict", *(one.title for one in columns))
    return table(f"Measures of {row.name}", *head, rows=rows)


@dataclass(frozen=True)
class _Column:
    """One measure of an output; empty text where it was not measured."""

    title: str
    text: Callable[[OutputVerdict], str]
    always: bool = False


def _share(value: float | None) -> str:
    return "" if value is None else percent(value, 2)


_COLUMNS = (
    _Column(">headroom", lambda o: decibels(o.headroom), always=True),
    _Column(">of eager's own error", lambda o: _times(o.times_floor)),
    _Column(">SQNR", lambda o: "exact" if o.exact else ratio(o.sqnr), always=True),
    _Column(">max abs", lambda o: figure(o.max_abs), always=True),
    _Column(">relative L2", lambda o: figure(o.relative_l2), always=True),
    _Column(">cosine", lambda o: figure(o.cosine, ".7f"), always=True),
    _Column(">same top-1", lambda o: _share(o.top1_agreement)),
    _Column(">same top-5", lambda o: _share(o.top5_agreement)),
    _Column(">rows", lambda o: str(o.rows) if o.top1_agreement is not None else ""),
    _Column("shape", lambda o: "x".join(map(str, o.shape)), always=True),
    _Column("dtype", lambda o: o.dtype, always=True),
)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} x"


def _measured(case: Case, columns: Sequence[_Column]) -> list[tuple[str, ...]]:
    if not case.outputs:
        told = f"{SIGNS[case.outcome]} {case.reason}"
        return [(code(case.feed), "", told, *("",) * len(columns))]
    return [
        (code(case.feed), code(one.output), _judged(one), *(column.text(one) for column in columns))
        for one in case.outputs
    ]


def _judged(output: OutputVerdict) -> str:
    if not output.passed:
        return f"{SIGNS[Outcome.FAILED]} {output.reason}"
    if output.loose:
        return f"{SIGNS[Outcome.PASSED]} form alone{f', {output.reason}' if output.reason else ''}"
    excuse = excuse_text(output)
    return f"{SIGNS[Outcome.PASSED]} pass{f': {excuse}' if excuse else ''}"


def _channels(verdict: Verdict) -> Markup:
    """The worst channel of each axis of each output, over all feeds that count."""
    cells = (
        (
            code(one.output),
            str(one.axis),
            str(one.channel),
            ratio(one.sqnr),
            _times(one.times_floor),
            figure(one.max_abs),
            figure(one.allowed),
            str(one.more),
        )
        for one in verdict.channels
    )
    head = ("output", ">axis", ">worst channel", ">SQNR", ">of eager's own error", ">max abs",
            ">roundoff", ">more that are wrong")  # fmt: skip
    return table(f"Worst channels of {verdict.artifact}", *head, rows=cells)
