"""NVIDIA's ModelOpt: places Q/DQ where TensorRT fuses, symmetric; the rest stays in float32.

Not offered for ONNX Runtime's CPU: its convolutions return floats there, which no integer kernel
does, and the ResNet-50-sized result is slower than the float model (59 ms against 40).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import Quantized, QuantizeJob, Readiness
from ..installed_packages import package_versions
from .qdq_finishing import QuantizedBy, finish_model
from .quantization_checks import find_lost_tensors, observe_activations
from .quantizer_workspace import (
    CalibrationReader,
    CalibrationSamples,
    QuantizerWorkspace,
    calibration_samples,
    call_quietly,
    choose_method,
    create_workspace,
)

if TYPE_CHECKING:
    import onnx

NAME: str = "modelopt"
SUMMARY: str = "NVIDIA ModelOpt, for TensorRT: Q/DQ where it fuses"
_METHODS = ("max", "entropy")  # a histogram of few samples is poor: 17 dB on the digits, not 30
METHODS: Mapping[str, tuple[str, ...]] = {"tensorrt-onnx": _METHODS, "openvino": _METHODS}

_OPSET = 19  # ModelOpt's minimum for scales in half precision
# imports of its `onnx` extra; not cupy (300 MB of CUDA), which only INT4 uses
_NEEDS = ("nvidia-modelopt", "onnx-graphsurgeon", "onnxslim", "lief")
_PATCHED = ("base_quantizer", "calibrate", "qdq_quantizer", "quant_utils", "registry")


def readiness() -> Readiness:
    """Return whether ModelOpt and the imports of its ONNX part are installed."""
    found = package_versions(*_NEEDS)
    missing = [name for name in _NEEDS if name not in found]
    if missing:
        return Readiness(
            ready=False,
            reason=f"{', '.join(missing)} not installed",
            mend="pip install 'nvidia-modelopt[onnx]'",
        )
    return Readiness(ready=True, version=found["nvidia-modelopt"])


def quantize(job: QuantizeJob) -> Quantized:
    """Calibrate over all samples, and again without tensors that the first scales destroy.

    Raises:
        ConversionError: ModelOpt rejected the model, or its result cannot be right.
    """
    method = choose_method(job, METHODS)
    place = create_workspace(job, opset=_OPSET)
    samples = calibration_samples(job, _model_inputs(place))
    made = _quantize_model(place, method, samples, job.keep)
    activations = observe_activations(place, made, samples)
    lost = sorted({n for gone in find_lost_tensors(made, activations.useful) for n in gone.readers})
    if lost:
        made = _quantize_model(place, method, samples, (*job.keep, *lost))
    packages = ("nvidia-modelopt", "onnxruntime-gpu", "onnxruntime", "onnx")
    origin = QuantizedBy(quantizer=NAME, packages=packages, method=method, lost=lost)
    return finish_model(made, job, place, activations, origin)


def _model_inputs(place: QuantizerWorkspace) -> tuple[str, ...]:
    import onnx

    graph = onnx.load(str(place.model), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return tuple(value.name for value in graph.input if value.name not in constants)


def _quantize_model(
    place: QuantizerWorkspace, method: str, samples: CalibrationSamples, keep: tuple[str, ...]
) -> onnx.ModelProto:
    """Return the Q/DQ model in memory; ModelOpt writes beside its input."""
    import onnx

    path = place.folder / "quantized.onnx"
    call_quietly("ModelOpt", lambda: _call_modelopt(place, path, method, samples, keep))
    return onnx.load(str(path))


def _call_modelopt(
    place: QuantizerWorkspace,
    path: Path,
    method: str,
    samples: CalibrationSamples,
    keep: tuple[str, ...],
) -> None:
    modelopt = importlib.import_module("modelopt.onnx.quantization")  # it has no types
    model, reader = str(place.model.absolute()), CalibrationReader(samples)
    path = path.absolute()
    # where its shape inference fails, it writes into the current folder
    with _restore_onnxruntime(), chdir(place.folder):
        modelopt.quantize(
            model,
            quantize_mode="int8",
            calibration_data_reader=reader,
            calibration_method=method,
            calibration_eps=["cpu"],
            nodes_to_exclude=[
                rf"{re.escape(name)}\Z" for name in keep
            ],  # patterns at the start of a name
            use_external_data_format=place.external,
            output_path=str(path),
            high_precision_dtype="fp32",
            log_level="CRITICAL",  # it logs an error on every machine without a GPU
        )


@contextmanager
def _restore_onnxruntime() -> Iterator[None]:
    """Restore what ModelOpt changes in ONNX Runtime's quantizer: methods, and the operator tables.

    ONNX Runtime's own quantizer runs in the same process, and must not run ModelOpt's methods.
    """
    names = [f"onnxruntime.quantization.{name}" for name in _PATCHED]
    modules = [importlib.import_module(name) for name in names]
    classes = {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and thing.__module__ in names
    }
    tables = [table for table in vars(modules[-1]).values() if isinstance(table, dict)]
    before = [(thing, dict(vars(thing))) for thing in (*modules, *classes)]
    entries = [(table, dict(table)) for table in tables if "__name__" not in table]
    try:
        yield
    finally:
        for thing, attributes in before:
            for name in set(vars(thing)) - set(attributes):
                delattr(thing, name)
            for name, value in attributes.items():
                if vars(thing).get(name) is not value:
                    setattr(thing, name, value)
        for table, pairs in entries:
            table.clear()
            table.update(pairs)
