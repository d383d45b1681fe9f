"""What a reader should know of an artifact, passed or not, beside its verdict: each as one text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..calibration.calibration_options import RANDOM
from ..core.manifest import Manifest
from ..core.precision import Precision
from ..core.records import Artifact, CalibrationRecord, Coverage
from ..core.verdict import Tolerance, Verdict
from ..validators.tolerance import TOLERANCES
from .size_text import readable_sizes
from .words import percent_text

_INT8_NAME = str(Precision.INT8)
_LOW_SHARE = 0.5  # of the work: an INT8 artifact with less of it in INT8 is mostly another one
_LIMIT_OPTIONS = {"atol": "atol", "rtol": "rtol", "min_sqnr": "min-sqnr"}


def list_warnings(artifact: Artifact, manifest: Manifest) -> tuple[str, ...]:
    """All of them, each once: of its calibration first, then the notes."""
    record = artifact.calibration
    told = () if record is None else (random_warning(record), *list_sample_findings([artifact]))
    return tuple(dict.fromkeys(filter(None, (*told, *list_notes(artifact, manifest)))))


def list_shared_warnings(manifest: Manifest) -> tuple[str, ...]:
    """What is of every artifact alike: sizes of the range on which nothing could be judged."""
    gaps = [feed.name for feed in manifest.feeds.drawn if feed.gap]
    if not gaps:
        return ()
    many = f"{len(gaps)} of {len(manifest.feeds.drawn)} feeds at sizes that were stated"
    return (f"eager rejects {many}, nothing is judged on them: {', '.join(gaps)}",)


def random_warning(record: CalibrationRecord) -> str:
    """That no real sample calibrated it; empty where real ones did."""
    if record.kind != RANDOM:
        return ""
    return f"calibrated with {record.used} random samples: real data may do far worse"


def list_sample_findings(artifacts: Iterable[Artifact]) -> tuple[str, ...]:
    """What was found in calibration samples, once: a verdict on held-out ones cannot know it."""
    records = [one.calibration for one in artifacts if one.calibration is not None]
    found = (finding for record in records for finding in record.findings)
    return tuple(f"calibration: {finding}" for finding in dict.fromkeys(found))


def list_notes(artifact: Artifact, manifest: Manifest) -> tuple[str, ...]:
    """What it computes in where that is not its precision, whose limits it is held to, its notes.

    Notes of the making are of what may be used: of a refused artifact there are none.
    """
    verdict = manifest.verdict_of(artifact.name)
    if verdict is None:
        return ()
    made = () if artifact.rejected else artifact.notes
    share = _share_warning(artifact.precision, artifact.coverage)
    floor = _floor_warnings(artifact, verdict, manifest.order)
    notes = map(readable_sizes, (*verdict.notes, *made))
    return tuple(dict.fromkeys(filter(None, (share, *floor, *notes))))


def _share_warning(precision: Precision, coverage: Coverage | None) -> str:
    """That most of the work of an INT8 artifact is not in INT8."""
    if precision is not Precision.INT8 or coverage is None or not coverage.share:
        return ""
    mine = coverage.share.get(_INT8_NAME, 0.0)
    if mine >= _LOW_SHARE:
        return ""
    others = sorted(coverage.share.items(), key=lambda item: -item[1])
    rest = ", ".join(
        f"{percent_text(part)} in {name}" for name, part in others if name != _INT8_NAME
    )
    return f"only {percent_text(mine)} of its work ({coverage.work}) is in int8, {rest}"


def _floor_warnings(
    artifact: Artifact, verdict: Verdict, order: Mapping[str, str]
) -> Iterator[str]:
    """That limits which were asked for stand in place of the noise floor, for which outputs."""
    if artifact.limit_precision is not Precision.FP32:
        return
    factor = TOLERANCES[Precision.FP32].floor_factor or 0.0
    outputs = list(dict.fromkeys(one.output for one in verdict.outputs if one.is_floating))
    owners: dict[str, list[str]] = {}
    for name in outputs:
        within = verdict.tolerance.of(name)
        if within.floor_factor is None:
            owners.setdefault(_limits_in_order(within, order), []).append(name)
    for limits, names in owners.items():
        whose = "" if names == outputs else f"output {', '.join(map(repr, names))}: "
        yield (
            f"{whose}{limits} in place of the noise floor, which may ask for more "
            f"(floor-factor={factor:g} beside it holds the floor instead)"
        )


def _limits_in_order(within: Tolerance, order: Mapping[str, str]) -> str:
    """The limits of the table that were asked for: in the order, or other than the usual ones."""
    usual, mine = vars(TOLERANCES[Precision.FP32]), vars(within)
    given = [name for name in _LIMIT_OPTIONS if mine[name] != usual[name] or order.get(name)]
    told = [f"{_LIMIT_OPTIONS[name]} {mine[name]:g}" for name in given or _LIMIT_OPTIONS]
    return f"{', '.join(told)} {'stands' if len(told) == 1 else 'stand'}"
