"""Layers that a quantizer took out of a graph: it clips where a ReLU or a Clip stood.

ONNX Runtime's quantizer removes an activation whose clipping its own range does. What leaves the
dequantizer is then what the activation gave, and the sidecar still says whose that was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.probe import ProbeNode
from .onnx_origins import NodeOrigin

_ACTIVATIONS = ("Relu", "Clip")
_QUANTIZERS = ("QuantizeLinear", "FakeQuantize")
_INTEGER = ("DequantizeLinear", "Convert")  # what follows where the values become integers
_REST = ("Convert", "Subtract", "Multiply")  # OpenVINO's dequantizer


def assign_absorbed_layers(
    nodes: Sequence[ProbeNode], origins: Mapping[str, NodeOrigin]
) -> tuple[ProbeNode, ...]:
    """The nodes; the end of a quantizer that stands for an activation belongs to its module.

    Args:
        nodes: of the artifact.
        origins: of the model that it was made of, in the order of its graph.
    """
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[ProbeNode]] = defaultdict(list)
    for node in nodes:
        for name in node.inputs:
            readers[name].append(node)
    taken: dict[str, NodeOrigin] = {}
    for name, origin in origins.items():
        before = by_name.get(origin.after)
        if name in by_name or before is None or origin.operator not in _ACTIVATIONS:
            continue
        for output in before.outputs:
            for reader in readers[output]:
                if reader.operator in _QUANTIZERS:
                    taken[_find_dequantize(reader, readers).name] = origin
    return tuple(_with_origin(node, taken.get(node.name)) for node in nodes)


def _with_origin(node: ProbeNode, origin: NodeOrigin | None) -> ProbeNode:
    if origin is None:
        return node
    return replace(node, module=origin.module, kind=origin.cls, source=origin.source)


def _find_dequantize(quantizer: ProbeNode, readers: Mapping[str, list[ProbeNode]]) -> ProbeNode:
    """The node with which the values are floats again."""
    end = quantizer
    following: tuple[str, ...] = _INTEGER
    while True:
        after = [node for output in end.outputs for node in readers.get(output, ())]
        if len(after) != 1 or len(after[0].inputs) != 1 or after[0].operator not in following:
            return end
        end = after[0]
        if end.operator in ("DequantizeLinear", "Multiply"):
            return end
        following = _REST
