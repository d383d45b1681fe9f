"""`manifest.json`: written atomically, checked when read, committed with the files it names."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.atomic_write import atomic_write, flush_file, flush_folder
from ..core.errors import ErrorCode, UsageError, first_line, is_file_name
from ..core.manifest import SCHEMA_VERSION, Manifest
from ..core.untrusted_files import is_path_inside
from .provenance.seals import bind_manifest, seal_document

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = f"{MANIFEST_FILE}.sig"
SCHEMA_ID = "urn:modelc:manifest:1"
_INPUT_HINT = "give an output folder, its manifest.json or a report.json"


@dataclass(frozen=True)
class _VersionedManifest:
    schema_version: Any = None


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None when there is none.

    Raises:
        UsageError: it is not a manifest of this schema version.
    """
    path = folder / MANIFEST_FILE
    return read_manifest_file(path) if path.exists() else None


def read_manifest_file(path: Path) -> Manifest:
    """The manifest in a file of any name, as `report.json` is.

    Raises:
        UsageError: it cannot be read, is not a manifest of this schema version, has invalid paths
            or paths that lead out of its folder, or an artifact without a file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=_input_hint(path)) from error
    return decode_manifest(raw, path)


def decode_manifest(raw: bytes, path: Path) -> Manifest:
    """The manifest that was read from `path`.

    Raises:
        UsageError: as `read_manifest_file`.
    """

    def invalid(text: str, code: ErrorCode = ErrorCode.INVALID_MANIFEST) -> UsageError:
        return UsageError(f"{path} {text}", hint=_input_hint(path), code=code)

    manifest = _decode_record(raw, invalid)
    bare = next((one.name for one in manifest.artifacts if not one.files), None)
    if bare is not None:
        raise invalid(f"names {bare!r} without a file")
    for name in paths_in(manifest):
        if not all(map(is_file_name, name.split("/"))):
            raise invalid(f"has an invalid file name: {name[:80]!r}", ErrorCode.UNSAFE_PATH)
        if name and not is_path_inside(name):
            raise invalid(f"names a file outside its folder: {name}", ErrorCode.UNSAFE_PATH)
    return manifest


def _decode_record(raw: bytes, invalid: Callable[..., UsageError]) -> Manifest:
    """Decode a record of this schema version; of another one, only the version is read."""
    import msgspec

    malformed = (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError)
    manifest = None
    try:
        try:
            text = raw.decode()  # msgspec does not look at the text of unknown keys
            manifest = msgspec.json.decode(text, type=Manifest)
            version = manifest.schema_version
        except (*malformed, UsageError):
            version = msgspec.json.decode(raw, type=_VersionedManifest).schema_version
            if version == SCHEMA_VERSION:
                raise
    except malformed as error:
        raise invalid(f"is not a manifest: {first_line(error)}") from error
    except UsageError as error:  # a value that no metadata has
        raise invalid(f"is not a manifest: {error.message}") from error
    if manifest is None or version != SCHEMA_VERSION:
        raise invalid(f"has schema version {version!r}; this modelc reads {SCHEMA_VERSION}")
    return manifest


def _input_hint(path: Path) -> str:
    return "move the folder away, or use another" if path.name == MANIFEST_FILE else _INPUT_HINT


def paths_in(manifest: Manifest) -> Iterator[str]:
    """Yield everything that becomes a path below the folder, as names of artifacts and steps."""
    yield from (file.name for file in (*manifest.files, *manifest.replaced))
    yield from (artifact.name for artifact in manifest.artifacts)
    yield from (pending.step for pending in manifest.pending)
    for verdict in manifest.verdicts:
        yield verdict.artifact
        if verdict.worst is not None:
            yield verdict.worst.file
    yield from (found.reproducer for found in manifest.localisations)


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write the manifest atomically; remove the signature of the previous one."""
    drop_signature(folder)
    return atomic_write(folder / MANIFEST_FILE, encode_manifest(manifest))


def signature_path(record: Path) -> Path:
    """The path of the signature of a record."""
    return record.with_name(f"{record.name}.sig")


def drop_signature(folder: Path, file: str = MANIFEST_FILE) -> None:
    """Remove the signature of a record before another replaces it."""
    signature_path(folder / file).unlink(missing_ok=True)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as it is written, with artifacts and document sealed."""
    return seal_document(encode_json(replace(bind_manifest(manifest), seal="")))


def encode_json(value: object) -> bytes:
    """Records as indented JSON with a newline at the end."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, from its records."""
    import msgspec

    schema = msgspec.json.schema(Manifest)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "modelc manifest",
        **schema,
    }


