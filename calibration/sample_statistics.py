"""Running statistics of the inputs over all samples, and the checks of the whole set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..core.signature import FLOATS, InputSpec
from .calibration_report import PERCENTILES, FindingCollector, FindingKind, InputReport, ValueSpread
from .sample_content import ImageLook

if TYPE_CHECKING:
    from ..core.contract import Array

_FINE = 2048
_COARSE = 20
_MOST_CHANNELS = 64
_MOST_SHAPES = 8
_IMAGE_RANK, _LEAST_RANK = 4, 3


def channel_axis(spec: InputSpec) -> int | None:
    """Return the channel axis, batch axis included: the second dim, or the last of an image."""
    sizes = [dim.opt if dim.name is None else 0 for dim in spec.dims]
    if len(sizes) < _LEAST_RANK:
        return None
    colours = (1, 3, 4)
    if len(sizes) == _IMAGE_RANK and sizes[-1] in colours and sizes[1] not in colours:
        return len(sizes) - 1
    return 1 if 1 <= sizes[1] <= _MOST_CHANNELS else None


class RunningHistogram:
    """Counts in 2,048 equal bins over a range that doubles when a value falls outside."""

    def __init__(self) -> None:
        self._low = self._width = 0.0
        self._counts: Array | None = None

    def add(self, values: Array) -> None:
        """Count finite float64 values."""
        import numpy as np

        low, high = float(values.min()), float(values.max())
        if self._counts is None:
            # a single value needs some width, which doubles on demand
            span = high / _FINE - low / _FINE
            self._low, self._width = low, span or max(abs(low), 1.0) * 1e-9
            self._counts = np.zeros(_FINE, dtype=np.int64)
        while low < self._low or high > self._low + _FINE * self._width:
            self._widen(down=low < self._low)
        places = ((values - self._low) / self._width).astype(np.int64)
        self._counts += np.bincount(np.clip(places, 0, _FINE - 1), minlength=_FINE)

    def _widen(self, *, down: bool) -> None:
        import numpy as np

        if self._counts is None:
            raise RuntimeError("a histogram without counts has no range")
        pairs = self._counts.reshape(-1, 2).sum(axis=1)
        empty = np.zeros_like(pairs)
        self._counts = np.concatenate([empty, pairs] if down else [pairs, empty])
        if down:
            self._low -= _FINE * self._width
        self._width *= 2

    def coarse(self, low: float, high: float) -> tuple[int, ...]:
        """Return the counts in 20 equal bins, each fine bin counted by its middle."""
        import numpy as np

        counts = np.zeros(_COARSE, dtype=np.int64)
        if self._counts is None:
            return tuple(counts.tolist())
        middles = self._low + (np.arange(_FINE) + 0.5) * self._width
        step = (high - low) / _COARSE or 1.0
        places = np.clip((middles - low) / step, 0, _COARSE - 1).astype(np.int64)
        np.add.at(counts, places, self._counts)
        return tuple(counts.tolist())

    def percentile(self, percent: float) -> float:
        """Return a percentile, interpolated between the bins' edges."""
        import numpy as np

        if self._counts is None:
            return 0.0
        running = np.concatenate([[0], np.cumsum(self._counts)])
        edges = self._low + np.arange(_FINE + 1) * self._width
        return float(np.interp(percent / 100 * running[-1], running, edges))


class RunningStatistics:
    """Running statistics of one input; mean and variance are merged in float64 (Chan 1979)."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec
        self._axis = channel_axis(spec)
        self._shapes: dict[str, None] = {}
        self._histogram = RunningHistogram()
        self._parts: list[Array] = []  # by channel: count, mean, sum of squares, low, high

    def add(self, array: Array) -> None:
        """Add one sample's array of finite values; an empty one counts with its shape alone."""
        import numpy as np

        if len(self._shapes) < _MOST_SHAPES:
            self._shapes["x".join(map(str, array.shape)) or "scalar"] = None
        if not array.size:
            return
        values = array.astype(np.float64)
        flat = values.reshape(1, -1)
        if self._axis is not None:
            flat = np.moveaxis(values, self._axis, 0).reshape(values.shape[self._axis], -1)
        self._histogram.add(flat.reshape(-1))
        mean = flat.mean(axis=1)
        squares = np.square(flat - mean[:, None]).sum(axis=1)
        count = np.full(len(flat), flat.shape[1], dtype=np.float64)
        self._merge([count, mean, squares, flat.min(axis=1), flat.max(axis=1)])

    def _merge(self, new: list[Array]) -> None:
        import numpy as np

        if not self._parts:
            self._parts = new
            return
        count, mean, squares, low, high = self._parts
        total = count + new[0]
        apart = new[1] - mean
        self._parts = [
            total,
            mean + apart * new[0] / total,
            squares + new[2] + apart**2 * count * new[0] / total,
            np.minimum(low, new[3]),
            np.maximum(high, new[4]),
        ]

    def report(self) -> InputReport | None:
        """Return the statistics so far; None before the first sample."""
        import numpy as np

        if not self._parts:
            return None
        count, mean, squares, low, high = self._parts
        centre = float((count * mean).sum() / count.sum())
        variance = float((squares + count * (mean - centre) ** 2).sum() / count.sum())
        total = ValueSpread(
            low=float(low.min()), high=float(high.max()), mean=centre, std=variance**0.5
        )
        spreads = zip(low, high, mean, np.sqrt(squares / count), strict=True)
        return InputReport(
            name=self._spec.name,
            dtype=self._spec.dtype,
            shapes=tuple(self._shapes),
            total=total,
            channels=()
            if self._axis is None
            else tuple(
                ValueSpread(low=float(a), high=float(b), mean=float(m), std=float(s))
                for a, b, m, s in spreads
            ),
            histogram=self._histogram.coarse(total.low, total.high),
            percentiles={
                f"{p:g}": min(max(self._histogram.percentile(p), total.low), total.high)
                for p in PERCENTILES
            },
        )


