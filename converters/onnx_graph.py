"""ONNX: from torch.export, or through TorchScript where branches must be kept; run by ONNX Runtime.

The exporter embeds stack traces and file paths; they go to `*.debug.json` beside the model
(`onnx_debug.py`), so the shipped file names nobody's folders. Half precision is made from the FP32
model by `onnx_half.py`; an INT8 model comes with its Q/DQ nodes from a quantizer.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.capture import Capture
from ..core.contract import (
    EAGER,
    Array,
    Converted,
    Feed,
    Inspection,
    Job,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import ConversionError, UsageError
from ..core.precision import Precision
from ..core.probe import Probe
from ..core.records import Coverage
from ..core.signature import Signature
from . import onnx_coverage, probing_onnx
from .capture.eager import example_tensors, model_of
from .capture.program import Exported, Program, Scripted
from .capture.strategies import program_of
from .guarded import guarded
from .installed import versions
from .onnx_debug import write_sidecar
from .onnx_files import check_model, copy_sidecar, float_weights, save_model, set_metadata
from .onnx_half import to_half
from .onnx_runner import open_onnx
from .opened import refused

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import torch

NAME: str = "onnx"
SUMMARY: str = "ONNX model, with a debug sidecar from node to module and source line"
SUFFIX: str = ".onnx"
MADE_FROM: Mapping[Precision, str] = {
    Precision.FP32: EAGER,
    Precision.FP16: "onnx",
    Precision.BF16: "onnx",
    Precision.INT8: "onnx",
}
CAPTURES: tuple[Capture, ...] = (Capture.EXPORT, Capture.SCRIPT, Capture.TRACE)
DEVICES: tuple[str, ...] = ("cpu", "cuda")

DEFAULT_OPSET = 20  # torch 2.13's own default; INT8 tools need 19 or more
OPSETS = range(18, 24)  # what torch.onnx.export(dynamo=True) writes without down-conversion
LEGACY_MAX_OPSET = 20  # the TorchScript exporter's last
_FIRST_KEY = b"\x08"  # protobuf's key of field 1, a varint; writers keep the order of the fields
_DRAFT = "draft"  # where the TorchScript exporter writes; weights may be read from it until saved


def readiness() -> Readiness:
    """Whether onnx, onnxscript and an ONNX Runtime are installed."""
    found = versions("onnx", "onnxscript", "onnxruntime-gpu", "onnxruntime")
    runtime = found.get("onnxruntime-gpu") or found.get("onnxruntime")
    if runtime is None or "onnxscript" not in found or "onnx" not in found:
        return Readiness(
            ready=False,
            reason="onnx, onnxscript or onnxruntime is not installed",
            mend="pip install onnx onnxscript onnxruntime",
        )
    return Readiness(ready=True, version=f"onnx {found['onnx']}, onnxruntime {runtime}")


def claims(path: Path) -> bool:
    """An .onnx file that starts as a ModelProto does: with the key of its `ir_version`."""
    if path.suffix != SUFFIX or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(1) == _FIRST_KEY


def convert(job: Job) -> Converted:
    """Capture, clean, save, check. External data beyond 2 GiB, or at will.

    From a parent: FP16 and BF16 by AutoCast, INT8 as the quantizer made it.
    """
    if job.parent is not None:
        return _derived(job, job.parent)
    opset = _opset(job)
    model, taken = _capture(job, opset)
    scope = model_of(job).scope if isinstance(taken, Exported) or taken.call == "flat" else ""
    debug = write_sidecar(model, job.folder / f"{job.stem}.debug.json", scope=scope)
    set_metadata(model, job.metadata)
    path = job.folder / (job.stem + SUFFIX)
    files = (*save_model(model, path, external_data=job.external_data), (debug.name, "debug"))
    shutil.rmtree(job.folder / _DRAFT, ignore_errors=True)
    check_model(path)
    used = versions("torch", "onnx", "onnxscript", "onnx-ir")
    options = {"opset": str(model.opset_imports.get("", opset)), "ir": str(model.ir_version)}
    return Converted(
        files=files,
        versions=used,
        options=options,
        notes=taken.notes,
        frozen=taken.frozen if isinstance(taken, Scripted) else (),
        warned=taken.warned if isinstance(taken, Scripted) else (),
    )


def _opset(job: Job) -> int:
    opset = job.opset or DEFAULT_OPSET
    legacy = job.capture not in (Capture.EXPORT, Capture.EXPORT_STRICT)
    if opset not in OPSETS:
        raise UsageError(
            f"opset {opset} cannot be written",
            hint=f"choose {OPSETS.start} to {OPSETS.stop - 1}; the default is {DEFAULT_OPSET}",
        )
    if legacy and opset > LEGACY_MAX_OPSET:
        raise ConversionError(
            f"opset {opset} is beyond the TorchScript exporter, which ends at {LEGACY_MAX_OPSET}",
            hint=f"use --opset {LEGACY_MAX_OPSET}, or --capture export",
        )
    return opset


def _capture(job: Job, opset: int) -> tuple[onnx_ir.Model, Program]:
    taken = program_of(job)
    if isinstance(taken, Exported):
        return _from_export(job, opset, taken.program), taken
    return _from_torchscript(job, opset, taken.module), taken


def _from_export(job: Job, opset: int, captured: torch.export.ExportedProgram) -> onnx_ir.Model:
    """Through torch.export and the dynamo exporter; dims take the signature's names."""
    import torch

    program = guarded(
        "torch.onnx.export",
        lambda: torch.onnx.export(
            captured,
            dynamo=True,
            opset_version=opset,
            input_names=[spec.name for spec in job.signature.inputs],
            output_names=list(job.signature.outputs),
            verbose=False,
        ),
    )
    if program is None:
        raise ConversionError("torch.onnx.export gave no program", hint="try --capture script")
    names: dict[str | onnx_ir.SymbolicDim, str] = {}
    axes = job.signature.axes()
    for value in program.model.graph.inputs:
        for axis, name in axes.get(value.name or "", {}).items():
            dim = value.shape[axis] if value.shape is not None else None
            if dim is not None and not isinstance(dim, int):
                names.setdefault(dim, name)
    program.rename_axes(names)
    return program.model


