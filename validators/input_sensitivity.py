"""Check that an artifact's outputs depend on its inputs as eager's do, and on no row's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.kinds import ReasonCode
from ..core.verdict import Reason
from .feeds import OPT, VARY
from .metrics import is_numeric, measure_with_fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..core.contract import Array
    from ..core.signature import Signature
    from ..core.verdict import Tolerance
    from .output_pairs import ArtifactOutputs, OutputPair, ReferenceOutputs

# Share of the tolerance that eager must move by before an artifact that does not move is wrong. An
# artifact of that precision may round a smaller movement away.
_RESOLUTION = 0.1


def check_input_sensitivity(
    pairs: Sequence[OutputPair],
    signature: Signature,
    artifact_inputs: Sequence[str],
    tolerance: Tolerance,
) -> tuple[list[Reason], list[str]]:
    """Return ignored inputs and constant outputs, and notes where that is inconclusive.

    An input is ignored if eager's outputs change with it while the artifact's stay bitwise equal,
    between `opt` and the input's `vary:` feed or, for a single input, between feeds of the same
    shapes. An output is constant if the same applies to it over all feeds.
    """
    faults: list[Reason] = []
    notes: list[str] = []
    for spec in signature.inputs:
        moves = [
            _measure_move(base, other, signature, tolerance)
            for base, other in _find_trials(pairs, spec.name, signature)
        ]
        fault, note = _judge_input(spec.name, moves, taken=spec.name in artifact_inputs)
        code = ReasonCode.INPUT_IGNORED
        faults += [Reason(code=code, text=text, fault=True) for text in fault]
        notes += note
    for name in signature.outputs:
        if _is_constant_output(name, pairs, tolerance):
            text = f"output {name!r} is constant: the same on every feed, while eager's varies"
            code = ReasonCode.OUTPUT_CONSTANT
            faults.append(Reason(code=code, text=text, fault=True, output=name))
    return faults, notes


@dataclass(frozen=True, kw_only=True)
class _InputMove:
    """Whether one input moved eager at all, eager beyond rounding, and the artifact."""

    eager: bool
    clearly: bool
    artifact: bool


def _judge_input(
    name: str, moves: Sequence[_InputMove], *, taken: bool
) -> tuple[list[str], list[str]]:
    """Return at most one fault and one note about one input."""
    still = [move for move in moves if move.eager and not move.artifact]
    if not taken:
        if any(move.eager for move in moves):
            why = "the artifact does not take it, eager's outputs move with it"
            return [f"input {name!r} is ignored: {why}"], []
        seen = "eager's outputs do not move with it" if moves else "no feed varies it alone"
        return [], [f"input {name!r} is not taken by the artifact; {seen}"]
    if any(move.artifact for move in moves):
        return [], []
    if any(move.clearly for move in still):
        why = "eager's outputs move with it, the artifact's stay the same bit for bit"
        return [f"input {name!r} is ignored: {why}"], []
    if still:
        why = "eager's outputs move less with it than this precision resolves, the artifact's not"
        return [], [f"input {name!r} may be ignored: {why}"]
    return [], []


def _find_trials(
    pairs: Sequence[OutputPair], name: str, signature: Signature
) -> Iterator[tuple[OutputPair, OutputPair]]:
    """Yield pairs of feeds that differ in one input only."""
    if len(signature.inputs) == 1:
        yield from _same_shape_pairs(pairs)
        return
    by_name = {pair.feed.name: pair for pair in pairs}
    base, other = by_name.get(OPT), by_name.get(f"{VARY}{name}")
    if base is not None and other is not None:
        yield base, other


def _same_shape_pairs(pairs: Sequence[OutputPair]) -> Iterator[tuple[OutputPair, OutputPair]]:
    """Yield each feed with the first feed of the same shapes."""
    first: dict[tuple[tuple[int, ...], ...], OutputPair] = {}
    for pair in pairs:
        base = first.setdefault(tuple(array.shape for array in pair.feed.arrays.values()), pair)
        if base is not pair:
            yield base, pair


def _measure_move(
    base: OutputPair, other: OutputPair, signature: Signature, tolerance: Tolerance
) -> _InputMove:
    wanted = signature.outputs  # eager has all outputs
    names = [n for n in wanted if n in base.artifact and n in other.artifact]
    return _InputMove(
        eager=any(not _is_same_array(base.eager[n], other.eager[n]) for n in wanted),
        clearly=any(_differs_clearly(base.eager[n], other.eager[n], tolerance) for n in names),
        artifact=any(not _is_same_array(base.artifact[n], other.artifact[n]) for n in names),
    )


def _is_constant_output(name: str, pairs: Sequence[OutputPair], tolerance: Tolerance) -> bool:
    """Whether an output never changes between feeds of one shape while eager's does."""
    trials = [pair for pair in _same_shape_pairs(pairs) if all(name in p.artifact for p in pair)]
    return all(_is_same_array(a.artifact[name], b.artifact[name]) for a, b in trials) and any(
        _differs_clearly(base.eager[name], other.eager[name], tolerance) for base, other in trials
    )


