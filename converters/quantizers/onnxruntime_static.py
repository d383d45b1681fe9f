"""ONNX Runtime's static quantizer and its calibrated ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...core.contract import Array, Quantized, QuantizeJob, Readiness
from ...core.errors import ConversionError
from ...core.kinds import INTEGER_WEIGHTS, Precision
from ..installed_packages import package_versions
from ..onnx_topology import PRODUCTS, GraphWiring
from . import onnxruntime_weights
from .qdq_finishing import QuantizedBy, finish_model
from .qdq_placement import (
    QdqPlacement,
    explain_empty,
    place_for_cpu,
    place_for_tensorrt,
    tidy_qdq,
)
from .quantization_checks import NothingQuantizedError, find_lost_tensors, observe_activations
from .quantizer_workspace import (
    CalibrationSamples,
    QuantizerWorkspace,
    calibration_samples,
    call_quietly,
    choose_method,
    create_workspace,
)

if TYPE_CHECKING:
    import onnx
    from onnxruntime.quantization.calibrate import TensorsData

NAME: str = "onnxruntime"
SUMMARY: str = "ONNX Runtime's static quantizer, per channel"
_METHODS = ("percentile", "minmax", "entropy")
METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {
    ("onnx", Precision.INT8): _METHODS,
    ("openvino", Precision.INT8): _METHODS,
    ("tensorrt-onnx", Precision.INT8): _METHODS,
    **{("onnx", precision): onnxruntime_weights.METHODS for precision in INTEGER_WEIGHTS},
}
SAMPLE_METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {}
DATA_FREE = frozenset(way for way in METHODS if way[1] in INTEGER_WEIGHTS)

_OPSET = 13  # Q/DQ with one scale per channel
_INTEGER_KERNELS = {"onnx": ("Conv", "Gemm", "MatMul")}  # without ConvTranspose, on the CPU
# Runtimes that fuse sums into convolutions, and require symmetric scales.
_FUSING = ("tensorrt-onnx",)


def readiness() -> Readiness:
    """Return whether an ONNX Runtime is installed."""
    found = package_versions("onnxruntime-gpu", "onnxruntime")
    if not found:
        return Readiness(
            ready=False, reason="onnxruntime is not installed", mend="pip install onnxruntime"
        )
    return Readiness(ready=True, version=next(iter(found.values())))


def quantize(job: QuantizeJob) -> Quantized:
    """Calibrate over all samples, write Q/DQ, omit tensors that their scale would destroy.

    For precisions without scales of activations, only weights are quantized, without samples.

    Raises:
        ConversionError: ONNX Runtime rejected the model, or the result cannot be right.
    """
    method = choose_method(job, METHODS)
    if job.precision in INTEGER_WEIGHTS:
        return onnxruntime_weights.quantize_weights(job)
    place = create_workspace(job, opset=_OPSET)
    plan = _QuantizationPlan(job, place)
    samples = calibration_samples(job, plan.inputs)
    ranges = _recall_ranges(plan, place, method, samples)
    lost = plan.around(infinite_ranges(ranges))
    made = _write_qdq(job, place, plan.placement(lost), ranges)
    activations = observe_activations(place, made, samples)
    more = plan.around({found.tensor for found in find_lost_tensors(made, activations.useful)})
    if more:
        lost |= more
        made = _write_qdq(job, place, plan.placement(lost), ranges)
    origin = QuantizedBy(
        quantizer=NAME,
        packages=("onnxruntime-gpu", "onnxruntime", "onnx"),
        method=method,
        lost=lost,
        activations="int8 symmetric" if job.consumer in _FUSING else "uint8",
    )
    return finish_model(made, job, place, activations, origin)


class _QuantizationPlan:
    """The float graph without its weights, and the settings that decide where Q/DQ go."""

    def __init__(self, job: QuantizeJob, place: QuantizerWorkspace) -> None:
        import onnx

        self._job, self._place = job, place
        self._graph = onnx.load(str(place.model), load_external_data=False).graph
        self._wiring = GraphWiring(self._graph)

    @property
    def inputs(self) -> tuple[str, ...]:
        names = (value.name for value in self._graph.input)
        return tuple(name for name in names if name not in self._wiring.constants)

    def placement(self, lost: Collection[str] = ()) -> QdqPlacement:
        keep, kinds = (*self._job.keep, *lost), _INTEGER_KERNELS.get(self._job.consumer, PRODUCTS)
        if self._job.consumer in _FUSING:
            sizes = {name: dim.high for name, dim in self._job.signature.dynamic_dims.items()}
            found = place_for_tensorrt(self._graph, self._wiring, keep, sizes)
        else:
            found = place_for_cpu(self._graph, self._wiring, keep, kinds)
        if not found.nodes:
            reason = explain_empty(self._graph, keep, kinds)
            raise NothingQuantizedError(reason, kept=bool(self._job.keep))
        return found

    def tensors(self) -> frozenset[str]:
        """Return all non-constant inputs and outputs of the chosen nodes: candidates for Q/DQ."""
        chosen = self.placement().nodes
        found: set[str] = set()
        for node in self._graph.node:
            if node.name in chosen:
                found.update(self._wiring.activations(node), node.output)
        return frozenset(found - {""})

    def tensors_of_others(self) -> frozenset[str]:
        """Return the candidates for Q/DQ of the run's other consumers of this model."""
        found: set[str] = set()
        for consumer in self._job.others:
            other = _QuantizationPlan(replace(self._job, consumer=consumer), self._place)
            with suppress(NothingQuantizedError):
                found |= other.tensors()
        return frozenset(found)

    def around(self, tensors: Collection[str]) -> set[str]:
        """Return the chosen nodes that read or produce one of the tensors."""
        chosen = self.placement().nodes
        wiring = self._wiring
        return {
            node.name
            for name in tensors
            for node in (*wiring.readers.get(name, ()), wiring.producers.get(name))
            if node is not None and node.name in chosen
        }


