"""Forecast which tensors of an FP32 ONNX model do not fit half precision."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.contract import Array, Feed
from ..core.kinds import Precision
from .onnx_origins import UNKNOWN_ORIGIN, NodeOrigin, module_or_node, read_origins
from .onnx_sessions import open_session, run_session
from .onnx_topology import (
    FLOAT_TYPES,
    GraphWiring,
    constant_values,
    float_constants,
    load_model,
    name_nodes,
)

if TYPE_CHECKING:
    import onnx

HALF_LIMITS = {Precision.FP16: 65504.0, Precision.BF16: float.fromhex("0x1.fep127")}
# Below 2^-14 float16 has a fixed step of 2^-24. A tensor that peaks below 2^-19 keeps less than
# 30 dB of itself: 20 log10(peak/3 : step/sqrt(12)).
_SQUARES = frozenset({"ReduceL2", "ReduceSumSquare", "LpNormalization"})
_VANISHING = 2.0**-19
_NO_WEIGHT = 1e30  # larger than any weight
_NORMAL = 2.0**-14
_LEAST_SQNR = 30.0  # dB; rounding alone leaves a tensor of normal numbers about 73
_HALF_STEP = 2.0**-25  # float16 rounds magnitudes up to this to 0
# a tiny constant usually guards a division, a root or a logarithm
_GUARDED = frozenset({"Cast", "Clip", "Expand", "Max", "Pow", "Reshape", "Sqrt", "Unsqueeze"})
_DIVIDES = frozenset({"Div", "Reciprocal", "Log"})
# Rounding moves an angle by a share of itself, and its sine by as much: 5e-4 of 1000 radians in
# float16 are half a radian. Sines of smaller angles err about as much as they are rounded.
_ANGLE = 4.0  # radians
_TURNS = frozenset({"Sin", "Cos"})
_MOVES = frozenset({
    "Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
_SCALES = _MOVES | {"Add", "Div", "Mul", "Neg", "Sub"}


@dataclass(frozen=True, kw_only=True)
class TensorRange:
    """The least and largest finite value of a tensor over all feeds."""

    low: float
    high: float

    @property
    def peak(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, kw_only=True)
class HalfOverflow:
    """A tensor that half precision cannot represent.

    `node` produces the tensor, or reads it if it is a constant or an input; `module` is its path,
    empty if unknown. `value` is the largest magnitude. `keep` are the nodes that touch it and must
    stay in FP32.
    """

    node: str
    op: str
    module: str
    tensor: str
    value: float
    reason: str
    keep: tuple[str, ...]

    def __str__(self) -> str:
        title = f"{self.op} {self.node}"
        return f"{f'{self.module} ({title})' if self.module else title}: {self.reason}"


def read_with_names(parent: Path) -> onnx.ModelProto:
    """Read a model with every node named, without its external weights.

    Raises:
        ConversionError: it cannot be read.
    """
    model = load_model(parent)
    name_nodes(model.graph)
    return model


def weight_overflows(parent: Path, low: Precision) -> tuple[HalfOverflow, ...]:
    """Return the weights of an FP32 model that half precision cannot hold, including mask fills.

    Raises:
        ConversionError: the model cannot be read.
    """
    model = read_with_names(parent)
    finder = _OverflowFinder(wiring=GraphWiring(model.graph), origins=read_origins(parent))
    return tuple(finder.weights(model.graph, parent.parent, low))


def list_angle_constants(parent: Path) -> dict[str, str]:
    """Return the vectors that scale positions to angles of sines, and the module of each sine.

    Rotary frequencies in float16 are off by 2^-12, and the angle at position 4096 by a radian.
    Matrices are left out: weights of a layer before a sine err as those of any other layer.

    Raises:
        ConversionError: the model cannot be read.
    """
    model, found = read_with_names(parent), dict[str, str]()
    finder = _OverflowFinder(wiring=GraphWiring(model.graph), origins=read_origins(parent))
    vectors = {
        name
        for name, tensor in float_constants(model.graph)
        if sum(size > 1 for size in tensor.dims) <= 1
    }
    nodes = {node.name: node for node in model.graph.node}
    for sine in (node for node in model.graph.node if node.op_type in _TURNS):
        for name in finder.list_angle_nodes(sine):
            own = vectors.intersection(nodes[name].input)
            found |= dict.fromkeys(own, module_or_node(sine, finder.origins))
    return found


def find_overflows(
    model: onnx.ModelProto, parent: Path, feeds: Sequence[Feed], low: Precision
) -> tuple[HalfOverflow, ...]:
    """Return the overflows of a model in memory, whose weights and sidecar lie beside `parent`."""
    finder = _OverflowFinder(wiring=GraphWiring(model.graph), origins=read_origins(parent))
    found = [*finder.weights(model.graph, parent.parent, low)]
    turns = [node for node in model.graph.node if node.op_type in _TURNS]
    if low is Precision.FP16 or turns:
        ranges = call_framework("ONNX Runtime", lambda: measure_ranges(model, parent.parent, feeds))
        found.extend(finder.activations(ranges) if low is Precision.FP16 else ())
        found.extend(finder.angles(turns, ranges, low))
    return tuple(found)


def measure_ranges(
    model: onnx.ModelProto, folder: Path, feeds: Sequence[Feed]
) -> dict[str, TensorRange]:
    """Return the range of every float input and activation, except in bodies of If and Loop.

    Float64 counts as well, as AutoCast lowers it too. Reduces each tensor inside the graph, so that
    memory does not grow with their number; a tensor with an additional reader is not fused away.

    Raises:
        Exception: anything that ONNX Runtime raises.
    """
    probe, tensors = _add_range_outputs(model)
    if not tensors:
        return {}
    session = open_session(probe, folder)
    ranges: dict[str, TensorRange] = {}
    for feed in feeds:
        ends = run_session(session, feed)
        for index, name in enumerate(tensors):
            both = [float(ends[f"{end}::{index}"]) for end in ("low", "high")]
            finite = [end for end in both if math.isfinite(end)] or [0.0]  # of an empty tensor
            known = ranges.get(name)
            finite += [] if known is None else [known.low, known.high]
            ranges[name] = TensorRange(low=min(finite), high=max(finite))
    return ranges


def _add_range_outputs(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """Add the minimum and maximum of each float tensor as outputs; also return the names."""
    import onnx
    from onnx import helper

    probe = onnx.shape_inference.infer_shapes(model)
    graph = probe.graph
    made = {name for node in graph.node for name in node.output}
    made |= {value.name for value in graph.input}
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*graph.input, *graph.value_info, *graph.output)
        if value.type.tensor_type.elem_type in FLOAT_TYPES and value.name in made
    }
    del graph.output[:]
    for index, (name, code) in enumerate(types.items()):
        for kind, end in (("ReduceMin", "low"), ("ReduceMax", "high")):
            output = f"{end}::{index}"
            graph.node.append(helper.make_node(kind, [name], [output], name=output, keepdims=0))
            graph.output.append(helper.make_tensor_value_info(output, code, []))
    return probe, list(types)


@dataclass(frozen=True, kw_only=True)
class _OverflowFinder:
    """Turns ranges into findings with node and module names."""

    wiring: GraphWiring
    origins: Mapping[str, NodeOrigin]

    def activations(self, ranges: Mapping[str, TensorRange]) -> Iterator[HalfOverflow]:
        limit = HALF_LIMITS[Precision.FP16]
        for tensor, found in ranges.items():
            readers = self.wiring.readers.get(tensor, ())
            # a runtime may sum the squares in the type of its inputs: at least the largest square
            is_squared = any(node.op_type in _SQUARES for node in readers)
            inner = found.peak**2 if is_squared else 0.0
            if found.peak > limit:
                reason = f"activations are up to {found.peak:.2g} > {limit:g}"
            elif inner > limit:
                reason = f"its squares sum to {inner:.2g} > {limit:g}"
            elif 0 < found.peak < _VANISHING:
                reason = f"activations stay below {found.peak:.1e}, where FP16 loses precision"
            else:
                continue
            yield from self._report(tensor, found.peak, reason)

    def angles(
        self, turns: Sequence[onnx.NodeProto], ranges: Mapping[str, TensorRange], low: Precision
    ) -> Iterator[HalfOverflow]:
        """Yield sines of large angles, such as those of rotary positions and of time steps."""
        for node in turns:
            found = ranges.get(node.input[0])
            if found is None or found.peak <= _ANGLE:
                continue
            yield HalfOverflow(
                node=node.name,
                op=node.op_type,
                module=self.origins.get(node.name, UNKNOWN_ORIGIN).module,
                tensor=node.input[0],
                value=found.peak,
                reason=f"angles are up to {found.peak:.3g} radians, which {low} rounds",
                keep=(node.name, *self.list_angle_nodes(node)),
            )

    def list_angle_nodes(self, node: onnx.NodeProto) -> Iterator[str]:
        """Yield the nodes that compute an angle from positions: a product ends the way back."""
        seen: set[str] = set()
        waiting = [(name, _SCALES) for name in node.input]
        while waiting:
            tensor, allowed = waiting.pop()
            maker = self.wiring.producers.get(tensor)
            if maker is None or maker.name in seen:
                continue
            product = maker.op_type in _PRODUCTS and allowed is _SCALES
            if not product and maker.op_type not in allowed:
                continue
            seen.add(maker.name)
            yield maker.name
            waiting.extend((name, _MOVES if product else allowed) for name in maker.input)

    def weights(
        self, graph: onnx.GraphProto, folder: Path, low: Precision
    ) -> Iterator[HalfOverflow]:
        for name, tensor in float_constants(graph):
            if not self.wiring.readers.get(name):
                continue
            values = constant_values(tensor, folder)
            peak, reason = _half_misfit(values, low)
            if reason:
                guarded_by = self._division(name) if values.size == 1 and peak < 1 else ()
                yield from self._report(name, peak, reason, guarded_by)

    def _report(
        self, tensor: str, value: float, reason: str, more: Sequence[str] = ()
    ) -> Iterator[HalfOverflow]:
        """Report a tensor at the node that produces it or first reads it."""
        producer = self.wiring.producers.get(tensor)
        nodes = [*([] if producer is None else [producer]), *self.wiring.readers.get(tensor, ())]
        if not nodes:
            return
        node = nodes[0]
        yield HalfOverflow(
            node=node.name,
            op=node.op_type,
            module=self.origins.get(node.name, UNKNOWN_ORIGIN).module,
            tensor=tensor,
            value=value,
            reason=reason,
            keep=tuple(dict.fromkeys([*(one.name for one in nodes), *more])),
        )

    def _division(self, tensor: str) -> tuple[str, ...]:
        """Return the nodes from a tiny constant to the divisions that it guards.

        In `x / sqrt(var + 1e-12)` the sum itself may be 0 in float16, so all of it stays in FP32.
        """
        nodes: dict[str, None] = {}
        waiting = list(self.wiring.readers.get(tensor, ()))
        while waiting:
            node = waiting.pop()
            nodes[node.name] = None
            if node.op_type in _DIVIDES:
                continue
            readers = [one for out in node.output for one in self.wiring.readers.get(out, ())]
            waiting.extend(one for one in readers if one.op_type in _GUARDED | _DIVIDES)
        return tuple(nodes)


def _half_misfit(values: Array, low: Precision) -> tuple[float, str]:
    """Return a constant's largest magnitude, and why half precision cannot hold it, if so.

    Some vanishing weights among larger ones do no harm: what counts is the SQNR of the whole tensor
    after rounding.
    """
    import numpy as np

    sizes = np.abs(values[np.isfinite(values)])
    peak = float(sizes.max(initial=0.0))
    if peak > HALF_LIMITS[low]:
        fill = _mask_fill(values)
        if fill is not None:
            return peak, f"a mask constant of {fill:.2g}, beyond {HALF_LIMITS[low]:g}"
        return peak, f"weights are up to {peak:.2g} > {HALF_LIMITS[low]:g}"
    small = sizes[(sizes > 0) & (sizes < _NORMAL)] if low is Precision.FP16 else sizes[:0]
    if not small.size or _sqnr(sizes, small) >= _LEAST_SQNR:
        return peak, ""
    vanishing = np.count_nonzero(small <= _HALF_STEP) / np.count_nonzero(sizes)
    if vanishing == 0:
        return peak, f"weights stay below {peak:.1e}, where FP16 loses precision"
    return peak, f"{vanishing:.0%} of the weights become 0, the largest is {peak:.1e}"


def _mask_fill(values: Array) -> float | None:
    """Return the value of a mask constant that hides positions; None if it is no mask.

    A mask otherwise contains only zeros, infinities or ones; no weights all have one magnitude, or
    one near float32's limit.
    """
    import numpy as np

    finite = values[np.isfinite(values) & (values != 0) & (values != 1)]
    if not finite.size or float(finite.min()) != float(finite.max()):
        return None
    fill = float(finite.flat[0])
    return fill if fill < 0 or fill > _NO_WEIGHT else None


def _sqnr(sizes: Array, small: Array) -> float:
    """Return a tensor's SQNR in dB after rounding the values below FP16's normal range."""
    import numpy as np

    noise = small - small.astype(np.float16).astype(np.float32)
    power = float(np.sum(np.square(sizes, dtype=np.float64)))
    noise_power = float(np.sum(np.square(noise, dtype=np.float64)))
    return 10 * np.log10(power / noise_power) if noise_power else np.inf