def _from_torchscript(job: Job, opset: int, module: object) -> onnx_ir.Model:
    """Through the TorchScript exporter, which keeps `If` and `Loop`."""
    import onnx_ir
    import torch

    path = job.folder / _DRAFT / f"{job.stem}{SUFFIX}"
    path.parent.mkdir()
    guarded(
        "torch.onnx.export (TorchScript)",
        lambda: torch.onnx.export(
            module,  # type: ignore[arg-type]  # a ScriptModule is taken, the stub says Module
            example_tensors(job),
            str(path),
            dynamo=False,
            opset_version=opset,
            input_names=[spec.name for spec in job.signature.inputs],
            output_names=list(job.signature.outputs),
            dynamic_axes=job.signature.axes(),
        ),
    )
    return onnx_ir.load(path)


def _derived(job: Job, parent: Path) -> Converted:
    """The parent in half precision, or a quantizer's result under our name and record."""
    import onnx_ir

    path = job.folder / (job.stem + SUFFIX)
    if job.precision is not Precision.INT8:
        half = to_half(job, parent, path)
        return Converted(
            files=half.files, versions=half.versions, options=half.options, notes=half.notes
        )
    model = guarded("onnx_ir", lambda: onnx_ir.load(parent))
    set_metadata(model, job.metadata)
    files = save_model(model, path, external_data=job.external_data)
    check_model(path)
    options = {"opset": str(model.opset_imports.get("", "")), "ir": str(model.ir_version)}
    files = (*files, *copy_sidecar(parent, path))
    return Converted(files=files, versions=versions("onnx", "onnx-ir"), options=options)


def open_runner(path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG001 - contract
    """Open a session on the CPU or on CUDA; half precision is rounded in full on the CPU."""
    return open_onnx(path, device)


def open_probe(path: Path, signature: Signature) -> Probe:  # noqa: ARG001 - contract
    """Look into the model in ONNX Runtime on the CPU."""
    return probing_onnx.open_probe(path)


def weights(path: Path) -> Iterator[Array]:
    """The float32 tensors of the graph."""
    return float_weights(path)


def inspect(path: Path) -> Inspection:
    """Read the graph without its external weights."""
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise refused("onnx", error) from error
    weights: Counter[str] = Counter()
    for tensor in model.graph.initializer:
        elements = 1
        for size in tensor.dims:
            elements *= size
        weights[_dtype(tensor.data_type)] += elements
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import)
    producer = f"{model.producer_name} {model.producer_version}".strip()
    operators = _operators(model.graph)
    return Inspection(
        target=NAME,
        inputs=tuple(_tensor_info(value) for value in model.graph.input),
        outputs=tuple(_tensor_info(value) for value in model.graph.output),
        facts={"opset": opsets, "ir version": str(model.ir_version), "producer": producer},
        weights=weights,
        operators=operators,
        metadata={entry.key: entry.value for entry in model.metadata_props},
        quantized="QuantizeLinear" in operators,
    )


def coverage(path: Path, example: Feed, device: str) -> Coverage:  # noqa: ARG001 - types are fixed
    """The dtypes of the compute layers, as the file says."""
    return onnx_coverage.coverage(path, example)


def _operators(graph: onnx.GraphProto) -> Counter[str]:
    """Operator counts of a graph and of the graphs inside its nodes."""
    counts: Counter[str] = Counter()
    for node in graph.node:
        counts[node.op_type] += 1
        for attribute in node.attribute:
            if attribute.HasField("g"):
                counts.update(_operators(attribute.g))
    return counts


def _dtype(code: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(code)).lower()


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    tensor = value.type.tensor_type
    dims = tuple(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in tensor.shape.dim
    )
    return TensorInfo(name=value.name, dtype=_dtype(tensor.elem_type), dims=dims)
