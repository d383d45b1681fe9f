"""`run.json`: a summary of a project run; the manifest of each model has the details."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from .. import __version__
from ..core.atomic_write import atomic_write
from ..core.errors import ErrorCode, UsageError, first_line, is_file_name
from ..core.manifest import Manifest
from ..core.records import REJECTED_FOLDER, Artifact
from ..core.untrusted_files import is_path_inside
from ..pipeline.manifest_file import drop_signature, encode_json
from ..pipeline.provenance.seals import seal_document
from ..pipeline.provenance.signing import sign_record
from ..reports.result_rows import Outcome, failure_outcome, verdict_outcome
from ..reports.summary import list_shared_warnings, list_warnings
from ..reports.text_format import count_text
from .project_records import Breach, ModelOutcome, Regression, combine_exit_codes
from .shards import MAX_SHARDS, Shard, ShardRun, find_shard_files

if TYPE_CHECKING:
    from ..pipeline.provenance.signing import PrivateKey

RUN_FILE = "run.json"
SCHEMA_VERSION = 3
REGRESSION_EXIT_CODE = 1  # same as for a failed verdict
_RECORD_START = b'{\n "modelc": "'  # the start of every record of modelc


@dataclass(frozen=True, kw_only=True)
class ArtifactRun:
    """One step of a model.

    `source` is made, kept (it was in the folder, or would fail again), cache, or empty without an
    artifact. `size` is in bytes; `sqnr` is in dB on the worst feed that counts, None if undefined
    or if the artifact equals eager. `notes` are caveats apart from the verdict, such as undecided
    gates. `digest` covers all files except the debug sidecar, for `modelc verify`.
    """

    name: str
    state: Outcome
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

    `error` is what stopped it before its artifacts; a model that the run did not begin is skipped.
    `seconds` is the wall time of its own work. `notes` apply to all its artifacts.
    """

    name: str
    folder: str
    state: Outcome
    exit_code: int
    seconds: float
    error: str = ""
    hint: str = ""
    artifacts: tuple[ArtifactRun, ...] = ()
    breaches: tuple[Breach, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Versioned:
    schema_version: int = 0


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of `modelc run`; `regression` has the changes since the base run.

    It is None without a base run. `shard` says of which run this is a part; None for a whole run.
    """

    modelc: str
    exit_code: int
    seconds: float
    models: tuple[ModelRun, ...]
    regression: Regression | None = None
    shard: ShardRun | None = None
    schema_version: int = SCHEMA_VERSION
    seal: str = ""  # must be last, as it covers the text before it


def count_results(record: RunRecord) -> str:
    """Count the artifacts by state, the models that stopped or were skipped, and broken gates."""
    states = Counter(one.state for model in record.models for one in model.artifacts)
    shown = (Outcome.PASSED, Outcome.REJECTED)
    parts = [f"{states[one]} {one}" for one in Outcome if states[one] or one in shown]
    of_all = f"of {count_text(len(record.models), 'model')}"
    stopped = sum(bool(model.error) for model in record.models)
    parts += [f"{stopped} {of_all} failed"] if stopped else []
    skipped = sum(model.state is Outcome.SKIPPED for model in record.models)
    parts += [f"{skipped} {of_all} skipped (--keep-going runs all)"] if skipped else []
    breaches = sum(len(model.breaches) for model in record.models)
    parts += [f"{count_text(breaches, 'gate')} broken"] if breaches else []
    return ", ".join(parts)


def make_record(
    ended: Sequence[ModelOutcome], *, seconds: float, prepare_only: bool = False
) -> RunRecord:
    """Make the record of the models' outcomes; `seconds` is the wall time of the run."""
    return RunRecord(
        modelc=__version__,
        exit_code=combine_exit_codes(ended, prepare_only=prepare_only),
        seconds=seconds,
        models=tuple(map(make_model_run, ended)),
    )


def is_unchanged(artifact: Artifact, end: ArtifactRun) -> bool:
    """Whether an artifact's files are those of the run's result, as far as recorded."""
    return not end.digest or artifact.joint_digest == end.digest


def is_run_record(text: bytes) -> bool:
    """Whether a `run.json` was written by modelc, regardless of its whitespace."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):  # damaged or not text: modelc's only if the start matches
        return text.startswith(_RECORD_START)
    return isinstance(document, dict) and {"modelc", "models"} <= set(document)


def with_regression(record: RunRecord, regression: Regression | None) -> RunRecord:
    """Add the changes since the base run to the record; a regression is a failure."""
    worse = regression is not None and bool(regression.worse)
    code = REGRESSION_EXIT_CODE if worse else record.exit_code
    return replace(record, regression=regression, exit_code=code)


def record_file(record: RunRecord) -> str:
    """Return the name of the file of a record: parts of a run may share a folder."""
    return RUN_FILE if record.shard is None else record.shard.shard.file


def write_record(record: RunRecord, folder: Path, key: PrivateKey | None = None) -> Path:
    """Write `run.json` atomically to the folder of all models, and sign it.

    The record of a part has a name of its own.

    Raises:
        UsageError: the folder cannot be written.
    """
    with folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        name = record_file(record)
        drop_signature(folder, name)
        path = atomic_write(folder / name, seal_document(encode_json(replace(record, seal=""))))
        if key is not None:
            sign_record(folder, key, file=name)
        return path


def read_record(text: bytes) -> RunRecord:
    """Decode the record of a run.

    Raises:
        ValueError: the text is not a valid record of this schema version.
    """
    import msgspec

    version = msgspec.json.decode(text, type=_Versioned).schema_version
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema version {version}, not {SCHEMA_VERSION}")
    record = msgspec.json.decode(text, type=RunRecord)
    part = record.shard
    if part is not None and not 1 <= part.index <= part.count <= MAX_SHARDS:
        raise ValueError(f"there is no part {part.shard}")
    for one in record.models:
        is_entry = PureWindowsPath(one.name).parts == (one.name,) and is_path_inside(one.name)
        if not is_entry or not is_file_name(one.name):
            raise ValueError(f"{one.name[:40]!r} is not a valid folder name")
    return record


def clear_record(folder: Path, shard: Shard | None = None) -> None:
    """Remove the record of an earlier run, so that its success does not outlive a crash.

    Of the records of parts, a whole run removes all, and a part its own and those of other splits.

    Raises:
        UsageError: the folder cannot be written or is not a folder, or the file is not modelc's.
    """
    path = folder / RUN_FILE
    forget_record(folder)
    for one, part in find_shard_files(folder).items():
        if shard is None or part == shard or part.count != shard.count:
            forget_record(folder, one.name)
    if path.is_file():
        raise UsageError(
            f"{path} is not a record of modelc run",
            hint="move it, or pass another folder with -o",
            code=ErrorCode.FILE_EXISTS,
        )
    with folder_errors(folder):
        drop_signature(folder, RUN_FILE)
        path.unlink(missing_ok=True)  # raises the error of the folder


def forget_record(folder: Path, name: str = RUN_FILE) -> None:
    """Remove the record of an earlier run if the next one does not start; keep foreign files.

    Raises:
        UsageError: it cannot be removed.
    """
    path = folder / name
    with folder_errors(folder):
        if path.is_file() and path.read_bytes().startswith(_RECORD_START):
            drop_signature(folder, name)
            path.unlink(missing_ok=True)  # a part on another host may remove it too


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Convert an OSError in the folder of all models to an error in one line.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or first_line(error)}",
            hint="pass a writable folder with -o, on a disk with free space",
            code=ErrorCode.NOT_WRITABLE,
        ) from error


def make_model_run(one: ModelOutcome) -> ModelRun:
    """Make the record of one model's outcome."""
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


def _model_state(one: ModelOutcome) -> Outcome:
    if not one.started:
        return Outcome.SKIPPED
    if one.error is not None:
        return Outcome.FAILED
    if one.exit_code in (0, 1):
        return Outcome.REJECTED if one.exit_code else Outcome.PASSED
    waits = one.manifest is not None and one.manifest.pending and not one.manifest.failures
    return Outcome.PENDING if waits else Outcome.FAILED


def _artifact_runs(one: ModelOutcome, manifest: Manifest) -> list[ArtifactRun]:
    return [_artifact_run(name, one, manifest) for name in manifest.steps]


def _artifact_run(name: str, one: ModelOutcome, manifest: Manifest) -> ArtifactRun:
    names = (f"{REJECTED_FOLDER}/{name}", name)
    artifact = next((a for own in names for a in manifest.artifacts if a.name == own), None)
    failure = next((f for f in manifest.failures if f.step == name), None)
    if failure is not None:
        source = "kept" if name in one.kept else ""
        state = failure_outcome(failure)
        return ArtifactRun(name=name, state=state, source=source, reason=failure.message)
    source = "" if artifact is None else _artifact_source(name, one)
    pending = next((p for p in manifest.pending if p.step == name), None)
    if pending is not None:
        return ArtifactRun(
            name=name,
            state=Outcome.PENDING,
            source=source,
            reason=pending.reason,
            notes=pending.warnings,
        )
    verdict = None if artifact is None else manifest.verdict_of(artifact.name)
    doubts = [f"gate undecided: {doubt.message}" for doubt in one.doubts if doubt.artifact == name]
    if artifact is None or verdict is None:
        reason = "the manifest has no verdict on it"
        return ArtifactRun(name=name, state=Outcome.FAILED, source=source, reason=reason)
    return ArtifactRun(
        name=name,
        state=verdict_outcome(verdict),
        source=source,
        size=artifact.size,
        sqnr=None if verdict.is_excused else verdict.sqnr,
        exact=verdict.exact,
        reason=verdict.reason,
        notes=(*list_warnings(artifact, manifest), *doubts),
        digest=artifact.joint_digest,
    )


def _artifact_source(name: str, one: ModelOutcome) -> str:
    return "kept" if name in one.kept else "cache" if name in one.restored else "made"
