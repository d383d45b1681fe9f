"""`run.json`: how a run over a project ended, in short; each model's manifest says the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from .. import __version__
from ..core.digest import joint_digest
from ..core.errors import UsageError, first_line
from ..core.manifest import Manifest
from ..core.names import fits_a_file
from ..core.records import REJECTED, Artifact
from ..core.verdict import State
from ..core.whole import write_whole
from ..pipeline.manifest_file import drop_signature, encode_json
from ..pipeline.provenance.seals import seal_document
from ..pipeline.provenance.signing import sign_record
from ..reports.artifact_warnings import warnings_of, warnings_of_all
from .gates import Breach
from .outcome import Ended, exit_code_of
from .regression_records import Regression

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PrivateKey

FILE = "run.json"
SCHEMA_VERSION = 2
WORSE = 1  # as a verdict that failed
_BEGINNING = b'{\n "modelc": "'  # of each of ours


@dataclass(frozen=True, kw_only=True)
class ArtifactEnd:
    """One step of a model.

    `state` is passed, failed, error or pending; `source` is made, kept (it stood in the folder, or
    failed as it would again), cache, or empty where there is no artifact. `size` is in bytes,
    `sqnr` in dB on the worst feed that is held to it, None where there is none or where the
    artifact answers just as eager does. `notes` are what to know of it beside its verdict, passed
    or not. `digest` is over all of its files but the debug sidecar, for `modelc verify` to know it
    again.
    """

    name: str
    state: str
    source: str
    size: int = 0
    sqnr: float | None = None
    exact: bool = False
    reason: str = ""
    notes: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelEnd:
    """One model.

    `error` is what stopped it before its artifacts, `state` passed, failed, error, pending, or
    not-run. `seconds` is the wall time of its own work. `notes` are of all its artifacts alike.
    """

    name: str
    folder: str
    state: str
    exit_code: int
    seconds: float
    error: str = ""
    hint: str = ""
    artifacts: tuple[ArtifactEnd, ...] = ()
    breaches: tuple[Breach, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of `modelc run`. `regression` is what changed from the run that it was held against.

    It is None where none was named.
    """

    modelc: str
    exit_code: int
    seconds: float
    models: tuple[ModelEnd, ...]
    regression: Regression | None = None
    schema_version: int = SCHEMA_VERSION
    seal: str = ""  # the last of all: it covers the text before it


def record_of_run(
    ended: Sequence[Ended], *, seconds: float, prepare_only: bool = False
) -> RunRecord:
    """The record of how models ended; `seconds` is the wall time of all."""
    return RunRecord(
        modelc=__version__,
        exit_code=exit_code_of(ended, prepare_only=prepare_only),
        seconds=seconds,
        models=tuple(map(_model, ended)),
    )


def digest_of_files(artifact: Artifact) -> str:
    """One digest over all files of an artifact but the debug sidecar, which may stay behind."""
    return joint_digest([file for file in artifact.files if file.role != "debug"])


def is_as_made(artifact: Artifact, end: ArtifactEnd) -> bool:
    """Whether an artifact's files are those that the run ended with, as far as it noted them."""
    return not end.digest or digest_of_files(artifact) == end.digest


def is_record(text: bytes) -> bool:
    """Whether a file named `run.json` is one of ours, however it is spaced, and not another's."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # broken, or no text: of ours only where it begins so
        return text.startswith(_BEGINNING)
    return isinstance(document, dict) and {"modelc", "models"} <= set(document)


def against(record: RunRecord, regression: Regression | None) -> RunRecord:
    """The record of a run that was held against another: what got worse is a failure."""
    worse = regression is not None and bool(regression.worse)
    code = WORSE if worse else record.exit_code
    return replace(record, regression=regression, exit_code=code)


def write_record(record: RunRecord, folder: Path, key: PrivateKey | None = None) -> Path:
    """Write `run.json` into the folder of all models, whole or not at all, and sign it.

    Raises:
        UsageError: the folder cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drop_signature(folder, FILE)
        path = write_whole(folder / FILE, seal_document(encode_json(replace(record, seal=""))))
        if key is not None:
            sign_record(folder, key, file=FILE)
        return path


