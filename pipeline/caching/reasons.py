"""Why steps that a folder has on record are made again: what is another than it was, in a line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from ... import __version__
from ...core.manifest import Manifest
from ...core.records import Artifact
from ..environment import NOT_PACKAGES, packages
from ..order import Order
from ..provenance.sealing import is_bound
from .digests import FileDigests
from .needs import find_unmet_dependency

_MAX_REASONS = 3  # options that differ; each of them may be why
_TARGETS_OPTION = "to"  # a further target changes no other one


def find_rebuild_reason(  # noqa: PLR0913 - what was, what is asked, and how to look
    known: Manifest,
    left: Collection[str],
    order: Order,
    keys: Mapping[str, str],
    *,
    root: Path,
    digests: FileDigests,
) -> str:
    """What changed since the record was written; empty where it has none of the steps.

    Args:
        known: the folder's record, as it was found.
        left: the steps that are to be made.
        order: what is asked today.
        keys: today's keys of the steps, by name.
        root: the folder that the run is started in.
        digests: what remembers digests of files.
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
    """What is known where nothing on record is seen to be another."""
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
    """What of all that is in a key is on record, and is another: weights, versions, options."""
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
    """Files of artifacts that are gone or changed."""
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