def _recall_ranges(
    plan: _QuantizationPlan, place: QuantizerWorkspace, method: str, samples: CalibrationSamples
) -> TensorsData:
    """Return the range of each candidate, collected once for all consumers of the run.

    The range of a tensor does not depend on what else is collected: the calibrator's session
    optimizes nothing, and each tensor has a histogram of its own.
    """
    from onnxruntime.quantization.calibrate import TensorsData

    def collect(tensors: frozenset[str]) -> TensorsData:
        return call_quietly(
            "ONNX Runtime's calibrator", lambda: collect_ranges(place, method, tensors, samples)
        )

    wanted = plan.tensors()
    known: _KnownRanges = place.recall(("ranges", method), _KnownRanges)
    if not wanted <= known.asked:
        more = plan.tensors_of_others() - known.asked - wanted
        try:
            known.add(wanted | more, collect(wanted - known.asked | more))
        except ConversionError:
            if not more:
                raise
            known.add(wanted, collect(wanted - known.asked))
    chosen = {name: data for name, data in known.ranges.items() if name in wanted}
    return TensorsData(known.kind, deepcopy(chosen))  # the writer adjusts them


@dataclass
class _KnownRanges:
    """The ranges of a model's tensors by one method; some of `asked` have none, such as ids."""

    asked: frozenset[str] = frozenset()
    ranges: dict[str, Any] = field(default_factory=dict)  # ONNX Runtime has no types
    kind: Any = None

    def add(self, asked: frozenset[str], found: TensorsData) -> None:
        """Add what was collected for these tensors."""
        self.asked |= asked
        self.ranges.update(found.items())
        self.kind = found.calibration_method


def _write_qdq(
    job: QuantizeJob, place: QuantizerWorkspace, placement: QdqPlacement, ranges: TensorsData
) -> onnx.ModelProto:
    """Write the Q/DQ model with ONNX Runtime's writer, and tidy it."""
    from onnxruntime.quantization import QDQQuantizer, QuantType
    from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

    fusing = job.consumer in _FUSING
    model = call_quietly("ONNX's shape inference", lambda: load_model_with_shape_infer(place.model))
    kinds = sorted({node.op_type for node in model.graph.node if node.name in placement.nodes})
    quantizer = QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=False,  # 7 bits are for CPUs without VNNI, whose 16-bit sums overflow
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QInt8 if fusing else QuantType.QUInt8,
        tensors_range=ranges,
        nodes_to_quantize=sorted(placement.nodes),
        nodes_to_exclude=[],
        op_types_to_quantize=kinds,
        extra_options=_tensorrt_options(kinds)
        if fusing
        else _cpu_options(job, model.graph, ranges),
    )
    call_quietly("ONNX Runtime's quantizer", quantizer.quantize_model)
    quantizer.model.topological_sort()
    made: onnx.ModelProto = quantizer.model.model
    tidy_qdq(made, placement)
    return made


