"""The figures of a report, beside numpy's over all samples at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelc.calibration.calibration_report import InputReport
from modelc.calibration.sample_statistics import RunningHistogram, RunningStatistics, channel_axis

from .conftest import Asked, signature_of


def report_of(text: str, arrays: list[np.ndarray]) -> InputReport:
    tally = RunningStatistics(signature_of(text).inputs[0])
    for array in arrays:
        tally.add(array)
    report = tally.report()
    assert report is not None
    return report


def skewed(count: int) -> list[np.ndarray]:
    """Samples of growing range, far from zero, so that the histogram has to widen both ways."""
    chance = np.random.default_rng(0)
    return [
        (1000 + (index + 1) * chance.standard_normal((1, 3, 5, 7))).astype(np.float32)
        for index in range(count)
    ]


def test_mean_std_and_extremes_are_numpys() -> None:
    arrays = skewed(50)
    report = report_of("x:float32[batch,3,5,7]", arrays)
    whole = np.concatenate(arrays).astype(np.float64)
    total = report.total
    assert (total.low, total.high) == (whole.min(), whole.max())
    np.testing.assert_allclose([total.mean, total.std], [whole.mean(), whole.std()], rtol=1e-12)
    for index, channel in enumerate(report.channels):
        part = whole[:, index]
        np.testing.assert_allclose(
            [channel.low, channel.high, channel.mean, channel.std],
            [part.min(), part.max(), part.mean(), part.std()],
            rtol=1e-12,
        )


def test_histogram_and_percentiles_are_near_numpys() -> None:
    arrays = skewed(50)
    report = report_of("x:float32[batch,3,5,7]", arrays)
    whole = np.concatenate(arrays)
    counts, _ = np.histogram(whole, bins=20)
    assert sum(report.histogram) == whole.size
    assert np.abs(np.array(report.histogram) - counts).max() <= 0.02 * whole.size
    step = (whole.max() - whole.min()) / 1024
    for percent, value in report.percentiles.items():
        near = np.percentile(whole, float(percent))
        assert abs(value - near) <= 3 * step, percent


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [0.0, 1e30], [-1e-30, 1e30], [5.0, -5.0]])
def test_a_histogram_takes_any_range(values: list[float]) -> None:
    histogram = RunningHistogram()
    for value in values:
        histogram.add(np.array([value]))
    assert sum(histogram.coarse(min(values), max(values))) == len(values)


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("x:float32[batch,3,224,224]", 1),
        ("x:float32[batch,224,224,3]", 3),
        ("x:float32[batch,8,8,1]", 3),
        ("x:float32[batch,1,8,8]", 1),
        ("x:float32[batch,768,seq]", None),
        ("x:float32[batch,6]", None),
        ("ids:int64[batch,seq]", None),
    ],
)
def test_the_axis_of_channels(text: str, axis: int | None) -> None:
    assert channel_axis(signature_of(text).inputs[0]) == axis


def test_each_input_is_total_with_its_shapes(tmp_path: Path) -> None:
    for index, size in enumerate([5, 7, 5]):
        ids = np.arange(index, index + size)[None]
        np.savez(tmp_path / f"{index}.npz", ids=ids, mask=np.ones_like(ids))
    report = Asked("ids:int64[batch,seq]", "mask:int64[batch,seq]").look(tmp_path)
    first, second = report.inputs
    assert (first.name, first.dtype, first.shapes) == ("ids", "int64", ("1x5", "1x7"))
    assert (first.total.low, first.total.high) == (0, 7)
    assert second.total.std == 0


def test_an_empty_sample_counts_with_its_shape_alone() -> None:
    arrays = skewed(3)
    empty = np.zeros((0, 3, 5, 7), np.float32)
    text = "x:float32[batch,3,5,7]"
    found, without = report_of(text, [empty, *arrays]), report_of(text, arrays)
    assert "0x3x5x7" in found.shapes
    assert (found.total, found.channels) == (without.total, without.channels)
