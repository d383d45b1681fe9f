"""HTML sections on verdicts: the summary, the matrix of artifacts and feeds, the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.manifest import Manifest
from ..core.records import size_text
from ..core.verdict import OutputVerdict, Tolerance, Verdict
from .markup import Markup, card_table, code_tag, details_tag, join, scroll_box, table_tag, tag
from .result_rows import (
    WORST_FIRST,
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
from .summary import SUMMARY_HEAD, deployment_answer, summary_lines
from .text_format import (
    count_text,
    decibel_text,
    digest_text,
    figure_text,
    one_line,
    percent_text,
    ratio,
    seconds_text,
)
from .token_rows import TOKEN_HEAD, describe_text, token_cells, token_figures, token_lines

SIGNS = {
    Outcome.PASSED: "✓",
    Outcome.REJECTED: "✕",
    Outcome.FAILED: "!",
    Outcome.PENDING: "…",
    Outcome.SKIPPED: "–",  # noqa: RUF001 - a dash as a sign
}
_MARGIN_STEPS = (3.0, 10.0, 20.0)  # dB at which the colour changes


def pill(outcome: Outcome, text: str = "") -> Markup:
    """Return the outcome as a coloured sign and word."""
    sign = tag("b", SIGNS[outcome], aria_hidden="true")
    return tag("span", sign, " ", text or str(outcome), class_=f"pill {outcome}")


def verdict_banner(rows: tuple[ResultRow, ...], manifest: Manifest) -> Markup:
    """Return the answer whether to deploy, and the counts of the run."""
    state = overall_outcome(rows)
    found = count_outcomes(rows)
    room = [row.verdict.headroom for row in rows if row.verdict and row.outcome is Outcome.PASSED]
    least = min((value for value in room if value is not None), default=None)
    numbers = [(str(found[one]), str(one), str(one)) for one in WORST_FIRST if found[one]]
    numbers += [(decibel_text(least), "smallest margin", "neutral")] if least is not None else []
    numbers += [(str(len(feed_names(manifest))), "feeds", "neutral")]
    return make_banner(state, pill(state), deployment_answer(rows, manifest), numbers)


def make_banner(
    state: Outcome, sign: Markup, answer: str, numbers: Sequence[tuple[str, str, str]]
) -> Markup:
    """Return an answer above tiles; a number has its value, label and kind."""
    tiles = [
        tag("div", tag("b", value), tag("span", label), class_=f"tile {kind}")
        for value, label, kind in numbers
    ]
    line = tag("p", sign, " ", answer, class_="answer")
    return tag("div", line, tag("div", tiles, class_="tiles"), class_=f"banner {state}")


def summary_section(rows: Sequence[ResultRow], manifest: Manifest) -> Markup:
    """Return the table of artifacts, the worst first, with links to their reasons."""
    lines = [
        *domain_lines(manifest.artifacts, manifest.signature),
        *sensitivity_lines(row.verdict for row in rows),
        *token_lines(row.verdict for row in rows),
    ]
    below = [tag("p", line, class_="quiet") for line in lines]
    cells = (
        (tag("a", one.name, href=f"#row-{one.place}"), pill(one.outcome), *one.cells)
        for one in summary_lines(rows)
    )
    drawn = card_table("Artifacts and their verdicts", *SUMMARY_HEAD, rows=cells)
    return join([drawn, *below])


def matrix_section(rows: Sequence[ResultRow], manifest: Manifest) -> Markup:
    """Return the table of artifacts by feeds; each cell shows its margin as colour and text."""
    feeds = feed_names(manifest)
    kinds = {feed.name: feed for feed in manifest.feeds.drawn}
    head = [tag("th", name, scope="col", class_="stay") for name in ("artifact",)]
    head += [tag("th", "verdict", scope="col")]
    for name in feeds:
        kind = kinds[name].kind if name in kinds else None
        head.append(tag("th", tag("span", name), scope="col", title=kind, class_="feed"))
    body = [_matrix_row(row, feeds, index) for index, row in enumerate(rows)]
    name = "Margin of each artifact on each feed, in dB"
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
    title = one_line(f"{case.feed}: {case.reason or case.outcome}")
    return tag("td", text, class_=f"cell {kind}", title=title)


def _margin_shade(case: FeedCase) -> tuple[str, str]:
    """Return the CSS class and the text of one cell."""
    sign, margin = SIGNS[case.outcome], case.headroom
    if case.outcome is not Outcome.PASSED:
        beyond = case.outcome is Outcome.REJECTED and margin is not None and margin < 0
        return str(case.outcome), f"{sign} {decibel_text(margin) if beyond else case.outcome}"
    if case.loose:
        return "form", f"{sign} form"
    if margin is None:
        return "room3", f"{sign} {'exact' if case.exact else 'passed'}"
    return f"room{sum(margin >= step for step in _MARGIN_STEPS)}", decibel_text(margin)


def _matrix_legend() -> Markup:
    parts = [
        ("rejected", "✕ beyond a limit"),
        ("room0", f"under {_MARGIN_STEPS[0]:.0f} dB of margin"),
        ("room1", f"{_MARGIN_STEPS[0]:.0f} to {_MARGIN_STEPS[1]:.0f}"),
        ("room2", f"{_MARGIN_STEPS[1]:.0f} to {_MARGIN_STEPS[2]:.0f}"),
        ("room3", f"{_MARGIN_STEPS[2]:.0f} and more, or exact"),
        ("form", "only shape, dtype and NaN/Inf"),
        ("skipped", "eager rejects the feed"),
    ]
    swatches = [tag("span", tag("i", class_=kind), text) for kind, text in parts]
    return tag("div", swatches, class_="legend")


def reasons_section(rows: Sequence[ResultRow]) -> Markup:
    """Return a card per row, the worst first: its reasons and measurements."""
    ranked = sorted(enumerate(rows), key=lambda one: WORST_FIRST.index(one[1].outcome))
    return tag("div", [_reason_card(row, index) for index, row in ranked])


def _reason_card(row: ResultRow, index: int) -> Markup:
    head = tag("h3", tag("span", row.name, class_="name"), " ", pill(row.outcome))
    reasons = () if row.verdict is None else tuple(one.text for one in row.verdict.reasons)
    parts = reasons or ((row.reason,) if row.reason else ())
    body = [tag("p", part, class_=f"reason {row.outcome}") for part in parts]
    if row.pending is not None:
        body += [tag("p", warning, class_="note") for warning in row.pending.warnings]
    body += [tag("p", _card_facts(row), class_="quiet")] if row.artifact else []
    body += [tag("p", note, class_="note") for note in row.notes]
    if row.cases:
        summary = f"Measures on {count_text(len(row.cases), 'feed')}"
        body.append(details_tag(summary, _measure_table(row)))
    if row.verdict is not None and row.verdict.tokens is not None:
        tokens, title = row.verdict.tokens, f"Tokens of {row.name}"
        facts = tag("p", "; ".join((describe_text(tokens), *token_figures(tokens))), class_="quiet")
        table = table_tag(title, *TOKEN_HEAD, rows=token_cells(tokens))
        body.append(details_tag("Tokens", [facts, table]))
    if row.verdict is not None and row.verdict.channels:
        body.append(details_tag("Worst channels", _channel_table(row.verdict)))
    return tag("article", head, body, class_="card", id=f"row-{index}")


def _card_facts(row: ResultRow) -> str:
    artifact, verdict = row.artifact, row.verdict
    if artifact is None:
        return ""
    parts = [f"{artifact.target} {artifact.precision}", size_text(artifact.size)]
    parts += [f"method {artifact.capture}"] if artifact.capture else []
    parts += [f"built in {seconds_text(artifact.seconds)}"]
    if verdict is not None:
        parts.append(f"judged on {verdict.device} in {seconds_text(verdict.seconds)}")
        parts.append(f"within {_limits_text(verdict.tolerance)}")
    if artifact.files:
        parts.append(f"{artifact.files[0].name} sha256 {digest_text(artifact.digest)}")
    return " · ".join(parts)


def _limits_text(tolerance: Tolerance) -> str:
    """Format the limits, and name the outputs that have their own."""
    table = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, {tolerance.min_sqnr:g} dB"
    parts = [
        table
        if tolerance.floor_factor is None
        else f"{tolerance.floor_factor:g} times eager's own error ({table} without float64)"
    ]
    named = {
        "cosine {:g}": tolerance.min_cosine, "agreement {:g}": tolerance.min_agreement,
        "KL {:g} nats": tolerance.max_kl, "perplexity {:+.3g}%": tolerance.max_ppl_increase,
    }  # fmt: skip
    parts += [
        form.format(100 * value if "%" in form else value)
        for form, value in named.items()
        if value is not None
    ]
    if tolerance.by_output:
        parts.append(f"other limits for {', '.join(tolerance.by_output)}")
    return ", ".join(parts)


def _measure_table(row: ResultRow) -> Markup:
    """Return a row per output and feed."""
    rows = [line for case in row.cases for line in _measure_cells(case)]
    return table_tag(f"Measures of {row.name}", "feed", "output", "verdict", *_MEASURES, rows=rows)


def _share_text(value: float | None) -> str:
    return "" if value is None else percent_text(value, 2)


# Each text is empty if the value was not measured.
_MEASURES: dict[str, Callable[[OutputVerdict], str]] = {
    ">margin": lambda o: decibel_text(o.headroom),
    ">x noise floor": lambda o: _times_text(o.times_floor),
    ">SQNR": lambda o: "exact" if o.exact else ratio(o.sqnr),
    ">max abs": lambda o: figure_text(o.max_abs),
    ">relative L2": lambda o: figure_text(o.relative_l2),
    ">cosine": lambda o: figure_text(o.cosine, ".7f"),
    ">same top-1": lambda o: _share_text(o.top1_agreement),
    ">same top-5": lambda o: _share_text(o.top5_agreement),
    ">rows": lambda o: str(o.rows) if o.top1_agreement is not None else "",
    "shape": lambda o: "x".join(map(str, o.shape)),
    "dtype": lambda o: o.dtype,
}


def _times_text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} x"


def _measure_cells(case: FeedCase) -> list[tuple[str, ...]]:
    if not case.outputs:
        text = f"{SIGNS[case.outcome]} {case.reason}"
        return [(code_tag(case.feed), "", text, *("",) * len(_MEASURES))]
    return [
        (
            code_tag(case.feed),
            code_tag(one.output),
            _judgement_text(one),
            *(text(one) for text in _MEASURES.values()),
        )
        for one in case.outputs
    ]


def _judgement_text(output: OutputVerdict) -> str:
    if not output.passed:
        return f"{SIGNS[Outcome.REJECTED]} {output.reason}"
    if output.loose:
        return f"{SIGNS[Outcome.PASSED]} form only{f', {output.reason}' if output.reason else ''}"
    excuse = excuse_text(output)
    return f"{SIGNS[Outcome.PASSED]} passed{f': {excuse}' if excuse else ''}"


def _channel_table(verdict: Verdict) -> Markup:
    """Return the worst channel per output and axis over all judged feeds."""
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
    head = ("output", ">axis", ">worst channel", ">SQNR", ">x noise floor", ">max abs",
            ">roundoff", ">other wrong channels")  # fmt: skip
    return table_tag(f"Worst channels of {verdict.artifact}", *head, rows=cells)
