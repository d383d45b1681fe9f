"""`parts.json`, the manifest of a model of several parts, and the folders of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...converters.registry import target_named
from ...core.atomic_write import atomic_write
from ...core.contract import Deferred
from ...core.errors import ErrorCode, ModelcError, UsageError, first_line
from ...core.kinds import ReasonCode
from ...core.manifest import Manifest
from ...core.part_records import (
    PART_NAME,
    PARTS_FILE,
    PARTS_SCHEMA_VERSION,
    WHOLE,
    PartRecord,
    PartsManifest,
)
from ...core.records import Artifact
from ...core.verdict import Reason
from ..manifest_file import drop_signature, encode_json, read_manifest
from ..provenance.seals import seal_document
from ..recorded_run import describe_changed_file

CALIBRATION_FOLDER = "calibration"  # of the calibration samples of parts
_RESERVED = {
    WHOLE, CALIBRATION_FOLDER, "logs", "pending", "references", "rejected", "replaced", "worst",
}  # fmt: skip

_HINT = "export the model again with --part"


def has_parts(folder: Path) -> bool:
    """Whether a folder is that of a model of several parts."""
    return (folder / PARTS_FILE).is_file()


def check_part_name(name: str, code: ErrorCode = ErrorCode.INVALID_VALUE) -> None:
    """Check that a name can be that of a part's folder.

    Raises:
        UsageError: it cannot.
    """
    if not PART_NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a part",
            hint="use letters, digits and underscores, as --part text_encoder=encoder",
            option="part",
            code=code,
        )


def part_folder(folder: Path, name: str) -> Path:
    """Return the folder of a part.

    Raises:
        UsageError: it is a link.
    """
    check_part_name(name, ErrorCode.UNSAFE_PATH)
    place = folder / name
    if place.is_symlink():
        raise UsageError(
            f"{place} is a link, and the folder of a part must be in {folder}",
            hint="copy the folder there",
            code=ErrorCode.UNSAFE_PATH,
        )
    return place


def read_parts(folder: Path) -> PartsManifest:
    """Return the manifest of a model of several parts.

    Raises:
        UsageError: it cannot be read, or is not such a manifest.
    """
    path = folder / PARTS_FILE
    try:
        return decode_parts(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_HINT) from error


def decode_parts(raw: bytes, path: Path) -> PartsManifest:
    """Return the manifest of parts that was read from `path`.

    Raises:
        UsageError: it is not such a manifest.
    """
    import msgspec

    hint = _HINT
    try:
        found = msgspec.json.decode(raw, type=PartsManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ModelcError) as error:
        raise UsageError(
            f"{path} is not a manifest of parts: {first_line(error)}",
            hint=hint,
            code=ErrorCode.INVALID_MANIFEST,
        ) from error
    if found.schema_version != PARTS_SCHEMA_VERSION:
        raise UsageError(
            f"{path} has schema version {found.schema_version}; this modelc reads "
            f"{PARTS_SCHEMA_VERSION}",
            hint=hint,
            code=ErrorCode.INVALID_MANIFEST,
        )
    for part in found.parts:
        check_part_name(part.name, ErrorCode.UNSAFE_PATH)
    return found


def write_parts(manifest: PartsManifest, folder: Path) -> None:
    """Write the manifest atomically, sealed; remove the signature of the previous one."""
    drop_signature(folder, PARTS_FILE)
    text = encode_json(replace(manifest, seal=""))
    atomic_write(folder / PARTS_FILE, seal_document(text))


@dataclass(frozen=True, kw_only=True)
class BuiltPart:
    """The folder of a part, its manifest if there is a valid one, and why there is none."""

    name: str
    method: str
    folder: Path
    manifest: Manifest | None
    problem: str = ""

    @classmethod
    def read(cls, folder: Path, name: str, method: str) -> BuiltPart:
        """Read the manifest in the folder of a part.

        Raises:
            UsageError: the folder is a link.
        """
        place = part_folder(folder, name)
        manifest, problem = None, ""
        try:
            manifest = read_manifest(place)
        except UsageError as error:
            problem = error.message
        if manifest is None and not problem:
            problem = f"{place} has no manifest"
        return cls(name=name, method=method, folder=place, manifest=manifest, problem=problem)

    def artifact(self, name: str) -> Artifact | None:
        """Return its artifact of this name; None if there is none, or it was rejected."""
        found = () if self.manifest is None else self.manifest.artifacts
        return next((one for one in found if one.name == name and not one.rejected), None)

    def is_calibrated(self, name: str) -> bool:
        """Whether its artifact of this name was calibrated with samples."""
        found = self.artifact(name)
        return found is not None and found.calibration is not None

    def record(self) -> PartRecord:
        """Return the part as it is now, for the manifest of the whole."""
        found = () if self.manifest is None else self.manifest.artifacts
        digests = {one.name: one.joint_digest for one in found if not one.rejected}
        return PartRecord(name=self.name, method=self.method, artifacts=digests)

    def list_faults(self, name: str, checkpoint: str) -> Iterator[Reason]:
        """Yield why the artifact of this name is not of this part, or not as it was built.

        Args:
            name: an artifact.
            checkpoint: the digest of the checkpoint that the whole is judged against.
        """
        artifact, manifest = self.artifact(name), self.manifest
        if artifact is None or manifest is None:
            return
        stale = []
        then = manifest.checkpoint
        if then.digest != checkpoint:
            stale.append(
                f"{self.name} was built from another checkpoint: sha256 {then.digest[:12]}… "
                f"instead of {checkpoint[:12]}…"
            )
        if (then.method or "forward") != self.method:
            made = then.method or "forward"
            stale.append(f"{self.name} was built from {made} instead of {self.method}")
        for text in stale:
            yield Reason(code=ReasonCode.PART_STALE, text=text, fault=True)
        changed = describe_changed_file(artifact, self.folder)
        if changed:
            text = f"{self.name}: {changed}"
            yield Reason(code=ReasonCode.CHANGED_FILE, text=text, fault=True)


def list_judged(whole: PartsManifest) -> tuple[str, ...]:
    """Return the artifacts of the whole that were judged, or failed."""
    names = [*(one.artifact for one in whole.verdicts), *(one.step for one in whole.failures)]
    return tuple(dict.fromkeys(names))


def list_built(whole: PartsManifest, folder: Path) -> tuple[str, ...]:
    """Return those that were judged, and what another host built in all parts since.

    Raises:
        UsageError: the folder of a part is a link.
    """
    parts = [BuiltPart.read(folder, one.name, one.method) for one in whole.parts]
    first = (a for one in parts[:1] if one.manifest is not None for a in one.manifest.artifacts)
    built = (
        one.name
        for one in first
        if isinstance(target_named(one.target), Deferred)
        and all(part.artifact(one.name) is not None for part in parts)
    )
    return tuple(dict.fromkeys([*list_judged(whole), *built]))


def list_rebuilt(
    then: Sequence[PartRecord], parts: Mapping[str, BuiltPart], checkpoint: str
) -> Iterator[str]:
    """Yield which artifacts were built again, rightly, after the whole was judged."""
    for part in then:
        built = parts[part.name]
        now = built.record().artifacts
        for name, digest in part.artifacts.items():
            changed = now.get(name, digest) != digest
            if changed and not any(built.list_faults(name, checkpoint)):
                yield f"{name} of {part.name} was built again after the whole was judged"
