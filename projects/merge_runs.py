"""Merge the parts of a run into one record, from folders or from the remote cache."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import ErrorCode, UsageError, first_line, join_some
from ..core.manifest import Manifest
from ..pipeline.cache.remote_files import RemoteFiles
from ..pipeline.cache.stored_folder import StoredFolder, list_folder, place_folder, store_folder
from ..pipeline.manifest_file import encode_json
from ..pipeline.parts.joined_manifest import read_results_of
from ..pipeline.provenance.artifact_checks import CheckOutcome
from ..pipeline.provenance.seals import seal_document, seal_holds
from ..pipeline.recorded_run import describe_changed_file
from .project_records import Regression
from .run_record import (
    ModelRun,
    RunRecord,
    read_record,
)
from .shards import Shard, ShardRun, find_shard_files
from .verify_project import check_model_result

_RUNS = "runs"  # the folder of parts in the remote cache
_MAX_NAMED = 5  # parts that a message names
_CODE = ".py"  # of a dependency that is the same on all hosts, as data files may not be
_FAILED = 1  # the exit code that precedes all others


@dataclass(frozen=True, kw_only=True)
class RunPart:
    """The record of one part, where it was found, and where the folders of its models are."""

    record: RunRecord
    part: ShardRun
    place: str
    source: Path | RemoteFiles
    folders: tuple[StoredFolder, ...]


@dataclass(frozen=True, kw_only=True)
class _PublishedPart:
    """A part in the remote cache: its record and the files of each of its models."""

    record: RunRecord
    folders: tuple[StoredFolder, ...]
    seal: str = ""  # must be last, as it covers the text before it


def publish_part(record: RunRecord, out: Path, files: RemoteFiles) -> str:
    """Upload the record of a part with the folders of its models, and return its name.

    The record is written last: whoever finds it finds everything that it names.

    Raises:
        UsageError: the remote cannot be written.
    """
    part = record.shard
    if part is None:
        raise ValueError("the record is not one of a part")
    name = _part_name(part.run, part.shard)
    try:
        models = (one.name for one in record.models if (out / one.name).is_dir())
        folders = tuple(store_folder(out / one, one, files) for one in models)
        found = _PublishedPart(record=record, folders=folders)
        files.write(name, seal_document(encode_json(found)))
    except UsageError:
        raise
    except Exception as error:
        raise _remote_error("written", error) from error
    return name


def withdraw_part(run: str, shard: Shard, files: RemoteFiles) -> None:
    """Remove an earlier record of a part, so that its success does not outlive a crash.

    Raises:
        UsageError: the remote cannot be written.
    """
    try:
        files.remove(_part_name(run, shard))
    except FileNotFoundError:
        return
    except Exception as error:
        raise _remote_error("written", error) from error


def _part_name(run: str, shard: Shard) -> str:
    return f"{_RUNS}/{run}/{shard.file}"


def _remote_error(what: str, error: Exception) -> UsageError:
    return UsageError(
        f"the remote cache cannot be {what}: {first_line(error) or type(error).__name__}",
        hint="check --remote-cache, its free space and the rights of this host",
        option="remote-cache",
        code=ErrorCode.NOT_WRITABLE,
    )


def find_published_parts(run: str, files: RemoteFiles) -> tuple[RunPart, ...]:
    """Return the parts of a run in the remote cache.

    Raises:
        UsageError: the remote cannot be read, or a record is damaged.
    """
    try:
        names = [f"{_RUNS}/{run}/{one}" for one in files.names(f"{_RUNS}/{run}")]
        texts = {name: files.read(name) for name in names}
    except Exception as error:
        raise _remote_error("read", error) from error
    return tuple(
        _read_published(text, name, files) for name, text in texts.items() if text is not None
    )


def _read_published(text: bytes, name: str, files: RemoteFiles) -> RunPart:
    import msgspec

    try:
        found = msgspec.json.decode(text, type=_PublishedPart)
        record = read_record(encode_json(found.record))
    except (ValueError, UnicodeDecodeError) as error:
        raise _corrupt_error(name, first_line(error)) from error
    names = {one.name for one in record.models}
    part = record.shard
    if part is None or not seal_holds(text) or not {one.name for one in found.folders} <= names:
        raise _corrupt_error(name, "it changed since it was written")
    if name != _part_name(part.run, part.shard):
        raise _corrupt_error(name, f"it is that of part {part.shard} of {part.run!r}")
    return RunPart(record=record, part=part, place=name, source=files, folders=found.folders)


def _corrupt_error(name: str, why: str) -> UsageError:
    return UsageError(
        f"{name} is not the record of a part: {why}",
        hint="run that part again",
        code=ErrorCode.CORRUPT_FILE,
    )


def find_parts(folders: Iterable[Path]) -> tuple[RunPart, ...]:
    """Return the parts whose records are in the folders.

    Raises:
        UsageError: a folder has none, or a record is damaged.
    """
    found: list[RunPart] = []
    for folder in folders:
        paths = find_shard_files(folder)
        if not paths:
            raise UsageError(
                f"{folder} has no record of a part",
                hint="give the `out` folders of modelc run --shard",
                code=ErrorCode.NOT_FOUND,
            )
        found += [_read_part(path) for path in paths]
    return tuple(found)


def _read_part(path: Path) -> RunPart:
    text = path.read_bytes()
    try:
        record = read_record(text)
    except ValueError as error:
        raise _corrupt_error(str(path), first_line(error)) from error
    part = record.shard
    if part is None or not seal_holds(text) or part.shard.file != path.name:
        raise _corrupt_error(str(path), "it changed since it was written")
    folders = tuple(
        list_folder(path.parent / one.name, one.name)
        for one in record.models
        if (path.parent / one.name).is_dir()
    )
    return RunPart(record=record, part=part, place=str(path), source=path.parent, folders=folders)


def check_parts(parts: Sequence[RunPart], run: str = "", remote: str | None = None) -> None:
    """Check that the parts are one whole run.

    Args:
        parts: all that were found.
        run: the name of the run, if it is known.
        remote: the URL of the remote cache, if the parts were looked for there.

    Raises:
        UsageError: a part is missing, is there twice, or belongs to another run.
    """
    if not parts:
        raise UsageError(
            f"no part of the run {run} is in the remote cache",
            hint=f"run the parts with{_options_of(run, remote)}",
            option="run-id",
            code=ErrorCode.SHARD_MISSING,
        )
    first = parts[0]
    for one in parts:
        _check_same_run(one, first, run or first.part.run)
    by_index: dict[int, RunPart] = {}
    for one in parts:
        other = by_index.setdefault(one.part.index, one)
        if other is not one:
            raise UsageError(
                f"{other.place} and {one.place} are both part {one.part.shard}",
                hint="leave out the older one",
                code=ErrorCode.SHARD_DUPLICATE,
            )
    missing = [
        f"{index}/{first.part.count}"
        for index in range(1, first.part.count + 1)
        if index not in by_index
    ]
    if missing:
        raise UsageError(
            f"{join_some(missing, _MAX_NAMED)} {'is' if len(missing) == 1 else 'are'} missing",
            hint="with the options of the other parts, run: "
            f"modelc run --shard {missing[0]}{_options_of(first.part.run, remote)}",
            code=ErrorCode.SHARD_MISSING,
        )
    _check_models(parts)


def _options_of(run: str, remote: str | None) -> str:
    """Return the options that name the run, as typed; those of a folder are not known."""
    return f" --remote-cache {shlex.quote(remote)} --run-id {run}" if remote and run else ""


def _check_same_run(one: RunPart, first: RunPart, run: str) -> None:
    """Check that a part has the split, project, name and version of the others."""
    differences = {
        f"one of {one.part.count} parts, and {first.place} one of {first.part.count}":
            one.part.count != first.part.count,
        f"of another project file or selection than {first.place}":
            (one.part.project, one.part.models) != (first.part.project, first.part.models),
        f"of the run {one.part.run or '(without a name)'}, not of {run or '(without a name)'}":
            one.part.run != run,
        f"of modelc {one.record.modelc}, and {first.place} of {first.record.modelc}":
            one.record.modelc != first.record.modelc,
    }  # fmt: skip
    for text, differs in differences.items():
        if differs:
            raise UsageError(
                f"{one.place} is {text}",
                hint="merge the parts of one run only",
                code=ErrorCode.SHARD_MISMATCH,
            )


def _check_models(parts: Sequence[RunPart]) -> None:
    """Check that each model is in one part."""
    named = sorted(model.name for one in parts for model in one.record.models)
    if named != sorted(parts[0].part.models):
        twice = {name for name in named if named.count(name) > 1}
        odd = sorted(twice | set(named) ^ set(parts[0].part.models))
        raise UsageError(
            f"{join_some(odd, _MAX_NAMED)}: not in one part exactly",
            hint="run all parts with the same modelc",
            code=ErrorCode.SHARD_MISMATCH,
        )


def place_models(parts: Sequence[RunPart], out: Path) -> None:
    """Bring the folders of all models into one folder.

    Raises:
        UsageError: other results are in the way, or parts ran with different code or checkpoints.
        CheckpointError: a file is missing or damaged.
    """
    known: dict[str, tuple[str, str]] = {}
    for part in parts:
        for folder in part.folders:
            place, source = out / folder.name, part.source
            if isinstance(source, Path):
                source = source / folder.name
                if source.resolve() == place.resolve():
                    continue
            place_folder(folder, source, place)
        for model in part.record.models:
            manifest = _check_placed(model, out / model.name)
            if manifest is not None and model.artifacts:
                _check_same_sources(manifest, part.place, known)


def _check_same_sources(manifest: Manifest, place: str, known: dict[str, tuple[str, str]]) -> None:
    """Check that a model was made from the same code and checkpoints as those before it.

    Args:
        manifest: that of the model.
        place: the record of its part.
        known: the digest of each file and the part that had it, which is added to.

    Raises:
        UsageError: a file was another one in an earlier part.
    """
    files = manifest.needs.files.items()
    sources = {name: digest for name, digest in files if name.endswith(_CODE)}
    sources[manifest.checkpoint.path] = manifest.checkpoint.digest
    for name, digest in sources.items():
        before, other = known.setdefault(name, (digest, place))
        if before != digest and other != place:
            raise UsageError(
                f"{place} was made with another {Path(name).name} than {other}",
                hint="run the parts again with the same code and checkpoints",
                code=ErrorCode.SHARD_MISMATCH,
            )


def _check_placed(model: ModelRun, place: Path) -> Manifest | None:
    """Return the manifest of a model, which has what passed in its part, and whose files are there.

    Raises:
        UsageError: it does not.
    """
    known: Manifest | bool
    try:
        known = read_results_of(place) or False
    except UsageError:
        known = True
    found = check_model_result(model, known)
    fault = found.detail if found.found is CheckOutcome.FAILED else ""
    manifest = None if fault or isinstance(known, bool) else known
    artifacts = () if manifest is None else manifest.artifacts
    fault = fault or next(filter(None, (describe_changed_file(a, place) for a in artifacts)), "")
    if fault:
        raise UsageError(
            f"{place} is not what its part made: {fault}",
            hint="give the folder as the part left it, or run the part again",
            code=ErrorCode.FILE_CHANGED,
        )
    return manifest


def merge_records(parts: Sequence[RunPart], out: Path) -> RunRecord:
    """Return the record of the whole run, with models in the order of the project.

    Its seconds are those of the slowest part. The exit code is 1 if that of a part is, otherwise
    the first other one.
    """
    found = {model.name: model for one in parts for model in one.record.models}
    ordered = sorted(parts, key=lambda one: one.part.index)
    codes = [one.record.exit_code for one in ordered]
    return RunRecord(
        modelc=parts[0].record.modelc,
        exit_code=_FAILED if _FAILED in codes else next(filter(None, codes), 0),
        seconds=max(one.record.seconds for one in parts),
        models=tuple(_with_folder(found[name], out) for name in parts[0].part.models),
        regression=_merge_regressions([one.record.regression for one in ordered]),
    )


def _with_folder(model: ModelRun, out: Path) -> ModelRun:
    return replace(model, folder=str(out / model.name))


def _merge_regressions(found: Sequence[Regression | None]) -> Regression | None:
    """Join the changes of all parts; what one part left out may be in another."""
    there = [one for one in found if one is not None]
    if not there:
        return None
    left_out = [text for text in there[0].left_out if all(text in one.left_out for one in there)]
    return Regression(
        base=there[0].base,
        changed=tuple(dict.fromkeys(change for one in there for change in one.changed)),
        compared=sum(one.compared for one in there),
        notes=tuple(dict.fromkeys(note for one in there for note in one.notes)),
        left_out=tuple(left_out),
    )
