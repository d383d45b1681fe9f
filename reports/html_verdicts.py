"""The page's first part: what was proven, the matrix of artifacts and feeds, and why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.manifest import Manifest
from ..core.verdict import OutputVerdict, Tolerance, Verdict
from .markup import Markup, card_table, code_tag, details_tag, join, scroll_box, table_tag, tag
from .result_rows import (
    FeedCase,
    Outcome,
    ResultRow,
    count_outcomes,
    domain_lines,
    excuse_text,
    feed_names,
    overall_outcome,
    sensitivity_lines,
)
from .summary import SUMMARY_HEAD, WORST_FIRST, deployment_answer, summary_lines
from .text_format import (
    count_text,
    decibel_text,
    digest_text,
    figure_text,
    one_line,
    percent_text,
    ratio,
    seconds_text,
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
_MARGIN_STEPS = (3.0, 10.0, 20.0)  # dB of headroom at which the colour changes


def pill(outcome: Outcome, text: str = "") -> Markup:
    """The outcome as a sign and a word, coloured."""
    sign = tag("b", SIGNS[outcome], aria_hidden="true")
    return tag("span", sign, " ", text or WORDS[outcome], class_=f"pill {outcome}")


def verdict_banner(rows: tuple[ResultRow, ...], manifest: Manifest) -> Markup:
    """Whether it may be deployed, in words; then the state of the whole run in numbers."""
    state = overall_outcome(rows)
    found = count_outcomes(rows)
    room = [row.verdict.headroom for row in rows if row.verdict and row.outcome is Outcome.PASSED]
    least = min((value for value in room if value is not None), default=None)
    numbers = [(str(found[one]), WORDS[one], str(one)) for one in WORST_FIRST if found[one]]
    numbers += [(decibel_text(least), "least headroom", "neutral")] if least is not None else []
    numbers += [(str(len(feed_names(manifest))), "feeds", "neutral")]
    tiles = [
        tag("div", tag("b", value), tag("span", label), class_=f"tile {kind}")
        for value, label, kind in numbers
    ]
    verdict = tag("p", pill(state), " ", deployment_answer(rows, manifest), class_="telling")
    tiled = tag("div", tiles, class_="tiles")
    return tag("div", verdict, tiled, class_=f"banner {state}")


def summary_section(rows: Sequence[ResultRow], manifest: Manifest) -> Markup:
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
    drawn = card_table("Artifacts, and whether they may be deployed", *SUMMARY_HEAD, rows=cells)
    return join([drawn, *below])


def matrix_section(rows: Sequence[ResultRow], manifest: Manifest) -> Markup:
    """Artifacts by feeds, each cell with its headroom as colour and as text."""
    feeds = feed_names(manifest)
    kinds = {feed.name: feed for feed in manifest.feeds.drawn}
    head = [tag("th", name, scope="col", class_="stay") for name in ("artifact",)]
    head += [tag("th", "verdict", scope="col")]
    for name in feeds:
        kind = kinds[name].kind if name in kinds else None
        head.append(tag("th", tag("span", name), scope="col", title=kind, class_="feed"))
    body = [_matrix_row(row, feeds, index) for index, row in enumerate(rows)]
    name = "Headroom of each artifact on each feed, in dB"
    caption = tag("caption", name, class_="aloud")
    drawn = tag(
        "table", caption, tag("thead", tag("tr", head)), tag("tbody", body), class_="matrix"
    )
    return tag("div", scroll_box(name, drawn), _matrix_legend())


def _matrix_row(row: ResultRow, feeds: Sequence[str], index: int) -> Markup:
    by_feed = {case.feed: case for case in row.cases}
    name = tag("a", row.name, href=f"#row-{index}")
    cells = [_matrix_cell(by_feed.get(feed)) for feed in feeds]
    return tag(
        "tr", tag("th", name, scope="row", class_="stay"), tag("td", pill(row.outcome)), cells
    )


def _matrix_cell(case: FeedCase | None) -> Markup:
    if case is None:
        return tag("td", class_="cell none")
    kind, text = _margin_shade(case)
    title = one_line(f"{case.feed}: {case.reason or WORDS[case.outcome]}")
    return tag("td", text, class_=f"cell {kind}", title=title)


def _margin_shade(case: FeedCase) -> tuple[str, str]:
    """The colour's class and the text of one cell."""
    sign = SIGNS[case.outcome]
    if case.outcome is Outcome.FAILED:
        room = case.headroom
        return (
            "failed",
            f"{sign} {decibel_text(room)}" if room is not None and room < 0 else f"{sign} fail",
        )
    if case.outcome is not Outcome.PASSED:
        return str(
            case.outcome
        ), f"{sign} {'error' if case.outcome is Outcome.ERROR else 'skipped'}"
    if case.loose:
        return "form", f"{sign} form"
    if case.headroom is None:
        return "room3", f"{sign} exact" if case.exact else f"{sign} pass"
    return f"room{sum(case.headroom >= step for step in _MARGIN_STEPS)}", decibel_text(
        case.headroom
    )


def _matrix_legend() -> Markup:
    parts = [
        ("failed", "✕ beyond a limit"),
        ("room0", f"under {_MARGIN_STEPS[0]:.0f} dB of headroom"),
        ("room1", f"{_MARGIN_STEPS[0]:.0f} to {_MARGIN_STEPS[1]:.0f}"),
        ("room2", f"{_MARGIN_STEPS[1]:.0f} to {_MARGIN_STEPS[2]:.0f}"),
        ("room3", f"{_MARGIN_STEPS[2]:.0f} and more, or exact"),
        ("form", "form alone was judged"),
        ("skipped", "eager rejects the feed"),
    ]
    swatches = [tag("span", tag("i", class_=kind), text) for kind, text in parts]
    return tag("div", swatches, class_="legend")


