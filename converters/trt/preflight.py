"""The pre-flight: what TensorRT will not take of an ONNX model, said without TensorRT."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import Job, Preflight
from ...core.precision import Precision
from ...core.signature import Dim, Signature
from ..guarded import call_framework
from ..onnx_origins import read_origins
from .findings import Model, TrtFinding, TrtSeverity, describe_findings
from .graph_rules import RuleContext, double_findings, node_findings
from .memory import MemoryEstimate, estimate_memory
from .operators import LAST_OPSET, LEAST_OPSET, TABLE_OPSET, TABLE_SOURCE
from .options import EngineOptions, parse_options
from .profiles import find_unbounded, profiles_for
from .qdq import check_qdq

if TYPE_CHECKING:
    import onnx_ir

_LOG = logging.getLogger(__name__)
_VOLUME = 2**31 - 1  # elements of a tensor that kernels index with 32 bits


def run_preflight(job: Job) -> Preflight:
    """Look at the job's parent: operators, types, Q/DQ, dims, control flow, opset, memory.

    Everything found goes to the log; findings of one kind are one line of the result.

    Raises:
        ConversionError: the parent cannot be read.
    """
    if job.parent is None:
        raise RuntimeError("a pre-flight for TensorRT came without its ONNX parent")
    options = parse_options(job.settings)
    model = load_model(job.parent)
    memory = estimate_memory(model, profiles_for(job.signature, options.profiles), options)
    findings = (*_all_findings(model, job.parent, job, options), *_volume_findings(memory))
    for finding in findings:
        _LOG.log(
            logging.ERROR if finding.severity is TrtSeverity.ERROR else logging.WARNING,
            "%s",
            finding,
        )
    _LOG.info("memory, an estimate: %s", memory)
    return Preflight(
        blockers=describe_findings(findings, TrtSeverity.ERROR),
        warnings=describe_findings(findings, TrtSeverity.WARNING),
        memory=memory.total,
        source=TABLE_SOURCE,
    )


def load_model(path: Path) -> Model:
    """The model with the types and shapes of its tensors; weights are read when they are used."""
    import onnx_ir
    from onnx_ir.passes.common import ShapeInferencePass

    model = call_framework("onnx_ir", lambda: onnx_ir.load(path))
    # The types of what quantizers put in are not in their files. Nothing is lost where it fails.
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return model


def _all_findings(
    model: Model, path: Path, job: Job, options: EngineOptions
) -> Iterator[TrtFinding]:
    origins = read_origins(path)
    yield from _absent_files(model, path)
    yield from _opset_findings(model)
    yield from _dim_findings(model, job.signature, options)
    yield from node_findings(model, RuleContext(origins=origins, plugins=bool(options.plugins)))
    yield from check_qdq(model, origins, required=job.precision is Precision.INT8)
    yield from double_findings(model)


def _absent_files(model: Model, path: Path) -> Iterator[TrtFinding]:
    """Weights that lie in files which are not there."""
    for place in dict.fromkeys(
        _external_file(value) for value in model.graph.initializers.values()
    ):
        if place is not None and not place.is_file():
            yield TrtFinding(
                severity=TrtSeverity.ERROR,
                what=f"the weights of {path.name} are in {place.name}, which is not beside it",
            )


def _external_file(value: onnx_ir.Value) -> Path | None:
    import onnx_ir

    tensor = value.const_value
    return Path(tensor.path) if isinstance(tensor, onnx_ir.ExternalTensor) else None


def _opset_findings(model: Model) -> Iterator[TrtFinding]:
    opset = model.opset_imports.get("", LEAST_OPSET)
    if opset > LAST_OPSET:
        yield TrtFinding(
            severity=TrtSeverity.ERROR,
            what=f"opset {opset} is beyond the parser's, which ends at {LAST_OPSET}: use --opset",
        )
    elif opset > TABLE_OPSET:
        yield TrtFinding(
            severity=TrtSeverity.WARNING,
            what=f"opset {opset} is for TensorRT 11; TensorRT 10 ends at {TABLE_OPSET}",
        )
    elif opset < LEAST_OPSET:
        yield TrtFinding(
            severity=TrtSeverity.WARNING,
            what=f"opset {opset} is older than {LEAST_OPSET}, the first that the parser supports",
        )


def _dim_findings(
    model: Model, signature: Signature, options: EngineOptions
) -> Iterator[TrtFinding]:
    """Dims that vary need bounds, and must vary in the model too."""
    shapes = {value.name: value.shape for value in model.graph.inputs}
    for spec in signature.inputs:
        shape = shapes.get(spec.name)
        for index, dim in enumerate(spec.dims):
            size = shape[index] if shape is not None and index < len(shape) else None
            if isinstance(size, int) and not _fits_dim(size, dim):
                yield TrtFinding(
                    severity=TrtSeverity.ERROR,
                    what=f"dim {index} of {spec.name} is {size} in the model, not {dim}",
                )
    for line in find_unbounded(signature, options.profiles):
        yield TrtFinding(severity=TrtSeverity.ERROR, what=line)


def _fits_dim(size: int, dim: Dim) -> bool:
    """Whether a fixed dim of the model is what the signature says."""
    return dim.opt == size and not dim.dynamic


def _volume_findings(memory: MemoryEstimate) -> Iterator[TrtFinding]:
    if memory.largest > _VOLUME:
        yield TrtFinding(
            severity=TrtSeverity.WARNING,
            what=f"{memory.largest_name} has {memory.largest:,} elements at the largest sizes; "
            f"many kernels end at {_VOLUME:,}",
        )
    if memory.unknown:
        yield TrtFinding(
            severity=TrtSeverity.WARNING,
            what=f"the sizes of {memory.unknown} tensors depend on data; the memory estimate "
            "leaves them out",
        )
