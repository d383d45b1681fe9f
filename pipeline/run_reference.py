"""Run eager on every feed; reject models that keep state or give no finite output."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ..checkpoints.eager_model import Eager
from ..checkpoints.module_state import ModuleSnapshot
from ..checkpoints.weight_loading import NonFiniteWeight
from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError, ErrorCode, Hint, Option, join_some
from ..core.findings import FeedRecord
from ..core.manifest import FeedPlan
from ..validators.edge_case_feeds import NONFINITE
from ..validators.feeds import NamedFeed
from ..validators.judge import ReferenceOutputs
from ..validators.wide_integer_feeds import WIDE
from .dim_constraints import RejectedSizesError
from .run_progress import Progress

_MAX_SHOWN_FEEDS = 3  # rejected feeds to name in the terminal


@dataclass(frozen=True, kw_only=True)
class ReferenceRun:
    """Eager's outputs, and a record of every feed, including rejected ones."""

    references: tuple[ReferenceOutputs, ...]
    records: tuple[FeedRecord, ...]

    @property
    def note(self) -> str:
        """The rejected edge-case feeds, in one line; empty if there are none."""
        skipped = [one for one in self.records if one.skipped and not one.gap]
        many = "feeds are" if len(skipped) > 1 else "feed is"
        text = f"{len(skipped)} {many} not judged on, as eager rejects them"
        return f"{text}: {_describe_skipped(skipped)}" if skipped else ""

    @property
    def warning(self) -> str:
        """The rejected feeds with usual values, whose sizes are not judged; empty if none."""
        sized = [one for one in self.records if one.gap]
        text = (
            f"eager rejects {len(sized)} of {len(self.records)} feeds, and nothing is judged on"
            f" them, though it takes other values at these sizes"
        )
        return f"{text}: {_describe_skipped(sized)}" if sized else ""


def _describe_skipped(skipped: Sequence[FeedRecord]) -> str:
    return join_some([f"{one.name}: {one.skipped}" for one in skipped], _MAX_SHOWN_FEEDS, "; ")


def run_reference(
    feeds: Sequence[NamedFeed],
    answer: Callable[[NamedFeed], ReferenceOutputs],
    advance: Callable[[int, int], None],
) -> ReferenceRun:
    """Run eager on each feed, basic feeds first.

    On a feed of extreme values, outputs in which eager gives NaN or Inf, but not on the basic
    feeds, are not judged, as nothing can be concluded from them. If no other float output remains,
    the whole feed is skipped.

    Raises:
        RejectedSizesError: eager rejects stated sizes on any feed.
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
            continue  # NaN outputs for NaN inputs are expected
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
    """Return eager's outputs, or the reason why there are none."""
    try:
        return answer(feed), ""
    except CheckpointError as error:
        if feed.basic or isinstance(error, RejectedSizesError):
            raise
        return None, error.message


def nonfinite_outputs(outputs: Outputs) -> set[str]:
    """Return the float outputs with NaN or Inf."""
    import numpy as np

    return {
        name
        for name, array in outputs.items()
        if array.dtype.kind in "fc" and not bool(np.isfinite(array).all())
    }


