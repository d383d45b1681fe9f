"""What of an order is done already: what stands in its folder, and what the cache puts there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ...core.manifest import Failure, Manifest
from ...core.records import Artifact
from ..manifest_file import read_manifest
from ..order import GoingOn, Order
from ..orphans import orphan
from ..plan import Step
from .digests import Digests
from .standing import standing_in
from .steps import StepCache

Fetch: TypeAlias = Callable[[Step, str | None], Artifact | None]  # a step, its parent's SHA-256


@dataclass(frozen=True, kw_only=True)
class Caching:
    """Where results of earlier runs are looked for. `root` is the folder that runs start in.

    `steps` None looks into the output folder alone.
    """

    root: Path
    digests: Digests
    steps: StepCache | None = None


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """The folder's record with what was found, and what a run goes on with.

    `restored` are the steps that came from the cache; what else is kept stood in the folder.
    """

    manifest: Manifest | None
    going_on: GoingOn
    restored: tuple[str, ...] = ()


def take_up(
    order: Order, plan: Sequence[Step], keys: Mapping[str, str], caching: Caching
) -> TakenUp:
    """Find what of the plan is done, and put what the cache has of it into the output folder.

    A step is done where its parent is, and was made from that very file. Where all steps are, the
    folder is left as a run would leave it. No framework is imported.

    Raises:
        UsageError: the folder is another model's and the order does not overwrite, another run is
            in it, or it cannot be written.
    """
    known = read_manifest(order.out)
    standing = _standing(known, order, keys, caching)
    done = walk(plan, standing, _nothing)
    manifest = known
    restored: tuple[str, ...] = ()
    if caching.steps is not None and keys and len(done) + len(_orphans(plan, done)) < len(plan):
        from .restoring import Restoring  # loads what a run does, which a warm one need not

        restoring = Restoring(order=order, keys=keys, caching=caching)
        manifest, done, restored = restoring.run(plan, standing, known)
    going_on = GoingOn(keys=keys, kept=frozenset(done), failures=_failures(plan, done, manifest))
    if manifest is not None and all(step.name in going_on.done for step in plan):
        manifest = _settled(manifest, order, plan, going_on)
    return TakenUp(manifest=manifest, going_on=going_on, restored=restored)


def walk(
    plan: Sequence[Step], standing: Mapping[str, Artifact], fetch: Fetch
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


def _nothing(_step: Step, _origin: str | None) -> None:
    return None


def _standing(
    known: Manifest | None, order: Order, keys: Mapping[str, str], caching: Caching
) -> dict[str, Artifact]:
    if known is None:
        return {}
    names = standing_in(known, order.out, keys, root=caching.root, digests=caching.digests)
    found = [one for one in known.artifacts if one.key and one.key == keys.get(one.step)]
    return {one.step: one for one in found if one.step in names}


def _orphans(plan: Sequence[Step], done: Mapping[str, Artifact]) -> list[Step]:
    """The steps that cannot be made, as what they are made from was refused."""
    refused = {name for name, one in done.items() if one.rejected}
    found = []
    for step in plan:
        if step.parent in refused:
            refused.add(step.name)
            found.append(step)
    return found


def _failures(
    plan: Sequence[Step], done: Mapping[str, Artifact], manifest: Manifest | None
) -> tuple[Failure, ...]:
    if manifest is None:
        return ()
    now = replace(manifest, failures=())
    for step in _orphans(plan, done):
        now = replace(now, failures=(*now.failures, orphan(step, now)))
    return now.failures


def _settled(manifest: Manifest, order: Order, plan: Sequence[Step], going_on: GoingOn) -> Manifest:
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
        from ..folder import opened

        with opened(order.out) as folder:
            folder.own(file.name for file in manifest.files)
            folder.commit(now)
    return now
