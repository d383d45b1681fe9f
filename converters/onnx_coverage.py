"""What an ONNX model really computes in: each compute layer's dtype, weighed by its FLOPs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Feed
from ..core.records import Coverage
from .guarded import call_framework
from .onnx_flops import node_flops, run_shapes
from .onnx_links import Node
from .onnx_origins import all_nodes
from .onnx_weights import detach_weights

if TYPE_CHECKING:
    import onnx

ONNX_SOURCE = "ONNX types"
_LOG = logging.getLogger(__name__)
_FLOAT_LAYERS = frozenset({
    "Attention", "Conv", "ConvTranspose", "Einsum", "Gemm", "GRU", "LSTM", "MatMul",
    "MultiHeadAttention", "RNN",
})  # fmt: skip
# Operators that take integers themselves, of ONNX and of ONNX Runtime.
_INTEGER_LAYERS = frozenset({
    "ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
})  # fmt: skip
# What may stand between a DequantizeLinear and a layer without the layer losing its integers.
_SHAPE_ONLY = frozenset({
    "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
})  # fmt: skip
_NAMES = {"FLOAT": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "DOUBLE": "fp64"}
_EIGHT_BITS = ("INT8", "UINT8")


@dataclass(frozen=True, kw_only=True)
class OnnxLayer:
    """One compute layer and what it computes in."""

    node: Node
    dtype: str


def measure_coverage(path: Path, example: Feed) -> Coverage:
    """The layers of a model by dtype, and each dtype's share of the FLOPs at the example's sizes.

    A layer is int8 when its data and its weight both come out of a DequantizeLinear of 8-bit
    integers: that is the pattern that runtimes turn into integer arithmetic. Where the FLOPs of
    any layer are not known, or all layers are of one dtype, the share is of layers.

    Raises:
        ConversionError: the model cannot be read.
    """
    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
    slim, held = detach_weights(model)
    layers = compute_layers(slim)
    counts = Counter(layer.dtype for layer in layers)
    work: list[int] | None = None
    if len(counts) > 1:
        held.put_back(slim.graph)
        work = _layer_flops(slim, path.parent, example, layers)
    weighed = Counter(counts) if work is None else Counter[str]()
    for layer, amount in zip(layers, work or (), strict=bool(work)):
        weighed[layer.dtype] += amount
    total = weighed.total() or 1
    return Coverage(
        layers=dict(counts),
        share={dtype: amount / total for dtype, amount in weighed.items()},
        work="layers" if work is None else "FLOPs",
        source=ONNX_SOURCE,
    )


def compute_layers(model: onnx.ModelProto) -> tuple[OnnxLayer, ...]:
    """The compute layers of a model, bodies of If and Loop included."""
    import onnx

    types = _TensorTypes(call_framework("ONNX", lambda: onnx.shape_inference.infer_shapes(model)))
    return tuple(
        OnnxLayer(node=node, dtype=types.dtype(node))
        for node in all_nodes(model.graph)
        if node.op_type in _FLOAT_LAYERS | _INTEGER_LAYERS
    )


class _TensorTypes:
    """The element types of a model's tensors, and who makes them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._codes: dict[str, int] = {}
        self._makers = {name: node for node in all_nodes(model.graph) for name in node.output}
        for graph in _all_graphs(model.graph):
            self._codes |= {tensor.name: tensor.data_type for tensor in graph.initializer}
            for value in (*graph.input, *graph.value_info, *graph.output):
                self._codes[value.name] = value.type.tensor_type.elem_type

    def dtype(self, node: onnx.NodeProto) -> str:
        """`int8`, or the type of the layer's data input."""
        if node.op_type in _INTEGER_LAYERS:
            return "int8"
        sources = [self._source(name) for name in node.input[:2]]
        if all(self._integer(source) for source in sources):
            return "int8"
        name = self._name(node.input[0])
        return _NAMES.get(name, name.lower())

    def _name(self, tensor: str) -> str:
        import onnx

        code = self._codes.get(tensor, 0)
        return str(onnx.TensorProto.DataType.Name(code)) if code else "UNKNOWN"

    def _source(self, tensor: str) -> onnx.NodeProto | None:
        """The node that a tensor's values come from, behind what only changes shapes."""
        maker = self._makers.get(tensor)
        while maker is not None and maker.op_type in _SHAPE_ONLY:
            maker = self._makers.get(maker.input[0])
        return maker

    def _integer(self, source: onnx.NodeProto | None) -> bool:
        if source is None or source.op_type != "DequantizeLinear":
            return False
        return self._name(source.input[0]) in _EIGHT_BITS


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_graphs(attribute.g)


def _layer_flops(
    model: onnx.ModelProto, folder: Path, example: Feed, layers: Iterable[OnnxLayer]
) -> list[int] | None:
    """The work of each layer; None where that of any is not known."""
    nodes = [layer.node for layer in layers]
    outer = {id(node) for node in model.graph.node}
    if not nodes or any(id(node) not in outer for node in nodes):
        return None
    tensors = [name for node in nodes for name in (*node.input, *node.output)]
    shapes: Mapping[str, tuple[int, ...]]
    try:
        shapes = run_shapes(model, folder, example, tensors)
    except Exception:  # noqa: BLE001 - what does not run here, as FP8, has layers all the same
        _LOG.warning("no FLOPs: the model does not run here", exc_info=True)
        return None
    work = [node_flops(node, shapes) for node in nodes]
    known = [amount for amount in work if amount is not None]
    return known if len(known) == len(work) else None
