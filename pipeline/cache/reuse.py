"""Reuse earlier results: find up-to-date ones, query the cache, explain rebuilds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ... import __version__
from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED_FOLDER, Artifact
from ...core.verdict import State
from ..manifest_file import read_manifest
from ..order import Order, ResumeState
from ..plan import Step, make_skipped_failure
from ..provenance.seals import is_bound
from .dependencies import find_unmet_dependency
from .environment import NOT_PACKAGES, packages
from .file_digests import FileDigests
from .step_cache import StepCache

FetchArtifact: TypeAlias = Callable[
    [Step, str | None], Artifact | None
]  # (step, SHA-256 of its parent)


@dataclass(frozen=True, kw_only=True)
class ReuseSources:
    """Where to search for earlier results; `root` is the working folder of runs.

    If `steps` is None, only the output folder is searched.
    """

    root: Path
    digests: FileDigests
    steps: StepCache | None = None


@dataclass(frozen=True, kw_only=True)
class ReuseResult:
    """The folder's record after the search, and the state from which a run resumes.

    `restored` are the steps from the cache; the other kept ones were in the folder. `again` is the
    reason why recorded steps run again, or empty.
    """

    manifest: Manifest | None
    resume: ResumeState
    restored: tuple[str, ...] = ()
    again: str = ""


def reuse_results(
    order: Order, plan: Sequence[Step], keys: Mapping[str, str], caching: ReuseSources
) -> ReuseResult:
    """Find the done steps of a plan and copy cached results into the output folder.

    A step is done if its parent is done and is the file that the step was built from, or if its
    recorded failure would occur again. If all steps are done, the record is updated as after a
    run. No framework is imported.

    Raises:
        UsageError: the folder belongs to another model and the request does not overwrite it,
            another run uses it, or it cannot be written.
    """
    known = read_manifest(order.out)
    standing = _find_standing(known, order, keys, caching)
    done = walk_plan(plan, standing.artifacts, _fetch_nothing)
    failures = _settle_failures(plan, done, standing, known)
    manifest = known
    restored: tuple[str, ...] = ()
    if caching.steps is not None and keys and len(done) + len(failures) < len(plan):
        from .restore import CacheRestore  # expensive import that a warm run avoids

        again = tuple(one for one in failures if one.key)
        restoring = CacheRestore(order=order, keys=keys, caching=caching, failures=again)
        manifest, done, restored = restoring.run(plan, standing.artifacts, known)
        failures = _settle_failures(plan, done, standing, manifest, restored)
    resume = ResumeState(keys=keys, kept=frozenset(done), failures=failures)
    left = [step.name for step in plan if step.name not in resume.done]
    if manifest is not None and not left:
        manifest = _settle_manifest(manifest, order, plan, resume)
    why = _rebuild_reason_or_none(known, left, order, resume, caching)
    return ReuseResult(manifest=manifest, resume=resume, restored=restored, again=why)


def _rebuild_reason_or_none(
    known: Manifest | None,
    left: Sequence[str],
    order: Order,
    resume: ResumeState,
    caching: ReuseSources,
) -> str:
    if known is None or not left:
        return ""

    root, digests = caching.root, caching.digests
    return find_rebuild_reason(known, left, order, resume.keys, root=root, digests=digests)


def walk_plan(
    plan: Sequence[Step], standing: Mapping[str, Artifact], fetch: FetchArtifact
) -> dict[str, Artifact]:
    """Return the artifacts of the done steps, parents first: up-to-date ones, else fetched ones."""
    done: dict[str, Artifact] = {}
    for step in plan:
        parent = done.get(step.parent or "")
        if step.parent is not None and (parent is None or parent.rejected):
            continue
        origin = None if parent is None else parent.digest
        found = standing.get(step.name)
        if found is None or (origin is not None and found.parent != origin):
            found = fetch(step, origin)
        if found is not None:
            done[step.name] = found
    return done


def _fetch_nothing(_step: Step, _origin: str | None) -> None:
    return None


def _find_standing(
    known: Manifest | None, order: Order, keys: Mapping[str, str], caching: ReuseSources
) -> UpToDate:
    if known is None:
        return UpToDate()
    return find_up_to_date(known, order.out, keys, root=caching.root, digests=caching.digests)


def _settle_failures(
    plan: Sequence[Step],
    done: Mapping[str, Artifact],
    standing: UpToDate,
    manifest: Manifest | None,
    restored: Collection[str] = (),
) -> tuple[Failure, ...]:
    """Return the failures of steps without an artifact: recorded ones, or skipped children."""
    if manifest is None:
        return ()
    now = replace(manifest, failures=())
    refused = {name for name, one in done.items() if one.rejected}
    for step in plan:
        again = None if step.name in done else standing.failures.get(step.name)
        same = step.parent is None or (step.parent in done and step.parent not in restored)
        if step.parent in refused:
            end = make_skipped_failure(step, now)
        elif again is not None and same:
            end = again
        else:
            continue
        refused.add(step.name)
        now = replace(now, failures=(*now.failures, end))
    return now.failures


def _settle_manifest(
    manifest: Manifest, order: Order, plan: Sequence[Step], resume: ResumeState
) -> Manifest:
    """Return the record as a run of the request would leave it; write it if it differs."""
    names = tuple(step.name for step in plan)
    now = replace(
        manifest,
        order=order.summary(),
        steps=names,
        failures=resume.failures,
        pending=tuple(one for one in manifest.pending if one.step not in names),
    )
    if now != manifest:
        from ..output_folder import open_folder

        with open_folder(order.out) as folder:
            folder.own(file.name for file in manifest.files)
            folder.commit(now)
    return now


@dataclass(frozen=True, kw_only=True)
class UpToDate:
    """By step: artifacts that are up to date, and failures that would occur again."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)


