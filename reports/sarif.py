"""SARIF 2.1.0: branches, trace warnings and guilty layers, each on the user's source line."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from urllib.parse import quote

from ..core.manifest import Manifest
from .rows import Outcome, ResultRow, make_rows
from .source_findings import SOURCE_RULES, SourceFinding, SourceRule, find_source_lines
from .words import escape_control, one_line

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
