"""That a model's outputs do not depend on what it ran before: such a model cannot be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.contract import Array, Feed, Outputs
from ..core.errors import CheckpointError
from ..sources.eager_model import Eager
from ..sources.module_state import ModuleSnapshot
from ..validators.judge import ReferenceOutputs

_LOOKED_AT = 16  # feeds that such a model is run on again
_NAMED = 4  # attributes that a message names
_OFF = 1e-3  # of the largest value: far above what another order of sums gives


def check_forgets(
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
    for reference in feeds[:_LOOKED_AT]:
        try:
            with before.put_back():
                outputs = eager.run_with_deadline(reference.feed.arrays)
        except CheckpointError as error:
            raise _depends(changed, f"{reference.feed.name}: {error.message}") from error
        if not _alike(outputs, reference.outputs):
            raise _depends(changed, f"feed {reference.feed.name}")


@contextmanager
def leaving_nothing(eager: Eager, feed: Feed) -> Iterator[None]:
    """Within, eager may be run on anything: what forward keeps of it is none of the model's.

    Attributes, buffers and small tensors are put back. Weights that forward writes into and state
    outside of the module cannot be: there the feed must be answered as it was before.

    Raises:
        CheckpointError: it is answered otherwise, and twice the same way.
    """
    before = eager.before()
    first = _answer(eager, feed)
    try:
        yield
    finally:
        changed = before.changed()
        before.restore()
    if first is None:
        return
    again = _answer(eager, feed)
    if again is None or (not _alike(again, first) and _alike(_answer(eager, feed) or {}, again)):
        raise _depends(changed, "the first feed, after others")
    before.restore()


def _answer(eager: Eager, feed: Feed) -> Outputs | None:
    try:
        return eager.run(feed)
    except CheckpointError:
        return None


def _depends(changed: Sequence[str], where: str) -> CheckpointError:
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    named = ", ".join(changed[:_NAMED]) or "what is no attribute of a module"
    return CheckpointError(
        f"eager's outputs depend on what it ran before ({where}): forward changes {named}{more}",
        hint="load such state with the checkpoint, or compute it from the inputs in each forward",
    )


def _alike(given: Outputs, expected: Outputs) -> bool:
    return given.keys() == expected.keys() and all(
        _same(given[name], wanted) for name, wanted in expected.items()
    )


def _same(found: Array, wanted: Array) -> bool:
    import numpy as np

    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if wanted.dtype.kind not in "fc":
        return np.array_equal(found, wanted)
    finite = np.abs(wanted[np.isfinite(wanted)])
    scale = float(finite.max()) if finite.size else 0.0
    return np.allclose(found, wanted, rtol=0, atol=_OFF * scale, equal_nan=True)