def reasons_section(rows: Sequence[ResultRow]) -> Markup:
    """Why each row ended as it did, the worst first, with what was measured."""
    ranked = sorted(enumerate(rows), key=lambda one: WORST_FIRST.index(one[1].outcome))
    return tag("div", [_reason_card(row, index) for index, row in ranked])


def _reason_card(row: ResultRow, index: int) -> Markup:
    head = tag("h3", tag("span", row.name, class_="name"), " ", pill(row.outcome))
    reasons = () if row.verdict is None else tuple(one.text for one in row.verdict.reasons)
    parts = reasons or ((row.reason,) if row.reason else ())
    told = [tag("p", part, class_=f"reason {row.outcome}") for part in parts]
    if row.pending is not None:
        told += [tag("p", warning, class_="note") for warning in row.pending.warnings]
    told += [tag("p", _card_facts(row), class_="quiet")] if row.artifact else []
    told += [tag("p", note, class_="note") for note in row.notes]
    if row.cases:
        summary = f"Measures on {count_text(len(row.cases), 'feed')}"
        told.append(details_tag(summary, _measure_table(row)))
    if row.verdict is not None and row.verdict.channels:
        told.append(details_tag("Worst channels", _channel_table(row.verdict)))
    return tag("article", head, told, class_="card", id=f"row-{index}")


def _card_facts(row: ResultRow) -> str:
    artifact, verdict = row.artifact, row.verdict
    if artifact is None:
        return ""
    parts = [f"{artifact.target} {artifact.precision}", size_text(artifact.size)]
    parts += [f"captured by {artifact.capture}"] if artifact.capture else []
    parts += [f"made in {seconds_text(artifact.seconds)}"]
    if verdict is not None:
        parts.append(f"judged on {verdict.device} in {seconds_text(verdict.seconds)}")
        parts.append(f"within {_limits_text(verdict.tolerance)}")
    if artifact.files:
        parts.append(f"{artifact.files[0].name} sha256 {digest_text(artifact.digest)}")
    return " · ".join(parts)


def _limits_text(tolerance: Tolerance) -> str:
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


def _measure_table(row: ResultRow) -> Markup:
    """A row for each output on each feed; columns that nothing was measured for are left out."""
    cases = row.cases
    outputs = [output for case in cases for output in case.outputs]
    columns = [one for one in _MEASURE_COLUMNS if one.always or any(map(one.text, outputs))]
    rows = [line for case in cases for line in _measure_cells(case, columns)]
    head = ("feed", "output", "verdict", *(one.title for one in columns))
    return table_tag(f"Measures of {row.name}", *head, rows=rows)


@dataclass(frozen=True)
class _MeasureColumn:
    """One measure of an output; empty text where it was not measured."""

    title: str
    text: Callable[[OutputVerdict], str]
    always: bool = False


def _share_text(value: float | None) -> str:
    return "" if value is None else percent_text(value, 2)


_MEASURE_COLUMNS = (
    _MeasureColumn(">headroom", lambda o: decibel_text(o.headroom), always=True),
    _MeasureColumn(">of eager's own error", lambda o: _times_text(o.times_floor)),
    _MeasureColumn(">SQNR", lambda o: "exact" if o.exact else ratio(o.sqnr), always=True),
    _MeasureColumn(">max abs", lambda o: figure_text(o.max_abs), always=True),
    _MeasureColumn(">relative L2", lambda o: figure_text(o.relative_l2), always=True),
    _MeasureColumn(">cosine", lambda o: figure_text(o.cosine, ".7f"), always=True),
    _MeasureColumn(">same top-1", lambda o: _share_text(o.top1_agreement)),
    _MeasureColumn(">same top-5", lambda o: _share_text(o.top5_agreement)),
    _MeasureColumn(">rows", lambda o: str(o.rows) if o.top1_agreement is not None else ""),
    _MeasureColumn("shape", lambda o: "x".join(map(str, o.shape)), always=True),
    _MeasureColumn("dtype", lambda o: o.dtype, always=True),
)


def _times_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} x"


def _measure_cells(case: FeedCase, columns: Sequence[_MeasureColumn]) -> list[tuple[str, ...]]:
    if not case.outputs:
        told = f"{SIGNS[case.outcome]} {case.reason}"
        return [(code_tag(case.feed), "", told, *("",) * len(columns))]
    return [
        (
            code_tag(case.feed),
            code_tag(one.output),
            _judgement_text(one),
            *(column.text(one) for column in columns),
        )
        for one in case.outputs
    ]


def _judgement_text(output: OutputVerdict) -> str:
    if not output.passed:
        return f"{SIGNS[Outcome.FAILED]} {output.reason}"
    if output.loose:
        return f"{SIGNS[Outcome.PASSED]} form alone{f', {output.reason}' if output.reason else ''}"
    excuse = excuse_text(output)
    return f"{SIGNS[Outcome.PASSED]} pass{f': {excuse}' if excuse else ''}"


def _channel_table(verdict: Verdict) -> Markup:
    """The worst channel of each axis of each output, over all feeds that count."""
    cells = (
        (
            code_tag(one.output),
            str(one.axis),
            str(one.channel),
            ratio(one.sqnr),
            _times_text(one.times_floor),
            figure_text(one.max_abs),
            figure_text(one.allowed),
            str(one.more),
        )
        for one in verdict.channels
    )
    head = ("output", ">axis", ">worst channel", ">SQNR", ">of eager's own error", ">max abs",
            ">roundoff", ">more that are wrong")  # fmt: skip
    return table_tag(f"Worst channels of {verdict.artifact}", *head, rows=cells)
