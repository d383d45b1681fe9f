"""`modelc verify` of a project: the folder of each model, and the record of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ErrorCode, UsageError, first_line
from ..core.manifest import Manifest
from ..core.part_records import PARTS_FILE
from ..core.records import REJECTED_FOLDER
from ..pipeline.manifest_file import MANIFEST_FILE as MANIFEST
from ..pipeline.parts.verify_parts import ReadRecords, check_seal, is_parts_record, verify_parts
from ..pipeline.provenance.artifact_checks import (
    CheckOutcome,
    FolderVerification,
    ProvenanceCheck,
    Verification,
    make_verification,
)
from ..pipeline.provenance.signing import check_signature
from ..pipeline.provenance.unclaimed_files import (
    ClaimedFiles,
    check_unclaimed,
    folders_with,
    manifest_folders,
)
from ..pipeline.provenance.verify_folder import ReadManifest, verify_folder
from ..reports.result_rows import Outcome
from .run_record import (
    RUN_FILE,
    ArtifactRun,
    ModelRun,
    is_run_record,
    is_unchanged,
    read_record,
)

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PublicKey

_UNREADABLE = "not a readable file"


def verify_results(folder: Path, *, key: PublicKey | None = None) -> Verification:
    """Verify the folder of one model, or of a run with several and remains of earlier runs.

    Checks every folder below with a manifest, and the record of every run; every model file must be
    claimed. Each record is read once, so that all checks use the same bytes.

    Args:
        folder: a folder with a manifest, or with the `run.json` of a run.
        key: the public key of the signer of the manifests and the run record.

    Raises:
        UsageError: the folder has neither.
    """
    places = manifest_folders(folder)
    recorded = any((folder / name).is_file() for name in (RUN_FILE, PARTS_FILE))
    if not recorded and folder not in places:
        raise UsageError(
            f"{folder} has neither {MANIFEST} nor {RUN_FILE}",
            hint="pass the output folder of modelc export or modelc run",
            code=ErrorCode.NO_MANIFEST,
        )
    texts = {place: _read_regular_file(place / MANIFEST) for place in places}
    wholes = {
        place: text
        for place in folders_with(PARTS_FILE, folder)
        if (text := _read_regular_file(place / PARTS_FILE)) is not None
        and (place == folder or is_parts_record(text))
    }
    records = ReadRecords(root=folder, manifests=texts, wholes=wholes)
    runs = folders_with(RUN_FILE, folder)
    run = [check for place in runs for check in _verify_run_record(place, records, key)]
    run += [check for place in wholes for check in verify_parts(place, records, key)]
    if folder not in places:
        run.extend(check_unclaimed(folder, ClaimedFiles(apart=places), signed=key is not None))
    models = [_verify_model(place, folder, texts, key) for place in places]
    return make_verification(models, run)


def _verify_model(
    place: Path, root: Path, texts: Mapping[Path, bytes | None], key: PublicKey | None
) -> FolderVerification:
    """Verify a folder with a manifest; its name is relative to the root."""
    name = "" if place == root else place.relative_to(root).as_posix()
    text = texts[place]
    if text is not None:
        read = ReadManifest(text=text, apart=frozenset(texts))
        return verify_folder(place, key=key, name=name, read=read)
    wrong = ProvenanceCheck(
        of="manifest", what="form", found=CheckOutcome.FAILED, detail=_UNREADABLE
    )
    return FolderVerification(folder=str(place), checks=(wrong,), name=name)


def _read_regular_file(path: Path) -> bytes | None:
    """Read a file; None if it is not a regular file or cannot be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _verify_run_record(
    folder: Path, records: ReadRecords, key: PublicKey | None
) -> Iterator[ProvenanceCheck]:
    """Check the record of a run, and that the models' manifests match it.

    Args:
        folder: the folder of the record.
        records: the manifests as read.
        key: see `verify_results`.
    """
    before = records.prefix(folder)
    of, text = f"{before}run", _read_regular_file(folder / RUN_FILE)
    if text is None:
        yield ProvenanceCheck(of=of, what="form", found=CheckOutcome.FAILED, detail=_UNREADABLE)
        return
    if before and not is_run_record(text):
        return  # written by another program
    try:
        record = read_record(text)
    except ValueError as error:
        yield ProvenanceCheck(
            of=of, what="form", found=CheckOutcome.FAILED, detail=first_line(error)
        )
        return
    yield check_seal(text, of, sealed=bool(record.seal))
    for end in record.models:
        found = check_model_result(end, records.manifest_of(folder / end.name))
        yield replace(found, of=f"{before}{end.name}")
    yield check_signature(folder / RUN_FILE, text, key, of=of)


def check_model_result(end: ModelRun, known: Manifest | bool) -> ProvenanceCheck:
    """Compare the run's result for a model with the model's manifest.

    Args:
        end: the model in the record of the run.
        known: its manifest; True if it cannot be read, False if it is missing.
    """
    passed = [one for one in end.artifacts if one.state is Outcome.PASSED]
    what, found, detail = "verdict", CheckOutcome.FAILED, ""
    if not passed:
        found, detail = CheckOutcome.UNCHECKED, f"no artifact passed: {end.error or end.state}"
    elif known is False:
        what, detail = "form", f"{MANIFEST} is missing"
    else:
        detail = _find_difference(passed, None if known is True else known)
        found = CheckOutcome.FAILED if detail else CheckOutcome.HOLDS
    return ProvenanceCheck(of=end.name, what=what, found=found, detail=detail or end.state)


def _find_difference(passed: Sequence[ArtifactRun], manifest: Manifest | None) -> str:
    """Return how a manifest differs from the artifacts that passed in the run, if it does."""
    other = [one.name for one in passed if not _has_passed(one, manifest)]
    if other:
        return f"{', '.join(other)} passed in this run, but not in the manifest"
    changed = [one.name for one in passed if manifest is not None and _is_other_file(one, manifest)]
    if changed:
        return f"{', '.join(changed)}: not the file that passed in this run; run modelc run again"
    return ""


def _has_passed(end: ArtifactRun, manifest: Manifest | None) -> bool:
    verdict = None if manifest is None else manifest.verdict_of(end.name)
    if manifest is None or any(
        a.name == f"{REJECTED_FOLDER}/{end.name}" for a in manifest.artifacts
    ):
        return False
    return verdict is not None and verdict.passed


def _is_other_file(end: ArtifactRun, manifest: Manifest) -> bool:
    """Whether the manifest has another file under that name than the run built."""
    named = [one for one in manifest.artifacts if one.name == end.name]
    return bool(end.digest) and not (len(named) == 1 and is_unchanged(named[0], end))
