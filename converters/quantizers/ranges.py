"""The ranges of a float model's tensors, by ONNX Runtime's calibrators, one sample at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.contract import Array
from .feeding import Samples
from .workplace import Workplace

if TYPE_CHECKING:
    import onnx
    from onnxruntime.quantization.calibrate import TensorsData

# Outliers beyond it are cut. ONNX Runtime's own default, which it applies to symmetric ranges only.
_PERCENTILE = 99.999
_LARGEST_FLOAT = 3.4e38


@dataclass(frozen=True, kw_only=True)
class Method:
    """`minmax`, `percentile` or `entropy`, and whether ranges lie symmetrically around zero."""

    name: str
    symmetric: bool


def ranges_of(
    place: Workplace, method: Method, tensors: frozenset[str], samples: Samples
) -> TensorsData:
    """The range of each tensor, collected one sample at a time: nothing else stays in memory."""
    calibrator = _calibrator(place, method, tensors)
    calibrator.augment_graph()
    calibrator.create_inference_session()
    for sample in samples:
        calibrator.collect_data(_Single(sample))
    return calibrator.compute_data()


class _Single:
    """One sample in the form of ONNX Runtime's data readers."""

    def __init__(self, sample: dict[str, Array]) -> None:
        self._left = [sample]

    def get_next(self) -> dict[str, Array] | None:
        """The sample, then nothing."""
        return self._left.pop() if self._left else None


def _calibrator(
    place: Workplace, method: Method, tensors: frozenset[str]
) -> Any:  # ONNX Runtime ships no types
    """The library's calibrator for the method, on these tensors alone.

    Its own choice is by operator type and takes masks in, whose range has no histogram.
    """
    from onnxruntime.quantization import calibrate

    base, options = {
        "minmax": (calibrate.MinMaxCalibrater, {}),
        "entropy": (calibrate.EntropyCalibrater, {}),
        "percentile": (calibrate.PercentileCalibrater, {"percentile": _PERCENTILE}),
    }[method.name]

    class Chosen(base):  # type: ignore[misc, valid-type]  # a class of an untyped library
        def select_tensors_to_calibrate(self, model: onnx.ModelProto) -> tuple[set[str], object]:
            found, infos = super().select_tensors_to_calibrate(model)
            return found & tensors, infos

    return Chosen(
        place.model,
        augmented_model_path=str(place.folder / "augmented.onnx"),
        symmetric=method.symmetric,
        use_external_data_format=place.external,
        **options,
    )


def endless(ranges: TensorsData) -> set[str]:
    """The tensors whose range no 32-bit float can hold, as a mask's with the least float in it."""
    ends = {
        name: [abs(float(end.reshape(-1)[0])) for end in data.range_value]
        for name, data in ranges.items()
    }
    return {name for name, pair in ends.items() if not 2 * max(pair) < _LARGEST_FLOAT}
