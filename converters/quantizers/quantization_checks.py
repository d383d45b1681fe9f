"""Check that a Q/DQ model is quantized and that its scales preserve the observed activations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...capture.framework_errors import call_framework
from ...core.contract import Array
from ...core.errors import ConversionError, Hint, Option
from ..onnx_sessions import open_session
from ..onnx_topology import DEQUANTIZE, PRODUCTS, QUANTIZE, WITH_ZERO, GraphWiring, constant_values
from .quantizer_workspace import CalibrationSamples, QuantizerWorkspace

if TYPE_CHECKING:
    import onnx


class NothingQuantizedError(ConversionError):
    """Nothing in the model can be quantized, or nothing may be; `kept` if nodes were to be kept."""

    lasting = True

    def __init__(
        self,
        message: str = "it quantized no convolution and no matrix product of the model",
        *,
        kept: bool = False,
    ) -> None:
        hint = "choose another precision"
        super().__init__(message, hint=f"keep less in floating point, or {hint}" if kept else hint)


@dataclass(frozen=True, kw_only=True)
class LostTensor:
    """A tensor whose useful values all lie within one step of its scale; and its readers."""

    tensor: str
    step: float
    useful: float
    readers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.tensor} (step {self.step:.3g}, values of about {self.useful:.3g})"


def check_quantized(
    model: onnx.ModelProto,
    useful: Mapping[str, float],
    *,
    weights_only: bool = False,
    kept: bool = False,
) -> int:
    """Count the products that are quantized, with `weights_only` those whose weights are.

    `useful` are the magnitudes of useful values by tensor (`ActivationStats`); `kept`: nodes were
    to be kept in floating point.

    Raises:
        NothingQuantizedError: there is none.
        ConversionError: a scale is not finite, not positive, or so large that the useful values
            vanish.
    """
    wiring = GraphWiring(model.graph)
    for node in model.graph.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE}:
            _check_scale(node, wiring)
    for lost in find_lost_tensors(model, useful):
        readers = ", ".join(lost.readers)
        raise ConversionError(
            f"quantizing {lost} for {readers} would lose it",
            hint=Hint("keep it in floating point: ", Option("keep-fp", f"{lost.readers[0]}")),
            option="keep-fp",
        )
    factors = slice(1 if weights_only else 0, 2)
    count = sum(
        all(wiring.producer_if(name, DEQUANTIZE) is not None for name in node.input[factors])
        for node in model.graph.node
        if node.op_type in PRODUCTS
    )
    if count == 0:
        raise NothingQuantizedError(kept=kept)
    return count


def find_lost_tensors(model: onnx.ModelProto, useful: Mapping[str, float]) -> Iterator[LostTensor]:
    """Find each activation that its scale would destroy: a mask's fill sets its range."""
    wiring = GraphWiring(model.graph)
    for node in model.graph.node:
        scale = wiring.constants.get(node.input[1]) if node.op_type == QUANTIZE else None
        size = useful.get(node.input[0], 0.0)
        if scale is None or size == 0.0:
            continue
        step = float(constant_values(scale).max())
        if not isfinite(step) or step > size:  # most values round to 0 or one step
            yield LostTensor(
                tensor=node.input[0],
                step=step,
                useful=size,
                readers=_quantizer_readers(node, wiring),
            )


def _quantizer_readers(node: onnx.NodeProto, wiring: GraphWiring) -> tuple[str, ...]:
    """Return the readers of a quantizer through its dequantizer."""
    tensors = [reader.output[0] for reader in wiring.readers.get(node.output[0], ())]
    names = [reader.name for name in tensors for reader in wiring.readers.get(name, ())]
    return tuple(dict.fromkeys(names)) or (node.name,)


def _check_scale(node: onnx.NodeProto, wiring: GraphWiring) -> None:
    import numpy as np

    constant = wiring.constants.get(node.input[1])
    if constant is None:
        return
    scale = constant_values(constant).astype(np.float64)
    bad = scale[~(np.isfinite(scale) & (scale > 0))]
    if bad.size:
        around = [r.name for r in wiring.readers.get(node.output[0], ())]
        raise ConversionError(
            f"the scale of {node.name} is {bad.flat[0]} (readers: {', '.join(around) or 'none'})",
            hint=Hint(
                "look at the samples with `modelc calibrate`, or keep the node: ",
                Option("keep-fp", "NODE"),
            ),
            option="keep-fp",
        )


# the mean over 16 images or sentences varies by a quarter of one's spread; more samples cost more
# than they gain
OBSERVED_SAMPLES = 16
_ENOUGH = 1 << 18  # elements of a tensor that are examined; of a larger one, every n-th
_NAME = "observed.onnx"
_Read: TypeAlias = tuple[str, int]  # a tensor and its channel axis


@dataclass(frozen=True, kw_only=True)
class ChannelMeans:
    """The mean of a product's input by input channel: before and after quantization.

    `spatial` are the other sizes of the last sample: of an image, height and width.
    """

    exact: Array
    rounded: Array
    spatial: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ActivationStats:
    """Statistics of activations: `useful` by tensor, `means` by node.

    `useful` is the root mean square of the values that are neither zero nor above half of the
    largest magnitude, which leaves out fills and outliers; 0 if nothing is left. `means` are by
    product with constant weights, of its input.
    """

    useful: Mapping[str, float]
    means: Mapping[str, ChannelMeans]


