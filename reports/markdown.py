"""The Markdown report for a pull request, and helpers that escape and fit Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core.findings import Localisation
from ..core.manifest import Manifest
from .result_rows import (
    WORST_FIRST,
    Outcome,
    ReplayCommand,
    ResultRow,
    count_outcomes,
    domain_lines,
    make_rows,
    overall_outcome,
    sensitivity_lines,
)
from .summary import SUMMARY_HEAD, deployment_answer, pipeline_text, summary_lines
from .text_format import (
    NO_VALUE,
    count_text,
    digest_text,
    milliseconds_text,
    one_line,
    percent_text,
)
from .token_rows import TOKEN_HEAD, describe_text, token_cells, token_figures, token_lines

REPORT_MARK = "<!-- modelc report -->"
OUTCOME_MARKS = {
    Outcome.PASSED: "✅ passed",
    Outcome.REJECTED: "❌ **rejected**",
    Outcome.FAILED: "🛑 **failed**",
    Outcome.PENDING: "⏳ pending",
    Outcome.SKIPPED: "skipped",
}


def render_markdown(manifest: Manifest, commands: Sequence[ReplayCommand] = ()) -> str:
    """Render the manifest as Markdown of at most 60 kB; the last line names what was cut."""
    return fit_blocks(REPORT_MARK, _report_blocks(manifest, commands))


def _report_blocks(manifest: Manifest, commands: Sequence[ReplayCommand]) -> list[MarkdownBlock]:
    """Return the parts of the document, the most important first."""
    versions = [(code_span(name), code_span(text)) for name, text in manifest.environment.items()]
    command_lines = (
        f"- {as_prose(one.purpose)}: {code_span(one.text, limit=2000, cell=False)}"
        for one in commands
    )
    rows = sorted(make_rows(manifest), key=lambda row: WORST_FIRST.index(row.outcome))
    found = [
        MarkdownBlock("summary", [_summary_table(rows, manifest)]),
        MarkdownBlock("verdicts", _verdict_lines(rows)),
        MarkdownBlock("reasons", _reason_lines(rows)),
        MarkdownBlock("uncovered branches", _branch_lines(manifest)),
        MarkdownBlock(
            "first wrong layers", [_layer_line(one) for one in manifest.localisations if one.guilty]
        ),
        MarkdownBlock("notes", fold_lines("Notes", _note_lines(rows, manifest))),
        MarkdownBlock("accuracy", fold_lines("Accuracy on labelled data", _accuracy_table(rows))),
        MarkdownBlock(
            "precision", fold_lines("Compute dtypes and latency", _precision_table(rows))
        ),
        MarkdownBlock("tokens", fold_lines("Tokens", _token_tables(rows))),
        MarkdownBlock("feeds", fold_lines("Feeds", _feed_table(manifest))),
        MarkdownBlock("commands", fold_lines("Commands", command_lines)),
        MarkdownBlock(
            "environment", fold_lines("Environment", markdown_table(("what", "version"), versions))
        ),
    ]
    return [block for block in found if block.lines]


def _summary_table(rows: Sequence[ResultRow], manifest: Manifest) -> str:
    found = count_outcomes(tuple(rows))
    counts = ", ".join(f"{found[outcome]} {outcome}" for outcome in WORST_FIRST if found[outcome])
    checkpoint = code_span(manifest.checkpoint.title)
    lines = (
        *domain_lines(manifest.artifacts, manifest.signature),
        *sensitivity_lines(row.verdict for row in rows),
        *token_lines(row.verdict for row in rows),
    )
    domains = "".join(f"\n{as_prose(line)}\n" for line in lines)
    return (
        f"### modelc: {OUTCOME_MARKS[overall_outcome(tuple(rows))].replace('*', '')}\n\n"
        f"**{as_prose(deployment_answer(rows, manifest))}**\n\n"
        f"{counts or 'no artifacts'} · {checkpoint} `{digest_text(manifest.checkpoint.digest)}`"
        f" · modelc {as_prose(manifest.modelc)}\n{domains}"
    )


def _verdict_lines(rows: Sequence[ResultRow]) -> list[str]:
    cells = (
        (code_span(one.name), OUTCOME_MARKS[one.outcome], *map(as_prose, one.cells))
        for one in summary_lines(rows)
    )
    return markdown_table(SUMMARY_HEAD, cells)


def _reason_lines(rows: Iterable[ResultRow]) -> list[str]:
    found = [
        f"- {code_span(row.name)}: {as_prose(row.reason or 'no reason was recorded')}"
        for row in rows
        if row.outcome is not Outcome.PASSED
    ]
    return ["**Reasons**", "", *found, ""] if found else []


def _branch_lines(manifest: Manifest) -> list[str]:
    found = [
        f"- {code_span(one.label)}: {one.gap_text}{' (accepted)' if one.accepted else ''}"
        for one in manifest.branches
        if one.data and one.gap_text
    ]
    return ["**Branches that no feed covers**", "", *found, ""] if found else []


def _layer_line(one: Localisation) -> str:
    layer = next((layer for layer in one.layers if layer.module == one.guilty), None)
    place = f" at {code_span(f'{layer.file}:{layer.line}')}" if layer and layer.file else ""
    cause = f": {as_prose(one.cause)}" if one.cause else ""
    return (
        f"First wrong layer of {code_span(one.artifact)}: {code_span(one.guilty)}{place}{cause}\n"
    )


def _note_lines(rows: Iterable[ResultRow], manifest: Manifest) -> list[str]:
    own = [f"- {as_prose(note)}" for note in (*manifest.notes, pipeline_text(manifest)) if note]
    return own + [
        f"- {code_span(row.name)}: {as_prose(note)}" for row in rows for note in row.notes
    ]


def _accuracy_table(rows: Iterable[ResultRow]) -> list[str]:
    found = [(row.name, row.artifact.accuracy) for row in rows if row.artifact]
    cells = (
        (
            code_span(name),
            code_span(one.metric),
            f"{one.eager:.5g}",
            f"{one.artifact:.5g}",
            f"{one.drop:.3g} ({one.low:.3g} to {one.high:.3g})",
            str(one.samples),
            "passed" if one.passed else f"**rejected**: over {one.max_drop:g}",
        )
        for name, one in found
        if one is not None
    )
    return markdown_table(
        ("artifact", "metric", ">eager", ">artifact", ">drop", ">samples", "gate"), cells
    )


def _token_tables(rows: Iterable[ResultRow]) -> list[str]:
    lines = []
    for row in rows:
        found = None if row.verdict is None else row.verdict.tokens
        if found is not None:
            facts = as_prose("; ".join((describe_text(found), *token_figures(found))))
            cells = (tuple(map(as_prose, one)) for one in token_cells(found))
            lines += [f"{code_span(row.name)}: {facts}", "", *markdown_table(TOKEN_HEAD, cells)]
    return lines


def _precision_table(rows: Iterable[ResultRow]) -> list[str]:
    cells = []
    for row in rows:
        artifact = row.artifact
        if artifact is None or (artifact.coverage is None and artifact.latency is None):
            continue
        shares = artifact.coverage.share.items() if artifact.coverage else ()
        latency = artifact.latency
        cells.append(
            (
                code_span(row.name),
                ", ".join(f"{as_prose(dtype)} {percent_text(share, 0)}" for dtype, share in shares),
                milliseconds_text(latency.milliseconds) if latency else "",
                milliseconds_text(latency.parent) if latency else "",
            )
        )
    return markdown_table(("artifact", "compute dtype", ">latency", ">fp32 parent"), cells)


def _feed_table(manifest: Manifest) -> list[str]:
    cells = [
        (
            code_span(feed.name),
            as_prose(feed.kind),
            as_prose(", ".join(f"{name}={size}" for name, size in feed.sizes.items())),
            as_prose(f"skipped: {feed.skipped}" if feed.skipped else ""),
        )
        for feed in manifest.feeds.drawn
    ]
    return markdown_table(("feed", "kind", "sizes", ""), cells)


MARKDOWN_LIMIT = 60_000  # bytes; GitHub accepts comments of at most 65536 characters
_RESERVE = 1_000  # for the line that names what was cut
_BLOCK_SHARE = 0.6  # of the limit, at most, for one block
_SPECIAL_CHARACTERS = re.compile(r"([\\`*_{}\[\]<>|~$])")
_LINK_STARTS = re.compile(r"(@|#(?=\d)|://|www\.)")  # mentions, issue numbers, links
_BACKTICKS = re.compile("`+")


@dataclass(frozen=True)
class MarkdownBlock:
    """A part of the document, which may be cut at its end."""

    name: str
    lines: Sequence[str] = field(default_factory=list)


def as_prose(text: str, limit: int = 700) -> str:
    """Escape untrusted text: no markup, no mention, no link."""
    escaped = _SPECIAL_CHARACTERS.sub(r"\\\1", one_line(text, limit))
    return _LINK_STARTS.sub(lambda found: f"{found.group()}\u200b", escaped)


def code_span(text: str, limit: int = 160, *, cell: bool = True) -> str:
    """Format untrusted text as a code span; in a table cell, bars are escaped as well."""
    line = one_line(text, limit) or NO_VALUE
    line = line.replace("|", "\\|") if cell else line
    longest = max((len(run) for run in _BACKTICKS.findall(line)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{line}{space}{fence}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table, nothing without rows; columns called `>name` are right-aligned."""
    rows = list(rows)
    if not rows:
        return []
    rules = ["---:" if title.startswith(">") else "---" for title in head]
    titles = [title.removeprefix(">") for title in head]
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, rules, *rows)]
    return [*lines, ""]