def _is_same_array(first: Array, second: Array) -> bool:
    """Whether two arrays are equal in every element; NaN equals NaN."""
    import numpy as np

    if first.dtype != second.dtype:
        return False
    return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))


def _differs_clearly(first: Array, second: Array, tolerance: Tolerance) -> bool:
    """Whether two arrays differ by more than rounding at this tolerance's precision.

    Fill is measured separately: beside -1e4, any other change would seem negligible.
    """
    comparable = first.shape == second.shape and first.dtype == second.dtype
    if not comparable or first.dtype.kind not in "fc" or not is_numeric(first):
        return not _is_same_array(first, second)
    atol, rtol = _RESOLUTION * tolerance.atol, _RESOLUTION * tolerance.rtol
    return any(
        found.nonfinite_mismatch or (found.max_abs or 0.0) > atol + rtol * (found.peak or 0.0)
        for found in measure_with_fill(first, second).parts
    )


# Rows must not depend on their place: equal rows must give equal results.


# Kernels process rows in blocks and treat the last ones differently, so equal rows differ by
# roundoff, in eager too. Two rows that each pass may differ by twice the tolerance; an eighth of
# that is still tens of units of roundoff in every precision.
_SHARE, _TIMES = 1 / 4, 8.0


def find_unequal_rows(
    reference: ReferenceOutputs, reply: ArtifactOutputs, tolerance: Tolerance
) -> tuple[str, ...]:
    """Return faults for float outputs whose rows differ in the artifact but agree in eager.

    The feed repeats one row. Rows agree if no two differ by more than a quarter of `atol + rtol *
    peak`, or than 8 times eager's own difference. Outputs without the feed's rows on the first axis
    are skipped.
    """
    faults = []
    for name, eager in reference.outputs.items():
        array = (reply.outputs or {}).get(name)
        if array is None or array.shape != eager.shape or eager.dtype.kind != "f":
            continue
        if not eager.size or not eager.ndim or eager.shape[0] not in reference.feed.sizes.values():
            continue
        found, own = _largest_spread(array), _largest_spread(eager)
        limits = tolerance.of(name)
        limit = _SHARE * (limits.atol + limits.rtol * float(abs(eager).max()))
        if own <= limit and found > max(limit, _TIMES * own):
            faults.append(
                f"output {name!r}: equal rows come out apart by {found:.2e} "
                f"on feed {reference.feed.name}, eager's by {own:.2e}"
            )
    return tuple(faults)


def _largest_spread(array: Array) -> float:
    """Return the largest difference between equal elements of two rows."""
    wide = array.astype("float64")
    return float((wide.max(axis=0) - wide.min(axis=0)).max())
