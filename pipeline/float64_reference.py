"""Eager in float64 on the feeds: the reference for artifacts near the noise floor."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calibration.sample_reader import feed_digest
from ..core.contract import Array, Outputs
from ..core.errors import CheckpointError
from ..core.verdict import Tolerance, Verdict
from ..validators.apply_tolerance import GROSS_ERROR, find_gross_outputs
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import NEGATED
from ..validators.output_pairs import ReferenceOutputs
from ..validators.wide_integer_feeds import WIDE
from .run_progress import Progress

if TYPE_CHECKING:
    from ..core.signature import Signature
    from .eager_reference import EagerReference

FLOAT64_STEP = "float64 reference"
_FP32_ROUNDING = 2.0**-24
_MAX_PAIRS = 3  # seven draws with eager's own: their root mean square is far off once in a thousand
# The longest row and at least so many others say how far eager's float32 usually is from float64.
_MAX_OTHERS = 3


def add_float64(
    references: Sequence[ReferenceOutputs], eager: EagerReference, progress: Progress
) -> tuple[ReferenceOutputs, ...]:
    """The references with what eager gives in float64, on some of them or on none.

    Float64 runs on one row of the largest sizes and on the smallest feeds, as many as take up no
    more than that together: what it costs beyond says nothing new. The others are held to eager by
    what it usually errs; where an artifact fails so, float64 runs there too (see `add_exact`).
    Each feed is run once in the life of a subject, however many artifacts are judged on it. Feeds
    are told apart by their arrays: the held-out samples of two artifacts have the same names.
    """
    chosen = _choose_references(references, eager.signature)
    missing = [one for one in chosen if _reference_key(one) not in eager.exact]
    if missing and not eager.model.no_float64:
        with progress.step(FLOAT64_STEP, log="eager") as clock:
            for done, reference in enumerate(missing, start=1):
                if _run_float64(reference, eager) is None:
                    clock.detail = "none"
                    break
                progress.advance(FLOAT64_STEP, done, len(missing))
            else:
                clock.detail = f"{len(missing)} feeds"
    return add_exact(references, {one.feed.name for one in chosen}, eager)


def add_exact(
    references: Sequence[ReferenceOutputs], feeds: Collection[str], eager: EagerReference
) -> tuple[ReferenceOutputs, ...]:
    """The references with float64 on these feeds as well; without any where it cannot be run.

    Where ties are settled there is none: float64 would settle them otherwise.
    """
    found = tuple(
        replace(one, exact=_run_float64(one, eager))
        if one.exact is None and one.feed.name in feeds and not one.settled
        else one
        for one in references
    )
    if eager.model.no_float64:
        return tuple(replace(one, exact=None) for one in references)
    return found


def _choose_references(
    references: Sequence[ReferenceOutputs], signature: Signature
) -> list[ReferenceOutputs]:
    """The longest row first, then the smallest of usual values, then all of wide integers.

    The longest row is the largest feed, or a feed of its sizes with fewer rows: what a sum errs by
    hangs on its length, not on how many are taken beside each other. Rows that do hang on each
    other lose nothing: the largest feed is then held to eager by what is usual, which is narrower.
    Wide integers are judged alone, so that no other feed says what is usual of them. Masks that
    are undefined do not count.
    """
    counted = [one for one in references if one.feed.kind not in ("mask", WIDE)]
    wide = [one for one in references if one.feed.kind == WIDE]
    if not counted:
        return wide
    longest = min(_largest_references(counted, signature), key=_reference_size)
    others = [one for one in counted if one is not longest]
    others.sort(key=lambda one: (_is_unusual(one), _reference_size(one)))
    sums = itertools.accumulate(_reference_size(one) for one in others if not _is_unusual(one))
    fit = sum(total <= _reference_size(longest) for total in sums)
    return [longest, *others[: max(fit, _MAX_OTHERS)], *wide]


def _largest_references(
    references: Sequence[ReferenceOutputs], signature: Signature
) -> list[ReferenceOutputs]:
    """The largest feed, and those that differ from it in the number of rows alone."""
    batch = find_batch_dim(signature)
    name = None if batch is None else batch.name

    def sizes(one: ReferenceOutputs) -> dict[str, int]:
        return {dim: size for dim, size in one.feed.sizes.items() if dim != name}

    largest = max(references, key=_reference_size)
    alike = [one for one in references if sizes(one) == sizes(largest) and not _is_unusual(one)]
    return [largest, *(one for one in alike if one.feed.sizes)]


def _is_unusual(reference: ReferenceOutputs) -> bool:
    """Whether its values are made for something: zeros and far values err by little or by much."""
    return reference.feed.beyond or reference.feed.kind == "value"


def _reference_size(reference: ReferenceOutputs) -> int:
    arrays = (*reference.feed.arrays.values(), *reference.outputs.values())
    return sum(array.size for array in arrays)


def _reference_key(reference: ReferenceOutputs) -> str:
    return feed_digest(reference.feed.arrays).hex()


def _run_float64(reference: ReferenceOutputs, eager: EagerReference) -> Outputs | None:
    key = _reference_key(reference)
    if key not in eager.exact:
        outputs = eager.model.run_exact(reference.feed.arrays)
        if outputs is None:
            return None
        eager.exact[key] = outputs
    return eager.exact[key]


def find_doubtful_feeds(verdict: Verdict) -> frozenset[str]:
    """The feeds on which an artifact is over the noise floor by what eager's own luck may explain.

    Eager's noise on one feed is one draw, and where few elements make up the error a draw may come
    out small by chance; where float64 was not run, the usual noise stands for it. All feeds where
    channels alone are over, which are pooled over them. No feed where an error is above a hundredth
    of the peak; below, the times of the floor say nothing: on constant rows eager may be exact.
    """
    if verdict.passed or verdict.tolerance.floor_factor is None:
        return frozenset()
    floats = [o for o in verdict.outputs if o.times_floor is not None and not o.loose]
    if any(o.times_floor is not None for o in find_gross_outputs(verdict)):
        return frozenset()
    over = frozenset(o.feed for o in floats if not o.passed)
    return over or frozenset(o.feed for o in floats)


def unstable_feeds(
    references: Sequence[ReferenceOutputs], verdict: Verdict, eager: EagerReference
) -> dict[str, str]:
    """Drawn feeds of odd values on which eager says nothing, each with the note that says so.

    On zeros the variance of an instance norm is 0, and two of them turn a rounding into all there
    is. Looked for where an artifact is off by more than a hundredth of the peak: eager must move by
    more than that itself when inputs and weights are off by 2^-24, or its sums are taken in turn.
    Feeds of usual values are never left out.
    """
    found: dict[str, str] = {}
    known = {one.feed.name: one for one in references}
    for output in find_gross_outputs(verdict):
        reference = known.get(output.feed)
        if reference is None or output.feed in found or not _has_odd_values(reference):
            continue
        moved = _relative_movement(output.output, reference, eager)
        if moved > GROSS_ERROR:
            share = f"{100 * min(moved, 1.0):.0f} %"
            found[output.feed] = (
                f"feed {output.feed} is not judged on: noise of 2^-24 in inputs and weights, or "
                f"another order of sums moves eager's own output {output.output!r} by {share} of "
                "its peak"
            )
    return found


def _has_odd_values(reference: ReferenceOutputs) -> bool:
    return reference.feed.kind == "value" and reference.feed.name != NEGATED


def _relative_movement(name: str, reference: ReferenceOutputs, eager: EagerReference) -> float:
    """How far the output moves over its peak: the median of the draws, or with its sums in turn.

    Where values stand on an edge (a mask of what is above 0.5), some draws fall to one side. Rows
    that are all alike (silence after a logarithm with a floor) move in another order of sums alone.
    Of an output that is zero there, the peak is that of all feeds.
    """
    import numpy as np

    output = reference.outputs[name].astype(np.float64)
    peak = _peak_value(output) or max(_peak_value(one.outputs[name]) for one in eager.references)
    draws = [draw[name].astype(np.float64) for draw in _draw_noise(reference, eager)]
    if not draws or not peak:
        return 0.0
    turned = _run_sequential(reference, eager)
    with np.errstate(invalid="ignore"):
        moved = [np.nanmax(np.abs(draw - output), initial=0.0) for draw in draws]
        by_order = 0.0 if turned is None else np.nanmax(np.abs(turned[name] - output), initial=0.0)
    return max(float(np.median(moved)), float(by_order)) / peak


def _peak_value(array: Array) -> float:
    import numpy as np

    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def add_noise_draws(
    references: Sequence[ReferenceOutputs], feeds: Collection[str], eager: EagerReference
) -> tuple[ReferenceOutputs, ...]:
    """The references with more draws of eager's noise on these feeds.

    Weights and inputs are off by one rounding (2^-24 of themselves) in each: as far from what eager
    computes with as eager itself is from what was meant. One draw more sums one element after the
    other, as a runtime may: off weights do not move a bias of the sums. Where ties are settled
    there are none: what is off by a rounding settles them otherwise, which is no noise.
    """
    return tuple(
        replace(one, again=_draw_noise(one, eager), sequential=_run_sequential(one, eager))
        if one.feed.name in feeds and not one.settled and not one.again
        else one
        for one in references
    )


def _run_sequential(reference: ReferenceOutputs, eager: EagerReference) -> Outputs | None:
    """Eager's answer with its sums taken in turn; None where it does not run so."""
    try:
        found = eager.model.run_sequential_sums(reference.feed.arrays)
    except CheckpointError:
        return None
    shapes = {name: array.shape for name, array in reference.outputs.items()}
    return found if {name: array.shape for name, array in found.items()} == shapes else None


def _draw_noise(reference: ReferenceOutputs, eager: EagerReference) -> tuple[Outputs, ...]:
    found = eager.model.draw_perturbed(reference.feed.arrays, _FP32_ROUNDING, pairs=_MAX_PAIRS)
    shapes = {name: array.shape for name, array in reference.outputs.items()}
    return tuple(
        outputs
        for outputs in found
        if {name: array.shape for name, array in outputs.items()} == shapes
    )


def note_missing_float64(eager: EagerReference, tolerance: Tolerance) -> tuple[str, ...]:
    """That the judge fell back to its table, and why, where it would have used float64."""
    why = eager.model.no_float64
    if not why or tolerance.floor_factor is None:
        return ()
    within = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, SQNR {tolerance.min_sqnr:g} dB"
    return (f"no float64 reference, so judged within {within}: {why}",)