def _cpu_options(
    job: QuantizeJob, graph: onnx.GraphProto, ranges: TensorsData
) -> dict[str, object]:
    """Return the options for CPUs: matrix products return floats, convolutions integers.

    OpenVINO multiplies activations by activations fast only without a zero point (13 % of the
    BERT-sized model): their inputs are signed there, unless they are never negative.
    """
    from onnxruntime.quantization import QuantType

    signed: list[str] = []
    if job.consumer == "openvino":
        wiring = GraphWiring(graph)
        pairs = (wiring.activations(node) for node in graph.node if node.op_type == "MatMul")
        both = {name for pair in pairs if len(pair) > 1 for name in pair}
        signed = [name for name in ranges if name in both and ranges[name].range_value[0] < 0]
    override = {"quant_type": QuantType.QInt8, "symmetric": True}
    return {
        "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"],
        "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
        "TensorQuantOverrides": {name: [dict(override)] for name in signed},
    }


def _tensorrt_options(kinds: list[str]) -> dict[str, object]:
    """Return the options for TensorRT: symmetric, Q/DQ on weights, float outputs and biases."""
    return {
        "ActivationSymmetric": True,
        "WeightSymmetric": True,
        "AddQDQPairToWeight": True,
        "QuantizeBias": False,
        "OpTypesToExcludeOutputQuantization": kinds,
        "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
        "QDQDisableWeightAdjustForInt32Bias": True,
    }


# Clips outliers beyond it. ONNX Runtime's own default, which it applies to symmetric ranges only.
_PERCENTILE = 99.999
_LARGEST_FLOAT = 3.4e38
_BINS, _MOST_BINS = 1 << 13, 1 << 17  # of a histogram; beyond the second number it is coarsened


def collect_ranges(
    place: QuantizerWorkspace, method: str, tensors: frozenset[str], samples: CalibrationSamples
) -> TensorsData:
    """Collect the range of each tensor, with one sample at a time in memory."""
    calibrator = _make_calibrator(place, method, tensors)
    calibrator.augment_graph()
    calibrator.create_inference_session()
    for sample in samples:
        calibrator.collect_data(_SingleSample(sample))
        _limit_bins(getattr(calibrator, "collector", None))
    return calibrator.compute_data()


def _limit_bins(collector: Any) -> None:  # ONNX Runtime has no types
    """Limit the histograms' size, which grows with the ratio of the largest sample to the first.

    A silent first sample would make them fill the memory.
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
    """Coarsen a histogram (counts, edges, min, max, threshold) to a few bins over a wider range."""
    import numpy as np

    counts, edges, low, high, _ = old
    middles = (edges[:-1] + edges[1:]) / 2
    wide, ends = np.histogram(
        middles, _BINS, range=(-float(threshold), float(threshold)), weights=counts
    )
    return wide.astype(counts.dtype), ends, low, high, threshold


class _SingleSample:
    """One sample as a data reader of ONNX Runtime."""

    def __init__(self, sample: dict[str, Array]) -> None:
        self._left = [sample]

    def get_next(self) -> dict[str, Array] | None:
        """Return the sample, then None."""
        return self._left.pop() if self._left else None


def _make_calibrator(
    place: QuantizerWorkspace, method: str, tensors: frozenset[str]
) -> Any:  # ONNX Runtime has no types
    """Create the library's calibrator of the method, for these tensors only.

    The library's selection by operator type includes masks, whose range has no histogram.
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
        symmetric=False,  # the writer symmetrizes scales, ten times as fast
        use_external_data_format=place.external,
        **options,
    )


def infinite_ranges(ranges: TensorsData) -> set[str]:
    """Return tensors whose range exceeds float32, such as a mask with the lowest float."""
    ends = {
        name: [abs(float(end.reshape(-1)[0])) for end in data.range_value]
        for name, data in ranges.items()
    }
    return {name for name, pair in ends.items() if not 2 * max(pair) < _LARGEST_FLOAT}
