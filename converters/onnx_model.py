"""ONNX: from torch.export, or through TorchScript if branches must be kept; run by ONNX Runtime.

Stack traces and file paths that the exporter embeds go to `*.debug.json` beside the model
(`onnx_origins.py`), so that the file reveals no folders. Half precision is made from the FP32 model
by `onnx_half.py`; an INT8 model comes with its Q/DQ nodes from a quantizer.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.captured_program import ExportCapture, ScriptCapture, model_of
from ..capture.framework_errors import call_framework
from ..checkpoints.quantized_program import rounds_in_program
from ..core.contract import (
    EAGER,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import ConversionError, Hint, Option, UsageError
from ..core.external_runtime import OpenedReference
from ..core.kinds import Capture, Precision
from ..core.records import Coverage
from ..core.segments import SegmentOptions, SegmentPlan
from ..core.signature import Signature
from ..core.target_extensions import DefaultOutputs, OpenedByDefault, Probe
from . import onnx_coverage, onnx_default_session, onnx_faults, onnx_probe, onnx_sessions
from .installed_packages import package_versions
from .onnx_block_rewriter import keep_integers
from .onnx_blocks import (
    BLOCK_PRODUCT,
    check_float_weights,
    count_block_elements,
    precision_of_blocks,
    read_integer_weights,
)
from .onnx_compatibility import choose_opset, combine_runtimes, lower_model
from .onnx_domain_guard import add_guard
from .onnx_files import (
    check_model,
    copy_sidecar,
    float_weights,
    name_files,
    read_onnx_metadata,
    save_model,
    set_metadata,
)
from .onnx_guard import read_graph
from .onnx_half import convert_to_half
from .onnx_half_emulation import widen_half_regions
from .onnx_origins import write_sidecar
from .onnx_quantized_ops import read_quantization_steps
from .onnx_sessions import (
    is_judged_by_copy,
    list_deployments,  # noqa: F401 - contract
    note_mapped_weights,
    open_onnx,
    open_onnx_by_default,
    session_settings,
)
from .onnx_topology import all_nodes

if TYPE_CHECKING:
    import onnx
    import onnx_ir

NAME: str = "onnx"
SUMMARY: str = "ONNX model, with a debug sidecar from node to module and source line"
SUFFIX: str = ".onnx"
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: EAGER,
    Precision.FP16: "onnx",
    Precision.BF16: "onnx",
    Precision.INT8: "onnx",
    Precision.INT8_WEIGHTS: "onnx",
    Precision.INT8_DYNAMIC: "onnx",
    Precision.INT4: "onnx",
}
CAPTURES: tuple[Capture, ...] = (
    Capture.EXPORT,
    Capture.EXPORT_STRICT,
    Capture.SCRIPT,
    Capture.MIXED,
    Capture.TRACE,
)
DEVICES: tuple[str, ...] = ("cpu", "cuda")
PLANTS_BY_DEFAULT: bool = True
plant_fault = onnx_faults.plant_fault
judge_settings = session_settings
weights = float_weights
integer_weights = read_integer_weights
quantization_steps = read_quantization_steps
read_metadata = read_onnx_metadata

DEFAULT_OPSET = 20  # torch 2.13's default; INT8 tools require 19 or later
OPSETS = range(18, 24)  # what torch.onnx.export(dynamo=True) writes without down-conversion
LEGACY_MAX_OPSET = 20  # the TorchScript exporter's last
# Convolutions lack bfloat16 before 22, Q/DQ lack 8-bit floats before 19, and blocks before 21.
LEAST_OPSETS = {Precision.BF16: 22, Precision.FP8: 19, Precision.INT4: 21}
_FIRST_KEY = b"\x08"  # protobuf's key of field 1, a varint; writers keep the order of fields


def readiness() -> Readiness:
    """Return whether onnx, onnxscript and an ONNX Runtime are installed."""
    found = package_versions("onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime")
    runtime = found.get("onnxruntime-gpu") or found.get("onnxruntime")
    if runtime is None or "onnxscript" not in found or "onnx" not in found:
        return Readiness(
            ready=False,
            reason="onnx, onnxscript or onnxruntime is not installed",
            mend="pip install onnx onnxscript onnxruntime",
        )
    return Readiness(ready=True, version=f"onnx {found['onnx']}, onnxruntime {runtime}")


def claims(path: Path) -> bool:
    """Return whether it is an .onnx file that starts with the key of `ir_version`."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(1) == _FIRST_KEY


