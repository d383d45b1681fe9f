"""What a wrong output looks like: another output of eager's, or eager's own cast to half."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .fill import measure_with_fill
from .metrics import Measures, is_numeric, iter_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.contract import Array
    from ..core.verdict import OutputVerdict, Tolerance, Verdict
    from .evidence import OutputPair

# What a wrong output looks like: another output of eager's, or eager's own cast to half.


# Computing in half errs by less than this share of the signal; more than that is something else.
_HALF_ERROR = 0.1


def add_mismatch_hints(
    verdict: Verdict, pairs: Sequence[OutputPair], tolerance: Tolerance
) -> Verdict:
    """The verdict with what each wrong output looks like: `; looks like ...`, or nothing."""
    by_name = {pair.feed.name: pair for pair in pairs}
    return replace(
        verdict,
        outputs=tuple(
            output
            if output.passed or output.loose or output.output not in by_name[output.feed].artifact
            else replace(output, clue=_mismatch_hint(output, by_name[output.feed], tolerance))
            for output in verdict.outputs
        ),
    )


def _mismatch_hint(output: OutputVerdict, pair: OutputPair, tolerance: Tolerance) -> str:
    other = _find_equal_output(output.output, pair, tolerance.of(output.output))
    if other is not None:
        return f"; looks like eager's output {other!r}: outputs swapped?"
    lowered = tolerance.min_agreement is not None  # then half is what was asked for
    if lowered or output.shape != pair.artifact[output.output].shape:
        return ""
    if _is_half_precision(output, pair):
        return "; its values are all representable in float16: cast to half?"
    return ""


def _find_equal_output(name: str, pair: OutputPair, tolerance: Tolerance) -> str | None:
    """The other output of eager's that this array equals within tolerance."""
    array = pair.artifact[name]
    return next(
        (
            other
            for other, eager in pair.eager.items()
            if other != name and _is_equal_within(eager, array, tolerance)
        ),
        None,
    )


def _is_equal_within(eager: Array, array: Array, tolerance: Tolerance) -> bool:
    if eager.shape != array.shape or eager.dtype != array.dtype or not eager.size:
        return False
    if not is_numeric(eager):
        return bool((eager == array).all())
    found = measure_with_fill(eager, array)
    if found.answers.exact or eager.dtype.kind not in "fc":
        return found.answers.exact
    return all(_is_close_enough(part, tolerance) for part in found.parts)


def _is_close_enough(found: Measures, tolerance: Tolerance) -> bool:
    if found.nonfinite_mismatch or found.max_abs is None or found.peak is None:
        return False
    close = found.max_abs <= tolerance.atol + tolerance.rtol * found.peak
    return close and (found.sqnr is None or found.sqnr >= tolerance.min_sqnr)


def _is_half_precision(found: OutputVerdict, pair: OutputPair) -> bool:
    """Whether float32 values went through float16: all on its grid, where eager's are not."""
    eager, artifact = pair.eager[found.output], pair.artifact[found.output]
    if not (str(artifact.dtype) == str(eager.dtype) == "float32"):
        return False
    if found.relative_l2 is None or not 0 < found.relative_l2 < _HALF_ERROR:
        return False
    return _is_on_half_grid(artifact) and not _is_on_half_grid(eager)


def _is_on_half_grid(array: Array) -> bool:
    import numpy as np

    with np.errstate(over="ignore"):  # beyond 65504 becomes Inf, and so is not on the grid
        return all(
            np.array_equal(block.astype(np.float16).astype(np.float32), block, equal_nan=True)
            for block, _ in iter_blocks(array, array)
        )
