"""The ranges of a float model's tensors, by ONNX Runtime's calibrators, one sample at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.contract import Array
from .feeding import CalibrationSamples
from .workplace import QuantizerWorkspace

if TYPE_CHECKING:
    import onnx
    from onnxruntime.quantization.calibrate import TensorsData

# Outliers beyond it are cut. ONNX Runtime's own default, which it applies to symmetric ranges only.
_PERCENTILE = 99.999
_LARGEST_FLOAT = 3.4e38
_BINS, _MOST_BINS = 1 << 13, 1 << 17  # of a histogram; beyond the second it is made anew


def collect_ranges(
    place: QuantizerWorkspace, method: str, tensors: frozenset[str], samples: CalibrationSamples
) -> TensorsData:
    """The range of each tensor, collected one sample at a time: nothing else stays in memory."""
    calibrator = _make_calibrator(place, method, tensors)
    calibrator.augment_graph()
    calibrator.create_inference_session()
    for sample in samples:
        calibrator.collect_data(_SingleSample(sample))
        _limit_bins(getattr(calibrator, "collector", None))
    return calibrator.compute_data()


def _limit_bins(collector: Any) -> None:  # ONNX Runtime ships no types
    """Keep its histograms small: they grow with the ratio of the largest sample to the first.

    A first sample of silence would make them as large as memory.
    """
    merge = getattr(collector, "merge_histogram", None)
    if merge is None or "merge_histogram" in vars(collector):
        return

    def merge_coarse(old: Any, data: Array, low: Array, high: Array, threshold: Array) -> Any:
        if old[4] and len(old[0]) * (threshold / old[4]) > _MOST_BINS:
            old = _coarsen(old, threshold)
        return merge(old, data, low, high, threshold)

    collector.merge_histogram = merge_coarse


def _coarsen(old: Any, threshold: Array) -> Any:
    """A histogram (counts, edges, min, max, threshold) with as few bins over a wider range."""
    import numpy as np

    counts, edges, low, high, _ = old
    middles = (edges[:-1] + edges[1:]) / 2
    wide, ends = np.histogram(
        middles, _BINS, range=(-float(threshold), float(threshold)), weights=counts
    )
    return wide.astype(counts.dtype), ends, low, high, threshold


class _SingleSample:
    """One sample in the form of ONNX Runtime's data readers."""

    def __init__(self, sample: dict[str, Array]) -> None:
        self._left = [sample]

    def get_next(self) -> dict[str, Array] | None:
        """The sample, then nothing."""
        return self._left.pop() if self._left else None


def _make_calibrator(
    place: QuantizerWorkspace, method: str, tensors: frozenset[str]
) -> Any:  # ONNX Runtime ships no types
    """The library's calibrator for the method, on these tensors alone.

    Its own choice is by operator type and takes masks in, whose range has no histogram.
    """
    from onnxruntime.quantization import calibrate

    base, options = {
        "minmax": (calibrate.MinMaxCalibrater, {}),
        "entropy": (calibrate.EntropyCalibrater, {}),
        "percentile": (calibrate.PercentileCalibrater, {"percentile": _PERCENTILE}),
    }[method]

    class Chosen(base):  # type: ignore[misc, valid-type]  # a class of an untyped library
        def select_tensors_to_calibrate(self, model: onnx.ModelProto) -> tuple[set[str], object]:
            found, infos = super().select_tensors_to_calibrate(model)
            return found & tensors, infos

    return Chosen(
        place.model,
        augmented_model_path=str(place.folder / "augmented.onnx"),
        symmetric=False,  # the writer makes scales so; the symmetric histogram is ten times as slow
        use_external_data_format=place.external,
        **options,
    )


def infinite_ranges(ranges: TensorsData) -> set[str]:
    """The tensors whose range no 32-bit float can hold, as a mask's with the least float in it."""
    ends = {
        name: [abs(float(end.reshape(-1)[0])) for end in data.range_value]
        for name, data in ranges.items()
    }
    return {name for name, pair in ends.items() if not 2 * max(pair) < _LARGEST_FLOAT}
