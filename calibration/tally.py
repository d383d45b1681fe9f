"""Running statistics of one input: memory does not grow with the samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.signature import InputSpec
from .report import PERCENTILES, InputReport, ValueSpread

if TYPE_CHECKING:
    from ..core.contract import Array

_FINE = 2048
_COARSE = 20
_MOST_CHANNELS = 64
_MOST_SHAPES = 8
_IMAGE_RANK, _LEAST_RANK = 4, 3


def channel_axis(spec: InputSpec) -> int | None:
    """The axis of channels, counted with the batch axis: the second dim, or an image's last."""
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
            # one value alone needs some width: it doubles soon enough
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
        """The counts in 20 equal bins from `low` to `high`, each fine bin by its middle."""
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
        """The value below which `percent` of the values lie, between the bins' edges."""
        import numpy as np

        if self._counts is None:
            return 0.0
        running = np.concatenate([[0], np.cumsum(self._counts)])
        edges = self._low + np.arange(_FINE + 1) * self._width
        return float(np.interp(percent / 100 * running[-1], running, edges))


class RunningStatistics:
    """The running statistics of one input; mean and variance are merged in float64 (Chan 1979)."""

    def __init__(self, spec: InputSpec) -> None:
        self._spec = spec
        self._axis = channel_axis(spec)
        self._shapes: dict[str, None] = {}
        self._histogram = RunningHistogram()
        self._parts: list[Array] = []  # by channel: count, mean, sum of squares, low, high

    def add(self, array: Array) -> None:
        """Take one sample's array, of finite values."""
        import numpy as np

        if len(self._shapes) < _MOST_SHAPES:
            self._shapes["x".join(map(str, array.shape)) or "scalar"] = None
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
        """The statistics so far; None before the first sample."""
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
            percentiles={f"{p:g}": self._percentile(p, total) for p in PERCENTILES},
        )

    def _percentile(self, percent: float, total: ValueSpread) -> float:
        return min(max(self._histogram.percentile(percent), total.low), total.high)
