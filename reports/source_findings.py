"""Findings on the user's source lines, and their SARIF document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

from ..core.findings import BranchRecord, Localisation
from ..core.manifest import Manifest
from .result_rows import REJECTED_PREFIX, Outcome, ResultRow, make_rows
from .text_format import escape_control, one_line


@dataclass(frozen=True, kw_only=True)
class SourceRule:
    """A kind of finding, with what to do about it."""

    key: str
    name: str
    summary: str
    help: str
    level: str


UNTAKEN_BRANCH = SourceRule(
    key="MC001",
    name="UntakenBranch",
    summary="No feed went the other way at this place that depends on tensor data",
    help="A trace keeps only the way that its example went, and nothing was compared on the other. "
    "Give a sample that takes it with --samples, capture with --capture script, or accept it with "
    "--accept-branch FILE:LINE.",
    level="warning",
)
TRACE_WARNING = SourceRule(
    key="MC002",
    name="TraceWarning",
    summary="The framework warned of this line while it captured the model",
    help="A Python value that depends on a tensor became a constant of the artifact. Keep it a "
    "tensor, or capture with --capture script or export.",
    level="warning",
)
DIVERGING_LAYER = SourceRule(
    key="MC003",
    name="DivergingLayer",
    summary="The artifact computes this layer otherwise than eager",
    help="The layer is wrong by itself, fed with eager's own inputs. Keep it in floating point "
    "with --keep-fp, or open the reproducer that modelc debug wrote.",
    level="error",
)
FROZEN_BRANCH = SourceRule(
    key="MC004",
    name="FrozenBranch",
    summary="A refused artifact keeps one way of this place, whatever its input says",
    help="The capture took down only the way that its example went, and feeds that go the other "
    "way get wrong answers. Capture with --capture script, or export it with torch.cond.",
    level="error",
)
SOURCE_RULES = (UNTAKEN_BRANCH, TRACE_WARNING, DIVERGING_LAYER, FROZEN_BRANCH)


@dataclass(frozen=True, kw_only=True)
class SourceFinding:
    """One place in the user's code. `token` tells it from others in its file.

    `line` is 0 where none is known; `level` is error or warning; what is `accepted` was named by
    the user.
    """

    rule: SourceRule
    text: str
    file: str
    line: int
    token: str
    level: str
    accepted: bool = False


def find_source_lines(manifest: Manifest) -> Iterator[SourceFinding]:
    """All of them: branches, warnings, guilty layers, places that a refused artifact froze."""
    yield from _branch_findings(manifest)
    yield from _findings_of_warnings(manifest)
    yield from _layer_findings(manifest)
    yield from _findings_of_frozen(make_rows(manifest))


def _make_finding(
    rule: SourceRule, text: str, place: tuple[str, int, str], *, level: str = ""
) -> SourceFinding:
    file, line, token = place
    return SourceFinding(
        rule=rule, text=text, file=file, line=line, token=token, level=level or rule.level
    )


def _branch_findings(manifest: Manifest) -> Iterator[SourceFinding]:
    """Places that no feed showed to go another way: errors where an artifact froze them.

    An artifact of which that is not known counts as one that did.
    """
    frozen = [artifact.frozen for artifact in manifest.artifacts]
    for branch in manifest.branches:
        if not (branch.data and branch.gap_text):
            continue
        kept = any(places is None or branch.place in places for places in frozen)
        yield SourceFinding(
            rule=UNTAKEN_BRANCH,
            text=f"{branch.gap_text} of: {branch.condition}{_branch_text(branch)}",
            file=branch.file,
            line=branch.line,
            token=branch.condition,
            level="error" if kept and not branch.accepted else UNTAKEN_BRANCH.level,
            accepted=branch.accepted,
        )


def _branch_text(branch: BranchRecord) -> str:
    return f" (module {branch.module})" if branch.module else ""


def _findings_of_warnings(manifest: Manifest) -> Iterator[SourceFinding]:
    for one in manifest.warned:
        yield _make_finding(
            TRACE_WARNING, f"{one.kind}: {one.text}", (one.file, one.line, one.kind)
        )


def _layer_findings(manifest: Manifest) -> Iterator[SourceFinding]:
    """The guilty layer of each localisation that has a line."""
    states = {row.name: row.outcome for row in make_rows(manifest)}
    for found in manifest.localisations:
        layer = next((one for one in found.layers if one.module == found.guilty), None)
        if not found.guilty or layer is None or not layer.file:
            continue
        name = found.artifact.removeprefix(REJECTED_PREFIX)
        proven = Outcome.PASSED in (states.get(found.artifact), states.get(name))
        refused = states.get(f"{REJECTED_PREFIX}{name}") is not None
        yield _make_finding(
            DIVERGING_LAYER,
            _layer_text(found, layer.kind),
            (layer.file, layer.line, f"{name} {layer.module}"),
            level="warning" if proven and not refused else DIVERGING_LAYER.level,
        )


def _findings_of_frozen(rows: tuple[ResultRow, ...]) -> Iterator[SourceFinding]:
    """Places that a refused artifact froze."""
    for row in rows:
        if row.artifact is None or row.outcome is Outcome.PASSED:
            continue
        for place in row.artifact.frozen or ():
            file, _, line = place.rpartition(":")
            at = int(line) if line.isdecimal() else 0
            name = row.name.removeprefix(REJECTED_PREFIX)
            text = f"{row.name} keeps one way of it: {row.reason}"
            yield _make_finding(FROZEN_BRANCH, text, (file if at else place, at, f"{name} {file}"))


def _layer_text(found: Localisation, kind: str) -> str:
    cause = f": {found.cause}" if found.cause else ""
    return (
        f"{found.artifact}: {found.guilty} ({kind}) differs from eager on feed {found.feed}{cause}"
    )


SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_SOURCE_ROOT = "%SRCROOT%"  # what readers resolve relative paths against
_WINDOWS_DRIVE = re.compile(r"^[A-Za-z]:/")


def render_sarif(manifest: Manifest) -> str:
    """The manifest's findings on source lines; what has no line is in the tool's notifications."""
    rows = make_rows(manifest)
    run = {
        "tool": {
            "driver": {
                "name": "modelc",
                "version": escape_control(manifest.modelc),
                "semanticVersion": escape_control(manifest.modelc),
                "rules": [_sarif_rule(rule) for rule in SOURCE_RULES],
            }
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [_sarif_invocation(rows, manifest)],
        "results": [_sarif_result(one) for one in find_source_lines(manifest)],
    }
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _sarif_rule(rule: SourceRule) -> dict[str, object]:
    return {
        "id": rule.key,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary}. {rule.help}"},
        "help": {"text": rule.help, "markdown": rule.help},
        "defaultConfiguration": {"level": rule.level},
    }


def _sarif_invocation(rows: tuple[ResultRow, ...], manifest: Manifest) -> dict[str, object]:
    """Whether all was judged, and what was not proven: reasons that have no source line."""
    levels = {Outcome.FAILED: "error", Outcome.ERROR: "error", Outcome.PENDING: "note"}
    told = [
        {
            "level": levels[row.outcome],
            "message": {"text": _sarif_text(f"{row.name}: {row.reason}")},
        }
        for row in rows
        if row.outcome in levels
    ]
    return {
        "executionSuccessful": all(row.outcome is not Outcome.ERROR for row in rows),
        "exitCode": manifest.exit_code,
        "toolExecutionNotifications": told,
    }


def _sarif_result(one: SourceFinding) -> dict[str, object]:
    """One result at its place; fingerprints tell it from others in that file."""
    text = f"{one.rule.key}\0{one.file}\0{one.token}"
    digest = sha256(text.encode(errors="replace")).hexdigest()
    found: dict[str, object] = {
        "ruleId": one.rule.key,
        "ruleIndex": SOURCE_RULES.index(one.rule),
        "level": one.level,
        "message": {"text": _sarif_text(one.text)},
        "locations": [{"physicalLocation": _sarif_location(one.file, one.line)}],
        "partialFingerprints": {"modelcFinding/v1": digest[:32]},
    }
    if one.accepted:
        given = "accepted with --accept-branch"
        found["suppressions"] = [{"kind": "external", "justification": given}]
    return found


def _sarif_text(text: str) -> str:
    return one_line(text, 1000) or "no reason is on record"


def _sarif_location(file: str, line: int) -> dict[str, object]:
    found: dict[str, object] = {"artifactLocation": _file_uri(file)}
    if line > 0:
        found["region"] = {"startLine": line}
    return found


def _file_uri(file: str) -> dict[str, str]:
    """A relative reference with forward slashes; an absolute path is a file URI of its own."""
    path = file.replace("\\", "/")
    if _WINDOWS_DRIVE.match(path):
        return {"uri": f"file:///{path[:2]}{quote(escape_control(path[2:]))}"}
    if path.startswith("/"):
        return {"uri": f"file:///{quote(escape_control(path.lstrip('/')))}"}
    return {"uri": quote(escape_control(path.removeprefix("./"))), "uriBaseId": _SOURCE_ROOT}
