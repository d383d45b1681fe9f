"""NNCF's weight compression for OpenVINO: integer weights and float activations.

Without samples, weights are rounded to nearest. With samples, INT4 is rounded by GPTQ: the error of
each column is made up for in the columns that are not rounded yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...capture.framework_errors import call_framework
from ...core.contract import Quantized, QuantizeJob
from ...core.kinds import Precision
from ...core.large_arrays import copy_array
from ..installed_packages import package_versions
from ..openvino_weights import list_integer_weights
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import calibration_samples, call_quietly

if TYPE_CHECKING:
    import openvino

METHODS = ("rtn",)
SAMPLE_METHODS = ("gptq",)
# Weights with one scale. On a tiny Llama with random weights, groups of 32 keep 16.4 dB, of 64 14.2
# and of 128 (NNCF's default) 12.7. Where the rows are no multiple, the largest smaller power of two
# that divides them; INT8 has one scale per channel.
GROUP = 32
_LEAST_GROUP = 8
_MATRIX = 2  # dims
_FILE = "model.xml"
_LEAST_MAPPED = 1 << 22  # bytes of integers that need not stay in memory


def compress_weights(
    job: QuantizeJob, nncf: Any, model: openvino.Model, names: tuple[list[str], tuple[str, ...]]
) -> Quantized:
    """Compress the weights of `model` and save the IR. `names` are excluded nodes, and inputs.

    In INT4, embeddings, convolutions and the last matrix product have 8 bits, as NNCF has it.

    Raises:
        ConversionError: NNCF rejected the model, or it has no layer that can be compressed.
    """
    import openvino

    four, (excluded, inputs) = job.precision is Precision.INT4, names
    size, method = job.group_size or GROUP, job.method or METHODS[0]
    samples = None
    if method in SAMPLE_METHODS:
        samples = calibration_samples(job, inputs)
        _turn_weights(model)
    modes, path = nncf.CompressWeightsMode, job.folder / _FILE
    with _keep_integers_in_files():
        made = call_quietly(
            "NNCF",
            lambda: nncf.compress_weights(
                model,
                mode=modes.INT4_ASYM if four else modes.INT8_ASYM,
                ignored_scope=nncf.IgnoredScope(names=excluded, validate=False)
                if excluded
                else None,
                **_group_settings(nncf, size) if four else {},
                **{}
                if samples is None  # or else GPTQ over all of them
                else {"dataset": nncf.Dataset(samples), "subset_size": len(samples), "gptq": True},
            ),
        )
        counts = Counter(stored for _, stored in list_integer_weights(made))
        if not counts[job.precision]:
            reason = f"it compressed no matrix to 4 bits, with groups of {_LEAST_GROUP} or more"
            raise NothingQuantizedError(
                reason if four else "it compressed no weight", kept=bool(job.keep)
            )
        call_framework(
            "OpenVINO's writer",
            lambda: openvino.save_model(made, str(path), compress_to_fp16=False),
        )
    text = f"4 bits in groups of {size}" if four else "8 bits per channel"
    return Quantized(
        path=path,
        versions=package_versions("nncf", "openvino"),
        options={
            "quantizer": "nncf",
            "method": method,
            **({} if samples is None else {"samples": str(len(samples))}),
            "activations": "float",
            "weights": f"{text}, with zero points",
            "products": ", ".join(f"{counts[one]} in {one}" for one in sorted(counts)),
            "kept": ", ".join(job.keep),
        },
    )


@contextmanager
def _keep_integers_in_files() -> Iterator[None]:
    """Have NNCF's large constants in mapped temporary files, since it holds those of all layers.

    The model must be written within the context: nodes do not keep the arrays whose memory they
    share.
    """
    import openvino
    from nncf.quantization.algorithms.weight_compression import openvino_backend as backend
    from openvino import opset13

    make, held = backend.create_ov_const_from_tensor, []

    def make_mapped(tensor: Any, dtype: Any, name: str | None = None) -> Any:
        node = make(tensor, dtype, name)
        if node.get_byte_size() < _LEAST_MAPPED:
            return node
        data = copy_array(node.data.reshape(-1).view("u1"), _LEAST_MAPPED)
        held.append(data)
        shared = openvino.Tensor(data, node.get_output_shape(0), node.get_element_type())
        return opset13.constant(shared, name=name, shared_memory=True)

    backend.create_ov_const_from_tensor = make_mapped
    try:
        yield
    finally:
        backend.create_ov_const_from_tensor = make


def _group_settings(nncf: Any, size: int) -> dict[str, Any]:
    """Return the settings of groups: NNCF rejects a model with rows that are no multiple."""
    return {
        "group_size": size,
        "advanced_parameters": nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
            min_adjusted_group_size=min(_LEAST_GROUP, size),
        ),
    }


def _turn_weights(model: openvino.Model) -> None:
    """Store the matrix of each product transposed, in place; names stay.

    NNCF 3.4's GPTQ rejects other matrices ("Transpose is not supported"), which the ONNX reader
    makes of `MatMul`, and its scale estimation computes nonsense with them.
    """
    import numpy as np
    from openvino import opset13

    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or node.get_attributes()["transpose_b"]:
            continue
        weight = node.input_value(1).get_node()
        if weight.get_type_name() != "Constant" or len(weight.get_output_shape(0)) != _MATRIX:
            continue
        turned = opset13.constant(np.ascontiguousarray(weight.data.T))
        turned.set_friendly_name(weight.get_friendly_name())
        product = opset13.matmul(
            node.input_value(0), turned, node.get_attributes()["transpose_a"], True
        )
        product.set_friendly_name(node.get_friendly_name())
        product.output(0).get_tensor().set_names(node.output(0).get_names())
        for port in node.output(0).get_target_inputs():
            port.replace_source_output(product.output(0))
    model.validate_nodes_and_infer_types()