def convert(job: Job) -> Converted:
    """Capture, clean, save and check; external data beyond 2 GiB or on request.

    From a parent: FP16 and BF16 by AutoCast, integers as the quantizer made them.
    """
    if job.parent is not None:
        return _convert_parent(job, job.parent)
    opset = _choose_opset(job)
    from .onnx_exporters import DRAFT_STEM, export_onnx, name_output_axes

    model, source = export_onnx(job, opset)
    name_output_axes(model, job.output_axes)
    scope = (
        model_of(job).scope if isinstance(source, ExportCapture) or source.call == "flat" else ""
    )
    debug = write_sidecar(model, job.folder / f"{job.stem}.debug.json", scope=scope)
    set_metadata(model, job.metadata)
    conditions = add_guard(model, job.signature) if job.guard else 0
    path = job.folder / (job.stem + SUFFIX)
    save_model(model, path, external_data=job.external_data)
    shutil.rmtree(job.folder / DRAFT_STEM, ignore_errors=True)
    kept = keep_integers(path, model_of(job).module, job.folder)
    files = (*name_files(path), (debug.name, "debug"))
    options = {"opset": str(model.opset_imports.get("", opset)), "ir": str(model.ir_version)}
    if conditions:
        options["guard"] = str(conditions)
    notes = widen_half_regions(path)
    options |= lower_model(path, job.runtimes)
    check_model(path)
    used = package_versions("torch", "onnx", "onnxscript", "onnx-ir")
    return Converted(
        files=files,
        versions=used,
        options=options,
        notes=(*source.notes, *notes, *kept, *note_mapped_weights(path)),
        judged_as=Precision.INT8 if rounds_in_program(model_of(job).module) else None,
        frozen=source.frozen if isinstance(source, ScriptCapture) else (),
        warned=source.warned if isinstance(source, ScriptCapture) else (),
        places=source.places if isinstance(source, ExportCapture) else (),
    )


def _choose_opset(job: Job) -> int:
    opset = _opset_in_range(job.opset, job.runtimes, last=_newest_opset(job.capture))
    if opset > _newest_opset(job.capture):
        raise ConversionError(
            f"--opset {opset} is beyond the TorchScript exporter's {LEGACY_MAX_OPSET}",
            hint=Hint(
                "use ", Option("opset", f"{LEGACY_MAX_OPSET}"), ", or ", Option("capture", "export")
            ),
            option="opset",
        )
    return opset


def _newest_opset(capture: Capture | None) -> int:
    """Return the newest opset that the exporter of a capture writes."""
    by_program = capture in (Capture.EXPORT, Capture.EXPORT_STRICT)
    return OPSETS.stop - 1 if by_program else LEGACY_MAX_OPSET


def _opset_in_range(asked: int | None, runtimes: Sequence[str], *, last: int) -> int:
    opset = choose_opset(asked, runtimes, default=DEFAULT_OPSET, last=last)
    if opset not in OPSETS:
        raise UsageError(
            f"--opset {opset} is not supported",
            hint=f"choose {OPSETS.start} to {OPSETS.stop - 1}; the default is {DEFAULT_OPSET}",
        )
    return opset


def plan_opset(asked: int | None, runtimes: Sequence[str], precision: Precision) -> str:
    """Return the plan's note on the opset, before anything is converted.

    Args:
        asked: `--opset`.
        runtimes: `--for`.
        precision: of the artifact.

    Raises:
        UsageError: the exporter cannot write that opset, or the runtimes cannot load it.
    """
    allowed = combine_runtimes(runtimes)
    opset = max(
        _opset_in_range(asked, runtimes, last=OPSETS.stop - 1), LEAST_OPSETS.get(precision, 0)
    )
    if allowed is None:
        return ""
    if opset > allowed.limits.opset:
        raise UsageError(
            f"{precision} requires opset {opset}, which is newer than --for allows: {allowed}",
            hint=Hint("name a later release with ", Option("for"), ", or another precision"),
            option="for",
        )
    return f"opset {opset}: loads in {allowed}"


def _convert_parent(job: Job, parent: Path) -> Converted:
    """Convert the parent to half precision, or adopt a quantizer's result."""
    import onnx_ir

    path = job.folder / (job.stem + SUFFIX)
    if job.precision in (Precision.FP16, Precision.BF16):
        check_float_weights(parent, "AutoCast")
        return convert_to_half(job, parent, path)
    model = call_framework("onnx_ir", lambda: onnx_ir.load(parent))
    return adopt_model(job, model, parent, path)


