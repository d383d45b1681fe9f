"""Checks of the whole set: too few, far from the validation feeds, of other kinds, one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from ..core.signature import FLOATS, InputSpec
from .content import ImageLook
from .findings import FindingCollector, FindingKind
from .report import InputReport, ValueSpread

# Checks of the whole set: too few, far from the validation feeds, of other kinds, one folder.


MIN_SAMPLES = 32  # samples below which the extremes of activations are a matter of luck
_APART = 3.0  # how many times a mean, std or extreme may differ from the validation feeds'
_FAR = 10.0  # from here on it cannot be the same preprocessing
_SLACK = 0.01  # of a declared range, for rounding
_MASK_MODES = ("1", "P", "PA")
_BYTE_MODES = ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "P", "PA", "La")
_MASK_LEVELS = 64  # label masks have a value a class
_FEWER = 4  # times as many distinct values as a mask a photo has at least


def check_count(findings: FindingCollector, count: int) -> None:
    """Too few samples to know the ranges by."""
    if 0 < count < MIN_SAMPLES:
        what = "1 sample is" if count == 1 else f"{count} samples are"
        findings.add(
            FindingKind.FEW, f"{what} few: below {MIN_SAMPLES} the ranges are a matter of luck"
        )


def check_ranges(
    findings: FindingCollector,
    specs: Iterable[InputSpec],
    found: Mapping[str, InputReport],
    validation: Mapping[str, InputReport],
    *,
    own: bool,
) -> None:
    """Values outside the declared range, or far from those that the model is judged on.

    Args:
        findings: where it is noted.
        specs: the inputs, with the ranges that the user declared.
        found: the calibration samples' statistics, by input.
        validation: the validation feeds'.
        own: whether these are the user's own values; drawn ones say little of real data.
    """
    specs = list(specs)
    dims = [dim for spec in specs for dim in spec.dims if not dim.bounded]
    open_ended = {name for dim in dims for name in (dim.name, dim.free.name)}
    for spec in specs:
        if spec.name not in found:
            continue
        ours = found[spec.name].total
        if spec.values is not None and not spec.values.chosen:
            if not open_ended.intersection(spec.values.bases):  # else it has no outside
                _check_declared(findings, spec, ours)
        elif spec.dtype in FLOATS and spec.name in validation:
            _check_apart(findings, spec.name, ours, validation[spec.name].total, own=own)


def _check_declared(findings: FindingCollector, spec: InputSpec, ours: ValueSpread) -> None:
    if spec.values is None:
        return
    low, high = spec.values.low, spec.values.high
    slack = (high - low) * _SLACK if spec.dtype in FLOATS else 0.0
    if ours.low >= low - slack and ours.high <= high + slack:
        return
    gross = spec.dtype in FLOATS and _largest_magnitude(ours) > _FAR * max(abs(low), abs(high))
    findings.add(
        FindingKind.FAR if gross else FindingKind.RANGE,
        f"{spec.name}: calibration values lie in {_span_text(ours)}, --input says {low:g}..{high:g}"
        + _suggest_range(spec),
        topic=spec.name,
    )


def _check_apart(
    findings: FindingCollector, name: str, ours: ValueSpread, theirs: ValueSpread, *, own: bool
) -> None:
    reach, expected = _largest_magnitude(ours), _largest_magnitude(theirs)
    if not reach or not expected:
        return
    ratio = max(reach / expected, expected / reach)
    far = ratio > _FAR if own else reach > _FAR * expected
    apart = own and (ratio > _APART or _is_apart(ours, theirs))
    if not far and not apart:
        return
    whose = "validation feeds" if own else "drawn validation feeds"
    findings.add(
        FindingKind.FAR if far and own else FindingKind.RANGE,
        f"{name}: calibration values lie in {_span_text(ours)} ({_moments_text(ours)}), {whose} in "
        f"{_span_text(theirs)} ({_moments_text(theirs)}): a forgotten scale, mean or std?",
        topic=name,
    )


def _is_apart(ours: ValueSpread, theirs: ValueSpread) -> bool:
    """Whether the deviations differ 3 times, or the means by 3 of the larger deviation."""
    small, large = sorted((ours.std, theirs.std))
    return large > _APART * small or abs(ours.mean - theirs.mean) > _APART * large


def _largest_magnitude(spread: ValueSpread) -> float:
    return max(abs(spread.low), abs(spread.high))


def _span_text(spread: ValueSpread) -> str:
    return f"{spread.low:.4g}..{spread.high:.4g}"


def _moments_text(spread: ValueSpread) -> str:
    return f"mean {spread.mean:.3g}, std {spread.std:.3g}"


def _suggest_range(spec: InputSpec) -> str:
    return ": a forgotten scale, mean or std?" if spec.dtype in FLOATS else ""


def check_channels(findings: FindingCollector, inputs: Iterable[InputReport], count: int) -> None:
    """A channel that is the same in every sample, while others are not."""
    for one in inputs:
        still = [index for index, part in enumerate(one.channels) if part.low == part.high]
        if count > 1 and still and len(still) < len(one.channels):
            told = ", ".join(map(str, still[:8])) + (", …" if len(still) > 8 else "")  # noqa: PLR2004 - enough
            value = one.channels[still[0]].low
            findings.add(
                FindingKind.CHANNEL,
                f"{one.name}: channel {told} is {value:g} in every sample",
                topic=one.name,
            )


def check_images(findings: FindingCollector, looks: Sequence[tuple[str, ImageLook]]) -> None:
    """Images of another kind than the others: label masks, 1-bit or 16-bit ones among photos."""
    if not looks:
        return
    usual = median(look.levels for _, look in looks)
    masks = sum(look.mode in _MASK_MODES for _, look in looks)
    wide = sum(look.mode not in _BYTE_MODES for _, look in looks)
    if masks * 2 > len(looks) and usual <= _MASK_LEVELS:
        name, look = looks[0]
        findings.add(
            FindingKind.ODD_IMAGE,
            f"is {_kind_of(look)}, as are most of the {len(looks):,} images: are they label masks?",
            file=name,
        )
        return
    for name, look in looks:
        few = look.levels <= _MASK_LEVELS and look.levels * _FEWER <= usual
        strange = (look.mode not in _BYTE_MODES) != (wide * 2 > len(looks))
        if few or strange:
            findings.add(
                FindingKind.ODD_IMAGE,
                f"is {_kind_of(look)}; the others have {usual:.0f} in the median: a label mask?",
                file=name,
            )


def _kind_of(look: ImageLook) -> str:
    return f"a {look.mode} image with {look.levels:,} distinct values"


def check_folders(findings: FindingCollector, used: Sequence[str], names: Iterable[str]) -> None:
    """The first samples of a folder may all be of one class.

    Args:
        findings: where it is noted.
        used: the names of the samples to calibrate with.
        names: those of all.
    """
    among = {name.rpartition("/")[0] for name in used}
    folders: set[str] = set()
    total = 0
    for name in names:
        folders.add(name.rpartition("/")[0])
        total += 1
    if used and len(among) * 2 <= len(folders):
        findings.add(
            FindingKind.ONE_FOLDER,
            f"the first {len(used):,} of {total:,} samples come from {len(among):,} of "
            f"{len(folders):,} folders",
        )
