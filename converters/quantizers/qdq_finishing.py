"""The last steps on every Q/DQ model: biases, folding of weights, checks and saving."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...capture.framework_errors import call_framework
from ...core.contract import Quantized, QuantizeJob
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..onnx_topology import (
    QUANTIZE,
    WITH_ZERO,
    GraphWiring,
    constant_values,
    sort_nodes,
)
from .qdq_biases import correct_biases, drop_unread, quantize_biases, quantize_weights
from .quantization_checks import ActivationStats, check_quantized
from .quantizer_workspace import QuantizerWorkspace, make_names_unique

if TYPE_CHECKING:
    import onnx

_NAME = "model.onnx"
_FLOAT_WEIGHTS = "tensorrt-onnx"  # TensorRT reads float weights before a Q and a DQ
_INTEGER_BIASES = "onnx"  # ONNX Runtime has no integer kernel for a product with a float bias


@dataclass(frozen=True, kw_only=True)
class QuantizedBy:
    """How a Q/DQ model was made; `lost` are the nodes that 8 bits would have destroyed."""

    quantizer: str
    packages: tuple[str, ...]
    method: str
    lost: Collection[str] = ()
    activations: str = "int8 symmetric"
    weights: str = "int8 per channel"


def finish_model(
    model: onnx.ModelProto,
    job: QuantizeJob,
    place: QuantizerWorkspace,
    activations: ActivationStats,
    origin: QuantizedBy,
) -> Quantized:
    """Correct, check and save `model` in place; clear the workspace.

    Raises:
        ConversionError: nothing is quantized, or a scale cannot be right.
    """
    import onnx

    parent = place.load()
    corrected = call_framework(
        "bias correction", lambda: correct_biases(model, parent, activations.means)
    )
    _restore_shapes(model.graph, parent.graph)
    weights_only = job.precision is Precision.INT4
    products = check_quantized(
        model, activations.useful, weights_only=weights_only, kept=bool(job.keep)
    )
    if job.consumer != _FLOAT_WEIGHTS:
        fold_weights(model)
    if job.consumer == _INTEGER_BIASES:
        quantize_biases(model)
    make_names_unique(model.graph)
    sort_nodes(model.graph)
    path = job.folder / _NAME
    data = f"{_NAME}.data"
    call_framework(
        "the ONNX writer",
        lambda: onnx.save(
            model,
            str(path),
            save_as_external_data=place.external,
            location=data if place.external else None,
        ),
    )
    call_framework("the ONNX checker", lambda: onnx.checker.check_model(str(path)))
    place.clear()
    note = "kept in floating point, as 8 bits would lose their values: "
    return Quantized(
        path=path,
        versions=package_versions(*origin.packages),
        options={
            "quantizer": origin.quantizer,
            "method": origin.method,
            "samples": str(len(job.calibration or ())),
            "activations": origin.activations,
            "weights": origin.weights,
            "products": str(products),
            "biases corrected": str(corrected),
            "kept": ", ".join(job.keep),
        },
        notes=(note + ", ".join(sorted(origin.lost)),) if origin.lost else (),
    )


def _restore_shapes(graph: onnx.GraphProto, parent: onnx.GraphProto) -> None:
    """Give tensors the shapes that the parent has, and the others none.

    ModelOpt infers shapes of its own, which may be wrong: (batch, 16) as one of three dims.
    """
    known = {one.name: one.type.tensor_type.shape for one in (*parent.value_info, *parent.output)}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        tensor.ClearField("shape")
        if value.name in known:
            tensor.shape.CopyFrom(known[value.name])


def fold_weights(model: onnx.ModelProto) -> None:
    """Fold each QuantizeLinear of a constant.

    ModelOpt leaves float weights before a Q and a DQ, as TensorRT requires. For other runtimes that
    takes four times the bytes, and OpenVINO keeps them in its IR.
    """
    from onnx import numpy_helper

    wiring = GraphWiring(model.graph)
    folded = [
        node
        for node in model.graph.node
        if node.op_type == QUANTIZE
        and len(node.input) == WITH_ZERO
        and all(name in wiring.constants for name in node.input)
    ]
    for node in folded:
        array = quantize_weights(
            node, *(constant_values(wiring.constants[name]) for name in node.input)
        )
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        model.graph.node.remove(node)
    drop_unread(model)
