"""NVIDIA's ModelOpt: places Q/DQ where TensorRT fuses, symmetric; the rest stays in float32.

In INT4 only weights of matrix products are quantized, in blocks along the axis that is summed.

Not offered for ONNX Runtime's CPU: its convolutions return floats there, which no integer kernel
does, and the ResNet-50-sized result is slower than the float model (59 ms against 40).
"""

from __future__ import annotations

import importlib
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...core.contract import Quantized, QuantizeJob, Readiness
from ...core.kinds import Precision
from ..installed_packages import package_versions
from ..onnx_topology import all_nodes, load_model
from .qdq_finishing import QuantizedBy, finish_model
from .quantization_checks import (
    ActivationStats,
    NothingQuantizedError,
    find_lost_tensors,
    observe_activations,
)
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
# `awq` scales input channels by the size of their activations; `rtn` rounds to nearest.
_WEIGHT_METHODS = {"awq": "awq_lite", "rtn": "rtn_dq"}
METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {
    ("tensorrt-onnx", Precision.INT8): _METHODS,
    ("openvino", Precision.INT8): _METHODS,
    ("tensorrt-onnx", Precision.FP8): ("max",),
    ("tensorrt-onnx", Precision.INT4): tuple(_WEIGHT_METHODS),
}
DATA_FREE: frozenset[tuple[str, Precision]] = frozenset()
SAMPLE_METHODS: Mapping[tuple[str, Precision], tuple[str, ...]] = {}

_OPSET = 19  # ModelOpt's minimum for scales in half precision
_BLOCK_OPSET = 21  # the first with scales by block
_BLOCKS = (128, 64)  # the sizes that TensorRT supports
_NOT_OBSERVED = ActivationStats(useful={}, means={})  # biases are corrected for INT8 alone
# imports of its `onnx` extra; not cupy (300 MB of CUDA), which only INT4 uses
_NEEDS = ("nvidia-modelopt", "onnx-graphsurgeon", "onnxslim", "lief")
_PACKAGES = ("nvidia-modelopt", "onnxruntime-gpu", "onnxruntime", "onnx")
_EXTENSIONS = "modelopt.onnx.quantization.extensions"
_WEIGHT_PRODUCTS = ("Gemm", "MatMul")
_MATRIX = 2  # number of dims
_ODD = "their weights are no matrices of float32"
_TENSORRT = "tensorrt-onnx"
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
    """Calibrate over all samples, and in INT8 again without tensors that the scales destroy.

    Raises:
        ConversionError: ModelOpt rejected the model, or its result cannot be right.
    """
    method = choose_method(job, METHODS)
    if job.precision is Precision.INT4:
        return _quantize_weights(job, method)
    place = create_workspace(job, opset=_OPSET)
    samples = calibration_samples(job, _model_inputs(place))
    odd = _find_odd_weights(place) if job.consumer == _TENSORRT else ()
    asked, job = job, replace(job, method=method, keep=(*job.keep, *odd))
    made = _quantize_model(job, place, samples)
    origin = QuantizedBy(quantizer=NAME, packages=_PACKAGES, method=method)
    if job.precision is Precision.FP8:  # a mask's fill costs floats no steps
        origin = replace(origin, activations="fp8", weights="fp8 per channel")
        return _add_note(finish_model(made, asked, place, _NOT_OBSERVED, origin), _ODD, odd)
    activations = observe_activations(place, made, samples)
    lost = sorted({n for gone in find_lost_tensors(made, activations.useful) for n in gone.readers})
    if lost:
        made = _quantize_model(replace(job, keep=(*job.keep, *lost)), place, samples)
    result = finish_model(made, asked, place, activations, replace(origin, lost=lost))
    return _add_note(result, _ODD, odd)


def _add_note(result: Quantized, reason: str, names: Collection[str]) -> Quantized:
    """Add a note on the named nodes that stay in floating point, if there are any."""
    note = f"kept in floating point, as {reason}: {', '.join(names)}"
    return replace(result, notes=(*result.notes, note)) if names else result


def _find_odd_weights(place: QuantizerWorkspace) -> tuple[str, ...]:
    """Return the matrix products whose weights are no matrices of float32, by node name.

    ModelOpt takes every weight for a matrix: of a batch of matrices it scales the rows. TensorRT
    requires the columns. Of float64 it makes scales of float64, which ONNX does not have.
    """
    graph = load_model(place.model).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found = {
        node.name: constants[node.input[1]]
        for node in graph.node
        if node.op_type in _WEIGHT_PRODUCTS and node.input[1] in constants
    }
    return tuple(name for name, weight in found.items() if not _is_matrix(weight))


def _is_matrix(weight: onnx.TensorProto) -> bool:
    """Return whether weights are a matrix of float32."""
    return len(weight.dims) == _MATRIX and weight.data_type == weight.FLOAT


