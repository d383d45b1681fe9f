"""Eager on every feed: values that it rejects are left out and said; stated sizes it must take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ..core.contract import Outputs
from ..core.errors import CheckpointError
from ..core.findings import FeedRecord
from ..core.manifest import FeedPlan
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs
from ..validators.wide_integer_feeds import WIDE
from .relating import RejectedSizesError
from .stage import Progress

_MAX_SHOWN_FEEDS = 3  # rejected feeds that the terminal names


@dataclass(frozen=True, kw_only=True)
class ReferenceRun:
    """Eager's answers, and a record of every feed, rejected ones included."""

    references: tuple[ReferenceOutputs, ...]
    records: tuple[FeedRecord, ...]

    @property
    def note(self) -> str:
        """The feeds with hard values that are rejected, in a line; empty where there are none."""
        hard = [one for one in self.records if one.skipped and not one.gap]
        many = "feeds are" if len(hard) > 1 else "feed is"
        told = f"{len(hard)} {many} not judged on, as eager rejects them: {_describe_skipped(hard)}"
        return told if hard else ""

    @property
    def warning(self) -> str:
        """The feeds with usual values that are rejected: there nothing is judged, though stated."""
        sized = [one for one in self.records if one.gap]
        told = (
            f"eager rejects {len(sized)} of {len(self.records)} feeds, and nothing is judged on"
            f" them, though it takes other values at these sizes: {_describe_skipped(sized)}"
        )
        return told if sized else ""


def _describe_skipped(skipped: Sequence[FeedRecord]) -> str:
    told = "; ".join(f"{one.name}: {one.skipped}" for one in skipped[:_MAX_SHOWN_FEEDS])
    more = (
        f"; and {len(skipped) - _MAX_SHOWN_FEEDS} more" if len(skipped) > _MAX_SHOWN_FEEDS else ""
    )
    return told + more


def run_reference(
    feeds: Sequence[NamedFeed],
    answer: Callable[[NamedFeed], ReferenceOutputs],
    advance: Callable[[int, int], None],
) -> ReferenceRun:
    """Run eager on each feed.

    Of a feed of hard values, outputs in which eager gives NaN or Inf, and has none on the basic
    feeds, are left out as well: what an artifact gives there says nothing. The whole feed is where
    no other output is of floats.

    Raises:
        SizesError: eager rejects sizes that were stated, in whichever feed.
        CheckpointError: eager rejects a basic feed.
    """
    references: list[ReferenceOutputs] = []
    records: list[FeedRecord] = []
    allowed: set[str] = set()  # outputs that are NaN or Inf by design
    for done, feed in enumerate(sorted(feeds, key=lambda feed: not feed.basic), start=1):
        reference, reason = _try_feed(feed, answer)
        if reference is not None and feed.basic:
            allowed |= nonfinite_outputs(reference.outputs)
        if reference is not None and (feed.beyond or feed.kind in ("value", WIDE, NONFINITE)):
            reference, reason = _finite_part(reference, allowed)
        if reference is not None and not reason:
            references.append(reference)
        elif feed.kind == NONFINITE:
            continue  # that NaN gives NaN is no news
        records.append(feed.record(reason))
        advance(done, len(feeds))
    places = {feed.name: place for place, feed in enumerate(feeds)}
    return ReferenceRun(
        references=tuple(sorted(references, key=lambda one: places[one.feed.name])),
        records=tuple(sorted(records, key=lambda one: places[one.name])),
    )


def _try_feed(
    feed: NamedFeed, answer: Callable[[NamedFeed], ReferenceOutputs]
) -> tuple[ReferenceOutputs | None, str]:
    """Eager's answer, or why there is none."""
    try:
        return answer(feed), ""
    except CheckpointError as error:
        if feed.basic or isinstance(error, RejectedSizesError):
            raise
        return None, error.message


def nonfinite_outputs(outputs: Outputs) -> set[str]:
    """The float outputs that hold NaN or Inf."""
    import numpy as np

    return {
        name
        for name, array in outputs.items()
        if array.dtype.kind in "fc" and not bool(np.isfinite(array).all())
    }


def finite_part(reference: ReferenceOutputs, allowed: Collection[str]) -> ReferenceOutputs | None:
    """The reference, held to float outputs of numbers alone where others have NaN or Inf.

    Integers and bools are left out with these: they may be computed of NaN. None where no output is
    left; `allowed` are outputs with NaN or Inf by design.
    """
    wrong = nonfinite_outputs(reference.outputs) - set(allowed)
    if not wrong:
        return reference
    floats = {name for name, array in reference.outputs.items() if array.dtype.kind in "fc"}
    left = frozenset(reference.outputs) - (floats - wrong)
    return replace(reference, left_out=left) if floats - wrong else None


def _finite_part(
    reference: ReferenceOutputs, allowed: Collection[str]
) -> tuple[ReferenceOutputs | None, str]:
    """As `finite_part`, and why the whole feed is left out."""
    found = finite_part(reference, allowed)
    if found is not None:
        return found, ""
    told = ", ".join(
        repr(name) for name in sorted(nonfinite_outputs(reference.outputs) - set(allowed))
    )
    return None, f"eager gives NaN or Inf in {told}"


def merge_feed_plan(then: FeedPlan, now: FeedPlan, stage: Progress) -> FeedPlan:
    """The plan on record with the feeds of now; that they are others than then is told.

    What was asked for now alone, another number or seed, leaves the record as it is.
    """
    if then.samples_digest != now.samples_digest:
        stage.note(f"{now.samples} gives other samples than those on record", warning=True)
    if (then.count, then.seed) != (now.count, now.seed):
        return then
    changes = _describe_changes(then.drawn, now.drawn)
    if changes:
        stage.note(f"the feeds are not those on record: {changes}", warning=True)
    return replace(then, drawn=now.drawn)


def _describe_changes(then: Sequence[FeedRecord], now: Sequence[FeedRecord]) -> str:
    """What differs, in words; empty where nothing does, or nothing is on record."""
    if not then or list(then) == list(now):
        return ""
    before, after = ({record.name for record in records} for records in (then, now))
    parts = [f"{', '.join(sorted(after - before))} are new"] if after - before else []
    parts += [f"{', '.join(sorted(before - after))} are gone"] if before - after else []
    return "; ".join(parts) or "eager rejects others"
