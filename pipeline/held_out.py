"""Held-out samples: feeds that calibration does not see and that INT8 artifacts are judged on.

They are stored beside the artifact.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..calibration.feed_form import FeedForm
from ..core.contract import Array, Feed
from ..core.errors import CheckpointError, first_line
from ..core.records import Artifact, CalibrationRecord
from ..core.signature import Signature
from ..core.untrusted_files import read_npz
from ..core.verdict import Verdict
from ..validators.feed_values import distribution_of
from ..validators.feeds import LEAST_FEEDS, SAMPLE, NamedFeed
from ..validators.judge import ReferenceOutputs
from .eager_reference import EagerReference
from .run_progress import Progress

if TYPE_CHECKING:
    from .plan import Step
    from .run_context import RunSamples


SAMPLES_ROLE = "samples"
HELD_OUT_PREFIX = "held-out-"
FEW_SAMPLES = 16  # samples; with fewer, chance decides among many artifacts
_MIN_DISTINCT = 2  # samples; a batch that repeats one sample hides rows that mix


def refer_held_out(
    feeds: Sequence[Feed], eager: EagerReference, progress: Progress
) -> tuple[ReferenceOutputs, ...]:
    """Run eager on the held-out samples and on feeds derived from them.

    The samples are named `held-out-1`, `held-out-2` and so on. Derived feeds are batches of
    several samples, which reveal rows that mix, and a feed with a half-padded mask where all
    samples have full masks.
    """
    named = [
        NamedFeed(name=f"{HELD_OUT_PREFIX}{number}", arrays=feed, sizes={})
        for number, feed in enumerate(feeds, start=1)
    ]
    if not named:
        return ()
    more = [*_make_batches(feeds, eager.signature), *_make_masked_feeds(feeds, eager.signature)]
    with progress.step("eager on held-out samples", log="eager") as clock:
        references = tuple(
            ReferenceOutputs(feed=feed, outputs=eager.model.run(feed.arrays))
            for feed in (*named, *more)
        )
        clock.detail = f"{len(named)} samples"
    return references


def refer_batches(
    held_out: Sequence[ReferenceOutputs], eager: EagerReference, sizes: Collection[int]
) -> tuple[ReferenceOutputs, ...]:
    """Run eager on batches of the held-out samples that are not among them, at these sizes."""
    feeds = [one.feed.arrays for one in plain_samples(held_out)]
    known = {one.feed.name for one in held_out}
    batches = _make_batches(feeds, eager.signature, sizes) if feeds else ()
    found = []
    for feed in batches:
        if feed.name not in known:
            with suppress(CheckpointError):  # a size that eager rejects
                found.append(ReferenceOutputs(feed=feed, outputs=eager.model.run(feed.arrays)))
    return tuple(found)


def _make_batches(
    feeds: Sequence[Feed], signature: Signature, sizes: Collection[int] = ()
) -> Iterator[NamedFeed]:
    """Concatenate samples of the most common shape into batches; without sizes, opt and largest."""
    form = FeedForm.of(signature)
    groups: dict[tuple[tuple[int, ...], ...], list[Feed]] = {}
    for feed in feeds:
        groups.setdefault(tuple(array.shape for array in feed.values()), []).append(feed)
    alike = max(groups.values(), key=len)
    batch = form.batch
    if batch is None or not batch.dynamic or not form.per_feed or len(alike) < _MIN_DISTINCT:
        return
    for size in sorted(set(sizes or (batch.opt, batch.high)) - {form.per_feed}):
        parts = list(itertools.islice(itertools.cycle(alike), -(-size // form.per_feed)))
        arrays = form.cut(form.stack(parts), 0, size)
        yield NamedFeed(
            name=f"{HELD_OUT_PREFIX}{batch.name}={size}",
            arrays=arrays,
            sizes={str(batch.name): size},
        )


def _make_masked_feeds(feeds: Sequence[Feed], signature: Signature) -> Iterator[NamedFeed]:
    """Clear the second half of each mask that is full in all samples, in the first sample."""
    import numpy as np

    for spec in signature.inputs:
        mask = feeds[0][spec.name]
        values = distribution_of(spec, mask)
        full = all(bool(feed[spec.name].all()) for feed in feeds)
        if not (values.binary and full and mask.ndim and mask.shape[-1] > 1):
            continue
        kept = np.arange(mask.shape[-1]) < -(-mask.shape[-1] // 2)
        half = np.broadcast_to(kept, mask.shape).astype(mask.dtype)
        arrays = {**feeds[0], spec.name: half}
        yield NamedFeed(name=f"{HELD_OUT_PREFIX}half:{spec.name}", arrays=arrays, sizes={})


def loose_feeds(eager: EagerReference, held_out: Sequence[ReferenceOutputs]) -> frozenset[str]:
    """Return the names of drawn feeds that do not count for an INT8 artifact.

    An INT8 artifact is not calibrated for their values. Without held-out samples, all feeds
    count.
    """
    if not held_out:
        return frozenset()
    return frozenset(r.feed.name for r in eager.references if r.feed.name != SAMPLE)


def note_held_out(
    verdict: Verdict, held_out: Sequence[ReferenceOutputs], beyond: Collection[str] = ()
) -> tuple[str, ...]:
    """Describe the limits of how an INT8 artifact was judged.

    Args:
        verdict: the verdict of the artifact.
        held_out: the held-out samples and the feeds derived from them.
        beyond: names of feeds whose values exceed the declared ranges; they are ignored.
    """
    samples = plain_samples(held_out)
    notes = []
    if 0 < len(samples) < LEAST_FEEDS:
        notes.append(f"judged on no more than {len(samples)} held-out samples")
    drawn = [o for o in verdict.outputs if o.loose and o.sqnr is not None and o.feed not in beyond]
    worst = min(drawn, key=lambda o: o.sqnr or 0.0, default=None)
    if worst is not None and (worst.sqnr or 0.0) < verdict.tolerance.min_sqnr:
        notes.append(
            "drawn feeds are unlike the calibration samples and do not count "
            f"(SQNR {worst.sqnr:.1f} dB on {worst.feed}); "
            "if your data is like them, the samples are wrong"
        )
    return tuple(notes)


def relocate_record(record: CalibrationRecord, then: Path, now: Path) -> CalibrationRecord:
    """Rewrite the source path of the record from relative to `then` to relative to `now`."""
    if record.kind not in ("folder", "shards"):
        return record
    source = os.path.relpath((then / record.source).resolve(), now.resolve())
    return replace(record, source=Path(source).as_posix())


def plain_samples(references: Sequence[ReferenceOutputs]) -> list[ReferenceOutputs]:
    """Return the held-out samples without the feeds derived from them."""
    return [r for r in references if r.feed.name.removeprefix(HELD_OUT_PREFIX).isdigit()]


def store_samples(references: Sequence[ReferenceOutputs], path: Path) -> None:
    """Write the samples to an .npz file with keys `<number>/<input>`."""
    import numpy as np

    arrays = {
        f"{number}/{name}": array
        for number, reference in enumerate(plain_samples(references))
        for name, array in reference.feed.arrays.items()
    }
    with path.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **arrays)


def load_samples(artifact: Artifact, folder: Path) -> tuple[Feed, ...]:
    """Load the samples that the artifact was judged on; empty if it has no samples file.

    Raises:
        CheckpointError: the file cannot be read.
    """
    names = [file.name for file in artifact.files if file.role == SAMPLES_ROLE]
    if not names:
        return ()
    feeds: dict[int, dict[str, Array]] = {}
    try:
        for key, array in read_npz(folder / names[0]).items():
            number, _, name = key.partition("/")
            feeds.setdefault(int(number), {})[name] = array
    except ValueError as error:
        raise CheckpointError(
            f"the held-out samples {folder / names[0]} cannot be read: {first_line(error)}",
            hint="build the artifact again",
        ) from error
    return tuple(feeds[number] for number in sorted(feeds))


def select_held_out(step: Step, samples: RunSamples) -> tuple[ReferenceOutputs, ...]:
    """Return the held-out samples for a step that uses samples, and nothing for others."""
    return samples.held_out if step.uses_samples else ()
