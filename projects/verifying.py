"""`modelc verify` of what `modelc run` left: each model's folder, and `run.json` beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError, first_line
from ..core.manifest import Manifest
from ..core.records import REJECTED
from ..core.verdict import State
from ..pipeline.manifest_file import FILE as MANIFEST
from ..pipeline.manifest_file import read_manifest
from ..pipeline.provenance.records import Check, Finding, Verification, Verified, verification
from ..pipeline.provenance.sealing import seal_holds
from ..pipeline.provenance.signing import check_signature
from ..pipeline.provenance.unclaimed import manifest_folders, unclaimed_models
from ..pipeline.provenance.verifying import verify_folder
from .run_record import FILE, ArtifactEnd, ModelEnd, RunRecord, read_record

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PublicKey


def verify(folder: Path, *, key: PublicKey | None = None) -> Verification:
    """Check a folder of one model, or of a run with several and what earlier runs left beside them.

    Every folder below it that has a manifest is checked, and every model file must be claimed.

    Args:
        folder: it holds a manifest, or the `run.json` of a run.
        key: of whoever must have signed the manifests and the record of the run.

    Raises:
        UsageError: it holds neither.
    """
    places = manifest_folders(folder)
    if not (folder / FILE).is_file():
        if folder not in places:
            raise UsageError(
                f"{folder} has neither {MANIFEST} nor {FILE}",
                hint="give what modelc export or modelc run wrote",
            )
        return verification(_verify_each(places, folder, key))
    text = (folder / FILE).read_bytes()
    strays = () if folder in places else tuple(unclaimed_models(folder))
    try:
        record = read_record(text)
    except ValueError as error:
        wrong = Check(of="run", what="form", found=Finding.FAILED, detail=first_line(error))
        return verification(_verify_each(places, folder, key), [wrong, *strays])
    models = [_of_model(one, folder, key) for one in record.models]
    claimed = [one for one in models if one is not None]
    named = {folder / one.name for one in record.models}
    earlier = _verify_each([one for one in places if one not in named], folder, key)
    run = _of_run(record, text, folder)
    signature = check_signature(folder / FILE, text, key, of="run")
    return verification([*claimed, *earlier], [*run, signature, *strays])


def _verify_each(places: Sequence[Path], root: Path, key: PublicKey | None) -> tuple[Verified, ...]:
    """Check folders of models, each by its name below the root."""
    return tuple(
        verify_folder(
            place, key=key, name="" if place == root else place.relative_to(root).as_posix()
        )
        for place in places
    )


def _of_model(end: ModelEnd, folder: Path, key: PublicKey | None) -> Verified | None:
    """The model's folder; None where the run claims nothing of it and nothing is there."""
    place = folder / end.name
    if (place / MANIFEST).is_file():
        return verify_folder(place, key=key, name=end.name)
    if not any(one.state == State.PASSED for one in end.artifacts):
        return None
    detail = f"{MANIFEST} is missing"
    wrong = Check(of="manifest", what="form", found=Finding.FAILED, detail=detail)
    return Verified(folder=str(place), checks=(wrong,), name=end.name)


def _of_run(record: RunRecord, text: bytes, folder: Path) -> Iterator[Check]:
    """The run's own record, and whether the models' manifests say the same."""
    well = seal_holds(text)
    if well is None:
        well = None if not record.seal and not _has_seal(text) else False
    found = {None: Finding.LACKING, True: Finding.HOLDS, False: Finding.FAILED}[well]
    detail = {None: "it has none", True: "", False: "changed since it was written"}[well]
    yield Check(of="run", what="seal", found=found, detail=detail)
    for end in record.models:
        yield _as_ended(end, folder)


def _has_seal(text: bytes) -> bool:
    return b'"seal"' in text


def _as_ended(end: ModelEnd, folder: Path) -> Check:
    """What the run says of a model beside what the model's own manifest says now."""
    if not end.artifacts:
        detail = f"not claimed: {end.error or end.state}"
        return Check(of=end.name, what="verdict", found=Finding.UNCHECKED, detail=detail)
    try:
        manifest = read_manifest(folder / end.name)
    except UsageError:
        manifest = None
    other = [
        one.name
        for one in end.artifacts
        if one.state == State.PASSED and not _passed(one, manifest)
    ]
    if other:
        detail = f"{', '.join(other)} passed in this run, and is not passed in the manifest"
        return Check(of=end.name, what="verdict", found=Finding.FAILED, detail=detail)
    return Check(of=end.name, what="verdict", found=Finding.HOLDS, detail=end.state)


def _passed(end: ArtifactEnd, manifest: Manifest | None) -> bool:
    verdict = None if manifest is None else manifest.verdict_of(end.name)
    if manifest is None or any(a.name == f"{REJECTED}/{end.name}" for a in manifest.artifacts):
        return False
    return verdict is not None and verdict.passed
