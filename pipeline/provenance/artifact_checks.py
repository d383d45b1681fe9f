"""Check one artifact: its files, metadata, lineage, verdict and seal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from ...converters.registry import target_named
from ...core.contract import Target
from ...core.errors import RunnerError, UsageError
from ...core.external_runtime import ExternalVerdict
from ...core.kinds import QUANTIZED
from ...core.manifest import Manifest
from ...core.records import Artifact, FileRecord, is_as_recorded
from ...core.target_extensions import Carrying, HostVersioned, list_host_changes
from ...core.verdict import Verdict
from ..model_metadata import META_KEY, decode_meta
from .seals import (
    CAPTURE_KEY,
    CHECKPOINT_KEY,
    JUDGING_KEY,
    MODELC_KEY,
    PARENT_KEY,
    PRECISION_KEY,
    QUANTIZER_KEY,
    SAMPLES_KEY,
    SIGNATURE_KEY,
    STATED_KEYS,
    bond_digest,
    canonical_digest,
    capture_method,
    digest_terms,
    plain_json,
    signature_digest,
)

VERIFICATION_SCHEMA_VERSION = 1


class CheckOutcome(StrEnum):
    """Outcome of one check; only FAILED is an error."""

    HOLDS = "holds"
    FAILED = "failed"
    LACKING = "lacking"  # an older modelc did not write it
    UNCHECKED = "unchecked"  # the other side of the comparison is missing, or was not requested


@dataclass(frozen=True, kw_only=True)
class ProvenanceCheck:
    """One check of an artifact, of the `manifest` or of the `checkpoint`."""

    of: str
    what: str
    found: CheckOutcome
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class FolderVerification:
    """All checks in the folder of one model."""

    folder: str
    checks: tuple[ProvenanceCheck, ...]
    name: str = ""  # the model's name in a run of several

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not list_failed_checks(self.checks)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `modelc verify`: checks by model, and of the run if it has several."""

    models: tuple[FolderVerification, ...]
    run: tuple[ProvenanceCheck, ...] = ()
    passed: bool = False
    schema_version: int = VERIFICATION_SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 if no check failed, 1 otherwise."""
        return 0 if self.passed else 1


def list_failed_checks(checks: Sequence[ProvenanceCheck]) -> tuple[ProvenanceCheck, ...]:
    """Return the checks that failed."""
    return tuple(check for check in checks if check.found is CheckOutcome.FAILED)


def make_verification(
    models: Sequence[FolderVerification], run: Sequence[ProvenanceCheck] = ()
) -> Verification:
    """Combine all checks; without a model, the verification fails."""
    passed = bool(models) and all(model.passed for model in models) and not list_failed_checks(run)
    return Verification(models=tuple(models), run=tuple(run), passed=passed)


HOLDS, FAILED, LACKING, UNCHECKED = CheckOutcome
_MAX_SHOWN = 12  # characters of a digest to show


@dataclass(frozen=True)
class VerifiedRecord:
    """A folder with its manifest, as a record and as raw JSON."""

    folder: Path
    manifest: Manifest
    raw: dict[str, Any]
    targets: tuple[Target, ...]


Finding: TypeAlias = tuple[CheckOutcome, str]
"""The outcome of a check, and its detail."""


def check_artifact(artifact: Artifact, record: VerifiedRecord) -> Iterator[ProvenanceCheck]:
    """Check the files first; a changed file is not read any further."""
    wrong = tuple(filter(None, (describe_change(file, record.folder) for file in artifact.files)))
    if wrong:
        inside = UNCHECKED, "its files are not the recorded ones"
    else:
        inside = _check_metadata(artifact, record)
    findings: dict[str, Finding] = {
        "files": (FAILED, "; ".join(wrong))
        if wrong
        else (HOLDS, f"{len(artifact.files)} as recorded"),
        "inside": inside,
        "chain": _check_lineage(artifact, record.manifest),
        "verdict": _check_verdict(artifact, record),
        "seal": _check_seal(artifact, record),
    }
    for what, (found, detail) in findings.items():
        yield ProvenanceCheck(of=artifact.name, what=what, found=found, detail=detail)


def resolve_links(path: Path) -> Path:
    """Resolve links; a link cycle resolves to itself (`Path.resolve` raises there)."""
    return Path(os.path.realpath(path))


def describe_change(file: FileRecord, folder: Path) -> str:
    """Return what is wrong with a file on disk; empty if it matches its record."""
    path = folder / file.name
    if not resolve_links(path).is_relative_to(folder.resolve()):
        return f"{file.name} leads out of the folder"
    if not path.is_file():
        return "" if file.role == "debug" else f"{file.name} is missing"
    if not is_as_recorded(path, file):
        return f"{file.name} is not the recorded file"
    return ""


def _check_metadata(artifact: Artifact, record: VerifiedRecord) -> Finding:
    """Compare the embedded metadata with the manifest."""
    try:
        target = target_named(artifact.target, record.targets)
    except UsageError as error:
        return UNCHECKED, error.message
    if not isinstance(target, Carrying):
        return UNCHECKED, f"{target.NAME} files contain no metadata"
    try:
        stated = target.read_metadata(record.folder / artifact.files[0].name)
    except RunnerError as error:
        return FAILED, error.message
    expected = _make_expected_metadata(artifact, record.manifest)
    declared = _compare_meta(stated, record.manifest)
    wrong = [declared] if declared else []
    wrong += [
        f"its {key} is {stated[key][:_MAX_SHOWN]}, {value[:_MAX_SHOWN]} in the manifest"
        for key, value in expected.items()
        if key in stated and stated[key] != value
    ]
    if wrong:
        return FAILED, "; ".join(wrong)
    unknown = {CAPTURE_KEY} - set(expected)  # unknown if the lineage leaves the folder
    lacking = [key for key in STATED_KEYS if key not in stated and key not in unknown]
    if lacking:
        return LACKING, f"its metadata lacks {', '.join(lacking)}"
    return HOLDS, _describe_stated(stated, artifact, record)


def _compare_meta(stated: Mapping[str, str], manifest: Manifest) -> str:
    """Return how the declared metadata in a file differs from the manifest's; empty if not."""
    try:
        embedded = decode_meta(stated.get(META_KEY, ""))
    except RunnerError as error:
        return error.message
    if embedded == manifest.meta:
        return ""
    digests = [canonical_digest(plain_json(one))[:_MAX_SHOWN] for one in (embedded, manifest.meta)]
    held = f"has the digest {digests[0]}" if stated.get(META_KEY) else "is missing"
    return f"its declared metadata {held}, that of the manifest {digests[1]}: export it again"


