"""Markdown for a pull request: verdicts and reasons first, the rest folded, always under 60 kB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..core.findings import Localisation
from ..core.manifest import Manifest
from .commands import commands_of
from .markdown_text import Block, code, fitted, folded, prose, table
from .rows import (
    Outcome,
    Row,
    counts,
    domain_lines,
    overall,
    rows_of,
    sensitivity_lines,
)
from .summary import HEAD, WORST_FIRST, answer, summary_lines
from .words import milliseconds, percent, short

MARK = "<!-- modelc report -->"
_MARKS = {
    Outcome.PASSED: "✅ pass",
    Outcome.FAILED: "❌ **FAIL**",
    Outcome.ERROR: "🛑 **error**",
    Outcome.PENDING: "⏳ pending",
    Outcome.SKIPPED: "skipped",
}
_TITLES = {
    Outcome.PASSED: "✅ proven",
    Outcome.FAILED: "❌ refused",
    Outcome.ERROR: "🛑 could not be judged",
    Outcome.PENDING: "⏳ not finished",
    Outcome.SKIPPED: "skipped",
}


def render(manifest: Manifest) -> str:
    """The manifest as Markdown of at most 60 kB; what was cut is named at its end."""
    return fitted(MARK, blocks(manifest))


def blocks(manifest: Manifest) -> list[Block]:
    """The parts of the document, the most important first."""
    rows = sorted(rows_of(manifest), key=lambda row: WORST_FIRST.index(row.outcome))
    found = [
        Block("summary", [_summary(rows, manifest)]),
        Block("verdicts", _verdicts(rows)),
        Block("reasons", _reasons(rows)),
        Block("untaken branches", _branches(manifest)),
        Block("first wrong layers", [_layer(one) for one in manifest.localisations if one.guilty]),
        Block("notes", folded("Notes", _notes(rows, manifest))),
        Block("accuracy", folded("Accuracy on labelled data", _accuracy(rows))),
        Block("precision", folded("What it computes in, and how fast", _precision(rows))),
        Block("feeds", folded("Feeds", _feeds(manifest))),
        Block("commands", folded("Commands", _commands(manifest))),
        Block("environment", folded("Environment", _environment(manifest))),
    ]
    return [block for block in found if block.lines]


def _summary(rows: Sequence[Row], manifest: Manifest) -> str:
    names = ((outcome, _TITLES[outcome].split(" ", 1)[1]) for outcome in WORST_FIRST)
    found = counts(tuple(rows))
    told = ", ".join(f"{found[outcome]} {name}" for outcome, name in names if found[outcome])
    checkpoint = code(manifest.checkpoint.path.replace("\\", "/").rpartition("/")[2])
    lines = (
        *domain_lines(manifest.artifacts, manifest.signature),
        *sensitivity_lines(row.verdict for row in rows),
    )
    domains = "".join(f"\n{prose(line)}\n" for line in lines)
    return (
        f"### modelc: {_TITLES[overall(tuple(rows))]}\n\n"
        f"**{prose(answer(rows, manifest))}**\n\n"
        f"{told or 'nothing was judged'} · {checkpoint} `{short(manifest.checkpoint.digest)}`"
        f" · modelc {prose(manifest.modelc)}\n{domains}"
    )


def _verdicts(rows: Sequence[Row]) -> list[str]:
    lines = summary_lines(rows)
    cells = ((code(one.name), _MARKS[one.outcome], *map(prose, one.cells)) for one in lines)
    return table(HEAD, cells) if lines else []


def _reasons(rows: Iterable[Row]) -> list[str]:
    found = [
        f"- {code(row.name)}: {prose(row.reason or 'no reason is on record')}"
        for row in rows
        if row.outcome is not Outcome.PASSED
    ]
    return ["**Why**", "", *found, ""] if found else []


def _branches(manifest: Manifest) -> list[str]:
    found = [
        f"- {code(one.told)}: {one.untested}{' (accepted)' if one.accepted else ''}"
        for one in manifest.branches
        if one.data and one.untested
    ]
    return ["**Branches that no feed took**", "", *found, ""] if found else []


def _layer(one: Localisation) -> str:
    layer = next((layer for layer in one.layers if layer.module == one.guilty), None)
    place = f" at {code(f'{layer.file}:{layer.line}')}" if layer and layer.file else ""
    cause = f": {prose(one.cause)}" if one.cause else ""
    return f"First wrong layer of {code(one.artifact)}: {code(one.guilty)}{place}{cause}\n"


def _notes(rows: Iterable[Row], manifest: Manifest) -> list[str]:
    own = [f"- {prose(note)}" for note in manifest.notes]
    return own + [f"- {code(row.name)}: {prose(note)}" for row in rows for note in row.notes]


def _accuracy(rows: Iterable[Row]) -> list[str]:
    found = [(row.name, row.artifact.accuracy) for row in rows if row.artifact]
    cells = (
        (
            code(name),
            code(one.metric),
            f"{one.eager:.5g}",
            f"{one.artifact:.5g}",
            f"{one.drop:.3g} ({one.low:.3g} to {one.high:.3g})",
            str(one.samples),
            "pass" if one.passed else f"**FAIL**: over {one.max_drop:g}",
        )
        for name, one in found
        if one is not None
    )
    if all(one is None for _, one in found):
        return []
    return table(("artifact", "metric", ">eager", ">artifact", ">drop", ">samples", "gate"), cells)


def _precision(rows: Iterable[Row]) -> list[str]:
    cells = []
    for row in rows:
        artifact = row.artifact
        if artifact is None or (artifact.coverage is None and artifact.latency is None):
            continue
        shares = artifact.coverage.share.items() if artifact.coverage else ()
        latency = artifact.latency
        cells.append(
            (
                code(row.name),
                ", ".join(f"{prose(dtype)} {percent(share, 0)}" for dtype, share in shares),
                milliseconds(latency.milliseconds) if latency else "",
                milliseconds(latency.parent) if latency else "",
            )
        )
    return table(("artifact", "computes in", ">latency", ">fp32 parent"), cells) if cells else []


def _feeds(manifest: Manifest) -> list[str]:
    cells = [
        (
            code(feed.name),
            prose(feed.kind),
            prose(", ".join(f"{name}={size}" for name, size in feed.sizes.items())),
            prose(f"skipped: {feed.skipped}" if feed.skipped else ""),
        )
        for feed in manifest.feeds.drawn
    ]
    return table(("feed", "kind", "sizes", ""), cells) if cells else []


def _commands(manifest: Manifest) -> Iterator[str]:
    for command in commands_of(manifest):
        yield f"- {prose(command.purpose)}: {code(command.text, limit=2000, cell=False)}"


def _environment(manifest: Manifest) -> list[str]:
    found = [(code(name), code(text)) for name, text in manifest.environment.items()]
    return table(("what", "version"), found) if found else []
