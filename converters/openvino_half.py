"""FP16 weights for OpenVINO, but for those that FP16 would clip or that the user keeps.

OpenVINO clips weights beyond 65504 to it, and says nothing, unless most of a tensor is beyond. Such
weights stay FP32 here, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array, Job
from ..core.precision import Precision
from .guarded import call_framework
from .onnx_links import float_constants
from .onnx_origins import match_nodes, module_or_node, read_origins
from .onnx_ranges import weight_overflows

if TYPE_CHECKING:
    import openvino


def compress_weights(model: openvino.Model, job: Job, parent: Path) -> tuple[str, ...]:
    """Compress the model's weights to FP16, in place, if any of them is to stay FP32.

    Where none is, OpenVINO's own writer does it, and holds one weight at a time in memory.

    Returns:
        a line for each weight that stays FP32.

    Raises:
        UsageError: a `--keep-fp` pattern matches nothing.
        ConversionError: the parent cannot be read, or OpenVINO refused.
    """
    from openvino._offline_transformations import compress_model_transformation

    reasons = _float32_weights(job, parent)
    values = _constant_values(model, reasons)
    if not values:
        return ()
    call_framework("OpenVINO's compression", lambda: compress_model_transformation(model))
    _restore_float32(model, values)
    return tuple(dict.fromkeys(reasons[name] for name in values))


def _float32_weights(job: Job, parent: Path) -> dict[str, str]:
    """By weight: the line that says why it stays."""
    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(parent), load_external_data=False))
    asked = set(match_nodes(parent, job.keep))
    weights = {name for name, _ in float_constants(model.graph)}
    origins = read_origins(parent)
    reasons = {
        name: f"kept in FP32 as asked: the weights of {module_or_node(node, origins)}"
        for node in model.graph.node
        if node.name in asked
        for name in node.input
        if name in weights
    }
    for one in weight_overflows(parent, Precision.FP16):
        place = one.module or f"{one.op} {one.node}"
        reasons[one.tensor] = f"kept in FP32: {place} ({one.reason})"
    return reasons


def _constant_values(model: openvino.Model, names: Collection[str]) -> dict[str, Array]:
    """The values of constants, copied: compression writes over them."""
    return {
        op.get_friendly_name(): op.get_data().copy()
        for op in model.get_ops()
        if op.get_type_name() == "Constant" and op.get_friendly_name() in names
    }


def _restore_float32(model: openvino.Model, values: Mapping[str, Array]) -> None:
    """Put the FP32 values where compression left FP16 and a Convert of the weight's name."""
    from openvino import opset13

    for op in model.get_ops():
        name = op.get_friendly_name()
        if op.get_type_name() != "Convert" or name not in values:
            continue
        constant = opset13.constant(values[name])
        constant.set_friendly_name(name)
        op.output(0).replace(constant.output(0))
