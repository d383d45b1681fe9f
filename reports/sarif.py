"""SARIF 2.1.0: branches, trace warnings and guilty layers, each on the user's source line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

from ..core.findings import BranchRecord, Localisation
from ..core.manifest import Manifest
from .rows import REJECTED, Outcome, Row, rows_of
from .words import clean, one_line

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"  # what readers resolve relative paths against
_DRIVE = re.compile(r"^[A-Za-z]:/")


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
    "Give a sample that takes it with --inputs, capture with --capture script, or accept it with "
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


def render(manifest: Manifest) -> str:
    """The manifest's findings on source lines; what has no line is in the tool's notifications."""
    rows = rows_of(manifest)
    run = {
        "tool": {
            "driver": {
                "name": "modelc",
                "version": clean(manifest.modelc),
                "semanticVersion": clean(manifest.modelc),
                "rules": [_rule(rule) for rule in RULES],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(rows, manifest)],
        "results": [*_branches(manifest), *_warned(manifest), *_guilty(manifest), *_frozen(rows)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, object]:
    return {
        "id": rule.key,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary}. {rule.help}"},
        "help": {"text": rule.help, "markdown": rule.help},
        "defaultConfiguration": {"level": rule.level},
    }


def _invocation(rows: tuple[Row, ...], manifest: Manifest) -> dict[str, object]:
    """Whether all was judged, and what was not proven: reasons that have no source line."""
    levels = {Outcome.FAILED: "error", Outcome.ERROR: "error", Outcome.PENDING: "note"}
    told = [
        {"level": levels[row.outcome], "message": {"text": _text(f"{row.name}: {row.reason}")}}
        for row in rows
        if row.outcome in levels
    ]
    return {
        "executionSuccessful": all(row.outcome is not Outcome.ERROR for row in rows),
        "exitCode": manifest.exit_code,
        "toolExecutionNotifications": told,
    }


def _branches(manifest: Manifest) -> Iterator[dict[str, object]]:
    """Places that no feed showed to go another way: errors where an artifact froze them.

    An artifact of which that is not known counts as one that did.
    """
    frozen = [artifact.frozen for artifact in manifest.artifacts]
    for branch in manifest.branches:
        if not (branch.data and branch.untested):
            continue
        kept = any(places is None or branch.place in places for places in frozen)
        found = _result(
            UNTAKEN,
            f"{branch.untested} of: {branch.condition}{_where(branch)}",
            (branch.file, branch.line, branch.condition),
            level="error" if kept and not branch.accepted else UNTAKEN.level,
        )
        if branch.accepted:
            given = "accepted with --accept-branch"
            found["suppressions"] = [{"kind": "external", "justification": given}]
        yield found


def _where(branch: BranchRecord) -> str:
    return f" (module {branch.module})" if branch.module else ""


def _warned(manifest: Manifest) -> Iterator[dict[str, object]]:
    for one in manifest.warned:
        yield _result(WARNED, f"{one.kind}: {one.text}", (one.file, one.line, one.kind))


def _guilty(manifest: Manifest) -> Iterator[dict[str, object]]:
    """The guilty layer of each localisation that has a line."""
    states = {row.name: row.outcome for row in rows_of(manifest)}
    for found in manifest.localisations:
        layer = next((one for one in found.layers if one.module == found.guilty), None)
        if not found.guilty or layer is None or not layer.file:
            continue
        name = found.artifact.removeprefix(REJECTED)
        proven = Outcome.PASSED in (states.get(found.artifact), states.get(name))
        refused = states.get(f"{REJECTED}{name}") is not None
        yield _result(
            GUILTY,
            _blame(found, layer.kind),
            (layer.file, layer.line, f"{name} {layer.module}"),
            level="warning" if proven and not refused else GUILTY.level,
        )


def _frozen(rows: tuple[Row, ...]) -> Iterator[dict[str, object]]:
    """Places that a refused artifact froze."""
    for row in rows:
        if row.artifact is None or row.outcome is Outcome.PASSED:
            continue
        for place in row.artifact.frozen or ():
            file, _, line = place.rpartition(":")
            at = int(line) if line.isdecimal() else 0
            name = row.name.removeprefix(REJECTED)
            text = f"{row.name} keeps one way of it: {row.reason}"
            yield _result(FROZEN, text, (file if at else place, at, f"{name} {file}"))


def _blame(found: Localisation, kind: str) -> str:
    cause = f": {found.cause}" if found.cause else ""
    return (
        f"{found.artifact}: {found.guilty} ({kind}) differs from eager on feed {found.feed}{cause}"
    )


def _result(
    rule: Rule, text: str, place: tuple[str, int, str], *, level: str = ""
) -> dict[str, object]:
    """One result at `place`: file, line, and what tells it from others in that file."""
    file, line, token = place
    digest = sha256(f"{rule.key}\0{file}\0{token}".encode(errors="replace")).hexdigest()
    return {
        "ruleId": rule.key,
        "ruleIndex": RULES.index(rule),
        "level": level or rule.level,
        "message": {"text": _text(text)},
        "locations": [{"physicalLocation": _location(file, line)}],
        "partialFingerprints": {"modelcFinding/v1": digest[:32]},
    }


def _text(text: str) -> str:
    return one_line(text, 1000) or "no reason is on record"


def _location(file: str, line: int) -> dict[str, object]:
    found: dict[str, object] = {"artifactLocation": _uri(file)}
    if line > 0:
        found["region"] = {"startLine": line}
    return found


def _uri(file: str) -> dict[str, str]:
    """A relative reference with forward slashes; an absolute path is a file URI of its own."""
    path = file.replace("\\", "/")
    if _DRIVE.match(path):
        return {"uri": f"file:///{path[:2]}{quote(clean(path[2:]))}"}
    if path.startswith("/"):
        return {"uri": f"file:///{quote(clean(path.lstrip('/')))}"}
    return {"uri": quote(clean(path.removeprefix("./"))), "uriBaseId": _ROOT}
