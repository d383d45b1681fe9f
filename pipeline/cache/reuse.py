"""Reuse of earlier results: which are up to date or cached, and why steps run again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from ... import __version__
from ...checkpoints.user_code import project_folder
from ...core.errors import join_some
from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED_FOLDER, Artifact, Checkpoint, FileRecord
from ...core.verdict import State
from ..manifest_file import read_manifest
from ..order import Order, ResumeState, Source
from ..plan import Step
from ..provenance.seals import is_bound
from ..resume import make_skipped_failure
from .claims import StepClaims
from .dependencies import find_unmet_dependency
from .environment import NOT_PACKAGES, packages
from .file_digests import FileDigests, digest_of_code
from .step_cache import StepCache

FetchArtifact: TypeAlias = Callable[
    [Step, str | None], Artifact | None
]  # step, SHA-256 of its parent


@dataclass(frozen=True, kw_only=True)
class ReuseSources:
    """Where to look for results of earlier runs; `root` is the folder that runs start in.

    With `steps` None, only the output folder is searched. `failed` are failures of this run, whose
    steps are not tried again.
    """

    root: Path
    digests: FileDigests
    steps: StepCache | None = None
    failed: tuple[Failure, ...] = ()

    @property
    def claims(self) -> StepClaims | None:
        """The claims on steps that other hosts see; None if nothing is shared."""
        return None if self.steps is None else self.steps.claims


@dataclass(frozen=True, kw_only=True)
class ReuseResult:
    """The folder's manifest with reused results, and the state that a run resumes from.

    `restored` are the steps from the cache; other kept steps were in the folder. `again` says why
    recorded steps run again; empty if none do.
    """

    manifest: Manifest | None
    resume: ResumeState
    restored: tuple[str, ...] = ()
    again: str = ""


def reuse_results(
    order: Order, plan: Sequence[Step], keys: Mapping[str, str], caching: ReuseSources
) -> ReuseResult:
    """Find the steps of the plan that are done, and restore cached results to the output folder.

    A step is done if its parent is, and it was built from that exact file, or failed on it in a
    reproducible manner. If all steps are done, the folder is left as a run would leave it. No
    framework is imported.

    Raises:
        UsageError: the folder belongs to another model and the order does not overwrite, another
            run uses it, or it cannot be written.
    """
    known = read_manifest(order.out)
    standing = UpToDate() if known is None else find_up_to_date(known, order.out, keys, caching)
    done = walk_plan(plan, standing.artifacts, lambda _step, _origin: None)
    failures = _settle_failures(plan, done, standing, known)
    manifest = known
    restored: tuple[str, ...] = ()
    if caching.steps is not None and keys and len(done) + len(failures) < len(plan):
        from .restore import CacheRestore  # imports what a run needs and a warm run does not

        again = tuple(one for one in failures if one.key)
        restoring = CacheRestore(order=order, keys=keys, caching=caching, failures=again)
        manifest, done, restored = restoring.run(plan, standing.artifacts, known)
        failures = _settle_failures(plan, done, standing, manifest, restored)
    known_failures = {*done, *(one.step for one in failures)}
    failures += tuple(one for one in caching.failed if one.step not in known_failures)
    resume = ResumeState(keys=keys, kept=frozenset(done), failures=failures)
    left = [step.name for step in plan if step.name not in resume.done]
    if manifest is not None and not left:
        manifest = _settle_manifest(manifest, order, plan, resume)
    why = "" if known is None else _find_rebuild_reason(known, left, order, keys, caching)
    return ReuseResult(manifest=manifest, resume=resume, restored=restored, again=why)


def walk_plan(
    plan: Sequence[Step], standing: Mapping[str, Artifact], fetch: FetchArtifact
) -> dict[str, Artifact]:
    """Return the artifacts of done steps, parents first, from the folder or else by `fetch`."""
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


def _settle_failures(
    plan: Sequence[Step],
    done: Mapping[str, Artifact],
    standing: UpToDate,
    manifest: Manifest | None,
    restored: Collection[str] = (),
) -> tuple[Failure, ...]:
    """Return the failures of steps without an artifact: repeated, or skipped with their parent."""
    if manifest is None:
        return ()
    now = replace(manifest, failures=())
    unusable = {name for name, one in done.items() if one.rejected}
    for step in plan:
        again = None if step.name in done else standing.failures.get(step.name)
        same = step.parent is None or (step.parent in done and step.parent not in restored)
        if step.parent in unusable:
            end = make_skipped_failure(step, now)
        elif again is not None and same:
            end = again
        else:
            continue
        unusable.add(step.name)
        now = replace(now, failures=(*now.failures, end))
    return now.failures


def _settle_manifest(
    manifest: Manifest, order: Order, plan: Sequence[Step], resume: ResumeState
) -> Manifest:
    """Return the manifest as a run of the order would leave it; write it if it differs."""
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
    manifest: Manifest, folder: Path, keys: Mapping[str, str], caching: ReuseSources
) -> UpToDate:
    """Return the results in a folder that are up to date, by the current keys of the steps."""
    artifacts = {
        one.step: one
        for one in _iter_judged_artifacts(manifest, keys)
        if _is_bound(one, manifest, caching.digests)
    }
    waiting = {one.step for one in manifest.pending}
    failures = {
        one.step: one
        for one in manifest.failures
        if _has_current_key(one.key, one.step, keys) and one.step not in waiting
    }
    none = not (artifacts or failures)
    if none or find_unmet_dependency(manifest.needs, project_folder(), caching.digests):
        return UpToDate()
    whole = {
        step: one
        for step, one in artifacts.items()
        if not any(_iter_changed_files(one, folder, caching.digests))
    }
    return UpToDate(artifacts=whole, failures=failures)


def _iter_judged_artifacts(manifest: Manifest, keys: Mapping[str, str]) -> Iterator[Artifact]:
    """Yield judged artifacts with the current key that no other record contradicts."""
    names = {artifact.name for artifact in manifest.artifacts}
    left = {one.step for one in manifest.failures} | {one.step for one in manifest.pending}
    for artifact in manifest.artifacts:
        step = artifact.step
        verdict = manifest.verdict_of(artifact.name)
        judged = verdict is not None and verdict.state is not State.ERROR
        # A later rejection under the same step supersedes an artifact that passed.
        alone = artifact.rejected or f"{REJECTED_FOLDER}/{step}" not in names
        keyed = _has_current_key(artifact.key, step, keys)
        if keyed and judged and alone and step not in left:
            yield artifact


def _is_bound(artifact: Artifact, manifest: Manifest, digests: FileDigests) -> bool:
    """Whether the seal of an artifact matches its verdict: checked once for the same records."""
    import msgspec

    records = (artifact, manifest.verdict_of(artifact.name), manifest.signature)
    raw = hashlib.sha256(msgspec.json.encode((*records, manifest.checkpoint.digest))).hexdigest()
    fact = f"bound {__version__} {digest_of_code(digests)} {raw}"
    return digests.holds(fact, lambda: is_bound(artifact, manifest))


def _has_current_key(key: str, step: str, keys: Mapping[str, str]) -> bool:
    return bool(key) and key == keys.get(step)


def _iter_changed_files(artifact: Artifact, folder: Path, digests: FileDigests) -> Iterator[str]:
    """Describe missing or changed files of an artifact; a debug sidecar may be missing."""
    for file in artifact.files:
        if file.role != "debug" or (folder / file.name).is_file():
            yield from _iter_changed_content(folder, file, digests)


_MAX_REASONS = 3  # options to name; each of them may be the cause
_TARGETS_OPTION = "to"  # adding a target does not change other targets


def _find_rebuild_reason(
    known: Manifest,
    left: Collection[str],
    order: Order,
    keys: Mapping[str, str],
    caching: ReuseSources,
) -> str:
    """Return why the steps that are left are built again; empty if the manifest has none of them.

    `known` is the folder's manifest before the run.
    """
    artifacts = [one for one in known.artifacts if one.step in left]
    failures = [one for one in known.failures if one.step in left]
    then = {one.step: one.key for one in artifacts} | {one.step: one.key for one in failures}
    if not then:
        return ""
    transient = [one.step for one in failures if not one.key]
    if len(transient) == len(then):
        return f"retry: {', '.join(transient)} failed"
    another = any(key and key != keys.get(step) for step, key in then.items())
    digests = caching.digests
    found = next(_iter_changed_inputs(known, order, caching), "") if another else ""
    found = found or find_unmet_dependency(known.needs, project_folder(), digests)
    lost = (text for one in artifacts for text in _iter_changed_files(one, order.out, digests))
    found = found or next(lost, "")
    return f"rebuild: {found or _fallback_reason(known, artifacts, then, another=another)}"


def _fallback_reason(
    known: Manifest, artifacts: Collection[Artifact], then: Mapping[str, str], *, another: bool
) -> str:
    """Return the reason if no recorded input is found to differ."""
    if another:
        return "an option, the data, modelc or this machine changed"
    if not all(then.values()):
        return "it has no cache key, or was judged again since"
    if not all(is_bound(one, known) for one in artifacts):
        return "its manifest was edited"
    return "its verdict is incomplete, or its parent changed"


def _iter_changed_inputs(known: Manifest, order: Order, caching: ReuseSources) -> Iterator[str]:
    """Describe recorded inputs of the key that changed: weights, versions, options."""
    place, hub = caching.root / order.source.checkpoint, order.source.hub
    before, now_at = known.checkpoint.title, place.name if hub is None else hub.id
    if before != now_at:
        yield f"checkpoint: {before} -> {now_at}"
    folder = place if place.is_dir() else place.parent
    for file in known.checkpoint.files:
        yield from _iter_changed_content(folder, file, caching.digests)
    now = {**packages(), "modelc": __version__}
    then = {name: at for name, at in known.environment.items() if name not in NOT_PACKAGES}
    yield from _differences({**then, "modelc": known.modelc}, now)
    source, was = order.source, known.checkpoint
    options = list(
        _differences(
            {**known.order, "seed": str(known.feeds.seed)}
            | _model_options(was, was.factory, was.factory_args),
            {**order.summary(), "seed": str(order.judging.seed or 0)}
            | _model_options(source, source.model, source.model_args),
        )
    )
    if options:
        yield join_some(options, _MAX_REASONS)


def _iter_changed_content(folder: Path, file: FileRecord, digests: FileDigests) -> Iterator[str]:
    try:
        if digests.of(folder / file.name) != file.sha256:
            yield f"{file.name} changed"
    except OSError:
        yield f"{file.name} was removed"


def _model_options(
    model: Checkpoint | Source, factory: str | None, arguments: Mapping[str, str]
) -> dict[str, str]:
    return {
        "model": factory or "none",
        "model-arg": " ".join(f"{key}={value}" for key, value in sorted(arguments.items())),
        "method": model.method or "forward",
        "weights-key": model.weights_key or "none",
        "drop-output": " ".join(model.drop_outputs),
        "include-preprocess": model.preprocess or "none",
        "postprocess": model.postprocess or "none",
    }


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted((then.keys() | now.keys()) - {_TARGETS_OPTION}):
        before, after = then.get(name) or "none", now.get(name) or "none"
        if before != after:
            yield f"{name}: {before} -> {after}"
