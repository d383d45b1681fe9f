"""Place Q/DQ pairs in an ONNX graph, depending on its runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ..onnx_topology import DEQUANTIZE, PRODUCTS, QUANTIZE, GraphWiring, node_bodies

if TYPE_CHECKING:
    import onnx

# operators that pass 8-bit integers between convolutions without floats
_CHAIN = (
    "Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul",
    "Pad", "Relu", "Resize", "Sigmoid",
)  # fmt: skip
# Minimum of a matrix product's three sizes: a tensor core's 8-bit tile is no smaller, and Q/DQ
# costs more than it gains below. ModelOpt 0.47 omits the same products.
_SMALLEST = 16


@dataclass(frozen=True, kw_only=True)
class QdqPlacement:
    """The nodes with Q/DQ on their inputs, by name.

    `chained` are the tensors that stay in integers between convolutions: all readers read them
    quantized. `sums` are the nodes that add a residual to a convolution's output.
    """

    nodes: frozenset[str]
    chained: frozenset[str]
    sums: frozenset[str]


def place_for_cpu(
    graph: onnx.GraphProto, wiring: GraphWiring, keep: Collection[str], products: Collection[str]
) -> QdqPlacement:
    """Place for CPUs: products, and all that stays in integers between convolutions.

    ONNX Runtime computes a convolution in integers only if its output is quantized too.

    `keep` are nodes that stay in floating point, `products` the operators with integer kernels.
    """
    chosen = {node.name for node in graph.node if node.op_type in products} - set(keep)
    chained = _chain_tensors(graph.node, wiring, chosen, keep)
    links = {n.name for n in graph.node if n.op_type in _CHAIN and n.output[0] in chained}
    return QdqPlacement(nodes=frozenset(chosen | links), chained=chained, sums=frozenset())


def place_for_tensorrt(
    graph: onnx.GraphProto, wiring: GraphWiring, keep: Collection[str], sizes: Mapping[str, int]
) -> QdqPlacement:
    """Place for TensorRT: the inputs of products, and of sums the input from elsewhere.

    TensorRT fuses a convolution with the following sum and activation if the convolution's output
    reaches the sum unquantized and the residual quantized.

    `keep` are nodes that stay in floating point, `sizes` the largest sizes of dynamic dims.
    """
    rows = _tensor_rows(graph, sizes)
    chosen = {
        node.name
        for node in graph.node
        if node.op_type in PRODUCTS and not _is_too_small(node, wiring, rows)
    } - set(keep)
    chained = _chain_tensors(graph.node, wiring, chosen, keep)
    sums = {
        node.name
        for node in graph.node
        if node.op_type == "Add"
        and node.output[0] in chained
        and len(set(wiring.activations(node))) > 1
    }
    return QdqPlacement(nodes=frozenset(chosen | sums), chained=chained, sums=frozenset(sums))


def explain_empty(
    graph: onnx.GraphProto, keep: Collection[str], kernels: Collection[str] = PRODUCTS
) -> str:
    """Return why a placement has no nodes; `kernels` are the operators with integer kernels."""
    products = {node.name: node.op_type for node in graph.node if node.op_type in PRODUCTS}
    left = {operator for name, operator in products.items() if name not in keep}
    if products and not left:
        return "all convolutions and matrix products of the model are kept in floating point"
    others = "other " if any(name in keep for name in products) else ""
    if left and left.isdisjoint(kernels):
        kinds = ", ".join(sorted(left))
        return f"ONNX Runtime has no integer kernel for the {others}products: {kinds}"
    bodies = (body for node in graph.node for body in node_bodies(node))
    inner = any(node.op_type in PRODUCTS for body in bodies for node in body.node)
    if left:
        more = "; others are in branches or loops" if inner else ""
        return (
            f"the {others}matrix products of the model are too small for int8: "
            f"fewer than {_SMALLEST} rows or columns{more}"
        )
    if inner:
        return "the convolutions and matrix products of the model are in branches or loops"
    return "the model has no convolution or matrix product to quantize"


def _chain_tensors(
    nodes: Iterable[onnx.NodeProto], wiring: GraphWiring, chosen: set[str], keep: Collection[str]
) -> frozenset[str]:
    """Return the tensors that come from convolutions through links of the chain only.

    Relies on ONNX's topological order of nodes.
    """
    chained: set[str] = set()
    for node in nodes:
        read = wiring.activations(node)
        convolved = node.op_type in {"Conv", "ConvTranspose"} and node.name in chosen
        linked = node.op_type in _CHAIN and node.name not in keep and chained.issuperset(read)
        if convolved or (linked and read):
            chained.update(node.output)
    return frozenset(chained)


def _is_too_small(node: onnx.NodeProto, wiring: GraphWiring, rows: Mapping[str, int]) -> bool:
    weights = wiring.constants.get(node.input[1])
    if weights is None or node.op_type not in {"MatMul", "Gemm"}:
        return False
    return min((*weights.dims, rows.get(node.input[0], _SMALLEST)), default=0) < _SMALLEST


def _tensor_rows(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the largest number of rows of each tensor, as a matrix, without unknown ones."""
    found: dict[str, int] = {}
    for value in (*graph.value_info, *graph.input):
        dims = value.type.tensor_type.shape.dim[:-1]
        known = [sizes.get(dim.dim_param, 0) if dim.dim_param else dim.dim_value for dim in dims]
        if known and all(known):
            found[value.name] = prod(known)
    return found


def tidy_qdq(model: onnx.ModelProto, placement: QdqPlacement) -> None:
    """Let float nodes read floats, and sums the product's own output; drop unused pairs.

    The library replaces a tensor by its quantized version for all its readers.
    """
    wiring = GraphWiring(model.graph)
    depths = _tensor_depths(model.graph.node)
    for node in model.graph.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE}:
            continue
        if node.name in placement.sums:
            _free_own(node, wiring, depths)
        elif node.name not in placement.nodes:
            _free_all(node, wiring, placement)
    while _drop_unread(model.graph):
        pass


def _tensor_depths(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """Return the length of the longest path from the inputs to each tensor."""
    depths: dict[str, int] = {}
    for node in nodes:
        depth = 1 + max((depths.get(name, 0) for name in node.input), default=0)
        depths.update((name, depth) for name in node.output)
    return depths


def _free_all(node: onnx.NodeProto, wiring: GraphWiring, placement: QdqPlacement) -> None:
    """Read before the pair, unless the tensor exists quantized only."""
    for index, name in enumerate(node.input):
        source = wiring.before(name)
        if source is not None and source not in placement.chained:
            node.input[index] = source


def _free_own(node: onnx.NodeProto, wiring: GraphWiring, depths: dict[str, int]) -> None:
    """Read the deepest convolution with a single reader unquantized."""
    own = [
        (depths[source], index, source)
        for index, name in enumerate(node.input)
        if (source := wiring.before(name)) is not None
        and wiring.producer_if(source, "Conv") is not None
        and len(wiring.readers[source]) == 1
    ]
    if own:
        _, index, source = max(own)
        node.input[index] = source


def _drop_unread(graph: onnx.GraphProto) -> int:
    """Remove Q and DQ nodes with unused outputs; return their number."""
    read = {name for node in graph.node for name in node.input}
    read.update(value.name for value in graph.output)
    dead = [
        node
        for node in graph.node
        if node.op_type in {QUANTIZE, DEQUANTIZE} and node.output[0] not in read
    ]
    for node in dead:
        graph.node.remove(node)
    return len(dead)
