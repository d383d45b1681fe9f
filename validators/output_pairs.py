"""Pair eager's outputs with the artifact's: records, measurements and hints on mismatches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from ..core.contract import Array, Feed, Outputs
from ..core.verdict import FillMeasures, OutputVerdict
from .feeds import SAMPLE, NamedFeed
from .metrics import FillSplit, Measures, is_numeric, iter_blocks, measure_with_fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.verdict import Tolerance, Verdict


@dataclass(frozen=True, kw_only=True)
class ReferenceOutputs:
    """One feed and eager's outputs on it.

    `exact` are the outputs of eager in float64, if available. `again` are outputs with weights and
    inputs changed by one rounding: redraws of eager's noise, computed where one run is not
    conclusive. `sequential` are outputs under sequential summation, computed together with `again`.
    `settled` says which of several tied scores these outputs chose if that differs from eager's own
    choice, or that they come from eager's plain path. `left_out` names outputs that are not judged
    on this feed because extreme values turn them into NaN.
    """

    feed: NamedFeed
    outputs: Outputs
    exact: Outputs | None = None
    again: tuple[Outputs, ...] = ()
    sequential: Outputs | None = None
    settled: str = ""
    left_out: frozenset[str] = frozenset()


def find_sample(references: Iterable[ReferenceOutputs]) -> Feed | None:
    """Return the user's own sample among the feeds, which shows typical values."""
    return next((one.feed.arrays for one in references if one.feed.name == SAMPLE), None)


@dataclass(frozen=True, kw_only=True)
class ArtifactOutputs:
    """The artifact's outputs on one feed; None if it rejected the feed, with the cause in `error`.

    `undecided` marks, per output, integers and bools that roundoff decides: eager itself gives
    others when its weights and inputs change by one rounding.
    """

    outputs: Outputs | None
    error: str = ""
    undecided: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class OutputPair:
    """Eager's and the artifact's outputs on one feed."""

    feed: NamedFeed
    eager: Outputs
    artifact: Outputs
    exact: Outputs | None = None
    again: tuple[Outputs, ...] = ()
    sequential: Outputs | None = None
    undecided: Mapping[str, Array] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()


# Measurements and form of one output on one feed.


MISSING, STRUCTURE, VALUES = "missing", "structure", "values"


def measure_output(name: str, pairs: Sequence[OutputPair], *, loose: bool) -> list[OutputVerdict]:
    """Measure one output on every feed, without applying a tolerance.

    Shapes, dtypes and places of NaN/Inf must equal eager's, and so must integers and bools except
    those that roundoff decides. On `loose` feeds integers and bools may differ. Fill is measured at
    its own scale (see `measure_with_fill`) and excluded from the reported measures.
    """
    found = [_measure_pair(name, pair) for pair in pairs]
    barren = not loose and all(
        one.answers.size == one.answers.nonfinite_eager for one in found if one is not None
    )
    return [
        _check_form(
            replace(_make_output_verdict(name, pair, one), loose=loose), pair, one, barren=barren
        )
        for pair, one in zip(pairs, found, strict=True)
    ]


def _measure_pair(name: str, pair: OutputPair) -> FillSplit | None:
    """Measure one output on one feed; None if there is nothing to measure."""
    eager, artifact = pair.eager[name], pair.artifact.get(name)
    if artifact is None or artifact.shape != eager.shape:
        return None
    if not (is_numeric(eager) and is_numeric(artifact)):
        return None
    return measure_with_fill(eager, artifact)


def _check_form(
    record: OutputVerdict, pair: OutputPair, found: FillSplit | None, *, barren: bool
) -> OutputVerdict:
    """Add faults that hold at any tolerance to the record."""
    eager, artifact = pair.eager[record.output], pair.artifact.get(record.output)
    if artifact is None:
        return replace(record, form="missing", form_kind=MISSING)
    structure = _structure_fault(eager, artifact, found, barren=barren)
    if structure:
        exact = record.exact and not barren  # nothing was compared
        return replace(record, form=structure, form_kind=STRUCTURE, exact=exact)
    if record.loose or eager.dtype.kind in "fc":
        return record
    differing, undecided = _count_differences(eager, artifact, pair.undecided.get(record.output))
    record = replace(record, undecided=undecided, wrong=differing)
    if not differing:
        return record
    if found is None:
        return replace(record, form="the values differ", form_kind=VALUES)
    largest = None if undecided else found.answers.max_abs
    by = "" if largest is None else f", by up to {largest:.12g}"
    form = f"{differing} of {eager.size} elements differ{by}"
    return replace(record, form=form, form_kind=VALUES)


def _structure_fault(
    eager: Array, artifact: Array, found: FillSplit | None, *, barren: bool
) -> str:
    if artifact.shape != eager.shape:
        return f"shape {list(artifact.shape)}, eager has {list(eager.shape)}"
    if artifact.dtype != eager.dtype:
        return f"dtype {artifact.dtype}, eager has {eager.dtype}"
    if found is None:
        return ""
    answers = found.answers
    if not (answers.nonfinite_eager or answers.nonfinite_mismatch):
        return ""
    return _nonfinite_fault(answers, barren=barren)


