"""`--replay`: one saved feed judged among those that a subject has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.contract import Feed
from ..core.findings import WorstFeed
from ..core.verdict import Verdict
from ..validators.feed_values import check_samples
from ..validators.feeds import NamedFeed
from ..validators.hill_climb import SEARCH
from ..validators.judge import ReferenceOutputs
from .subject import EagerReference, run_eager
from .worst import read_feed

REPLAY_FEED = "replay"


def add_feed(
    subject: EagerReference,
    held_out: Sequence[ReferenceOutputs],
    feed: Feed,
    *,
    name: str = REPLAY_FEED,
) -> tuple[EagerReference, str]:
    """The subject with the feed, and the feed's name: that of the same one if there is any.

    Raises:
        UsageError: the feed does not fit the signature.
        CheckpointError: eager rejects it.
    """
    arrays, sizes = check_samples(subject.signature, feed)
    for reference in (*subject.references, *held_out):
        if _is_same_feed(arrays, reference.feed.arrays):
            return subject, reference.feed.name
    reference = run_eager(subject, NamedFeed(name=name, arrays=arrays, sizes=sizes))
    return replace(subject, references=(*subject.references, reference)), name


def add_found_feed(
    subject: EagerReference, worst: WorstFeed | None, folder: Path
) -> EagerReference:
    """The subject with the feed that an earlier search found, where there is one.

    Raises:
        UsageError: the feed cannot be read, or does not fit.
        CheckpointError: eager rejects it.
    """
    if worst is None or not worst.feed.startswith(SEARCH) or not (folder / worst.file).is_file():
        return subject
    return add_feed(subject, (), read_feed(folder / worst.file), name=worst.feed)[0]


def note_missing_feed(worst: WorstFeed | None, folder: Path) -> tuple[str, ...]:
    """A note where the feed that an earlier search found is no more: nothing is judged on it."""
    if worst is None or not worst.feed.startswith(SEARCH) or (folder / worst.file).is_file():
        return ()
    return (f"{worst.feed}, which an earlier search found, is not judged on: no {worst.file}",)


def _is_same_feed(one: Feed, other: Feed) -> bool:
    """Whether two feeds are equal bit for bit."""
    return all(
        array.shape == other[name].shape and array.tobytes() == other[name].tobytes()
        for name, array in one.items()
    )


def show_feed(verdict: Verdict, feed: str) -> Verdict:
    """The verdict with the figures of one feed alone; whether it passed is about all of them."""
    outputs = tuple(output for output in verdict.outputs if output.feed == feed)
    note = f"judged among {len(verdict.feeds)} feeds, shown for {feed} alone"
    return replace(
        verdict,
        feeds=(feed,),
        outputs=outputs,
        notes=(note, *verdict.notes),
        histograms=tuple(one for one in verdict.histograms if one.feed == feed),
    )