def find_up_to_date(
    manifest: Manifest, folder: Path, keys: Mapping[str, str], *, root: Path, digests: FileDigests
) -> UpToDate:
    """Find the up-to-date artifacts and failures of a folder.

    Args:
        manifest: the folder's record.
        folder: an output folder.
        keys: the current keys of the steps, by name.
        root: the working folder of the run.
        digests: the cached digests of files.
    """
    artifacts = {one.step: one for one in _iter_judged_artifacts(manifest, keys)}
    waiting = {one.step for one in manifest.pending}
    failures = {
        one.step: one
        for one in manifest.failures
        if _has_current_key(one.key, one.step, keys) and one.step not in waiting
    }
    if not (artifacts or failures) or find_unmet_dependency(manifest.needs, root, digests):
        return UpToDate()
    whole = {
        step: one for step, one in artifacts.items() if not _has_changed_file(one, folder, digests)
    }
    return UpToDate(artifacts=whole, failures=failures)


def _iter_judged_artifacts(manifest: Manifest, keys: Mapping[str, str]) -> Iterator[Artifact]:
    """Yield judged artifacts with a current key that no other part of the record contradicts."""
    names = {artifact.name for artifact in manifest.artifacts}
    left = {one.step for one in manifest.failures} | {one.step for one in manifest.pending}
    for artifact in manifest.artifacts:
        step = artifact.step
        verdict = manifest.verdict_of(artifact.name)
        judged = verdict is not None and verdict.state is not State.ERROR
        # A rejected artifact or a failure of the same step is more recent.
        alone = artifact.rejected or f"{REJECTED_FOLDER}/{step}" not in names
        keyed = _has_current_key(artifact.key, step, keys)
        if keyed and judged and alone and step not in left and is_bound(artifact, manifest):
            yield artifact


def _has_current_key(key: str, step: str, keys: Mapping[str, str]) -> bool:
    return bool(key) and key == keys.get(step)


def _has_changed_file(artifact: Artifact, folder: Path, digests: FileDigests) -> bool:
    """Return whether a file is missing or changed; a debug sidecar may be missing."""
    for file in artifact.files:
        path = folder / file.name
        if not path.is_file() and file.role == "debug":
            continue
        try:
            if digests.of(path) != file.sha256:
                return True
        except OSError:
            return True
    return False


_MAX_REASONS = 3  # options that differ, each a possible reason
_TARGETS_OPTION = "to"  # another target does not affect the others


