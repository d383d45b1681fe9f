"""SARIF: valid by the published schema, on the right lines, at the right levels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from modelc.core.manifest import Manifest
from modelc.reports import source_findings

SCHEMA = json.loads(
    (Path(__file__).parents[1] / "data" / "sarif" / "sarif-schema-2.1.0.json").read_text(
        encoding="utf-8"
    )
)
VALIDATOR = jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


def run_of(manifest: Manifest) -> dict[str, Any]:
    (run,) = json.loads(source_findings.render_sarif(manifest))["runs"]
    found: dict[str, Any] = run
    return found


def places(manifest: Manifest) -> list[tuple[str, str, str, int | None]]:
    """Rule, level, file and line of each result."""
    found = []
    for result in run_of(manifest)["results"]:
        place = result["locations"][0]["physicalLocation"]
        line = place.get("region", {}).get("startLine")
        found.append((result["ruleId"], result["level"], place["artifactLocation"]["uri"], line))
    return found


def test_every_document_is_valid_by_the_published_schema(any_manifest: Manifest) -> None:
    document = json.loads(source_findings.render_sarif(any_manifest))
    assert [error.message for error in VALIDATOR.iter_errors(document)] == []


def test_the_schema_refuses_what_is_wrong(full: Manifest) -> None:
    document = json.loads(source_findings.render_sarif(full))
    document["runs"][0]["results"][0]["level"] = "bad"
    del document["runs"][0]["tool"]
    assert len(list(VALIDATOR.iter_errors(document))) == 2


def test_findings_stand_on_the_users_lines(full: Manifest) -> None:
    assert places(full) == [
        ("MC001", "error", "nets/digits.py", 24),
        ("MC001", "warning", "nets/digits.py", 31),
        ("MC002", "warning", "nets/digits.py", 24),
        ("MC003", "error", "nets/digits.py", 41),
        ("MC004", "error", "nets/digits.py", 24),
    ]


@pytest.mark.parametrize(
    ("frozen", "level"), [((), "warning"), (("nets/digits.py:24",), "error"), (None, "error")]
)
def test_an_untaken_arm_is_an_error_unless_nothing_is_known_to_freeze_it(
    full: Manifest, frozen: tuple[str, ...] | None, level: str
) -> None:
    made = tuple(replace(one, frozen=frozen) for one in full.artifacts)
    found = {(rule, line): told for rule, told, _, line in places(replace(full, artifacts=made))}
    assert found["MC001", 24] == level


def test_a_proven_artifact_may_freeze_a_branch(full: Manifest) -> None:
    proven = tuple(replace(one, frozen=("nets/digits.py:31",)) for one in full.artifacts[:1])
    found = places(replace(full, artifacts=proven, verdicts=full.verdicts[:1]))
    assert "MC004" not in {rule for rule, *_ in found}


def test_an_accepted_branch_is_suppressed_and_still_told(full: Manifest) -> None:
    accepted = [r for r in run_of(full)["results"] if "suppressions" in r]
    assert [r["locations"][0]["physicalLocation"]["region"]["startLine"] for r in accepted] == [31]


def test_reasons_without_a_line_are_notifications(full: Manifest) -> None:
    (invocation,) = run_of(full)["invocations"]
    assert invocation["executionSuccessful"] is False
    told = [one["message"]["text"] for one in invocation["toolExecutionNotifications"]]
    assert any("signal 11" in text for text in told)
    assert any("torch.export" in text for text in told)


def test_a_refused_artifact_is_no_failure_of_the_tool(made: Callable[[str], Manifest]) -> None:
    (invocation,) = run_of(made("refused"))["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 1)


@pytest.mark.parametrize(
    ("file", "uri", "based"),
    [
        ("nets/a b.py", "nets/a%20b.py", True),
        ("nets\\a.py", "nets/a.py", True),
        ("./nets/ü#?.py", "nets/%C3%BC%23%3F.py", True),
        ("/opt/nets/a.py", "file:///opt/nets/a.py", False),
        ("C:\\nets\\a.py", "file:///C:/nets/a.py", False),
        ("javascript:alert(1)", "javascript%3Aalert%281%29", True),
    ],
)
def test_paths_become_uris(full: Manifest, file: str, uri: str, based: bool) -> None:
    one = replace(full.warned[0], file=file)
    (found,) = [
        r for r in run_of(replace(full, warned=(one,)))["results"] if r["ruleId"] == "MC002"
    ]
    place = found["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == uri
    assert ("uriBaseId" in place) is based
    assert not re.search(r"[\\ ]", place["uri"])


def test_a_line_that_moved_keeps_its_fingerprint(full: Manifest) -> None:
    moved = tuple(replace(one, line=one.line + 7) for one in full.branches)
    prints = [
        [r["partialFingerprints"] for r in run_of(m)["results"]]
        for m in (full, replace(full, branches=moved))
    ]
    assert prints[0] == prints[1]
    assert len({json.dumps(one) for one in prints[0]}) == len(prints[0])


def test_a_finding_without_a_line_has_no_region(full: Manifest) -> None:
    one = replace(full.warned[0], line=0)
    assert ("MC002", "warning", "nets/digits.py", None) in places(replace(full, warned=(one,)))


def test_every_rule_has_help(full: Manifest) -> None:
    rules = run_of(full)["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["MC001", "MC002", "MC003", "MC004"]
    assert all(len(rule["help"]["text"].split()) > 8 for rule in rules)
