"""`manifest.json`: written whole or not at all, read with its schema checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.errors import UsageError, first_line
from ..core.manifest import SCHEMA_VERSION, Manifest
from ..core.names import fits_a_file
from ..core.whole import write_whole
from .provenance.sealing import bind_manifest, seal_document

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = f"{MANIFEST_FILE}.sig"
SCHEMA_ID = "urn:modelc:manifest:1"
_INPUT_HINT = "give an output folder, its manifest.json or a report.json"


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
        UsageError: it cannot be read, is not a manifest of this schema version, has paths that lead
            out of its folder or are none, or an artifact that is of no file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", hint=_input_hint(path)
        ) from error
    return decode_manifest(raw, path)


def decode_manifest(raw: bytes, path: Path) -> Manifest:
    """The manifest that was read from `path`; what is wrong with it is said of that.

    Raises:
        UsageError: as `manifest_in`.
    """
    import msgspec

    hint = _input_hint(path)
    try:
        version = msgspec.json.decode(raw, type=dict[str, Any]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise UsageError(
                f"{path} has schema version {version!r}; this modelc reads {SCHEMA_VERSION}",
                hint=hint,
            )
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UsageError(f"{path} is not a manifest: {first_line(error)}", hint=hint) from error
    bare = next((one.name for one in manifest.artifacts if not one.files), None)
    if bare is not None:
        raise UsageError(f"{path} names {bare!r} without a file of it", hint=hint)
    for name in paths_in(manifest):
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise UsageError(f"{path} names a file outside its folder: {name}", hint=hint)
        if not all(map(fits_a_file, place.parts)):
            raise UsageError(f"{path} has a name that no file has: {name[:80]!r}", hint=hint)
    return manifest


def _input_hint(path: Path) -> str:
    return "move the folder away, or use another" if path.name == MANIFEST_FILE else _INPUT_HINT


def paths_in(manifest: Manifest) -> Iterator[str]:
    """All that becomes a path below the folder: names of artifacts and steps do as well."""
    yield from (file.name for file in (*manifest.files, *manifest.replaced))
    yield from (artifact.name for artifact in manifest.artifacts)
    yield from (pending.step for pending in manifest.pending)
    for verdict in manifest.verdicts:
        yield verdict.artifact
        if verdict.worst is not None:
            yield verdict.worst.file
    yield from (found.reproducer for found in manifest.localisations)


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write the manifest, whole or not at all; a signature of the one before goes."""
    drop_signature(folder)
    return write_whole(folder / MANIFEST_FILE, encode_manifest(manifest))


def signature_path(record: Path) -> Path:
    """Where the signature of a record lies."""
    return record.with_name(f"{record.name}.sig")


def drop_signature(folder: Path, file: str = MANIFEST_FILE) -> None:
    """Remove the signature of an earlier record, before another takes its place."""
    signature_path(folder / file).unlink(missing_ok=True)


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as it is written: artifacts bound to their verdicts, the whole sealed."""
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
    """The manifest less the artifacts of these names, their verdicts and wrong layers."""
    return replace(
        manifest,
        artifacts=tuple(a for a in manifest.artifacts if a.name not in names),
        verdicts=tuple(v for v in manifest.verdicts if v.artifact not in names),
        localisations=tuple(one for one in manifest.localisations if one.artifact not in names),
    )
