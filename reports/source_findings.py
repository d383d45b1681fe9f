"""What a record says of the user's source lines: branches, warnings of a trace, guilty layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.findings import BranchRecord, Localisation
from ..core.manifest import Manifest
from .rows import REJECTED, Outcome, Row, rows_of


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A kind of finding, with what to do about it."""

    key: str
    name: str
    summary: str
    help: str
    level: str


UNTAKEN = Rule(
    key="MC001",
    name="UntakenBranch",
    summary="No feed went the other way at this place that depends on tensor data",
    help="A trace keeps only the way that its example went, and nothing was compared on the other. "
    "Give a sample that takes it with --samples, capture with --capture script, or accept it with "
    "--accept-branch FILE:LINE.",
    level="warning",
)
WARNED = Rule(
    key="MC002",
    name="TraceWarning",
    summary="The framework warned of this line while it captured the model",
    help="A Python value that depends on a tensor became a constant of the artifact. Keep it a "
    "tensor, or capture with --capture script or export.",
    level="warning",
)
GUILTY = Rule(
    key="MC003",
    name="DivergingLayer",
    summary="The artifact computes this layer otherwise than eager",
    help="The layer is wrong by itself, fed with eager's own inputs. Keep it in floating point "
    "with --keep-fp, or open the reproducer that modelc debug wrote.",
    level="error",
)
FROZEN = Rule(
    key="MC004",
    name="FrozenBranch",
    summary="A refused artifact keeps one way of this place, whatever its input says",
    help="The capture took down only the way that its example went, and feeds that go the other "
    "way get wrong answers. Capture with --capture script, or export it with torch.cond.",
    level="error",
)
RULES = (UNTAKEN, WARNED, GUILTY, FROZEN)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One place in the user's code. `token` tells it from others in its file.

    `line` is 0 where none is known; `level` is error or warning; what is `accepted` was named by
    the user.
    """

    rule: Rule
    text: str
    file: str
    line: int
    token: str
    level: str
    accepted: bool = False


def findings_of(manifest: Manifest) -> Iterator[Finding]:
    """All of them: branches, warnings, guilty layers, places that a refused artifact froze."""
    yield from _branches(manifest)
    yield from _warned(manifest)
    yield from _guilty(manifest)
    yield from _frozen(rows_of(manifest))


def _finding(rule: Rule, text: str, place: tuple[str, int, str], *, level: str = "") -> Finding:
    file, line, token = place
    return Finding(
        rule=rule, text=text, file=file, line=line, token=token, level=level or rule.level
    )


def _branches(manifest: Manifest) -> Iterator[Finding]:
    """Places that no feed showed to go another way: errors where an artifact froze them.

    An artifact of which that is not known counts as one that did.
    """
    frozen = [artifact.frozen for artifact in manifest.artifacts]
    for branch in manifest.branches:
        if not (branch.data and branch.untested):
            continue
        kept = any(places is None or branch.place in places for places in frozen)
        yield Finding(
            rule=UNTAKEN,
            text=f"{branch.untested} of: {branch.condition}{_where(branch)}",
            file=branch.file,
            line=branch.line,
            token=branch.condition,
            level="error" if kept and not branch.accepted else UNTAKEN.level,
            accepted=branch.accepted,
        )


def _where(branch: BranchRecord) -> str:
    return f" (module {branch.module})" if branch.module else ""


def _warned(manifest: Manifest) -> Iterator[Finding]:
    for one in manifest.warned:
        yield _finding(WARNED, f"{one.kind}: {one.text}", (one.file, one.line, one.kind))


def _guilty(manifest: Manifest) -> Iterator[Finding]:
    """The guilty layer of each localisation that has a line."""
    states = {row.name: row.outcome for row in rows_of(manifest)}
    for found in manifest.localisations:
        layer = next((one for one in found.layers if one.module == found.guilty), None)
        if not found.guilty or layer is None or not layer.file:
            continue
        name = found.artifact.removeprefix(REJECTED)
        proven = Outcome.PASSED in (states.get(found.artifact), states.get(name))
        refused = states.get(f"{REJECTED}{name}") is not None
        yield _finding(
            GUILTY,
            _blame(found, layer.kind),
            (layer.file, layer.line, f"{name} {layer.module}"),
            level="warning" if proven and not refused else GUILTY.level,
        )


def _frozen(rows: tuple[Row, ...]) -> Iterator[Finding]:
    """Places that a refused artifact froze."""
    for row in rows:
        if row.artifact is None or row.outcome is Outcome.PASSED:
            continue
        for place in row.artifact.frozen or ():
            file, _, line = place.rpartition(":")
            at = int(line) if line.isdecimal() else 0
            name = row.name.removeprefix(REJECTED)
            text = f"{row.name} keeps one way of it: {row.reason}"
            yield _finding(FROZEN, text, (file if at else place, at, f"{name} {file}"))


def _blame(found: Localisation, kind: str) -> str:
    cause = f": {found.cause}" if found.cause else ""
    return (
        f"{found.artifact}: {found.guilty} ({kind}) differs from eager on feed {found.feed}{cause}"
    )
