"""What of an order is done already: what stands in its folder, and what the cache puts there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ...core.manifest import Failure, Manifest
from ...core.records import Artifact
from ..manifest_file import read_manifest
from ..order import Order, ResumeState
from ..orphans import make_skipped_failure
from ..plan import Step
from .digests import FileDigests
from .standing import UpToDate, find_up_to_date
from .steps import StepCache

FetchArtifact: TypeAlias = Callable[
    [Step, str | None], Artifact | None
]  # a step, its parent's SHA-256


@dataclass(frozen=True, kw_only=True)
class ReuseSources:
    """Where results of earlier runs are looked for. `root` is the folder that runs start in.

    `steps` None looks into the output folder alone.
    """

    root: Path
    digests: FileDigests
    steps: StepCache | None = None


@dataclass(frozen=True, kw_only=True)
class ReuseResult:
    """The folder's record with what was found, and what a run goes on with.

    `restored` are the steps that came from the cache; what else is kept stood in the folder.
    `again` says why steps that are on record are made again; empty where none is.
    """

    manifest: Manifest | None
    going_on: ResumeState
    restored: tuple[str, ...] = ()
    again: str = ""


def reuse_results(
    order: Order, plan: Sequence[Step], keys: Mapping[str, str], caching: ReuseSources
) -> ReuseResult:
    """Find what of the plan is done, and put what the cache has of it into the output folder.

    A step is done where its parent is, and was made from that very file, or failed on it as it
    would again. Where all steps are, the folder is left as a run would leave it. No framework is
    imported.

    Raises:
        UsageError: the folder is another model's and the order does not overwrite, another run is
            in it, or it cannot be written.
    """
    known = read_manifest(order.out)
    standing = _find_standing(known, order, keys, caching)
    done = walk_plan(plan, standing.artifacts, _fetch_nothing)
    failures = _settle_failures(plan, done, standing, known)
    manifest = known
    restored: tuple[str, ...] = ()
    if caching.steps is not None and keys and len(done) + len(failures) < len(plan):
        from .restoring import CacheRestore  # loads what a run does, which a warm one need not

        again = tuple(one for one in failures if one.key)
        restoring = CacheRestore(order=order, keys=keys, caching=caching, failures=again)
        manifest, done, restored = restoring.run(plan, standing.artifacts, known)
        failures = _settle_failures(plan, done, standing, manifest, restored)
    going_on = ResumeState(keys=keys, kept=frozenset(done), failures=failures)
    left = [step.name for step in plan if step.name not in going_on.done]
    if manifest is not None and not left:
        manifest = _settle_manifest(manifest, order, plan, going_on)
    why = _rebuild_reason_or_none(known, left, order, going_on, caching)
    return ReuseResult(manifest=manifest, going_on=going_on, restored=restored, again=why)


def _rebuild_reason_or_none(
    known: Manifest | None,
    left: Sequence[str],
    order: Order,
    going_on: ResumeState,
    caching: ReuseSources,
) -> str:
    if known is None or not left:
        return ""
    from .reasons import find_rebuild_reason

    root, digests = caching.root, caching.digests
    return find_rebuild_reason(known, left, order, going_on.keys, root=root, digests=digests)


def walk_plan(
    plan: Sequence[Step], standing: Mapping[str, Artifact], fetch: FetchArtifact
) -> dict[str, Artifact]:
    """The artifacts of the steps that are done, parents first: standing ones, else fetched ones."""
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
    """How steps end that give no artifact: as before, or as what they are made from was refused."""
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
    manifest: Manifest, order: Order, plan: Sequence[Step], going_on: ResumeState
) -> Manifest:
    """The record as a run of the order would leave it, written where that is another one."""
    names = tuple(step.name for step in plan)
    now = replace(
        manifest,
        order=order.summary(),
        steps=names,
        failures=going_on.failures,
        pending=tuple(one for one in manifest.pending if one.step not in names),
    )
    if now != manifest:
        from ..folder import open_folder

        with open_folder(order.out) as folder:
            folder.own(file.name for file in manifest.files)
            folder.commit(now)
    return now