@dataclass(frozen=True, kw_only=True)
class _TensorScale:
    """How one tensor is quantized: one scale, one zero point, and the range of its integers."""

    step: float
    zero: int
    low: int
    high: int

    def round(self, array: Array) -> Array:
        import numpy as np

        steps = np.clip(np.rint(array / self.step) + self.zero, self.low, self.high)
        result: Array = (steps - self.zero) * self.step
        return result


def observe_activations(
    place: QuantizerWorkspace, quantized: onnx.ModelProto, samples: CalibrationSamples
) -> ActivationStats:
    """Run the float model on the first samples, and observe all that `quantized` quantizes.

    An earlier job of the run that quantized the same tensors in the same way has done so.

    Args:
        place: the float model, and the folder of one with more outputs.
        quantized: the Q/DQ model made of it, with the same names of tensors and nodes.
        samples: only the first are read, without progress events.
    """
    import onnx

    model = onnx.load(str(place.model), load_external_data=False)
    wiring = GraphWiring(model.graph)
    scales = {
        name: scale
        for name, scale in _read_scales(quantized).items()
        if name in wiring.producers or name in wiring.readers
    }
    if not scales:
        return ActivationStats(useful={}, means={})
    return place.recall(
        ("activations", *scales.items()), lambda: _observe(place, model, scales, samples)
    )


def _observe(
    place: QuantizerWorkspace,
    model: onnx.ModelProto,
    scales: Mapping[str, _TensorScale],
    samples: CalibrationSamples,
) -> ActivationStats:
    import onnx

    wiring = GraphWiring(model.graph)
    axes = _channel_axes(model.graph.node, wiring)
    known = {value.name for value in (*model.graph.input, *model.graph.output)}
    # an output may lack a type: ONNX Runtime infers it
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in scales if name not in known
    )
    path = place.folder / _NAME
    onnx.save(model, str(path))
    del model, wiring
    found = call_framework("ONNX Runtime", lambda: _collect_stats(path, scales, axes, samples))
    path.unlink()
    return found


def _read_scales(quantized: onnx.ModelProto) -> dict[str, _TensorScale]:
    """Return how each activation is quantized, except those without a single scale."""
    import numpy as np

    wiring = GraphWiring(quantized.graph)
    found: dict[str, _TensorScale] = {}
    for node in quantized.graph.node:
        if (
            node.op_type != QUANTIZE
            or node.input[0] in wiring.constants
            or len(node.input) < WITH_ZERO
        ):
            continue
        scale, zero = (wiring.constants.get(name) for name in node.input[1:3])
        if scale is None or zero is None or constant_values(scale).size != 1:
            continue
        limits = np.iinfo(constant_values(zero).dtype)
        found[node.input[0]] = _TensorScale(
            step=float(constant_values(scale).item()),
            zero=int(constant_values(zero).item()),
            low=int(limits.min),
            high=int(limits.max),
        )
    return found


def _channel_axes(nodes: Iterable[onnx.NodeProto], wiring: GraphWiring) -> dict[str, _Read]:
    """Return the input tensor and channel axis of each product with constant weights, by node."""
    return {
        node.name: (node.input[0], 1 if node.op_type in {"Conv", "ConvTranspose"} else -1)
        for node in nodes
        if node.op_type in PRODUCTS
        and node.input[0] not in wiring.constants
        and node.input[1] in wiring.constants
    }


def _collect_stats(
    path: Path,
    scales: Mapping[str, _TensorScale],
    axes: Mapping[str, _Read],
    samples: CalibrationSamples,
) -> ActivationStats:
    import numpy as np

    session = open_session(path, path.parent)
    fed = {value.name for value in session.get_inputs()}
    names = [name for name in scales if name not in fed]
    useful: dict[str, float] = {}
    means: dict[str, list[tuple[Array, Array]]] = {}
    spatial: dict[str, tuple[int, ...]] = {}
    for feed in islice(samples.without_progress(), OBSERVED_SAMPLES):
        # a session that is asked for no tensor returns all
        found = dict(zip(names, session.run(names, feed), strict=True)) | feed if names else feed
        for name in scales:
            useful[name] = max(useful.get(name, 0.0), _useful_magnitude(found[name]))
        for node, (name, axis) in axes.items():
            if name not in scales:
                continue
            exact = found[name]
            rows = (_channel_means(exact, axis), _channel_means(scales[name].round(exact), axis))
            means.setdefault(node, []).append(rows)
            spatial[node] = exact.shape[2:]
    averages = {node: np.mean(rows, axis=0) for node, rows in means.items()}
    return ActivationStats(
        useful=useful,
        means={
            node: ChannelMeans(exact=both[0], rounded=both[1], spatial=spatial[node])
            for node, both in averages.items()
        },
    )


def _useful_magnitude(array: Array) -> float:
    import numpy as np

    flat = np.abs(array.reshape(-1)[:: max(1, array.size // _ENOUGH)])
    flat = flat[np.isfinite(flat) & (flat > 0)].astype(np.float64)
    if flat.size == 0:
        return 0.0
    small = flat[flat <= flat.max() / 2]
    return float(np.sqrt(np.mean(np.square(small)))) if small.size else 0.0


def _channel_means(array: Array, axis: int) -> Array:
    import numpy as np

    others = tuple(i for i in range(array.ndim) if i != axis % array.ndim)
    means: Array = array.mean(axis=others, dtype=np.float64)
    return means