def without_artifacts(manifest: Manifest, names: set[str]) -> Manifest:
    """The manifest less the artifacts of these names, all their verdicts and wrong layers."""
    return replace(
        manifest,
        artifacts=tuple(a for a in manifest.artifacts if a.name not in names),
        verdicts=tuple(v for v in manifest.verdicts if v.artifact not in names),
        external=tuple(v for v in manifest.external if v.verdict.artifact not in names),
        localisations=tuple(one for one in manifest.localisations if one.artifact not in names),
    )


COMMIT_FOLDER = ".modelc.commit"
_COMMIT_LIST = "commit.json"


@dataclass(frozen=True, kw_only=True)
class FileMove:
    """A file and its new name; both are relative to the output folder."""

    source: str
    name: str


@dataclass(frozen=True, kw_only=True)
class FolderCommit:
    """The changes of a commit: moves in their order, then the manifest, then removals."""

    moves: tuple[FileMove, ...] = ()
    removals: tuple[str, ...] = ()


def commit(folder: Path, staged: Path, manifest: Manifest, changes: FolderCommit) -> None:
    """Apply changes to the output folder, all or none of them.

    Args:
        folder: the output folder.
        staged: a folder beside the results, with the files that moves name below `COMMIT_FOLDER`.
        manifest: the manifest afterwards.
        changes: what to do.

    Raises:
        OSError: the disk cannot be written; nothing was changed.
    """
    import msgspec

    (staged / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    (staged / _COMMIT_LIST).write_bytes(msgspec.json.encode(changes))
    for path in staged.iterdir():
        flush_file(path)
    flush_folder(staged)
    staged.rename(folder / COMMIT_FOLDER)
    flush_folder(folder)
    _apply_commit(folder, changes)


def finish_commit(folder: Path) -> None:
    """Finish the commit that a killed run left, if there is one.

    Raises:
        UsageError: it is not a commit of modelc.
    """
    import msgspec

    place = folder / COMMIT_FOLDER
    if not place.is_dir():
        return
    if not (place / _COMMIT_LIST).is_file():  # all changes were applied
        shutil.rmtree(place)
        return
    try:
        changes = msgspec.json.decode((place / _COMMIT_LIST).read_bytes(), type=FolderCommit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _invalid_commit(place, first_line(error)) from error
    for name in (
        *changes.removals,
        *(text for one in changes.moves for text in vars(one).values()),
    ):
        if not is_path_inside(name):
            raise _invalid_commit(place, f"it names {name!r}")
        if not (folder / name).parent.resolve().is_relative_to(folder.resolve()):
            raise _invalid_commit(place, f"{name!r} lies behind a link")
    _apply_commit(folder, changes)


def _invalid_commit(place: Path, why: str) -> UsageError:
    return UsageError(
        f"{place} is not a commit of modelc: {why}",
        hint="move it away, or use another folder",
        code=ErrorCode.INVALID_MANIFEST,
    )


def _apply_commit(folder: Path, changes: FolderCommit) -> None:
    """Apply the changes; each may be applied twice."""
    place = folder / COMMIT_FOLDER
    for move in changes.moves:
        source = folder / move.source
        if source.exists():
            (folder / move.name).parent.mkdir(parents=True, exist_ok=True)
            source.replace(folder / move.name)
    for parent in {(folder / move.name).parent for move in changes.moves}:
        flush_folder(parent)
    if (place / MANIFEST_FILE).exists():
        drop_signature(folder)
        (place / MANIFEST_FILE).replace(folder / MANIFEST_FILE)
        flush_folder(folder)
    for name in changes.removals:
        (folder / name).unlink(missing_ok=True)
    (place / _COMMIT_LIST).unlink(missing_ok=True)
    shutil.rmtree(place)
    _remove_empty_parents(folder, [*changes.removals, *(move.source for move in changes.moves)])


def _remove_empty_parents(folder: Path, names: Sequence[str]) -> None:
    """Remove empty folders above these names, below the output folder."""
    parents = {path for name in names for path in PurePosixPath(name).parents if path.parts}
    for parent in sorted(parents, key=lambda path: -len(path.parts)):
        place = folder / parent
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
