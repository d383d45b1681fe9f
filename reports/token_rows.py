"""What reports and the terminal show of a decoder's tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.generation import TokenDifference, TokenReport, TokenWay, WayKind
from ..core.verdict import Verdict
from .text_format import NO_VALUE, count_text, figure_text, one_line, percent_text

TOKEN_HEAD = ("way", ">tokens", ">agreement", ">near", ">KL", ">largest KL", ">KL from one pass",
        "first other token")  # fmt: skip
_WORSE = 2.0  # times the KL divergence of the text: a way beyond it is shown
_TINY = 1e-12  # nats: below, a figure of KL is rounding of its own


def token_lines(verdicts: Iterable[Verdict | None]) -> list[str]:
    """Return a line on the tokens that decoders were judged on, and one for each artifact."""
    known = {
        one.artifact: one.tokens for one in verdicts if one is not None and one.tokens is not None
    }
    if not known:
        return []
    first = next(iter(known.values()))
    width = max(map(len, known))
    return [
        f"tokens: {describe_text(first)}",
        *(f"  {name:{width}}  {'; '.join(token_figures(one))}" for name, one in known.items()),
    ]


def describe_text(report: TokenReport) -> str:
    """Describe what a decoder was judged on."""
    text = report.text
    origin = (
        f"of {one_line(report.source, 60)}"
        if report.source
        else "sampled from eager (--text gives others)"
    )
    counted = f"{text.tokens:,} {origin}"
    if len(report.ways) == 1:
        return f"{counted}, in one pass (the model has no cache)"
    ways = count_text(len(report.ways) - 1, "way")
    return f"{counted}, {ways} through the loop, up to {report.longest} in a row"


def token_figures(report: TokenReport) -> Iterator[str]:
    """Yield the figures of an artifact as text."""
    text = report.text
    near = f" ({percent_text(text.near)} near)" if text.near > text.agreement else ""
    yield f"agreement {percent_text(text.agreement)}{near}, KL {_nats_text(text.kl)}"
    increase = round(report.increase, 3) + 0.0  # no -0.0%
    yield f"perplexity {report.perplexity:.4g} ({increase:+.1%})"
    yield from map(greedy_text, (way for way in report.ways if way.kind is WayKind.STEPS))
    worst = max(report.ways, key=lambda way: way.kl)
    if worst.kl > max(_WORSE * text.kl, _TINY):
        yield f"KL {_nats_text(worst.kl)} on {worst.kind}"


def greedy_text(way: TokenWay) -> str:
    """Describe the greedy tokens: how many are eager's, or the first that is not."""
    if way.difference is None:
        return f"greedy {way.tokens} of {way.tokens}"
    return f"greedy {way.difference.token} of {way.tokens}, then {difference_text(way.difference)}"


def difference_text(one: TokenDifference) -> str:
    """Describe a token that is not eager's choice."""
    margin = f"{one.artifact} for {one.eager}, by {one.margin:.2g}"
    return f"a tie ({margin})" if one.tie else margin


def _nats_text(value: float | None) -> str:
    return figure_text(value if value is None or value > _TINY else 0.0, ".2g")


def token_cells(report: TokenReport) -> list[tuple[str, ...]]:
    """Return the cells below `TOKEN_HEAD`, one row for each way."""
    return [
        (
            str(way.kind),
            f"{way.tokens:,}",
            percent_text(way.agreement, 2),
            percent_text(way.near, 2),
            _nats_text(way.kl),
            _nats_text(way.kl_max),
            NO_VALUE if way.own_kl is None else _nats_text(way.own_kl),
            NO_VALUE
            if way.difference is None
            else f"token {way.difference.token} of row {way.difference.row}: "
            f"{difference_text(way.difference)}",
        )
        for way in report.ways
    ]