def adopt_model(job: Job, model: onnx_ir.Model, parent: Path, path: Path) -> Converted:
    """Write the parent's model with our metadata to `path`, and its sidecar beside it."""
    set_metadata(model, job.metadata)
    files = save_model(model, path, external_data=job.external_data)
    options = {"opset": str(model.opset_imports.get("", "")), "ir": str(model.ir_version)}
    options |= lower_model(path, job.runtimes)
    check_model(path)
    files = (*files, *copy_sidecar(parent, path))
    used = package_versions("onnx", "onnx-ir")
    notes = note_mapped_weights(path)
    return Converted(files=files, versions=used, options=options, notes=notes)


def open_runner(path: Path, device: str, signature: Signature) -> Runner:
    """Open a session on the CPU or on CUDA; the CPU rounds half precision exactly."""
    return open_onnx(path, device, signature)


def open_reference(path: Path) -> OpenedReference:
    """Open a file as the reference of other artifacts, without graph optimisations."""
    from .onnx_reference import OnnxReference

    return OnnxReference(path)


def open_by_default(path: Path, device: str, signature: Signature) -> OpenedByDefault | None:  # noqa: ARG001 - contract
    """Open a session without options; None on the CPU, where that changes nothing."""
    return open_onnx_by_default(path, device)


def open_deployment(path: Path, deployment: str, device: str, signature: Signature) -> Runner:  # noqa: ARG001 - contract
    """Open the file itself on an execution provider, by its name in benchmarks."""
    return onnx_sessions.open_deployment(path, deployment, device)


def run_by_default(path: Path, device: str, feeds: Sequence[Feed]) -> DefaultOutputs | None:
    """Run a half-precision file itself on the CPU, where a float32 copy is judged in its place."""
    if device != "cpu" or not is_judged_by_copy(path):
        return None
    return onnx_default_session.run_by_default(path, feeds)


def open_probe(path: Path, signature: Signature) -> Probe:  # noqa: ARG001 - contract
    """Open the model for probing in ONNX Runtime on the CPU."""
    return onnx_probe.open_probe(path)


def plan_path(path: Path, options: SegmentOptions) -> SegmentPlan:
    """Return the engines that ONNX Runtime's TensorRT provider would make of the model.

    Raises:
        ConversionError: it cannot be read.
        UsageError: an option is of torch-tensorrt.
    """
    from .trt.onnx_segments import plan_onnx

    return plan_onnx(path, options)


def inspect(path: Path) -> Inspection:
    """Describe the graph without reading its external weights."""
    model = read_graph(path)
    elements: Counter[str] = Counter()
    held = {tensor.name for tensor in model.graph.initializer}  # inputs of files before IR 4 too
    packed = count_block_elements(model)
    for tensor in model.graph.initializer:
        plain = _dtype_name(tensor.data_type), prod(tensor.dims)
        dtype, count = packed.get(tensor.name, plain)
        elements[dtype] += count
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    operators = Counter(node.op_type for node in all_nodes(model.graph))
    return Inspection(
        target=NAME,
        inputs=tuple(_tensor_info(value) for value in model.graph.input if value.name not in held),
        outputs=tuple(_tensor_info(value) for value in model.graph.output),
        facts={"opset": opsets, "ir version": str(model.ir_version), "producer": producer},
        weights=elements,
        operators=operators,
        metadata={entry.key: entry.value for entry in model.metadata_props},
        quantized=_precision_of_layers(model, operators, elements),
    )


def _precision_of_layers(
    model: onnx.ModelProto, operators: Mapping[str, int], elements: Mapping[str, int]
) -> Precision | None:
    """Return the precision of the quantized layers by what is stored; None without any."""
    if BLOCK_PRODUCT in operators:
        blocks = [node for node in all_nodes(model.graph) if node.op_type == BLOCK_PRODUCT]
        found = {precision_of_blocks(node) for node in blocks}
        known = (Precision.INT4, Precision.INT8_DYNAMIC)
        return next((one for one in known if one in found), Precision.INT8_WEIGHTS)
    if not {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"} & set(operators):
        return None
    stored = {"float8e4m3fn": Precision.FP8, "int4": Precision.INT4, "uint4": Precision.INT4}
    return next((stored[name] for name in elements if name in stored), Precision.INT8)


def coverage(path: Path, example: Feed, device: str) -> Coverage:  # noqa: ARG001 - types are fixed
    """Return the dtypes of the compute layers according to the file."""
    return onnx_coverage.measure_coverage(path, example)


def _dtype_name(code: int) -> str:
    import onnx

    known = code in onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(code)).lower() if known else f"type {code}"


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.WhichOneof("value") or "tensor_type"
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return TensorInfo(name=value.name, dtype=f"{kind.removesuffix('_type')}(...)", dims=())
    tensor = value.type.tensor_type
    dims = tuple(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in tensor.shape.dim
    )
    return TensorInfo(name=value.name, dtype=_dtype_name(tensor.elem_type), dims=dims)
