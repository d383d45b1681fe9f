"""The eager side at sizes that an artifact asks to be judged at, beside those of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..converters.capture.size_branches import branch_sizes
from ..converters.capture.size_checks import resize_sizes
from ..converters.capture.torch_export import AS_TEXT
from ..core.capture import Capture
from ..core.contract import Job
from ..core.domain import Domain
from ..core.errors import CheckpointError, ConversionError
from ..core.findings import SIZED
from ..validators.feeds import FeedDrawer
from ..validators.output_pairs import find_sample
from .bench import RunContext
from .subject import EagerReference, run_eager

_SIZE_PREFIX = "size"  # of the feeds: size-1, size-2, ...
_MAX_TURNS = 6  # sizes at which forward goes another way that artifacts are judged at


def find_extra_sizes(job: Job, capture: str, bench: RunContext) -> tuple[Mapping[str, int], ...]:
    """Sizes that every artifact of the run is judged at, whatever its capture; found once.

    These are sizes at which resizes by scales round otherwise in float32, and such at which forward
    goes another way. A program of torch.export has the latter in its guards, which are checked; it
    has none for a size that became a text.

    Args:
        job: of the eager model.
        capture: how the artifact, or what it is made from, was captured; empty if that is not
            known, or was done on a copy, whose guards are not eager's.
        bench: keeps what was found.
    """
    found = bench.places
    if "resizes" not in found:
        found["resizes"] = resize_sizes(job)
    if capture.startswith(Capture.EXPORT) and AS_TEXT not in job.programs:
        return (*found["resizes"], *found.get("turns", ()))
    if "turns" not in found:
        found["turns"] = branch_sizes(job)[:_MAX_TURNS]
    return (*found["resizes"], *found["turns"])


def add_size_feeds(
    subject: EagerReference,
    places: Sequence[Mapping[str, int]],
    *,
    found: Sequence[Mapping[str, int]] = (),
) -> EagerReference:
    """The subject with a feed, drawn as the others are, at each of these sizes that has none.

    Of those `found`, what eager rejects is left out: a model may reject a size of its own accord.

    Raises:
        ConversionError: eager rejects one of `places`, where the artifact cannot be judged then.
    """
    known = [one.feed.sizes for one in subject.references if one.feed.kind in SIZED]
    domain = Domain(inputs=subject.signature.inputs)
    places, found = ([one for one in sizes if domain.contains(one)] for sizes in (places, found))
    missing = _unique_sizes(places, besides=known)
    further = _unique_sizes(found, besides=[*known, *missing])
    if not missing and not further:
        return subject
    drawer = _feed_drawer(subject)
    try:
        more = [
            run_eager(subject, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes))
            for number, sizes in enumerate(missing, start=1)
        ]
    except CheckpointError as error:
        raise ConversionError(
            f"at a size that torch.export did not mean, eager says: {error.message}",
            hint=error.advice,
        ) from error
    for number, sizes in enumerate(further, start=len(missing) + 1):
        with suppress(CheckpointError):
            more.append(run_eager(subject, drawer.feed(f"{_SIZE_PREFIX}-{number}", sizes)))
    return replace(subject, references=(*subject.references, *more))


def size_feeds(subject: EagerReference) -> dict[str, dict[str, int]]:
    """The feeds of `with_places` that the subject has, by name, with their sizes."""
    feeds = (one.feed for one in subject.references)
    return {
        feed.name: dict(feed.sizes) for feed in feeds if feed.name.startswith(f"{_SIZE_PREFIX}-")
    }


def add_recorded_sizes(
    subject: EagerReference, places: Mapping[str, Mapping[str, int]]
) -> EagerReference:
    """The subject with the feeds that an artifact was judged on beside the run's, drawn again."""
    drawer = _feed_drawer(subject)
    more = [run_eager(subject, drawer.feed(name, dict(sizes))) for name, sizes in places.items()]
    return replace(subject, references=(*subject.references, *more)) if more else subject


def _feed_drawer(subject: EagerReference) -> FeedDrawer:
    """Draws feeds as the subject's own are drawn."""
    return FeedDrawer.of(subject.signature, subject.feeds.seed, find_sample(subject.references))


def _unique_sizes(
    places: Sequence[Mapping[str, int]], *, besides: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Each of these sizes once, without those that are known."""
    fresh: list[dict[str, int]] = []
    for one in map(dict, places):
        if one not in besides and one not in fresh:
            fresh.append(one)
    return fresh
