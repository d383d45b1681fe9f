"""What a GPU needs for the types of a model, by its compute capability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..onnx_origins import NodeOrigin
from .trt_findings import Model, Node, NodeFindings, TrtFault, TrtFinding, element_type
from .trt_installation import TrtLibrary

Capability = tuple[int, int]

# By NVIDIA's support matrix of TensorRT-RTX 1.7 ("Hardware and Precision"); the builder of 1.7.1
# fails on exactly the others, at 7.5, 8.0, 8.6, 8.9 and 12.0 (measured 2026-11-26).
_LEAST_BY_TYPE: Mapping[str, Capability] = {
    "BFLOAT16": (8, 0),
    "INT4": (8, 0),
    "FLOAT8E4M3FN": (8, 9),
}
_NAMES = {"BFLOAT16": "BF16", "INT4": "INT4", "FLOAT8E4M3FN": "FP8"}
_PRODUCTS = frozenset({"Gemm", "MatMul"})
_LEAST_OF_PRODUCTS: Capability = (8, 0)  # of float32, for TensorRT-RTX; convolutions run on 7.5


def find_unsupported_types(
    model: Model,
    origins: Mapping[str, NodeOrigin],
    library: TrtLibrary,
    capabilities: Sequence[str],
) -> list[TrtFinding]:
    """Report the types of a model that a GPU does not compute.

    Args:
        model: with known or inferred types.
        origins: the nodes' modules.
        library: what builds the engine.
        capabilities: of the GPUs that the engine is for, as `8.9`; none if they are not known.
    """
    if not capabilities:
        return []
    oldest = min(capabilities, key=_numbers_of)
    findings, known = NodeFindings(origins), set()
    for node in model.graph.all_nodes():
        for what, least in _needs_of(node, library):
            if _numbers_of(oldest) >= least or what in known:
                continue
            known.add(what)  # one node is named, not each
            text = f"{what} requires compute capability {_text_of(least)}, and {oldest} is below it"
            findings.add(node, TrtFault.CAPABILITY, text)
    return findings.found


def _needs_of(node: Node, library: TrtLibrary) -> Iterator[tuple[str, Capability]]:
    """Return what the node computes in and the least capability for it."""
    values = (*node.inputs, *node.outputs)
    for name in {element_type(value) for value in values if value is not None} & set(_NAMES):
        yield _NAMES[name], _LEAST_BY_TYPE[name]
    product = node.op_type in _PRODUCTS and element_type(node.inputs[0]) == "FLOAT"
    if product and library is TrtLibrary.RTX:
        yield f"{node.op_type} of float32", _LEAST_OF_PRODUCTS


def _numbers_of(capability: str) -> Capability:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)


def _text_of(capability: Capability) -> str:
    return ".".join(map(str, capability))
