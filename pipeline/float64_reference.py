"""Run eager in float64, as the reference for artifacts near the noise floor."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calibration.sample_reader import feed_digest
from ..core.contract import Array, Outputs
from ..core.errors import CheckpointError
from ..core.kinds import Precision
from ..core.verdict import Tolerance, Verdict
from ..validators.apply_tolerance import GROSS_ERROR, find_gross_outputs
from ..validators.edge_case_feeds import find_batch_dim
from ..validators.feeds import NEGATED
from ..validators.output_pairs import ReferenceOutputs
from ..validators.wide_integer_feeds import WIDE
from .run_progress import Progress

if TYPE_CHECKING:
    from ..core.signature import Signature
    from ..validators.feeds import NamedFeed
    from .eager_reference import EagerReference

FLOAT64_STEP = "float64 reference"
FP32_ROUNDING = 2.0**-24
NOISE_PAIRS = 3  # seven draws with eager's own; their RMS is far off with probability 1e-3
# Pairs of draws with opposite signs: on an exact tie, one of each pair gives the other result.
PAIRS = 4
# Relative perturbation of weights and inputs: about the error of rounding in a layer at each
# precision (32 units of roundoff for fp32, since sums accumulate; one for fp16, bf16 and 8-bit
# weights; int8-dynamic has 34 dB, int8 and fp8 have about 20 dB, int4 has 14).
SHARES = {
    Precision.FP32: 2e-6,
    Precision.FP16: 1e-3,
    Precision.BF16: 8e-3,
    Precision.INT8: 0.1,
    Precision.INT8_WEIGHTS: 8e-3,
    Precision.INT8_DYNAMIC: 2e-2,
    Precision.FP8: 0.1,
    Precision.INT4: 0.2,
}
_ROUGH_TOLERANCE = 1e-4  # share of the signal: 80 dB
# Beside the longest row, feeds (at least) that estimate eager's usual float32 error.
_MAX_OTHERS = 3


def add_float64(
    references: Sequence[ReferenceOutputs], eager: EagerReference, progress: Progress
) -> tuple[ReferenceOutputs, ...]:
    """Add eager's float64 outputs to some of the references, or to none if it cannot run.

    To limit the cost, float64 runs on one row of the largest sizes and on as many of the smallest
    feeds as have no more elements together. The other feeds use eager's usual error; if an
    artifact fails on them, float64 runs there too (see `add_exact`).

    Each feed runs once per eager reference. The cache key is the digest of its arrays, since
    held-out samples of two artifacts share names.
    """
    chosen = _choose_references(references, eager.signature)
    missing = [one for one in chosen if _reference_key(one) not in eager.exact]
    if missing and not eager.model.no_float64:
        with progress.step(FLOAT64_STEP, log="eager") as clock:
            for done, reference in enumerate(missing, start=1):
                if run_float64(reference, eager) is None:
                    clock.detail = "none"
                    break
                progress.advance(FLOAT64_STEP, done, len(missing))
            else:
                clock.detail = f"{len(missing)} feeds"
    return add_exact(references, {one.feed.name for one in chosen}, eager)


def add_exact(
    references: Sequence[ReferenceOutputs], feeds: Collection[str], eager: EagerReference
) -> tuple[ReferenceOutputs, ...]:
    """Add float64 outputs to these feeds; drop all of them if float64 cannot run.

    Feeds with settled ties get none, since float64 may settle them differently; nor do feeds on
    which float64 suppresses other boxes.
    """
    found = tuple(
        replace(one, exact=exact)
        if one.exact is None
        and one.feed.name in feeds
        and not one.settled
        and (exact := run_float64(one, eager)) is not None
        and _has_same_boxes(exact, one, eager)
        else one
        for one in references
    )
    if eager.model.no_float64:
        return tuple(replace(one, exact=None) for one in references)
    return found


def _choose_references(
    references: Sequence[ReferenceOutputs], signature: Signature
) -> list[ReferenceOutputs]:
    """Return the longest row, then the smallest feeds of usual values, then wide-integer feeds.

    The longest row is the largest feed, or a feed of the same sizes with fewer rows: the error of
    a sum depends on its length, not on the number of rows. If rows do depend on each other, the
    largest feed is judged by the usual error, which is stricter. Wide-integer feeds are judged
    alone, so no other feed can estimate their usual error. Masks with undefined rows are excluded.
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
    """Return the largest feed, and the feeds that differ from it only in the batch size."""
    batch = find_batch_dim(signature)
    name = None if batch is None else batch.name

    def sizes(one: ReferenceOutputs) -> dict[str, int]:
        return {dim: size for dim, size in one.feed.sizes.items() if dim != name}

    largest = max(references, key=_reference_size)
    alike = [one for one in references if sizes(one) == sizes(largest) and not _is_unusual(one)]
    return [largest, *(one for one in alike if one.feed.sizes)]