def finite_part(reference: ReferenceOutputs, allowed: Collection[str]) -> ReferenceOutputs | None:
    """Restrict the reference to finite float outputs if others have NaN or Inf.

    Integers and bools are excluded with these, as they may be computed from NaN. None if no output
    remains; `allowed` are outputs with NaN or Inf by design.
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
    """Apply `finite_part`; also return why the whole feed is skipped."""
    found = finite_part(reference, allowed)
    if found is not None:
        return found, ""
    wrong = sorted(nonfinite_outputs(reference.outputs) - set(allowed))
    return None, f"eager gives NaN or Inf in {', '.join(map(repr, wrong))}"


def merge_feed_plan(then: FeedPlan, now: FeedPlan, progress: Progress) -> FeedPlan:
    """Return the recorded plan with the current feeds, and warn if they differ.

    If this run uses another number of feeds or another seed, the recorded plan is kept.
    """
    if then.samples_digest != now.samples_digest:
        progress.note(f"{now.samples} gives other samples than the recorded ones", warning=True)
    if (then.count, then.seed) != (now.count, now.seed):
        return then
    changes = _describe_changes(then.drawn, now.drawn)
    if changes:
        progress.note(f"the feeds differ from the recorded ones: {changes}", warning=True)
    return replace(then, drawn=now.drawn)


def _describe_changes(then: Sequence[FeedRecord], now: Sequence[FeedRecord]) -> str:
    """Describe the differences; empty if there are none, or nothing was recorded."""
    if not then or list(then) == list(now):
        return ""
    before, after = ({record.name for record in records} for records in (then, now))
    parts = [f"{', '.join(sorted(after - before))} are new"] if after - before else []
    parts += [f"{', '.join(sorted(before - after))} are missing"] if before - after else []
    return "; ".join(parts) or "eager rejects others"


_MAX_FEEDS = 16  # maximum number of feeds to run again
_MAX_NAMED_BUFFERS = 4  # attributes to name in a message
_STATE_TOLERANCE = 1e-3  # of the largest value: far above the effect of another summation order


def check_stateless(
    eager: Eager, before: ModuleSnapshot, references: Sequence[ReferenceOutputs]
) -> None:
    """Run a model that changed its own state again from its initial state, feed by feed.

    Models that change nothing are not run again. Counters and caches that change no output are
    allowed. A model that initializes itself from its first inputs, or computes with a running
    value, would be captured with state from modelc's own feeds.

    Raises:
        CheckpointError: the outputs differ.
    """
    changed = before.list_changes()
    feeds = [one for one in references if not one.feed.beyond] if changed else []
    for reference in feeds[:_MAX_FEEDS]:
        try:
            with before.use_initial_state():
                outputs = eager.run_with_deadline(reference.feed.arrays)
        except CheckpointError as error:
            raise _stateful_error(changed, f"{reference.feed.name}: {error.message}") from error
        if not _is_close(outputs, reference.outputs):
            raise _stateful_error(changed, f"feed {reference.feed.name}")


@contextmanager
def preserve_state(eager: Eager, feed: Feed) -> Iterator[None]:
    """Allow running eager on any feed within the block, and restore its state afterwards.

    Restores attributes, buffers and small tensors. Weights that forward modifies and state outside
    of the module cannot be restored; then `feed` must give the same outputs as before.

    Raises:
        CheckpointError: the outputs on `feed` changed, and did so reproducibly.
    """
    before = eager.before()
    first = _run_or_none(eager, feed)
    try:
        yield
    finally:
        changed = before.list_changes()
        before.restore()
    if first is None:
        return
    again = _run_or_none(eager, feed)
    if again is None or (
        not _is_close(again, first) and _is_close(_run_or_none(eager, feed) or {}, again)
    ):
        raise _stateful_error(changed, "the first feed, after others")
    before.restore()


def _run_or_none(eager: Eager, feed: Feed) -> Outputs | None:
    try:
        return eager.run(feed)
    except CheckpointError:
        return None


def _stateful_error(changed: Sequence[str], where: str) -> CheckpointError:
    named = join_some(changed, _MAX_NAMED_BUFFERS) or "state outside of the module"
    return CheckpointError(
        f"eager's outputs depend on earlier runs ({where}): forward changes {named}",
        hint="load such state with the checkpoint, or compute it from the inputs in each forward",
        code=ErrorCode.UNSTABLE_OUTPUTS,
    )


def _is_close(given: Outputs, expected: Outputs) -> bool:
    return given.keys() == expected.keys() and all(
        _is_same_output(given[name], wanted) for name, wanted in expected.items()
    )


def _is_same_output(found: Array, wanted: Array) -> bool:
    import numpy as np

    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if wanted.dtype.kind not in "fc":
        return np.array_equal(found, wanted)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max()) if finite.size else 0.0
    return np.allclose(found, wanted, rtol=0, atol=_STATE_TOLERANCE * scale, equal_nan=True)


_MAX_SHOWN_WEIGHTS = 3  # weights to name in a line


def check_finite(
    references: Sequence[ReferenceOutputs], weights: Sequence[NonFiniteWeight]
) -> None:
    """Check that eager gives a finite number to compare.

    Raises:
        CheckpointError: eager's outputs have no finite number on any feed; names the first weight
            with NaN or Inf.
    """
    import numpy as np

    arrays = [array for one in references for array in one.outputs.values() if array.size]
    if (
        any(array.dtype.kind not in "fc" or np.isfinite(array).any() for array in arrays)
        or not arrays
    ):
        return
    if weights:
        more = f" (and {len(weights) - 1} more weights)" if len(weights) > 1 else ""
        raise CheckpointError(
            f"{weights[0]}{more}: eager gives nothing but NaN or Inf",
            hint="use a checkpoint from before the training diverged",
            code=ErrorCode.NONFINITE_OUTPUTS,
        )
    raise CheckpointError(
        f"eager gives nothing but NaN or Inf on all {len(references)} feeds, and no weight has any",
        hint=Hint("give the range of the inputs: ", Option("input", "'x:float32[batch]{0..1}'")),
        option="input",
        code=ErrorCode.NONFINITE_OUTPUTS,
    )


def note_nonfinite_weights(weights: Sequence[NonFiniteWeight]) -> tuple[str, ...]:
    """Describe weights with NaN or Inf in a model whose outputs are finite."""
    if not weights:
        return ()
    return (f"{join_some([*map(str, weights)], _MAX_SHOWN_WEIGHTS)}: check how it was trained",)