def find_rebuild_reason(  # noqa: PLR0913 - what was, what is asked, and how to look
    known: Manifest,
    left: Collection[str],
    order: Order,
    keys: Mapping[str, str],
    *,
    root: Path,
    digests: FileDigests,
) -> str:
    """Explain why steps run again; return an empty string if none of them is recorded.

    Args:
        known: the folder's record before the run.
        left: the steps to run.
        order: the current request.
        keys: the current keys of the steps, by name.
        root: the working folder of the run.
        digests: the cached digests of files.
    """
    artifacts = [one for one in known.artifacts if one.step in left]
    failures = [one for one in known.failures if one.step in left]
    then = {one.step: one.key for one in artifacts} | {one.step: one.key for one in failures}
    if not then:
        return ""
    passing = [one.step for one in failures if not one.key]
    if len(passing) == len(then):
        return f"{', '.join(passing)} failed: tried again"
    another = any(key and key != keys.get(step) for step, key in then.items())
    found = next(_iter_changed_inputs(known, order, root, digests), "") if another else ""
    found = found or find_unmet_dependency(known.needs, root, digests)
    found = found or next(_iter_lost_files(artifacts, order.out, digests), "")
    return f"made again: {found or _fallback_reason(known, artifacts, then, another=another)}"


def _fallback_reason(
    known: Manifest, artifacts: Collection[Artifact], then: Mapping[str, str], *, another: bool
) -> str:
    """Return a general reason if no recorded input has changed."""
    if another:
        return "some option, data, modelc or this machine is another than it was"
    if not all(then.values()):
        return "what stood there was not made to be taken up, or was judged since"
    if not all(is_bound(one, known) for one in artifacts):
        return "what is on record of it is not as it was sealed"
    return "it was not judged to its end, or what it is made from is another file"


def _iter_changed_inputs(
    known: Manifest, order: Order, root: Path, digests: FileDigests
) -> Iterator[str]:
    """Yield changes of the recorded parts of a key: weights, versions, options."""
    place, before = root / order.source.checkpoint, Path(known.checkpoint.path).name
    if before != place.name:
        yield f"the checkpoint was {before} and is {place.name}"
    folder = place if place.is_dir() else place.parent
    for file in known.checkpoint.files:
        yield from _iter_changed_content(folder / file.name, file.name, file.sha256, digests)
    now = {**packages(), "modelc": __version__}
    then = {name: at for name, at in known.environment.items() if name not in NOT_PACKAGES}
    yield from _differences({**then, "modelc": known.modelc}, now)
    options = list(_differences(_read_recorded_options(known), _current_options(order)))
    if options:
        more = f" and {len(options) - _MAX_REASONS} more" if len(options) > _MAX_REASONS else ""
        yield f"{', '.join(options[:_MAX_REASONS])}{more}"


def _iter_lost_files(
    artifacts: Collection[Artifact], out: Path, digests: FileDigests
) -> Iterator[str]:
    """Yield the missing or changed files of artifacts."""
    for artifact in artifacts:
        for file in artifact.files:
            if file.role != "debug" or (out / file.name).is_file():
                yield from _iter_changed_content(out / file.name, file.name, file.sha256, digests)


def _iter_changed_content(path: Path, name: str, then: str, digests: FileDigests) -> Iterator[str]:
    try:
        if digests.of(path) != then:
            yield f"{name} changed"
    except OSError:
        yield f"{name} is gone"


def _read_recorded_options(known: Manifest) -> dict[str, str]:
    checkpoint = known.checkpoint
    return _without_targets(known.order) | {
        "seed": str(known.feeds.seed),
        "model": checkpoint.factory or "none",
        "model-arg": _format_arguments(checkpoint.factory_args),
        "method": checkpoint.method or "forward",
        "weights-key": checkpoint.weights_key or "none",
        "drop-output": " ".join(checkpoint.drop_outputs) or "none",
    }


def _current_options(order: Order) -> dict[str, str]:
    source = order.source
    return _without_targets(order.summary()) | {
        "seed": str(order.judging.seed or 0),
        "model": source.model or "none",
        "model-arg": _format_arguments(source.model_args),
        "method": source.method or "forward",
        "weights-key": source.weights_key or "none",
        "drop-output": " ".join(source.drop_outputs) or "none",
    }


def _without_targets(summary: Mapping[str, str]) -> dict[str, str]:
    return {name: said for name, said in summary.items() if name != _TARGETS_OPTION}


def _format_arguments(given: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(given.items())) or "none"


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name, "none"), now.get(name, "none")
        if before != after:
            yield f"{name} was {before} and is {after}"
