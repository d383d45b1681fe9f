"""ONNX: from torch.export, or through TorchScript where branches must be kept; run by ONNX Runtime.

The exporter embeds stack traces and file paths; they go to `*.debug.json` beside the model
(`onnx_debug.py`), so the shipped file names nobody's folders.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.capture import Capture
from ..core.contract import (
    EAGER,
    Branch,
    Converted,
    Feed,
    Inspection,
    Job,
    Outputs,
    Readiness,
    Runner,
    TensorInfo,
)
from ..core.errors import ConversionError, MissingError, RunnerError, UsageError
from ..core.precision import Precision
from ..core.signature import Signature
from .capturing import example_tensors, exported, guarded, model_of, scripted, traced, versions
from .onnx_debug import write_sidecar
from .opened import OpenedModel, lines_of, present, refused

if TYPE_CHECKING:
    import onnx
    import onnx_ir
    import onnxruntime

NAME: str = "onnx"
SUMMARY: str = "ONNX model, with a debug sidecar from node to module and source line"
SUFFIX: str = ".onnx"
MADE_FROM: str = EAGER
CAPTURES: tuple[Capture, ...] = (Capture.EXPORT, Capture.SCRIPT, Capture.TRACE)
PRECISIONS: tuple[Precision, ...] = (Precision.FP32,)
DEVICES: tuple[str, ...] = ("cpu", "cuda")

DEFAULT_OPSET = 20  # torch 2.13's own default; INT8 tools need 19 or more
OPSETS = range(18, 24)  # what torch.onnx.export(dynamo=True) writes without down-conversion
LEGACY_MAX_OPSET = 20  # the TorchScript exporter's last
PROTOBUF_LIMIT = 2**31 - 2**24  # weights beyond this, less room for the graph, go to a .data file
_FIRST_KEY = b"\x08"  # protobuf's key of field 1, a varint; writers keep the order of the fields
_DRAFT = "draft"  # where the TorchScript exporter writes; weights may be read from it until saved
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


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
    """Capture, clean, save, check. External data beyond 2 GiB, or at will."""
    opset = _opset(job)
    model, frozen = _capture(job, opset)
    scope = "" if job.capture is Capture.SCRIPT else model_of(job).scope
    debug = write_sidecar(model, job.folder / f"{job.stem}.debug.json", scope=scope)
    model.metadata_props.update({f"modelc.{key}": value for key, value in job.metadata.items()})
    files = (*_save(model, job), (debug.name, "debug"))
    shutil.rmtree(job.folder / _DRAFT, ignore_errors=True)
    _check(job.folder / files[0][0])
    used = versions("torch", "onnx", "onnxscript", "onnx-ir")
    options = {"opset": str(model.opset_imports.get("", opset)), "ir": str(model.ir_version)}
    return Converted(files=files, versions=used, options=options, frozen=frozen)


def _opset(job: Job) -> int:
    opset = job.opset or DEFAULT_OPSET
    legacy = job.capture is not Capture.EXPORT
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


def _capture(job: Job, opset: int) -> tuple[onnx_ir.Model, tuple[Branch, ...]]:
    if job.capture is Capture.EXPORT:
        return _from_export(job, opset), ()
    if job.capture is Capture.SCRIPT:
        return _from_torchscript(job, opset, scripted(job)), ()
    module, frozen = traced(job)
    return _from_torchscript(job, opset, module), frozen


def _from_export(job: Job, opset: int) -> onnx_ir.Model:
    """Through torch.export and the dynamo exporter; dims take the signature's names."""
    import torch

    captured = exported(job)
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


def _save(model: onnx_ir.Model, job: Job) -> tuple[tuple[str, str], ...]:
    """Write the model; weights go to `<name>.onnx.data` when too big for one protobuf."""
    import onnx_ir

    name = job.stem + SUFFIX
    values = model.graph.initializers.values()
    total = sum(v.const_value.nbytes for v in values if v.const_value is not None)
    external = f"{name}.data" if job.external_data or total > PROTOBUF_LIMIT else None
    guarded(
        "the ONNX writer", lambda: onnx_ir.save(model, job.folder / name, external_data=external)
    )
    if external is not None and (job.folder / external).exists():
        return ((name, "model"), (external, "data"))
    return ((name, "model"),)


def _check(path: Path) -> None:
    """ONNX's own checker, with strict shape inference."""
    import onnx

    guarded("the ONNX checker", lambda: onnx.checker.check_model(str(path), full_check=True))


def open_runner(path: Path, device: str, signature: Signature) -> Runner:  # noqa: ARG001 - contract
    """Open a session on the CPU, or on CUDA where its provider really loads."""
    import onnxruntime

    provider = _PROVIDERS[device]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    settings = {"use_tf32": "0"} if device == "cuda" else {}  # TF32 keeps 10 bits of mantissa
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[(provider, settings)])
    except Exception as error:
        raise _refused(error) from error
    if session.get_providers()[0] != provider:
        raise MissingError(
            f"ONNX Runtime could not load {provider} and fell back to the CPU",
            hint="use --device cpu, or install a CUDA that this onnxruntime-gpu was built for",
        )
    return OnnxRunner(session)


def _refused(error: Exception) -> RunnerError:
    """ONNX Runtime breaks its sentences into lines."""
    return refused("ONNX Runtime", error, " ".join(lines_of(error)))


class OnnxRunner(OpenedModel):
    """An ONNX Runtime session."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.inputs = tuple(value.name for value in session.get_inputs())
        self._outputs = [value.name for value in session.get_outputs()]
        self._session: onnxruntime.InferenceSession | None = session

    def run(self, feed: Feed) -> Outputs:
        """Run the feed's arrays as they are."""
        if self._session is None:
            raise RuntimeError("the session is closed")
        given = dict(zip(self.inputs, present(feed, self.inputs), strict=True))
        try:
            values = self._session.run(self._outputs, given)
        except Exception as error:
            raise _refused(error) from error
        return dict(zip(self._outputs, values, strict=True))

    def close(self) -> None:
        """Drop the session and its memory."""
        self._session = None


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
    return Inspection(
        target=NAME,
        inputs=tuple(_tensor_info(value) for value in model.graph.input),
        outputs=tuple(_tensor_info(value) for value in model.graph.output),
        facts={"opset": opsets, "ir version": str(model.ir_version), "producer": producer},
        weights=weights,
        operators=_operators(model.graph),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


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