def _make_expected_metadata(artifact: Artifact, manifest: Manifest) -> dict[str, str]:
    """Return the metadata that a file must have, if it has these keys."""
    capture = capture_method(artifact, manifest)
    quantizer = artifact.capture if artifact.precision in QUANTIZED else None
    return {
        CHECKPOINT_KEY: manifest.checkpoint.digest,
        SIGNATURE_KEY: signature_digest(manifest.signature),
        PARENT_KEY: artifact.parent,
        PRECISION_KEY: str(artifact.precision),
        **({CAPTURE_KEY: capture} if capture else {}),
        **({QUANTIZER_KEY: quantizer} if quantizer else {}),
        **({SAMPLES_KEY: artifact.calibration.digest} if artifact.calibration else {}),
    }


def _describe_stated(stated: Mapping[str, str], artifact: Artifact, record: VerifiedRecord) -> str:
    """Describe which modelc wrote the file, and whether it was judged on the embedded terms."""
    by = f"by modelc {stated[MODELC_KEY]}"
    raw = _raw_record(record.raw, "artifacts", "name", artifact.name)
    terms = digest_terms(record.raw.get("feeds", {}), raw.get("tolerance") or {})
    if artifact.judged_as is not None or terms == stated[JUDGING_KEY]:
        return by
    return f"{by}; judged again since on other feeds or within other limits"