def read_record(text: bytes) -> RunRecord:
    """The record of a run; raises ValueError where it is none."""
    import msgspec

    record = msgspec.json.decode(text, type=RunRecord)
    for one in record.models:
        if not _is_plain(one.name):
            raise ValueError(f"{one.name[:40]!r} is no name of a model's folder")
    return record


def _is_plain(name: str) -> bool:
    """Whether something in a folder can have the name, and it is no way out of it."""
    parts = (PurePosixPath(name).parts, PureWindowsPath(name).parts)
    return fits_a_file(name) and name != ".." and parts == ((name,), (name,))


def clear_record(folder: Path) -> None:
    """Remove that of an earlier run, so that no success of it outlives a run that breaks.

    Raises:
        UsageError: the folder cannot be written, or is none, or the file is a stranger's.
    """
    path = folder / FILE
    forget_record(folder)
    if path.is_file():
        raise UsageError(
            f"{path} is no record of modelc run",
            hint="move it away, or give another folder with -o",
        )
    with writing(folder):
        drop_signature(folder, FILE)
        path.unlink(missing_ok=True)  # says what is wrong with the folder


def forget_record(folder: Path) -> None:
    """Remove that of an earlier run where the next one does not begin; a stranger's file stays.

    Raises:
        UsageError: it cannot be removed.
    """
    path = folder / FILE
    with writing(folder):
        if path.is_file() and path.read_bytes().startswith(_BEGINNING):
            drop_signature(folder, FILE)
            path.unlink()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Tell in one line that the folder of all models cannot be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or first_line(error)}",
            hint="give a folder of your own with -o, with room on its disk",
        ) from error


def _model(one: Ended) -> ModelEnd:
    return ModelEnd(
        name=one.name,
        folder=one.folder,
        state=_state(one),
        exit_code=one.exit_code,
        seconds=one.seconds,
        error="" if one.error is None else one.error.text,
        hint="" if one.error is None else one.error.hint,
        artifacts=() if one.manifest is None else tuple(_artifacts(one, one.manifest)),
        breaches=one.breaches,
        notes=() if one.manifest is None else warnings_of_all(one.manifest),
    )


def _state(one: Ended) -> str:
    if not one.started:
        return "not-run"
    if one.error is not None:
        return str(State.ERROR)
    if one.exit_code == 0:
        return str(State.PASSED)
    waits = one.manifest is not None and one.manifest.pending and not one.manifest.failures
    return "pending" if waits and one.exit_code != 1 else str(State.FAILED)


def _artifacts(one: Ended, manifest: Manifest) -> list[ArtifactEnd]:
    return [_artifact(name, one, manifest) for name in manifest.steps]


def _artifact(name: str, one: Ended, manifest: Manifest) -> ArtifactEnd:
    names = (f"{REJECTED}/{name}", name)
    artifact = next((a for own in names for a in manifest.artifacts if a.name == own), None)
    failure = next((f for f in manifest.failures if f.step == name), None)
    if failure is not None:
        source = "kept" if name in one.kept else ""
        return ArtifactEnd(name=name, state="error", source=source, reason=failure.message)
    source = "" if artifact is None else _source(name, one)
    pending = next((p for p in manifest.pending if p.step == name), None)
    if pending is not None:
        notes = pending.warnings
        told = pending.reason
        return ArtifactEnd(name=name, state="pending", source=source, reason=told, notes=notes)
    verdict = None if artifact is None else manifest.verdict_of(artifact.name)
    if artifact is None or verdict is None:
        return ArtifactEnd(name=name, state="error", source=source, reason="nothing is on record")
    return ArtifactEnd(
        name=name,
        state=str(verdict.state),
        source=source,
        size=artifact.size,
        sqnr=None if verdict.excused else verdict.sqnr,
        exact=verdict.exact,
        reason=verdict.reason,
        notes=warnings_of(artifact, manifest),
        digest=digest_of_files(artifact),
    )


def _source(name: str, one: Ended) -> str:
    return "kept" if name in one.kept else "cache" if name in one.restored else "made"
