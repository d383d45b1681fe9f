"""SARIF 2.1.0: branches, trace warnings and guilty layers, each on the user's source line."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from urllib.parse import quote

from ..core.manifest import Manifest
from .rows import Outcome, Row, rows_of
from .source_findings import RULES, Finding, Rule, findings_of
from .words import clean, one_line

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_ROOT = "%SRCROOT%"  # what readers resolve relative paths against
_DRIVE = re.compile(r"^[A-Za-z]:/")


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
        "results": [_result(one) for one in findings_of(manifest)],
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


def _result(one: Finding) -> dict[str, object]:
    """One result at its place; fingerprints tell it from others in that file."""
    text = f"{one.rule.key}\0{one.file}\0{one.token}"
    digest = sha256(text.encode(errors="replace")).hexdigest()
    found: dict[str, object] = {
        "ruleId": one.rule.key,
        "ruleIndex": RULES.index(one.rule),
        "level": one.level,
        "message": {"text": _text(one.text)},
        "locations": [{"physicalLocation": _location(one.file, one.line)}],
        "partialFingerprints": {"modelcFinding/v1": digest[:32]},
    }
    if one.accepted:
        given = "accepted with --accept-branch"
        found["suppressions"] = [{"kind": "external", "justification": given}]
    return found


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
