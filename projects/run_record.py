"""`run.json`: how a run over a project ended, in short; each model's manifest says the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from .. import __version__
from ..core.atomic_write import atomic_write
from ..core.errors import ErrorCode, UsageError, first_line, is_file_name
from ..core.manifest import Manifest
from ..core.records import REJECTED_FOLDER, Artifact, joint_digest
from ..core.verdict import State
from ..pipeline.manifest_file import drop_signature, encode_json
from ..pipeline.provenance.seals import seal_document
from ..pipeline.provenance.signing import sign_record
from ..reports.summary import list_shared_warnings, list_warnings
from .project_records import Breach, ModelOutcome, Regression, combine_exit_codes

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PrivateKey

RUN_FILE = "run.json"
SCHEMA_VERSION = 2
REGRESSION_EXIT_CODE = 1  # as a verdict that failed
_RECORD_START = b'{\n "modelc": "'  # of each of ours


@dataclass(frozen=True, kw_only=True)
class ArtifactRun:
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
class ModelRun:
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
    artifacts: tuple[ArtifactRun, ...] = ()
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
    models: tuple[ModelRun, ...]
    regression: Regression | None = None
    schema_version: int = SCHEMA_VERSION
    seal: str = ""  # the last of all: it covers the text before it


def make_record(
    ended: Sequence[ModelOutcome], *, seconds: float, prepare_only: bool = False
) -> RunRecord:
    """The record of how models ended; `seconds` is the wall time of all."""
    return RunRecord(
        modelc=__version__,
        exit_code=combine_exit_codes(ended, prepare_only=prepare_only),
        seconds=seconds,
        models=tuple(map(_model_run, ended)),
    )


def digest_artifact(artifact: Artifact) -> str:
    """One digest over all files of an artifact but the debug sidecar, which may stay behind."""
    return joint_digest([file for file in artifact.files if file.role != "debug"])


def is_unchanged(artifact: Artifact, end: ArtifactRun) -> bool:
    """Whether an artifact's files are those that the run ended with, as far as it noted them."""
    return not end.digest or digest_artifact(artifact) == end.digest


def is_run_record(text: bytes) -> bool:
    """Whether a file named `run.json` is one of ours, however it is spaced, and not another's."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # broken, or no text: of ours only where it begins so
        return text.startswith(_RECORD_START)
    return isinstance(document, dict) and {"modelc", "models"} <= set(document)


def with_regression(record: RunRecord, regression: Regression | None) -> RunRecord:
    """The record of a run that was held against another: what got worse is a failure."""
    worse = regression is not None and bool(regression.worse)
    code = REGRESSION_EXIT_CODE if worse else record.exit_code
    return replace(record, regression=regression, exit_code=code)


def write_record(record: RunRecord, folder: Path, key: PrivateKey | None = None) -> Path:
    """Write `run.json` into the folder of all models, whole or not at all, and sign it.

    Raises:
        UsageError: the folder cannot be written.
    """
    with folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        drop_signature(folder, RUN_FILE)
        path = atomic_write(folder / RUN_FILE, seal_document(encode_json(replace(record, seal=""))))
        if key is not None:
            sign_record(folder, key, file=RUN_FILE)
        return path


def read_record(text: bytes) -> RunRecord:
    """The record of a run; raises ValueError where it is none."""
    import msgspec

    record = msgspec.json.decode(text, type=RunRecord)
    for one in record.models:
        if not _is_plain_name(one.name):
            raise ValueError(f"{one.name[:40]!r} is no name of a model's folder")
    return record


def _is_plain_name(name: str) -> bool:
    """Whether something in a folder can have the name, and it is no way out of it."""
    parts = (PurePosixPath(name).parts, PureWindowsPath(name).parts)
    return is_file_name(name) and name != ".." and parts == ((name,), (name,))


def clear_record(folder: Path) -> None:
    """Remove that of an earlier run, so that no success of it outlives a run that breaks.

    Raises:
        UsageError: the folder cannot be written, or is none, or the file is a stranger's.
    """
    path = folder / RUN_FILE
    forget_record(folder)
    if path.is_file():
        raise UsageError(
            f"{path} is no record of modelc run",
            hint="move it away, or give another folder with -o",
            code=ErrorCode.FILE_EXISTS,
        )
    with folder_errors(folder):
        drop_signature(folder, RUN_FILE)
        path.unlink(missing_ok=True)  # says what is wrong with the folder


def forget_record(folder: Path) -> None:
    """Remove that of an earlier run where the next one does not begin; a stranger's file stays.

    Raises:
        UsageError: it cannot be removed.
    """
    path = folder / RUN_FILE
    with folder_errors(folder):
        if path.is_file() and path.read_bytes().startswith(_RECORD_START):
            drop_signature(folder, RUN_FILE)
            path.unlink()


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
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
            code=ErrorCode.NOT_WRITABLE,
        ) from error


def _model_run(one: ModelOutcome) -> ModelRun:
    return ModelRun(
        name=one.name,
        folder=one.folder,
        state=_model_state(one),
        exit_code=one.exit_code,
        seconds=one.seconds,
        error="" if one.error is None else one.error.text,
        hint="" if one.error is None else one.error.hint,
        artifacts=() if one.manifest is None else tuple(_artifact_runs(one, one.manifest)),
        breaches=one.breaches,
        notes=() if one.manifest is None else list_shared_warnings(one.manifest),
    )


def _model_state(one: ModelOutcome) -> str:
    if not one.started:
        return "not-run"
    if one.error is not None:
        return str(State.ERROR)
    if one.exit_code == 0:
        return str(State.PASSED)
    waits = one.manifest is not None and one.manifest.pending and not one.manifest.failures
    return "pending" if waits and one.exit_code != 1 else str(State.FAILED)


def _artifact_runs(one: ModelOutcome, manifest: Manifest) -> list[ArtifactRun]:
    return [_artifact_run(name, one, manifest) for name in manifest.steps]


def _artifact_run(name: str, one: ModelOutcome, manifest: Manifest) -> ArtifactRun:
    names = (f"{REJECTED_FOLDER}/{name}", name)
    artifact = next((a for own in names for a in manifest.artifacts if a.name == own), None)
    failure = next((f for f in manifest.failures if f.step == name), None)
    if failure is not None:
        source = "kept" if name in one.kept else ""
        return ArtifactRun(name=name, state="error", source=source, reason=failure.message)
    source = "" if artifact is None else _artifact_source(name, one)
    pending = next((p for p in manifest.pending if p.step == name), None)
    if pending is not None:
        notes = pending.warnings
        told = pending.reason
        return ArtifactRun(name=name, state="pending", source=source, reason=told, notes=notes)
    verdict = None if artifact is None else manifest.verdict_of(artifact.name)
    if artifact is None or verdict is None:
        return ArtifactRun(name=name, state="error", source=source, reason="nothing is on record")
    return ArtifactRun(
        name=name,
        state=str(verdict.state),
        source=source,
        size=artifact.size,
        sqnr=None if verdict.is_excused else verdict.sqnr,
        exact=verdict.exact,
        reason=verdict.reason,
        notes=list_warnings(artifact, manifest),
        digest=digest_artifact(artifact),
    )


def _artifact_source(name: str, one: ModelOutcome) -> str:
    return "kept" if name in one.kept else "cache" if name in one.restored else "made"