def _nonfinite_fault(found: Measures, *, barren: bool) -> str:
    """Return how NaN and Inf differ from eager's; empty if they are in the same places."""
    count, size = found.nonfinite_mismatch, found.size
    if barren:
        return "nothing to compare: every element of eager's is NaN or Inf"
    if not count:
        return ""
    if not found.nonfinite_eager:
        return f"{count} of {size} elements NaN/Inf where eager has none"
    if not found.nonfinite_artifact:
        return f"{count} of {size} elements NaN/Inf in eager, finite here"
    return f"{count} of {size} elements NaN/Inf in other places or of another kind than eager's"


def _count_differences(eager: Array, artifact: Array, undecided: Array | None) -> tuple[int, int]:
    """Count the differing elements that must be equal, and those that roundoff decides."""
    import numpy as np

    differs = np.asarray(eager != artifact)
    open_ = np.zeros(1, bool) if undecided is None else undecided
    return int(np.count_nonzero(differs & ~open_)), int(np.count_nonzero(differs & open_))


_COPIED = {one.name for one in fields(Measures)} & {one.name for one in fields(OutputVerdict)}


def _make_output_verdict(name: str, pair: OutputPair, apart: FillSplit | None) -> OutputVerdict:
    eager = pair.eager[name]
    if apart is None:  # another shape, or strings
        artifact = pair.artifact.get(name)
        same = artifact is not None and artifact.shape == eager.shape
        equal = same and bool((eager == artifact).all())
        found = Measures(size=eager.size, compared=0, differing=0 if equal else eager.size)
    else:
        found = apart.answers
    fill = None if apart is None else apart.fill
    return OutputVerdict(
        feed=pair.feed.name,
        output=name,
        passed=False,  # until a tolerance is applied
        reason="",
        shape=tuple(eager.shape),
        dtype=str(eager.dtype),
        exact=found.exact,
        fill=None
        if fill is None
        else FillMeasures(max_abs=fill.max_abs, peak=fill.peak, sqnr=fill.sqnr),
        **{name: getattr(found, name) for name in _COPIED},
    )


def is_close(expected: Outputs, given: Outputs, *, share: float) -> bool:
    """Whether no output differs; see `find_differing_outputs`."""
    return not find_differing_outputs(expected, given, share=share)


def find_differing_outputs(expected: Outputs, given: Outputs, *, share: float) -> tuple[str, ...]:
    """Return outputs whose form, integers or bools differ, or whose floats differ by over a share.

    Args:
        expected: eager's outputs by name.
        given: the artifact's outputs.
        share: allowed error as a share of the largest finite value of each of eager's outputs.
    """
    if expected.keys() != given.keys():
        return tuple(expected.keys() ^ given.keys())
    return tuple(
        name for name, wanted in expected.items() if not _is_alike(wanted, given[name], share)
    )


def _is_alike(wanted: Array, found: Array, share: float) -> bool:
    import numpy as np

    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if wanted.dtype.kind not in "fc":
        return np.array_equal(found, wanted)
    peak = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
    return bool(np.allclose(found, wanted, rtol=0, atol=share * peak, equal_nan=True))


# Hints on wrong outputs: another of eager's outputs, or eager's own cast to half.


# Half precision errs by less than this share of the signal; a larger error has another cause.
_HALF_ERROR = 0.1


def add_mismatch_hints(
    verdict: Verdict, pairs: Sequence[OutputPair], tolerance: Tolerance
) -> Verdict:
    """Add hints (`; looks like ...`) to the wrong outputs that match a known mistake."""
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
    lowered = tolerance.min_agreement is not None  # half precision was requested
    if lowered or output.shape != pair.artifact[output.output].shape:
        return ""
    if _is_half_precision(output, pair):
        return "; its values are all representable in float16: cast to half?"
    return ""


def _find_equal_output(name: str, pair: OutputPair, tolerance: Tolerance) -> str | None:
    """Return another output of eager's that this array equals within tolerance."""
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
    """Whether all float32 values are representable in float16 while eager's are not."""
    eager, artifact = pair.eager[found.output], pair.artifact[found.output]
    if not (str(artifact.dtype) == str(eager.dtype) == "float32"):
        return False
    if found.relative_l2 is None or not 0 < found.relative_l2 < _HALF_ERROR:
        return False
    return _is_on_half_grid(artifact) and not _is_on_half_grid(eager)


def _is_on_half_grid(array: Array) -> bool:
    import numpy as np

    with np.errstate(over="ignore"):  # values above 65504 become Inf, so they do not compare equal
        return all(
            np.array_equal(block.astype(np.float16).astype(np.float32), block, equal_nan=True)
            for block, _ in iter_blocks(array, array)
        )
