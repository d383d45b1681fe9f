"""That a model's outputs do not depend on what it ran before: such a model cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError
from ..sources.eager_model import Eager
from ..sources.module_state import ModuleSnapshot
from ..validators.judge import ReferenceOutputs

_MAX_FEEDS = 16  # feeds that such a model is run on again
_MAX_NAMED_BUFFERS = 4  # attributes that a message names
_STATE_TOLERANCE = 1e-3  # of the largest value: far above what another order of sums gives


def check_stateless(
    eager: Eager, before: ModuleSnapshot, references: Sequence[ReferenceOutputs]
) -> None:
    """Run a model that changed its own state again as it was loaded, each feed by itself.

    Most change nothing, and are not run again. Counters and caches that change no output are
    fine. What sets itself up from its first inputs, or keeps a running value that it computes with,
    would be captured with what modelc's own feeds left in it.

    Raises:
        CheckpointError: it gives other outputs then.
    """
    changed = before.changed()
    feeds = [one for one in references if not one.feed.beyond] if changed else []
    for reference in feeds[:_MAX_FEEDS]:
        try:
            with before.put_back():
                outputs = eager.run_with_deadline(reference.feed.arrays)
        except CheckpointError as error:
            raise _stateful_error(changed, f"{reference.feed.name}: {error.message}") from error
        if not _is_close(outputs, reference.outputs):
            raise _stateful_error(changed, f"feed {reference.feed.name}")


@contextmanager
def preserve_state(eager: Eager, feed: Feed) -> Iterator[None]:
    """Within, eager may be run on anything: what forward keeps of it is none of the model's.

    Attributes, buffers and small tensors are put back. Weights that forward writes into and state
    outside of the module cannot be: there the feed must be answered as it was before.

    Raises:
        CheckpointError: it is answered otherwise, and twice the same way.
    """
    before = eager.before()
    first = _run_or_none(eager, feed)
    try:
        yield
    finally:
        changed = before.changed()
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
    more = (
        f" and {len(changed) - _MAX_NAMED_BUFFERS} more"
        if len(changed) > _MAX_NAMED_BUFFERS
        else ""
    )
    named = ", ".join(changed[:_MAX_NAMED_BUFFERS]) or "what is no attribute of a module"
    return CheckpointError(
        f"eager's outputs depend on what it ran before ({where}): forward changes {named}{more}",
        hint="load such state with the checkpoint, or compute it from the inputs in each forward",
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
