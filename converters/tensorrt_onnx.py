"""ONNX ready for TensorRT: its types set the precision of the engine.

TensorRT 11 has no precision flags and no calibrators, and modelc uses 10 the same way: half tensors
stay half in the engine, and layers with Q/DQ compute in int8. ONNX Runtime judges this file, so
that only the engine itself needs a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..capture.framework_errors import call_framework
from ..core.contract import Converted, Feed, Inspection, Job, Readiness, Runner
from ..core.errors import ConversionError, ErrorCode, Hint, Option
from ..core.kinds import QUANTIZED, Capture, Precision
from ..core.records import Coverage
from ..core.segments import SegmentOptions, SegmentPlan
from ..core.signature import Signature
from ..core.target_extensions import Probe
from . import onnx_faults, onnx_model, onnx_probe
from .onnx_blocks import check_float_weights, read_integer_weights
from .onnx_half import QuantizedLayers, convert_to_half
from .onnx_half_ranges import read_with_names
from .onnx_origins import read_origins
from .onnx_topology import all_nodes
from .trt.qdq_rules import check_qdq, find_layer_groups, find_small_scales
from .trt.trt_findings import (
    Model,
    TrtSeverity,
    describe_findings,
    join_lines,
    log_findings,
)

NAME: str = "tensorrt-onnx"
SUMMARY: str = "ONNX that TensorRT reads unchanged: typed in FP16 or BF16, or with symmetric Q/DQ"
SUFFIX: str = ".trt.onnx"
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: "onnx",
    Precision.FP16: "onnx",
    Precision.BF16: "onnx",
    Precision.INT8: "onnx",
    Precision.FP8: "onnx",
    Precision.INT4: "onnx",
}
CAPTURES: tuple[Capture, ...] = ()
RESTS: tuple[Precision, ...] = (Precision.FP16, Precision.BF16, Precision.FP32)
DEVICES: tuple[str, ...] = ("cpu",)
PLANTS_BY_DEFAULT: bool = True
plant_fault = onnx_faults.plant_fault
integer_weights = read_integer_weights
_FIRST_KEY = b"\x08"  # protobuf's key of field 1, `ir_version`
_LOG = logging.getLogger(__name__)


def readiness() -> Readiness:
    """Check for the packages that write and run ONNX; TensorRT is not needed."""
    return onnx_model.readiness()


def claims(path: Path) -> bool:
    """Return whether a .trt.onnx file starts with the first key of a ModelProto."""
    if not path.name.endswith(SUFFIX) or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(1) == _FIRST_KEY


def convert(job: Job) -> Converted:
    """Lower to FP16 or BF16 with AutoCast; copy FP32, Q/DQ and engine-ready models.

    Raises:
        ConversionError: AutoCast failed, or TensorRT does not support the Q/DQ.
        UsageError: a `keep` pattern matches nothing.
    """
    if job.parent is None:
        raise RuntimeError("a tensorrt-onnx job needs a parent")
    check_float_weights(job.parent, "TensorRT")
    path = job.folder / (job.stem + SUFFIX)
    if job.precision in QUANTIZED and job.rest is not Precision.FP32:
        return _lower_rest(job, job.parent, path)
    if job.precision in (Precision.FP32, *QUANTIZED) or claims(job.parent):
        model, required = _load_model(job.parent), job.precision in QUANTIZED
        warnings = _raise_qdq_faults(model, job.parent, required=required)
        return replace(onnx_model.adopt_model(job, model, job.parent, path), notes=warnings)
    kept = _nodes_without_bf16(job.parent) if job.precision is Precision.BF16 else {}
    half = convert_to_half(job, job.parent, path, QuantizedLayers(keep=tuple(kept)))
    warnings = _raise_qdq_faults(_load_model(path), path, required=False)
    return replace(half, notes=(*half.notes, *_describe_kept(kept), *warnings))


# In BF16 the builder of TensorRT-RTX 1.7 fails on the first, and the parser rejects the second.
# Between casts both are built, and the builder may fuse the casts.
_WITHOUT_BF16 = frozenset({"ConvTranspose", "HardSwish"})


def _nodes_without_bf16(parent: Path) -> dict[str, str]:
    """Return the nodes that TensorRT does not build in BF16, with their operators."""
    nodes = all_nodes(read_with_names(parent).graph)
    return {node.name: node.op_type for node in nodes if node.op_type in _WITHOUT_BF16}


def _describe_kept(kept: Mapping[str, str]) -> tuple[str, ...]:
    if not kept:
        return ()
    operators = ", ".join(sorted(set(kept.values())))
    return (f"kept in FP32, {len(kept)} nodes: TensorRT does not build {operators} in BF16",)


def _lower_rest(job: Job, parent: Path, path: Path) -> Converted:
    """Lower what the quantizer left in FP32; scales that FP16 holds badly stay FP32."""
    model = _load_model(parent)
    kept = _nodes_without_bf16(parent) if job.rest is Precision.BF16 else {}
    layers = QuantizedLayers(
        groups=find_layer_groups(model),
        keep=find_small_scales(model) if job.rest is Precision.FP16 else tuple(kept),
    )
    metadata = {**job.metadata, "rest": str(job.rest)}
    plain = replace(job, precision=job.rest, keep=(), metadata=metadata)
    lowered = convert_to_half(plain, parent, path, layers)
    warnings = _raise_qdq_faults(_load_model(path), path, required=True)
    return replace(
        lowered,
        options={**lowered.options, "rest": str(job.rest)},
        notes=(*lowered.notes, *_describe_kept(kept), *warnings),
    )


def plan_opset(asked: int | None, runtimes: Sequence[str], precision: Precision) -> str:
    """Plan the opset as for the parent ONNX."""
    return onnx_model.plan_opset(asked, runtimes, precision)


def _load_model(path: Path) -> Model:
    import onnx_ir

    return call_framework("onnx_ir", lambda: onnx_ir.load(path))


def _raise_qdq_faults(model: Model, path: Path, *, required: bool) -> tuple[str, ...]:
    """Return the warnings on a model's Q/DQ.

    Raises:
        ConversionError: with the errors, by node and module.
    """
    findings = check_qdq(model, read_origins(path), required=required)
    log_findings(findings, _LOG)
    errors = describe_findings(findings, TrtSeverity.ERROR)
    if errors:
        raise ConversionError(
            f"TensorRT does not support {path.name}: {join_lines(errors)}",
            hint=Hint(
                "quantize symmetrically to int8, without biases, or let modelc quantize: ",
                Option("calib", "DIR"),
            ),
            code=ErrorCode.UNSUPPORTED,
        )
    return describe_findings(findings, TrtSeverity.WARNING)


def open_runner(path: Path, device: str, signature: Signature) -> Runner:
    """Open the model in ONNX Runtime, which computes in its types and Q/DQ."""
    return onnx_model.open_runner(path, device, signature)


def open_probe(path: Path, signature: Signature) -> Probe:  # noqa: ARG001 - contract
    """Open a probe of the model in ONNX Runtime on the CPU."""
    return onnx_probe.open_probe(path)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of the job from the file."""
    return onnx_model.read_metadata(path)


def plan_path(path: Path, options: SegmentOptions) -> SegmentPlan:
    """Return the segments as of any ONNX."""
    return onnx_model.plan_path(path, options)


def inspect(path: Path) -> Inspection:
    """Inspect the file as any ONNX."""
    return replace(onnx_model.inspect(path), target=NAME)


def coverage(path: Path, example: Feed, device: str) -> Coverage | None:
    """Return the dtypes of the compute layers in the file."""
    return onnx_model.coverage(path, example, device)
