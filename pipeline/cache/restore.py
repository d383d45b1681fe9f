"""Copy results from the cache into an output folder, as if the run had built them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ...checkpoints.user_code import project_folder
from ...core.events import ignore_events
from ...core.manifest import Failure, Manifest
from ...core.records import REJECTED_FOLDER, Artifact, Checkpoint, is_as_recorded
from ...core.verdict import Verdict
from ...validators.model_identity import is_same_model
from ..held_out import relocate_record
from ..hub_source import commit_id
from ..manifest_file import without_artifacts
from ..order import Order, ResumeState
from ..output_folder import OutputFolder, open_folder
from ..plan import Step
from ..resume import resume_manifest
from ..run_context import continue_manifest, find_unreferenced_files, read_known_record, relative_to
from ..worst_feed import place_worst_feed
from .dependencies import find_unmet_dependency, merge_dependencies
from .result_store import StoredEntry
from .reuse import ReuseSources, walk_plan
from .step_cache import WORST_ROLE


@dataclass(frozen=True, kw_only=True)
class CacheRestore:
    """Fetches cached results for an order and commits them as one change.

    `failures` are recorded failures that would occur again.
    """

    order: Order
    keys: Mapping[str, str]
    caching: ReuseSources
    failures: tuple[Failure, ...] = ()
    _hits: dict[str, _CacheHit] = field(default_factory=dict)

    def run(
        self, plan: Sequence[Step], standing: Mapping[str, Artifact], known: Manifest | None
    ) -> tuple[Manifest | None, dict[str, Artifact], tuple[str, ...]]:
        """Return the manifest, the artifacts of done steps, and the names of restored steps.

        Raises:
            UsageError: the folder belongs to another model and the order does not overwrite,
                another run uses it, or it cannot be written.
        """
        with open_folder(self.order.out) as folder:
            header = known if standing else None

            def fetch(step: Step, origin: str | None) -> Artifact | None:
                hit = self._fetch_files(step, origin, folder, header)
                return None if hit is None else hit.artifact

            done = walk_plan(plan, standing, fetch)
            if not self._hits:
                return known, done, ()
            kept = frozenset(name for name in done if name not in self._hits)
            return self._commit_found(folder, kept), done, tuple(self._hits)

    def _fetch_files(
        self, step: Step, origin: str | None, folder: OutputFolder, header: Manifest | None
    ) -> _CacheHit | None:
        """Copy the files of the first suitable entry into the workspace and verify them."""
        key, steps = self.keys.get(step.name), self.caching.steps
        if key is None or steps is None:
            return None
        header = next((hit.manifest for hit in self._hits.values()), header)

        def suits(manifest: Manifest) -> bool:
            return (
                manifest.artifacts[0].step == step.name
                and (origin is None or manifest.artifacts[0].parent == origin)
                and (header is None or _is_same_model(manifest, header))
                and not find_unmet_dependency(
                    manifest.needs, project_folder(), self.caching.digests
                )
            )

        for stored in steps.candidates(key, suits):
            place = folder.workplace(step.name)
            manifest = stored.entry.manifest
            if manifest is not None and steps.store.take(stored, place):
                hit = _CacheHit(stored=stored, manifest=manifest, place=place)
                self._hits[step.name] = hit
                return hit
        return None

    def _commit_found(self, folder: OutputFolder, kept: frozenset[str]) -> Manifest:
        """Return the manifest with the fetched results, written together with their files."""
        first = next(iter(self._hits.values())).manifest
        path = str(self.order.source.checkpoint)
        known = read_known_record(self.order, folder, replace(first.checkpoint, path=path))
        tell = ignore_events if self.caching.steps is None else self.caching.steps.tell
        manifest = continue_manifest(self.order, folder, self._fresh(first, folder), known, tell)
        resume = ResumeState(keys=self.keys, kept=kept, failures=self.failures)
        manifest = resume_manifest(manifest, known, resume)
        for hit in self._hits.values():
            manifest = self._with(manifest, hit, folder)
        before = manifest if known is None else known
        folder.commit(manifest, find_unreferenced_files(before, manifest))
        return manifest

    def _fresh(self, then: Manifest, folder: OutputFolder) -> Manifest:
        """Make the manifest that this order would start with, from the record of the same step."""
        source = self.order.source
        checkpoint: Checkpoint = replace(
            then.checkpoint,
            path=commit_id(source.hub) or relative_to(str(source.checkpoint), folder),
            hub=source.hub,
        )
        samples = None if source.samples is None else relative_to(str(source.samples), folder)
        return replace(
            then,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            order=self.order.summary(),
            checkpoint=checkpoint,
            feeds=replace(then.feeds, samples=samples),
            artifacts=(),
            verdicts=(),
            localisations=(),
            steps=(),
        )

    def _with(self, manifest: Manifest, hit: _CacheHit, folder: OutputFolder) -> Manifest:
        """Replace the earlier result of the step in the manifest with the cached one."""
        artifact, then = self._artifact(hit, folder), hit.manifest
        step = artifact.step
        replaced = {f"{REJECTED_FOLDER}/{step}", *(() if artifact.rejected else (step,))}
        slim = without_artifacts(manifest, replaced)
        files = [file for file in hit.stored.entry.files if file.role != WORST_ROLE]
        # A file of the user with identical content may be replaced: nothing is lost.
        folder.own(one.name for one in files if is_as_recorded(folder.path / one.name, one))
        folder.accept(files, hit.place)
        return replace(
            slim,
            artifacts=(*slim.artifacts, artifact),
            verdicts=(*slim.verdicts, _relocate_verdict(hit, artifact, folder)),
            pending=tuple(one for one in slim.pending if one.step != step),
            failures=tuple(one for one in slim.failures if one.step != step),
            branches=slim.branches or then.branches,
            warned=tuple(dict.fromkeys((*slim.warned, *then.warned))),
            localisations=(*slim.localisations, *then.localisations),
            needs=merge_dependencies(slim.needs, then.needs),
        )

    def _artifact(self, hit: _CacheHit, folder: OutputFolder) -> Artifact:
        """Return the artifact with the calibration path of this order."""
        artifact, options = hit.artifact, self.order.lowering.calibration
        if artifact.calibration is None or options is None:
            return artifact
        record = replace(artifact.calibration, source=options.source)
        return replace(artifact, calibration=relocate_record(record, Path.cwd(), folder.path))


@dataclass(frozen=True, kw_only=True)
class _CacheHit:
    """A cache entry whose files are in `place` and verified."""

    stored: StoredEntry
    manifest: Manifest
    place: Path

    @property
    def artifact(self) -> Artifact:
        return self.manifest.artifacts[0]


def _is_same_model(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests describe the same model and inputs, so that they can be merged."""
    same = one.checkpoint.digest == other.checkpoint.digest and one.signature == other.signature
    return same and is_same_model(one.fingerprint, other.fingerprint)


def _relocate_verdict(hit: _CacheHit, artifact: Artifact, folder: OutputFolder) -> Verdict:
    """Move the worst feed to this folder, and update its replay command in the verdict."""
    verdict = hit.manifest.verdicts[0]
    worst = verdict.worst
    if worst is not None:
        draft = (hit.place / worst.file).resolve()
        verdict = verdict.file_under(verdict.artifact, replace(worst, file=str(draft)))
    other = artifact.step if artifact.rejected else f"{REJECTED_FOLDER}/{artifact.name}"
    was = "" if artifact.rejected else other
    return place_worst_feed(
        verdict, folder, artifact.files[0].name, artifact=verdict.artifact, was=was
    )