def fold_lines(title: str, lines: Iterable[str]) -> list[str]:
    """Fold lines below a title; return nothing if there are none."""
    found = list(lines)
    if not found:
        return []
    return [
        f"<details><summary>{title}</summary>",
        "",
        *found,
        *([""] if found[-1] else []),
        "</details>",
        "",
    ]


def fit_blocks(
    first: str,
    blocks: Iterable[MarkdownBlock],
    limit: int = MARKDOWN_LIMIT,
    *,
    see: str = "report.html",
) -> str:
    """Join the blocks to at most `limit` bytes of UTF-8.

    The last line names what was cut, and `see`, the document that contains it.
    """
    parts, cut = [first, ""], []
    left = limit - _RESERVE - len(first)
    for block in blocks:
        lines, dropped = _cut_block(block, min(left, int(limit * _BLOCK_SHARE)))
        parts += lines
        left -= _count_bytes(lines)
        if dropped:
            cut.append(f"{block.name} ({count_text(dropped, 'line')})")
    if cut:
        parts += ["", f"*Cut to stay under {limit // 1000} kB: {', '.join(cut)}; see {see}.*"]
    return "\n".join(parts).rstrip() + "\n"


def _count_bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _cut_block(block: MarkdownBlock, room: int) -> tuple[list[str], int]:
    """Return as many lines as fit in `room` bytes, and how many did not."""
    lines = list(block.lines)
    if _count_bytes(lines) <= room:
        return lines, 0
    closing = ["", "</details>", ""] if lines[0].startswith("<details>") else [""]
    kept: list[str] = []
    room -= _count_bytes(closing)
    for line in lines:
        size = _count_bytes([line])
        if size > room:
            break
        kept.append(line)
        room -= size
    dropped = sum(1 for line in lines[len(kept) :] if line and line != "</details>")
    return [*kept, *closing] if kept else [], dropped
