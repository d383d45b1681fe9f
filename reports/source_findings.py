"""Findings on the user's source lines, and their SARIF document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote

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
    summary="No feed takes the other outcome of this data-dependent branch",
    help="A trace records only the outcome that its example takes, and the other was not compared. "
    "Add a sample that takes it with --samples, capture with --capture script, or accept it with "
    "--accept-branch FILE:LINE.",
    level="warning",
)
TRACE_WARNING = SourceRule(
    key="MC002",
    name="TraceWarning",
    summary="The capture warned about this line",
    help="A Python value that depends on a tensor became a constant in the artifact. Keep it a "
    "tensor, or capture with --capture script or export.",
    level="warning",
)
DIVERGING_LAYER = SourceRule(
    key="MC003",
    name="DivergingLayer",
    summary="The artifact computes this layer differently from eager",
    help="The layer is wrong even when it is run on eager's inputs. Keep it in floating point "
    "with --keep-fp, or open the reproducer that modelc debug wrote.",
    level="error",
)
FROZEN_BRANCH = SourceRule(
    key="MC004",
    name="FrozenBranch",
    summary="A rejected artifact always takes one outcome of this branch",
    help="The capture recorded only the outcome that its example takes; feeds that take the other "
    "get wrong outputs. Capture with --capture script, or express the branch with torch.cond.",
    level="error",
)
SOURCE_RULES = (UNTAKEN_BRANCH, TRACE_WARNING, DIVERGING_LAYER, FROZEN_BRANCH)


@dataclass(frozen=True, kw_only=True)
class SourceFinding:
    """A finding in the user's code. `token` distinguishes it from others in its file.

    `line` is 0 if unknown; `level` is error or warning; `accepted` means by --accept-branch.
    """

    rule: SourceRule
    text: str
    file: str
    line: int
    token: str
    level: str
    accepted: bool = False


def find_source_lines(manifest: Manifest) -> Iterator[SourceFinding]:
    """Yield branches, capture warnings, wrong layers, and branches frozen in rejected artifacts."""
    yield from _branch_findings(manifest)
    for one in manifest.warned:
        text = f"{one.kind}: {one.text}"
        yield _make_finding(TRACE_WARNING, text, (one.file, one.line, one.kind))
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
    """Yield uncovered branches: errors if an artifact froze them.

    An artifact without this information counts as one that did.
    """
    frozen = [artifact.frozen for artifact in manifest.artifacts]
    for branch in manifest.branches:
        if not (branch.data and branch.gap_text):
            continue
        module = f" (module {branch.module})" if branch.module else ""
        is_frozen = any(places is None or branch.place in places for places in frozen)
        yield SourceFinding(
            rule=UNTAKEN_BRANCH,
            text=f"{branch.gap_text} of: {branch.condition}{module}",
            file=branch.file,
            line=branch.line,
            token=branch.condition,
            level="error" if is_frozen and not branch.accepted else UNTAKEN_BRANCH.level,
            accepted=branch.accepted,
        )


def _layer_findings(manifest: Manifest) -> Iterator[SourceFinding]:
    """Yield the wrong layers that have a source line."""
    states = {row.name: row.outcome for row in make_rows(manifest)}
    for found in manifest.localisations:
        layer = next((one for one in found.layers if one.module == found.guilty), None)
        if not found.guilty or layer is None or not layer.file:
            continue
        name = found.artifact.removeprefix(REJECTED_PREFIX)
        passed = Outcome.PASSED in (states.get(found.artifact), states.get(name))
        rejected = states.get(f"{REJECTED_PREFIX}{name}") is not None
        cause = f": {found.cause}" if found.cause else ""
        layer_text = f"{found.guilty} ({layer.kind})"
        yield _make_finding(
            DIVERGING_LAYER,
            f"{found.artifact}: {layer_text} differs from eager on feed {found.feed}{cause}",
            (layer.file, layer.line, f"{name} {layer.module}"),
            level="warning" if passed and not rejected else DIVERGING_LAYER.level,
        )


def _findings_of_frozen(rows: tuple[ResultRow, ...]) -> Iterator[SourceFinding]:
    """Yield the branches that are frozen in rejected artifacts."""
    for row in rows:
        if row.artifact is None or row.outcome is Outcome.PASSED:
            continue
        for place in row.artifact.frozen or ():
            file, _, line = place.rpartition(":")
            at = int(line) if line.isdecimal() else 0
            name = row.name.removeprefix(REJECTED_PREFIX)
            text = f"{row.name} always takes one outcome: {row.reason}"
            yield _make_finding(FROZEN_BRANCH, text, (file if at else place, at, f"{name} {file}"))


SARIF_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_SOURCE_ROOT = "%SRCROOT%"  # the base of relative paths
_WINDOWS_DRIVE = re.compile(r"^[A-Za-z]:/")


def render_sarif(manifest: Manifest) -> str:
    """Render the findings as SARIF; reasons without a source line are tool notifications."""
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
    """Return the exit code, and the reasons of what did not pass."""
    levels = {Outcome.REJECTED: "error", Outcome.FAILED: "error", Outcome.SKIPPED: "note",
              Outcome.PENDING: "note"}  # fmt: skip
    notifications = [
        {
            "level": levels[row.outcome],
            "message": {"text": _sarif_text(f"{row.name}: {row.reason}")},
        }
        for row in rows
        if row.outcome in levels
    ]
    return {
        "executionSuccessful": all(row.outcome is not Outcome.FAILED for row in rows),
        "exitCode": manifest.exit_code,
        "toolExecutionNotifications": notifications,
    }


def _sarif_result(one: SourceFinding) -> dict[str, object]:
    """Return one result; its fingerprint distinguishes it from others in the file."""
    location: dict[str, object] = {"artifactLocation": _file_uri(one.file)}
    if one.line > 0:
        location["region"] = {"startLine": one.line}
    text = f"{one.rule.key}\0{one.file}\0{one.token}"
    digest = sha256(text.encode(errors="replace")).hexdigest()
    found: dict[str, object] = {
        "ruleId": one.rule.key,
        "ruleIndex": SOURCE_RULES.index(one.rule),
        "level": one.level,
        "message": {"text": _sarif_text(one.text)},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"modelcFinding/v1": digest[:32]},
    }
    if one.accepted:
        given = "accepted with --accept-branch"
        found["suppressions"] = [{"kind": "external", "justification": given}]
    return found


def _sarif_text(text: str) -> str:
    return one_line(text, 1000) or "no reason was recorded"


def _file_uri(file: str) -> dict[str, str]:
    """Return a relative reference with forward slashes, or a file URI for an absolute path."""
    path = file.replace("\\", "/")
    if _WINDOWS_DRIVE.match(path):
        return {"uri": f"file:///{path[:2]}{quote(escape_control(path[2:]))}"}
    if path.startswith("/"):
        return {"uri": f"file:///{quote(escape_control(path.lstrip('/')))}"}
    return {"uri": quote(escape_control(path.removeprefix("./"))), "uriBaseId": _SOURCE_ROOT}