# Checks of the whole set.


MIN_SAMPLES = 32  # with fewer samples the extremes of activations are unreliable
_APART = 3.0  # factor by which a mean, std or extreme may differ from the validation feeds
_FAR = 10.0  # from this factor on the preprocessing must differ
_SLACK = 0.01  # of a declared range, for rounding
_MASK_MODES = ("1", "P", "PA")
_BYTE_MODES = ("L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "P", "PA", "La")
_MASK_LEVELS = 64  # label masks have one value per class
_FEWER = 4  # a photo has at least this many times the distinct values of a mask


def check_count(findings: FindingCollector, count: int) -> None:
    """Report too few samples to determine ranges."""
    if 0 < count < MIN_SAMPLES:
        what = "1 sample" if count == 1 else f"{count} samples"
        findings.add(
            FindingKind.FEW, f"{what}: ranges are unreliable with fewer than {MIN_SAMPLES}"
        )


def check_ranges(
    findings: FindingCollector,
    specs: Iterable[InputSpec],
    found: Mapping[str, InputReport],
    validation: Mapping[str, InputReport],
    *,
    own: bool,
) -> None:
    """Report values outside the declared range, or far from the validation feeds.

    Args:
        findings: receives the findings.
        specs: the inputs with their declared ranges.
        found: statistics of the calibration samples by input.
        validation: statistics of the validation feeds by input.
        own: whether the validation feeds have the user's own values; drawn ones resemble real data
            little.
    """
    specs = list(specs)
    dims = [dim for spec in specs for dim in spec.dims if not dim.bounded]
    open_ended = {name for dim in dims for name in (dim.name, *dim.bases)}
    for spec in specs:
        if spec.name not in found:
            continue
        ours = found[spec.name].total
        if spec.values is not None and not spec.values.chosen:
            if not open_ended.intersection(spec.values.bases):  # otherwise there is no outside
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
        + (": a forgotten scale, mean or std?" if spec.dtype in FLOATS else ""),
        topic=spec.name,
    )


def _check_apart(
    findings: FindingCollector, name: str, ours: ValueSpread, theirs: ValueSpread, *, own: bool
) -> None:
    magnitude, expected = _largest_magnitude(ours), _largest_magnitude(theirs)
    if not magnitude or not expected:
        return
    ratio = max(magnitude / expected, expected / magnitude)
    far = ratio > _FAR if own else magnitude > _FAR * expected
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
    """Whether the deviations differ by a factor of 3, or the means by 3 of the larger deviation."""
    small, large = sorted((ours.std, theirs.std))
    return large > _APART * small or abs(ours.mean - theirs.mean) > _APART * large


def _largest_magnitude(spread: ValueSpread) -> float:
    return max(abs(spread.low), abs(spread.high))


def _span_text(spread: ValueSpread) -> str:
    return f"{spread.low:.4g}..{spread.high:.4g}"


def _moments_text(spread: ValueSpread) -> str:
    return f"mean {spread.mean:.3g}, std {spread.std:.3g}"


def check_channels(findings: FindingCollector, inputs: Iterable[InputReport], count: int) -> None:
    """Report channels that are constant over all samples while others vary."""
    for one in inputs:
        constant = [index for index, part in enumerate(one.channels) if part.low == part.high]
        if count > 1 and constant and len(constant) < len(one.channels):
            shown = ", ".join(map(str, constant[:8])) + (", …" if len(constant) > 8 else "")  # noqa: PLR2004 - enough
            value = one.channels[constant[0]].low
            findings.add(
                FindingKind.CHANNEL,
                f"{one.name}: channel {shown} is {value:g} in every sample",
                topic=one.name,
            )


def check_images(findings: FindingCollector, looks: Sequence[tuple[str, ImageLook]]) -> None:
    """Report images unlike the others: label masks, 1-bit or 16-bit images among photos."""
    if not looks:
        return
    usual = median(look.levels for _, look in looks)
    masks = sum(look.mode in _MASK_MODES for _, look in looks)
    wide = sum(look.mode not in _BYTE_MODES for _, look in looks)
    if masks * 2 > len(looks) and usual <= _MASK_LEVELS:
        name, look = looks[0]
        findings.add(
            FindingKind.ODD_IMAGE,
            f"is {_kind_of(look)}, like most of the {len(looks):,} images: possibly label masks",
            file=name,
        )
        return
    for name, look in looks:
        few = look.levels <= _MASK_LEVELS and look.levels * _FEWER <= usual
        unusual = (look.mode not in _BYTE_MODES) != (wide * 2 > len(looks))
        if few or unusual:
            findings.add(
                FindingKind.ODD_IMAGE,
                f"is {_kind_of(look)}; the median is {usual:.0f}: possibly a label mask",
                file=name,
            )


def _kind_of(look: ImageLook) -> str:
    return f"a {look.mode} image with {look.levels:,} distinct values"


def check_folders(findings: FindingCollector, used: Sequence[str], names: Iterable[str]) -> None:
    """Report first samples that come from few folders: they may all be of one class.

    Args:
        findings: receives the findings.
        used: the names of the calibration samples.
        names: the names of all samples.
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