def _is_unusual(reference: ReferenceOutputs) -> bool:
    """Return whether the feed has edge-case values, whose roundoff is unusually small or large."""
    return reference.feed.beyond or reference.feed.kind == "value"


def _reference_size(reference: ReferenceOutputs) -> int:
    arrays = (*reference.feed.arrays.values(), *reference.outputs.values())
    return sum(array.size for array in arrays)


def _reference_key(reference: ReferenceOutputs) -> str:
    return feed_digest(reference.feed.arrays).hex()


def run_float64(reference: ReferenceOutputs, eager: EagerReference) -> Outputs | None:
    """Return eager's float64 outputs, computed once; None if it gives none."""
    key = _reference_key(reference)
    if key not in eager.exact:
        outputs = eager.model.run_exact(reference.feed.arrays)
        if outputs is None:
            return None
        eager.exact[key] = outputs
    return eager.exact[key]


def find_doubtful_feeds(verdict: Verdict) -> frozenset[str]:
    """Return the failed feeds on which chance in eager's own noise may explain the failure.

    Eager's noise on one feed is a single draw, which may be small by chance if few elements
    dominate the error. Without float64, the usual noise replaces it.

    Return all feeds with float outputs if only channels fail, since channels are pooled over
    feeds. Return none if an error exceeds `GROSS_ERROR` (relative to the peak). Below that, a
    large multiple of the floor is no evidence: on constant rows eager may be exact.
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
    """Find edge-case feeds on which eager itself is unstable, with a note for each.

    For example, the variance of an instance norm is 0 on zeros, and two such norms amplify one
    rounding to the whole output. Only feeds on which the artifact's error exceeds `GROSS_ERROR`
    (relative to the peak) are checked. Such a feed is unstable if eager's output moves by more
    than that under a relative perturbation of 2^-24 in inputs and weights, or under sequential
    summation. Feeds of usual values are never unstable.
    """
    found: dict[str, str] = {}
    known = {one.feed.name: one for one in references}
    for output in find_gross_outputs(verdict):
        reference = known.get(output.feed)
        if reference is None or output.feed in found:
            continue
        if not is_tested_for_stability(reference.feed):
            continue
        moved = find_movement(output.output, reference, eager)
        if moved > GROSS_ERROR:
            share = f"{100 * min(moved, 1.0):.0f} %"
            found[output.feed] = (
                f"feed {output.feed} is not judged: noise of 2^-24 in inputs and weights, or the "
                f"order of sums, changes eager's output {output.output!r} by {share} of its peak"
            )
    return found


def find_movement(name: str, reference: ReferenceOutputs, eager: EagerReference) -> float:
    """Return how far noise moves an output, relative to its peak; computed once."""
    key = f"{_reference_key(reference)} {name}"
    if key not in eager.moved:
        eager.moved[key] = _relative_movement(name, reference, eager)
    return eager.moved[key]


def is_tested_for_stability(feed: NamedFeed) -> bool:
    """Return whether eager may be unstable on the feed: its values are extreme."""
    return feed.kind == "value" and feed.name != NEGATED


def _relative_movement(name: str, reference: ReferenceOutputs, eager: EagerReference) -> float:
    """Return the movement of an output under noise, relative to its peak.

    The movement is the larger of two: the median over the perturbed draws, since values on a
    threshold (such as a mask of values above 0.5) flip in some draws only; and that of sequential
    summation, since equal rows (such as silence after a clamped logarithm) move only with the
    order of sums. For an output of zeros, use the peak over all feeds.
    """
    import numpy as np

    output = reference.outputs[name].astype(np.float64)
    peak = _peak_value(output) or max(_peak_value(one.outputs[name]) for one in eager.references)
    draws = [draw[name].astype(np.float64) for draw in _draw_noise(reference, eager)]
    if not draws or not peak:
        return 0.0
    sequential = _run_sequential(reference, eager)
    with np.errstate(invalid="ignore"):
        moved = [np.nanmax(np.abs(draw - output), initial=0.0) for draw in draws]
        by_order = 0.0
        if sequential is not None:
            by_order = float(np.nanmax(np.abs(sequential[name] - output), initial=0.0))
    return max(float(np.median(moved)), by_order) / peak


def _peak_value(array: Array) -> float:
    import numpy as np

    return float(np.max(np.abs(array[np.isfinite(array)]), initial=0.0))


def add_noise_draws(
    references: Sequence[ReferenceOutputs], feeds: Collection[str], eager: EagerReference
) -> tuple[ReferenceOutputs, ...]:
    """Add more draws of eager's noise to the references of these feeds.

    Each draw perturbs weights and inputs by one float32 rounding (2^-24, relative), the same
    distance as between eager's values and the exact ones. One more draw uses sequential summation,
    as a runtime may, because perturbed weights do not change the bias of a sum. Feeds with settled
    ties get no draws, since a perturbation may settle the ties differently, which is not noise.
    """
    return tuple(
        _add_draws(one, eager)
        if one.feed.name in feeds and not one.settled and not one.again
        else one
        for one in references
    )


def _add_draws(one: ReferenceOutputs, eager: EagerReference) -> ReferenceOutputs:
    """Add the draws that suppress the same boxes as eager, if the model suppresses boxes."""
    again = tuple(draw for draw in _draw_noise(one, eager) if _has_same_boxes(draw, one, eager))
    found = _run_sequential(one, eager)
    same = found is not None and _has_same_boxes(found, one, eager)
    return replace(one, again=again, sequential=found if same else None)


def _has_same_boxes(found: Outputs, one: ReferenceOutputs, eager: EagerReference) -> bool:
    """Whether roundoff left the same boxes; always true if the model suppresses none.

    Other boxes would be taken for a large noise, within which a wrong artifact might pass.
    """
    steps = eager.suppression
    return steps is None or not any(
        is_apart(found[name], one.outputs[name]) for name in steps.outputs if name in found
    )


def is_apart(array: Array, other: Array) -> bool:
    """Return whether values differ by more than roundoff: a tie went otherwise."""
    import numpy as np

    if array.shape != other.shape:
        return True
    if array.dtype.kind != "f":
        return bool((array != other).any())
    truth = np.nan_to_num(other.astype(np.float64))
    error = np.nan_to_num(array.astype(np.float64)) - truth
    return bool(np.linalg.norm(error) > _ROUGH_TOLERANCE * np.linalg.norm(truth))


def _run_sequential(reference: ReferenceOutputs, eager: EagerReference) -> Outputs | None:
    """Run eager with sequential summation; return None if it fails or a shape changes."""
    try:
        found = eager.model.run_sequential_sums(reference.feed.arrays)
    except CheckpointError:
        return None
    return found if has_same_shapes(found, reference.outputs) else None


def _draw_noise(reference: ReferenceOutputs, eager: EagerReference) -> tuple[Outputs, ...]:
    found = eager.model.draw_perturbed(reference.feed.arrays, FP32_ROUNDING, pairs=NOISE_PAIRS)
    return tuple(outputs for outputs in found if has_same_shapes(outputs, reference.outputs))


def has_same_shapes(outputs: Outputs, others: Outputs) -> bool:
    """Return whether these are the same outputs with the same shapes."""
    shapes, wanted = ({n: array.shape for n, array in one.items()} for one in (outputs, others))
    return shapes == wanted


def note_missing_float64(eager: EagerReference, tolerance: Tolerance) -> tuple[str, ...]:
    """Return a note on why the verdict uses the tolerance table instead of float64, if it does."""
    why = eager.model.no_float64
    if not why or tolerance.floor_factor is None:
        return ()
    within = f"atol {tolerance.atol:g}, rtol {tolerance.rtol:g}, SQNR {tolerance.min_sqnr:g} dB"
    return (f"no float64 reference, so judged within {within}: {why}",)