def _check_lineage(artifact: Artifact, manifest: Manifest) -> Finding:
    """Check the lineage from the artifact to the checkpoint, by digest."""
    end = _first_unknown_digest(artifact, manifest)
    if end == manifest.checkpoint.digest:
        return HOLDS, ""
    if not end:
        return FAILED, "its lineage is a cycle"
    return UNCHECKED, f"its ancestor {end[:_MAX_SHOWN]}… is not in this folder"


def _first_unknown_digest(artifact: Artifact, manifest: Manifest) -> str:
    """Return the first ancestor digest that is not an artifact here; empty for a cycle."""
    seen: set[str] = set()
    digest = artifact.parent
    while digest not in seen:
        seen.add(digest)
        parent = next((a for a in manifest.artifacts if a.digest == digest), None)
        if parent is None or digest == manifest.checkpoint.digest:
            return digest
        digest = parent.parent
    return ""


def _check_verdict(artifact: Artifact, record: VerifiedRecord) -> Finding:
    """Check that an artifact under a target's name passed, and that a rejected one did not."""
    verdict = record.manifest.verdict_of(artifact.name)
    if artifact.rejected:
        if verdict is not None and verdict.passed:
            return FAILED, "rejected, but its verdict is passed"
        return UNCHECKED, "rejected: not claimed"
    if verdict is None:
        return FAILED, "it was never judged"
    if not verdict.passed:
        return FAILED, verdict.reason or verdict.state
    changed = _host_changes(artifact, verdict, record)
    if changed:
        return UNCHECKED, f"stale: it was judged with {'; '.join(changed)}"
    return HOLDS, f"passed on {verdict.device}"


def _host_changes(artifact: Artifact, verdict: Verdict, record: VerifiedRecord) -> tuple[str, ...]:
    """Return what this host has in another version than the one that judged an engine."""
    try:
        target = target_named(artifact.target, record.targets)
    except UsageError:
        return ()
    if not verdict.host or not isinstance(target, HostVersioned):
        return ()
    return list_host_changes(verdict.host, target.host_versions())


def check_external(record: VerifiedRecord) -> Iterator[ProvenanceCheck]:
    """Check that the verdicts in other runtimes are on the artifacts that are here now."""
    for one in record.manifest.external:
        found, detail = _check_external(one, record.manifest)
        yield ProvenanceCheck(of=one.verdict.artifact, what="runtimes", found=found, detail=detail)


def _check_external(one: ExternalVerdict, manifest: Manifest) -> Finding:
    artifact = next((a for a in manifest.artifacts if a.name == one.verdict.artifact), None)
    if one.is_stale(artifact):
        return UNCHECKED, f"stale: {one.runtime} ran another file, or the artifact is gone"
    if not one.verdict.passed:
        return UNCHECKED, f"not claimed in {one.runtime}: {one.verdict.reason}"
    return HOLDS, f"passed in {one.runtime}"


def _check_seal(artifact: Artifact, record: VerifiedRecord) -> Finding:
    """Check that files and verdict are those that the seal binds."""
    if not artifact.seal:
        return LACKING, "it has no seal"
    seal = bond_digest(
        (file.sha256 for file in artifact.files if file.role != "debug"),
        verdict=_raw_record(record.raw, "verdicts", "artifact", artifact.name),
        checkpoint=record.manifest.checkpoint.digest,
        signature=signature_digest(record.manifest.signature),
    )
    if seal == artifact.seal:
        return HOLDS, ""
    return FAILED, "its verdict, files or model differ from those that were sealed"


def _raw_record(raw: Mapping[str, Any], part: str, key: str, value: str) -> dict[str, Any]:
    """Return the first record of a list in the manifest whose `key` is `value`."""
    found: dict[str, Any] = next((one for one in raw.get(part, ()) if one[key] == value), {})
    return found
