"""NNCF, OpenVINO's own quantizer, which makes IR directly."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...capture.framework_errors import call_framework
from ...core.contract import Quantized, QuantizeJob, Readiness
from ...core.errors import ConversionError, Hint, Option
from ...core.kinds import WEIGHTS_ONLY, Precision
from ...core.signature import Signature
from ..installed_packages import package_versions
from ..openvino_reader import partial_shape, read_openvino
from ..openvino_rewrites import model_nodes, node_bodies
from . import nncf_weights
from .quantization_checks import NothingQuantizedError
from .quantizer_workspace import (
    CalibrationSamples,
    calibration_samples,
    call_quietly,
    choose_method,
)

if TYPE_CHECKING:
    import openvino

NAME: str = "nncf"
SUMMARY: str = "NNCF, for OpenVINO: patterns that it fuses, bias correction"
# `mixed`: activations with a zero point; `performance`: without; `accurate`: mixed, with biases
# corrected layer by layer; `smooth`: mixed, with SmoothQuant on transformers, for activations with
# outlier channels; `fast`: mixed, with NNCF's own settings
METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {
    ("openvino", Precision.INT8): ("mixed", "performance", "accurate", "smooth", "fast"),
    ("openvino", Precision.INT8_WEIGHTS): nncf_weights.METHODS,
    ("openvino", Precision.INT4): (*nncf_weights.METHODS, *nncf_weights.SAMPLE_METHODS),
}
SAMPLE_METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {
    ("openvino", Precision.INT4): nncf_weights.SAMPLE_METHODS,
}
DATA_FREE = frozenset(way for way in METHODS if way[1] in WEIGHTS_ONLY)
# For `accurate`: NNCF keeps the inputs of all layers for each fifth sample in memory (24 MB on the
# ResNet-50-sized model).
_ACCURATE_SAMPLES = 80
_FILE = "model.xml"
_TELEMETRY = "openvino_telemetry"
_PRODUCTS = ("Convolution", "ConvolutionBackpropData", "GroupConvolution", "MatMul")
_SCALING = ("Convert", "MaxPool", "Multiply", "Reshape", "Subtract", "Transpose")
_INTEGERS = ("<Type: 'int8_t'>", "<Type: 'uint8_t'>")


def readiness() -> Readiness:
    """Return whether nncf and openvino are installed."""
    found = package_versions("nncf", "openvino")
    if len(found) < 2:  # noqa: PLR2004 - both
        return Readiness(
            ready=False,
            reason="nncf or openvino is not installed",
            mend="pip install nncf openvino",
        )
    return Readiness(ready=True, version=found["nncf"])


def quantize(job: QuantizeJob) -> Quantized:
    """Read the ONNX into OpenVINO, bound its dims, calibrate over all samples, save the IR.

    For precisions of weights alone, only these are compressed, in INT8 without samples.

    Raises:
        ConversionError: OpenVINO or NNCF rejected the model, or nothing was quantized.
    """
    import openvino

    method = choose_method(job, METHODS, SAMPLE_METHODS)
    model = read_bounded(job)
    if job.precision in WEIGHTS_ONLY:
        job = replace(job, method=method)
        excluded = ir_node_names(model, job)
        inputs = model_inputs(model, job.signature)
        return nncf_weights.compress_weights(job, _import_nncf(), model, (excluded, inputs))
    samples = calibration_samples(job, model_inputs(model, job.signature))
    attention = has_attention(model)
    excluded = ir_node_names(model, job)
    made = call_quietly(
        "NNCF",
        lambda: _quantize_model(model, samples, method, attention=attention, excluded=excluded),
    )
    count = _count_int8_products(made, kept=bool(job.keep))
    path = job.folder / _FILE
    call_framework(
        "OpenVINO's writer", lambda: openvino.save_model(made, str(path), compress_to_fp16=False)
    )
    return Quantized(
        path=path,
        versions=package_versions("nncf", "openvino"),
        options={
            "quantizer": NAME,
            "method": method,
            "samples": str(_sample_count(samples, method)),
            "model type": "transformer" if attention else "any",
            "products": str(count),
            "kept": ", ".join(job.keep),
        },
    )


def _quantize_model(
    model: openvino.Model,
    samples: CalibrationSamples,
    method: str,
    *,
    attention: bool,
    excluded: list[str],
) -> openvino.Model:
    nncf = _import_nncf()
    preset = nncf.QuantizationPreset
    return nncf.quantize(
        model,
        nncf.Dataset(samples),
        preset=preset.PERFORMANCE if method == "performance" else preset.MIXED,
        target_device=nncf.TargetDevice.CPU,
        subset_size=_sample_count(samples, method),
        fast_bias_correction=method == "fast",
        model_type=nncf.ModelType.TRANSFORMER if attention else None,
        ignored_scope=nncf.IgnoredScope(names=excluded, validate=False) if excluded else None,
        advanced_parameters=_nncf_settings(nncf, method),
    )


def _sample_count(samples: CalibrationSamples, method: str) -> int:
    return min(len(samples), _ACCURATE_SAMPLES) if method == "accurate" else len(samples)


def _nncf_settings(nncf: Any, method: str) -> Any:
    """Return the settings that were best on the sample models; NNCF's own for `fast`.

    NNCF's own ranges are means over samples and clip real values: 21 dB instead of 30 on the digits
    CNN, 15 instead of 30 on a small attention; only the BERT-sized model gains (1.5 dB). Its fast
    bias correction feeds constant images and ignores the padding: 16 dB on the digits.
    """
    settings = nncf.AdvancedQuantizationParameters()
    if method != "smooth":
        # It scales the input of a product by channel, and the quantizer then also serves the
        # residual sums: 20 dB instead of 30 on the BERT-sized model.
        settings.smooth_quant_alphas.matmul = -1
    if method != "fast":
        estimators = importlib.import_module("nncf.quantization.range_estimator")
        settings.activations_range_estimator_params = estimators.RangeEstimatorParametersSet.MINMAX
        settings.disable_bias_correction = method != "accurate"
    return settings


def _import_nncf() -> Any:  # it has no types
    """Import NNCF silently, and without its telemetry, which is opt-out."""
    if "nncf" in sys.modules:
        return sys.modules["nncf"]
    before = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # makes its import fail, as it may
    try:
        nncf = importlib.import_module("nncf")
    finally:
        sys.modules.pop(_TELEMETRY)
        if before is not None:
            sys.modules[_TELEMETRY] = before
    nncf.set_log_level(logging.ERROR)
    return nncf


def _count_int8_products(model: openvino.Model, *, kept: bool) -> int:
    """Count the products that read 8 bits; `kept`: nodes were to be kept in floating point.

    Raises:
        ConversionError: there is none, or a quantizer's range is not finite or empty.
    """
    import numpy as np

    count = 0
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        if kind == "FakeQuantize":
            low, high = (np.asarray(node.input_value(i).get_node().data) for i in (1, 2))
            if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
                raise ConversionError(
                    f"the range of {node.get_friendly_name()} is {low.min()}..{high.max()}",
                    hint=Hint("keep the node in floating point: ", Option("keep-fp", "NODE")),
                    option="keep-fp",
                )
        elif kind in _PRODUCTS:
            count += all(_is_int8_input(node.input_value(i).get_node()) for i in (0, 1))
    if count == 0:
        raise NothingQuantizedError(kept=kept)
    return count


def _is_int8_input(node: Any) -> bool:
    """Return whether a value comes from a quantizer or 8-bit weights, through 8-bit operators."""
    kind = node.get_type_name()
    if kind == "FakeQuantize" or (kind == "Constant" and str(node.get_element_type()) in _INTEGERS):
        return True
    return kind in _SCALING and _is_int8_input(node.input_value(0).get_node())


_PASSING = (
    "Add", "Convert", "Divide", "Multiply", "Reshape", "Select", "Subtract", "Transpose",
)  # fmt: skip


def read_bounded(job: QuantizeJob) -> openvino.Model:
    """Read the parent with the signature's bounds and folded constants.

    Else a convolution's bias is reshaped at run time, and NNCF corrects only constant ones.
    """
    from openvino.passes import ConstantFolding, Manager

    model = read_openvino(job.parent)
    separate_bodies(model)
    names = model_inputs(model, job.signature)
    shapes = {spec.name: partial_shape(spec) for spec in job.signature.inputs if spec.name in names}
    call_framework("OpenVINO's reshape", lambda: model.reshape(shapes))
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    return model


def separate_bodies(model: openvino.Model) -> None:
    """Give the body of each loop and branch its own constants, in place.

    OpenVINO's ONNX reader lets it read those of the graph around it. NNCF follows a constant to all
    of its readers, and knows none in a body.
    """
    from openvino import opset13

    ports = [
        port
        for node in model.get_ordered_ops()
        for body in node_bodies(node)
        for inner in model_nodes(body)
        for port in inner.inputs()
    ]
    for port in ports:
        source = port.get_source_output().get_node()
        if source.get_type_name() == "Constant":
            copied = opset13.constant(source.get_data().copy())
            copied.set_friendly_name(source.get_friendly_name())
            port.replace_source_output(copied.output(0))


def model_inputs(model: openvino.Model, signature: Signature) -> tuple[str, ...]:
    """Return the signature's inputs that the model still has."""
    names = {name for port in model.inputs for name in port.get_names()}
    return tuple(spec.name for spec in signature.inputs if spec.name in names)


def has_attention(model: openvino.Model) -> bool:
    """Return whether a softmax stands between two matrix products."""
    return any(
        _leads_to_product(node, lambda one: one.input_values())
        and _leads_to_product(node, lambda one: one.output(0).get_target_inputs())
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Softmax"
    )


def _leads_to_product(node: Any, ports: Callable[[Any], Iterable[Any]]) -> bool:
    """Return whether the ports lead to a matrix product, through operators that pass values on."""
    return any(
        one.get_type_name() == "MatMul"
        or (one.get_type_name() in _PASSING and _leads_to_product(one, ports))
        for one in (port.get_node() for port in ports(node))
    )


def ir_node_names(model: openvino.Model, job: QuantizeJob) -> list[str]:
    """Return the OpenVINO names of the ONNX nodes to keep.

    A node becomes one of its name or several below it (`conv/WithoutBiases`); the last before an
    output takes the output's name.
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
