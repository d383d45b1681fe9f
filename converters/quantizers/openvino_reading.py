"""The parent as OpenVINO reads it: bounded, folded, its nodes found under their ONNX names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.contract import QuantizeJob
from ...core.signature import Signature
from ..guarded import call_framework
from ..openvino_bounds import partial_shape
from ..openvino_reading import read_openvino

if TYPE_CHECKING:
    import openvino

_PASSING = (
    "Add", "Convert", "Divide", "Multiply", "Reshape", "Select", "Subtract", "Transpose",
)  # fmt: skip


def read_bounded(job: QuantizeJob) -> openvino.Model:
    """The parent with the signature's bounds, its constants folded.

    A convolution's bias is otherwise reshaped at run time, and NNCF corrects only constant ones.
    """
    from openvino.passes import ConstantFolding, Manager

    model = read_openvino(job.parent)
    taken = model_inputs(model, job.signature)
    shapes = {spec.name: partial_shape(spec) for spec in job.signature.inputs if spec.name in taken}
    call_framework("OpenVINO's reshape", lambda: model.reshape(shapes))
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    return model


def model_inputs(model: openvino.Model, signature: Signature) -> tuple[str, ...]:
    """The model's inputs under the signature's names; one that the export dropped is left out."""
    taken = {name for port in model.inputs for name in port.get_names()}
    return tuple(spec.name for spec in signature.inputs if spec.name in taken)


def has_attention(model: openvino.Model) -> bool:
    """Whether a softmax takes from a matrix product and gives to one."""
    return any(
        _comes_from_product(node) and _goes_to_product(node)
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Softmax"
    )


def _comes_from_product(node: Any) -> bool:
    makers = (value.get_node() for value in node.input_values())
    return any(
        maker.get_type_name() == "MatMul"
        or (maker.get_type_name() in _PASSING and _comes_from_product(maker))
        for maker in makers
    )


def _goes_to_product(node: Any) -> bool:
    readers = (port.get_node() for port in node.output(0).get_target_inputs())
    return any(
        reader.get_type_name() == "MatMul"
        or (reader.get_type_name() in _PASSING and _goes_to_product(reader))
        for reader in readers
    )


def ir_node_names(model: openvino.Model, job: QuantizeJob) -> list[str]:
    """What the ONNX nodes to keep are called in OpenVINO.

    A node becomes one of its own name or several below it (`conv/WithoutBiases`); the last before
    an output takes the output's name.
    """
    if not job.keep:
        return []
    import onnx

    parent = onnx.load(str(job.parent), load_external_data=False)
    made = {name for node in parent.graph.node if node.name in job.keep for name in node.output}
    return [
        str(node.get_friendly_name())
        for node in model.get_ordered_ops()
        if node.get_friendly_name().partition("/WithoutBiases")[0] in job.keep
        or any(made & port.get_names() for port in node.outputs())
    ]
