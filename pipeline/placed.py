"""The eager side at sizes that an artifact asks to be judged at, beside those of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.errors import CheckpointError, ConversionError
from ..core.findings import SIZED
from ..validators.feeds import SAMPLE, Drawer
from .subject import Subject, reference_on

_NAME = "size"  # of the feeds: size-1, size-2, ...


def with_places(subject: Subject, places: Sequence[Mapping[str, int]]) -> Subject:
    """The subject with a feed, drawn as the others are, at each of these sizes that has none.

    Raises:
        ConversionError: eager rejects one of them, so nothing can be said of the artifact there.
    """
    known = [one.feed.sizes for one in subject.references if one.feed.kind in SIZED]
    missing = [dict(one) for one in places if dict(one) not in known]
    if not missing:
        return subject
    feeds = (one.feed for one in subject.references if one.feed.name == SAMPLE)
    sample = next((feed.arrays for feed in feeds), None)
    drawer = Drawer.of(subject.signature, subject.feeds.seed, sample)
    try:
        more = [
            reference_on(subject, drawer.feed(f"{_NAME}-{number}", sizes))
            for number, sizes in enumerate(missing, start=1)
        ]
    except CheckpointError as error:
        raise ConversionError(
            f"at a size that torch.export did not mean, eager says: {error.message}",
            hint=error.hint,
        ) from error
    return replace(subject, references=(*subject.references, *more))
