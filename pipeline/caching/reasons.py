"""Why steps that a folder has on record are made again: what is another than it was, in a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ... import __version__
from ...core.manifest import Manifest
from ..environment import NOT_PACKAGES, packages
from ..order import Order
from .digests import Digests
from .needs import unmet

_TARGETS = "to"  # a further target changes no other one


def why_again(
    known: Manifest, left: Collection[str], order: Order, *, root: Path, digests: Digests
) -> str:
    """What changed since the record was written; empty where it has none of the steps.

    Args:
        known: the folder's record, as it was found.
        left: the steps that are to be made.
        order: what is asked today.
        root: the folder that the run is started in.
        digests: what remembers digests of files.
    """
    on_record = {one.step for one in known.artifacts} | {one.step for one in known.failures}
    again = on_record & set(left)
    if not again:
        return ""
    found = next(_changes(known, order, root, digests), "")
    if found:
        return f"made again: {found}"
    failed = [one.step for one in known.failures if one.step in again and not one.key]
    if again == set(failed):
        return f"{', '.join(failed)} failed: tried again"
    return "made again: data, modelc or this machine is another than it was"


def _changes(known: Manifest, order: Order, root: Path, digests: Digests) -> Iterator[str]:
    """What is seen to be another: weights, what the user's code read, versions, options."""
    place, before = root / order.source.checkpoint, Path(known.checkpoint.path).name
    if before != place.name:
        yield f"the checkpoint was {before} and is {place.name}"
    folder = place if place.is_dir() else place.parent
    for file in known.checkpoint.files:
        try:
            if digests.of(folder / file.name) != file.sha256:
                yield f"{file.name} changed"
        except OSError:
            yield f"{file.name} is gone"
    read = unmet(known.needs, root, digests)
    if read:
        yield read
    now = {**packages(), "modelc": __version__}
    then = {name: at for name, at in known.environment.items() if name not in NOT_PACKAGES}
    yield from _differences({**then, "modelc": known.modelc}, now)
    yield from _differences(_options(known.order), _options(order.summary()))


def _options(summary: Mapping[str, str]) -> Mapping[str, str]:
    return {name: said for name, said in summary.items() if name != _TARGETS}


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name, "none"), now.get(name, "none")
        if before != after:
            yield f"{name} was {before} and is {after}"
