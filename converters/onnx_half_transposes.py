"""Keep ONNX Runtime from a fusion that crashes it on half-precision graphs.

Its MatmulTransposeFusion makes a FusedMatMul with `transBatchA` of a batch transpose and a MatMul
with a constant. Where both are float16, ONNX Runtime 1.24 on the CPU segfaults while it loads the
model at its default optimization level. A Reshape to the same shape in between keeps them apart:
it computes nothing on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def separate_transposes(graph: onnx.GraphProto) -> int:
    """Put a Reshape between batch transposes and MatMuls with constants; return how many.

    Args:
        graph: in half precision; it is changed in place. Its nodes keep their names.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name for tensor in graph.initializer}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    by_output = {name: node for node in graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    shapes: dict[int, str] = {}
    count = 0
    for node in graph.node:
        source = by_output.get(node.input[0]) if node.op_type == "MatMul" else None
        rank = _batch_transposed_rank(source)
        if rank and node.input[1] in constants:
            count += 1
            shape = shapes.setdefault(rank, f"modelc::same_shape_{rank}")
            tensor = f"{node.input[0]}::same_shape_{count}"
            nodes.append(helper.make_node("Reshape", [node.input[0], shape], [tensor], name=tensor))
            node.input[0] = tensor
        nodes.append(node)
    if count:
        copies = [_copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
        graph.initializer.extend(
            numpy_helper.from_array(np.zeros(rank, np.int64), name) for rank, name in shapes.items()
        )
    return count


def _batch_transposed_rank(node: onnx.NodeProto | None) -> int:
    """The rank of a Transpose that moves the first dim beside or behind the last; else 0."""
    if node is None or node.op_type != "Transpose":
        return 0
    perm = next((list(one.ints) for one in node.attribute if one.name == "perm"), [])
    rank = len(perm)
    kept = [*range(1, rank - 1)]
    is_batch = bool(kept) and perm in ([*kept, 0, rank - 1], [*kept, rank - 1, 0])
    return rank if is_batch else 0


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
