"""Find where a Q/DQ model differs from its float model, grouped by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..onnx_origins import NodeOrigin, node_title
from ..onnx_topology import DEQUANTIZE, PRODUCTS, QUANTIZE, GraphWiring, constant_values

if TYPE_CHECKING:
    import onnx

_FLOATS = ("Gemm", "MatMul")
_PASSING = (
    "AveragePool", "Clip", "Flatten", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Pad", "Relu",
    "Reshape", "Resize", "Sigmoid",
)  # fmt: skip
_SMALL = 1 << 16  # elements of a compared constant: biases; weights are either quantized or not


@dataclass(frozen=True, kw_only=True)
class QuantizedSite:
    """A place that reads 8 bits, or a constant that the quantizer changed.

    `node` and `index` are the reader and its input; an output of the graph has no reader (""), and
    `index` counts the outputs. `tensor` is the float model's tensor there, `source` the quantized
    model's.
    """

    node: str
    index: int
    tensor: str
    source: str


@dataclass(frozen=True, kw_only=True)
class QuantizedLayer:
    """A product or a join with its followers, which return to floating point together.

    `nodes` are names in the float model, the layer's own first; `title` describes it in eager terms
    if the debug sidecar knows the module.
    """

    nodes: tuple[str, ...]
    title: str


@dataclass(frozen=True, kw_only=True)
class QuantizedSites:
    """All sites, the layers in graph order, and the sites of each by index.

    A layer's sites are all that it reads in 8 bits, and all that others read of it: a tensor
    between two convolutions belongs to both, as some quantizers free it only with both. `unknown`
    are nodes that read 8 bits and that the float model lacks by name.
    """

    sites: tuple[QuantizedSite, ...]
    layers: tuple[QuantizedLayer, ...]
    of_layer: tuple[tuple[int, ...], ...]
    unknown: tuple[str, ...]


def find_sites(
    parent: onnx.GraphProto, quantized: onnx.GraphProto, origins: Mapping[str, NodeOrigin]
) -> QuantizedSites:
    """Compare the two graphs by node name, without the graphs inside nodes."""
    before, after = GraphWiring(parent), GraphWiring(quantized)
    twins = {node.name: node for node in quantized.node}
    sites = [
        *(site for node in parent.node for site in _input_sites(node, twins, before, after)),
        *_output_sites(parent, before, after),
    ]
    by_node: dict[str, list[int]] = {}
    by_tensor: dict[str, list[int]] = {}
    for index, site in enumerate(sites):
        by_node.setdefault(site.node, []).append(index)
        by_tensor.setdefault(site.tensor, []).append(index)
    groups = _group_layers(parent, before, by_node)
    nodes = {node.name: node for node in parent.node}
    of_layer = tuple(
        tuple(
            dict.fromkeys(
                [
                    *(index for name in group.nodes for index in by_node[name]),
                    *(index for tensor in group.made for index in by_tensor.get(tensor, ())),
                ]
            )
        )
        for group in groups
    )
    return QuantizedSites(
        sites=tuple(sites),
        layers=tuple(
            QuantizedLayer(
                nodes=tuple(group.nodes), title=_layer_title(nodes[group.nodes[0]], origins)
            )
            for group in groups
        ),
        of_layer=of_layer,
        unknown=tuple(_unknown_nodes(quantized, after, nodes.keys())),
    )


def _layer_title(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> str:
    """Name the layer after the weights' owner: a normalization is folded into its convolution."""
    origin = origins.get(node.name)
    if origin is None or not origin.weights:
        return node_title(node, origins)
    return f"{origin.weights} ({node.op_type} {node.name})"


def _input_sites(
    node: onnx.NodeProto,
    twins: Mapping[str, onnx.NodeProto],
    before: GraphWiring,
    after: GraphWiring,
) -> Iterator[QuantizedSite]:
    """Yield the sites among the inputs of a node of the float model."""
    twin = twins.get(node.name)
    if twin is None or twin.op_type != node.op_type:
        return
    for index, (tensor, source) in enumerate(zip(node.input, twin.input, strict=False)):
        if _is_quantized(tensor, source, before, after) or _is_changed(
            tensor, source, before, after
        ):
            yield QuantizedSite(node=node.name, index=index, tensor=tensor, source=source)


def _output_sites(
    parent: onnx.GraphProto, before: GraphWiring, after: GraphWiring
) -> Iterator[QuantizedSite]:
    """Yield the outputs of the graph that come from a dequantizer."""
    for index, value in enumerate(parent.output):
        if value.name in before.producers and _is_quantized(value.name, value.name, before, after):
            yield QuantizedSite(node="", index=index, tensor=value.name, source=value.name)


def _is_quantized(tensor: str, source: str, before: GraphWiring, after: GraphWiring) -> bool:
    """Return whether `source` is 8 bits of `tensor`, by constant scales."""
    dequantize = after.producer_if(source, DEQUANTIZE)
    if dequantize is None or before.producer_if(tensor, DEQUANTIZE) is not None:
        return False
    given = after.producer_if(dequantize.input[0], QUANTIZE)
    pair = [node for node in (dequantize, given) if node is not None]
    if not all(name in after.constants for node in pair for name in node.input[1:]):
        return False
    if given is not None and given.input[0] not in after.constants:
        return tensor not in before.constants
    held = given.input[0] if given is not None else dequantize.input[0]
    return (
        held in after.constants
        and tensor in before.constants
        and list(after.constants[held].dims) == list(before.constants[tensor].dims)
    )


def _is_changed(tensor: str, source: str, before: GraphWiring, after: GraphWiring) -> bool:
    """Return whether a small float constant has other values, such as a corrected bias."""
    old, new = before.constants.get(tensor), after.constants.get(source)
    if old is None or new is None or old.data_type != new.data_type or old.dims != new.dims:
        return False
    one, other = constant_values(old), constant_values(new)
    return one.dtype.kind == "f" and one.size <= _SMALL and bool((one != other).any())


@dataclass(kw_only=True)
class _LayerGroup:
    """A layer under construction: nodes with sites, and tensors that it may produce in 8 bits."""

    nodes: list[str]
    made: list[str] = field(default_factory=list)


def _group_layers(
    parent: onnx.GraphProto, wiring: GraphWiring, by_node: Mapping[str, list[int]]
) -> list[_LayerGroup]:
    """Group nodes with sites by layer: one that passes a single tensor on joins its predecessor.

    Tensors after a convolution or a join, also through what passes them on, count as produced in 8
    bits; matrix products return floats with any quantizer.
    """
    groups: list[_LayerGroup] = []
    place: dict[str, _LayerGroup] = {}
    for node in parent.node:
        read = set(wiring.activations(node))
        maker = wiring.producers.get(next(iter(read), ""))
        group = place.get(maker.name) if maker is not None and len(read) == 1 else None
        has_sites = node.name in by_node
        if group is None or node.op_type in PRODUCTS or not (has_sites or node.op_type in _PASSING):
            if not has_sites:
                continue
            group = _LayerGroup(nodes=[])
            groups.append(group)
        if has_sites:
            group.nodes.append(node.name)
        place[node.name] = group
        if node.op_type not in _FLOATS:
            group.made.extend(node.output)
    return groups


def _unknown_nodes(
    quantized: onnx.GraphProto, after: GraphWiring, known: Collection[str]
) -> Iterator[str]:
    """Return nodes that read 8 bits and have no counterpart."""
    for node in quantized.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE} or node.name in known:
            continue
        if any(after.producer_if(name, DEQUANTIZE) is not None for name in node.input):
            yield node.name