def _model_inputs(place: QuantizerWorkspace) -> tuple[str, ...]:
    import onnx

    graph = onnx.load(str(place.model), load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    return tuple(value.name for value in graph.input if value.name not in constants)


def _quantize_model(
    job: QuantizeJob, place: QuantizerWorkspace, samples: CalibrationSamples
) -> onnx.ModelProto:
    """Return the Q/DQ model in memory, the same for every consumer of the run."""
    import onnx

    path = place.folder / "quantized.onnx"

    def quantize() -> bytes:
        call_quietly("ModelOpt", lambda: _call_modelopt(job, place, path, samples))
        return b"" if place.external else path.read_bytes()

    if place.external or _has_branches(place):  # too large to be kept, or not the same twice
        quantize()
        return onnx.load(str(path))
    content = place.recall((NAME, job.precision, job.method, job.keep), quantize)
    return onnx.load_from_string(content)


def _has_branches(place: QuantizerWorkspace) -> bool:
    """Return whether nodes have graphs of their own; the shapes that ModelOpt notes there vary."""
    graph = load_model(place.model).graph
    return any(one.HasField("g") for node in graph.node for one in node.attribute)


def _call_modelopt(
    job: QuantizeJob, place: QuantizerWorkspace, path: Path, samples: CalibrationSamples
) -> None:
    modelopt = importlib.import_module("modelopt.onnx.quantization")  # it has no types
    model, reader = str(place.model.absolute()), CalibrationReader(samples, job.signature)
    path = path.absolute()
    # where its shape inference fails, it writes into the current folder
    with _restore_onnxruntime(), chdir(place.folder):
        modelopt.quantize(
            model,
            quantize_mode=str(job.precision),
            calibration_data_reader=reader,
            calibration_method=job.method,
            calibration_eps=["cpu"],
            nodes_to_exclude=_exact_patterns(job.keep),
            use_external_data_format=place.external,
            output_path=str(path),
            high_precision_dtype="fp32",
            log_level="CRITICAL",  # it logs an error on every machine without a GPU
        )


def _exact_patterns(names: Iterable[str]) -> list[str]:
    """Return patterns for ModelOpt, which matches them at the start of a name."""
    return [rf"{re.escape(name)}\Z" for name in names]


def _quantize_weights(job: QuantizeJob, method: str) -> Quantized:
    """Quantize the weights of matrix products to INT4, in blocks of the rows that are summed.

    Products whose rows are no multiple of a block stay in floating point.

    Raises:
        ConversionError: ModelOpt rejected the model, or no product can be quantized.
    """
    place = create_workspace(job, opset=_BLOCK_OPSET)
    rows = _prepare_weights(place)
    block = next((b for b in _BLOCKS if all(n % b == 0 for n in rows.values())), _BLOCKS[-1])
    odd = sorted(name for name, count in rows.items() if not count or count % block)
    if not set(rows) - {*odd, *job.keep}:
        raise NothingQuantizedError(
            f"no matrix product has weights whose rows are a multiple of {_BLOCKS[-1]}",
            kept=bool(job.keep),
        )
    samples = calibration_samples(job, _model_inputs(place))
    made = _call_weight_quantizer(place, block, method, samples, (*job.keep, *odd))
    origin = QuantizedBy(
        quantizer=NAME, packages=_PACKAGES, method=method, activations="float",
        weights=f"int4 in blocks of {block}",
    )  # fmt: skip
    reason = f"their weights are no float32 matrix whose rows are a multiple of {block}"
    return _add_note(finish_model(made, job, place, _NOT_OBSERVED, origin), reason, odd)


def _prepare_weights(place: QuantizerWorkspace) -> dict[str, int]:
    """Give each product weights of its own, not transposed; return the number of their rows.

    ModelOpt 0.47 scales along the first axis, whichever it is. Its `awq` scales weights that two
    products share, and then the data of one of them alone.
    """
    import onnx
    from onnx import numpy_helper

    model = place.load()
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = Counter(name for node in all_nodes(model.graph) for name in node.input)
    rows: dict[str, int] = {}
    for node in model.graph.node:
        weight = constants.get(node.input[1]) if node.op_type in _WEIGHT_PRODUCTS else None
        if weight is None:
            continue
        if not _is_matrix(weight):
            rows[node.name] = 0  # ModelOpt would scale along the first axis, whatever it is
            continue
        turned = next((one for one in node.attribute if one.name == "transB" and one.i), None)
        array = numpy_helper.to_array(weight)
        if turned is not None:
            turned.i, array = 0, array.T.copy()
        if turned is not None or readers[weight.name] > 1:
            node.input[1] = f"{weight.name}::{node.name}"
            model.graph.initializer.append(numpy_helper.from_array(array, node.input[1]))
        rows[node.name] = array.shape[0]
    read = {name for node in all_nodes(model.graph) for name in node.input}
    read |= {value.name for value in model.graph.output}
    unread = [one for one in model.graph.initializer if one.name not in read]
    for tensor in unread:
        model.graph.initializer.remove(tensor)
    data = f"{place.model.name}.turned" if place.external else None
    onnx.save(model, str(place.model), save_as_external_data=place.external, location=data)
    return rows


def _call_weight_quantizer(
    place: QuantizerWorkspace,
    block: int,
    method: str,
    samples: CalibrationSamples,
    keep: tuple[str, ...],
) -> onnx.ModelProto:
    # its module of C++ compiles itself into site-packages; without it, Python packs the bits
    sys.modules.setdefault(_EXTENSIONS, ModuleType(_EXTENSIONS))
    sys.modules[_EXTENSIONS].__dict__.setdefault("round_and_pack_ext", None)
    modelopt = importlib.import_module("modelopt.onnx.quantization")  # it has no types
    model = str(place.model.absolute())
    feeds = list(samples) if method == "awq" else []

    def quantize() -> onnx.ModelProto:
        made: onnx.ModelProto = modelopt.quantize_int4(
            model,
            calibration_method=_WEIGHT_METHODS[method],
            calibration_data_reader=feeds,
            calibration_eps=["cpu"],
            use_external_data_format=place.external,
            use_zero_point=False,
            block_size=block,
            nodes_to_exclude=_exact_patterns(keep),
            awqlite_fuse_nodes=False,  # 0.47 reads the fused scales as arrays of CuPy
            log_level="CRITICAL",
        )
        return made

    with chdir(place.folder):
        return call_quietly("ModelOpt", quantize)


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
