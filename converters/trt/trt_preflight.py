"""The preflight: find what TensorRT rejects in an ONNX model, without TensorRT."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...capture.framework_errors import call_framework
from ...core.contract import Job, Preflight
from ...core.kinds import Precision
from ...core.signature import Dim, Signature
from ..onnx_origins import NodeOrigin, read_origins
from .engine_options import EngineOptions, find_unbounded, parse_options, profiles_for
from .parser_support import (
    BODIES,
    DATA_DEPENDENT,
    DATA_INPUTS,
    LAST_OPSET,
    LEAST_OPSET,
    OWN_DOMAINS,
    REFUSED,
    SUPPORTED,
    SUPPORTED_TYPES,
    TABLE_OPSET,
    TABLE_SOURCE,
    TABLE_VERSION,
    find_violations,
    is_standard_plugin,
)
from .qdq_rules import check_qdq
from .trt_findings import (
    DEQUANTIZE,
    QUANTIZE,
    Model,
    Node,
    TrtFault,
    TrtFinding,
    TrtSeverity,
    Value,
    constant_tensor,
    describe_findings,
    domain_of,
    node_place,
)
from .trt_memory import MemoryEstimate, estimate_memory

if TYPE_CHECKING:
    import onnx_ir

_LOG = logging.getLogger(__name__)
_VOLUME = 2**31 - 1  # elements of a tensor that kernels index with 32 bits


def run_preflight(job: Job) -> Preflight:
    """Check the job's parent: operators, types, Q/DQ, dims, control flow, opset, memory.

    Every finding is logged; the result has one line for each kind of finding.

    Raises:
        ConversionError: the parent cannot be read.
    """
    findings, memory = examine_parent(job)
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


def examine_parent(job: Job) -> tuple[tuple[TrtFinding, ...], MemoryEstimate]:
    """Return every finding in the job's parent, and the estimate of the engine's memory.

    Raises:
        ConversionError: the parent cannot be read.
    """
    if job.parent is None:
        raise RuntimeError("the TensorRT preflight needs an ONNX parent")
    options = parse_options(job.settings)
    model = load_model(job.parent)
    memory = estimate_memory(model, profiles_for(job.signature, options.profiles), options)
    return (*_all_findings(model, job.parent, job, options), *_volume_findings(memory)), memory


def load_model(path: Path) -> Model:
    """Load the model and infer types and shapes; weights are read on use."""
    import onnx_ir
    from onnx_ir.passes.common import ShapeInferencePass

    model = call_framework("onnx_ir", lambda: onnx_ir.load(path))
    # Quantizers leave out the types of the nodes that they insert. Inference may fail harmlessly.
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return model


def _all_findings(
    model: Model, path: Path, job: Job, options: EngineOptions
) -> Iterator[TrtFinding]:
    origins = read_origins(path)
    yield from _find_missing_files(model, path)
    yield from _opset_findings(model)
    yield from _dim_findings(model, job.signature, options)
    yield from node_findings(model, RuleContext(origins=origins, plugins=bool(options.plugins)))
    yield from check_qdq(model, origins, required=job.precision is Precision.INT8)
    yield from double_findings(model)


def _find_missing_files(model: Model, path: Path) -> Iterator[TrtFinding]:
    """Report external weight files that do not exist."""
    for place in dict.fromkeys(
        _external_file(value) for value in model.graph.initializers.values()
    ):
        if place is not None and not place.is_file():
            yield TrtFinding(
                fault=TrtFault.MISSING_WEIGHTS,
                severity=TrtSeverity.ERROR,
                what=f"the weights of {path.name} are in {place.name}, which does not exist",
            )


def _external_file(value: onnx_ir.Value) -> Path | None:
    import onnx_ir

    tensor = value.const_value
    return Path(tensor.path) if isinstance(tensor, onnx_ir.ExternalTensor) else None


def _opset_findings(model: Model) -> Iterator[TrtFinding]:
    opset = model.opset_imports.get("", LEAST_OPSET)
    if opset > LAST_OPSET:
        yield TrtFinding(
            fault=TrtFault.OPSET,
            severity=TrtSeverity.ERROR,
            what=f"opset {opset} is beyond the parser's, which ends at {LAST_OPSET}: use --opset",
        )
    elif opset > TABLE_OPSET:
        yield TrtFinding(
            fault=TrtFault.OPSET,
            severity=TrtSeverity.WARNING,
            what=f"opset {opset} is for TensorRT 11; TensorRT 10 ends at {TABLE_OPSET}",
        )
    elif opset < LEAST_OPSET:
        yield TrtFinding(
            fault=TrtFault.OPSET,
            severity=TrtSeverity.WARNING,
            what=f"opset {opset} is older than {LEAST_OPSET}, the first that the parser supports",
        )


def _dim_findings(
    model: Model, signature: Signature, options: EngineOptions
) -> Iterator[TrtFinding]:
    """Dynamic dims need bounds, and must be dynamic in the model too."""
    shapes = {value.name: value.shape for value in model.graph.inputs}
    for spec in signature.inputs:
        shape = shapes.get(spec.name)
        for index, dim in enumerate(spec.dims):
            size = shape[index] if shape is not None and index < len(shape) else None
            if isinstance(size, int) and not _fits_dim(size, dim):
                yield TrtFinding(
                    fault=TrtFault.FIXED_DIM,
                    severity=TrtSeverity.ERROR,
                    what=f"dim {index} of {spec.name} is {size} in the model, not {dim}",
                )
    for unbounded in find_unbounded(signature, options.profiles):
        yield TrtFinding(
            fault=TrtFault.UNBOUNDED_DIM,
            severity=TrtSeverity.ERROR,
            what=f"{unbounded.problem}: {unbounded.fix}",
        )


def _fits_dim(size: int, dim: Dim) -> bool:
    """Return whether a fixed dim of the model agrees with the signature."""
    return dim.opt == size and not dim.dynamic


def _volume_findings(memory: MemoryEstimate) -> Iterator[TrtFinding]:
    if memory.largest > _VOLUME:
        yield TrtFinding(
            fault=TrtFault.LARGE_TENSOR,
            severity=TrtSeverity.WARNING,
            what=f"{memory.largest_name} has {memory.largest:,} elements at the largest sizes; "
            f"many kernels end at {_VOLUME:,}",
        )
    if memory.unknown:
        yield TrtFinding(
            fault=TrtFault.UNKNOWN_SIZES,
            severity=TrtSeverity.WARNING,
            what=f"the sizes of {memory.unknown} tensors depend on data; the memory estimate "
            "leaves them out",
        )


_CASTS = frozenset({"Cast", "CastLike"})
_PAIR = frozenset({DEQUANTIZE, QUANTIZE})  # `qdq_rules.py` checks their types
_FLOAT_MAX = 3.4028234663852886e38  # of float32


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """Input of the rules besides the node; `plugins`: the user names plugin libraries."""

    origins: Mapping[str, NodeOrigin]
    plugins: bool = False

    def make_finding(
        self, node: Node, fault: TrtFault, what: str, *, sure: bool = True
    ) -> TrtFinding:
        """Make an error where the parser certainly rejects the node, else a warning."""
        return TrtFinding(
            fault=fault,
            severity=TrtSeverity.ERROR if sure else TrtSeverity.WARNING,
            what=what,
            place=node_place(node, self.origins),
        )


def node_findings(model: Model, context: RuleContext) -> Iterator[TrtFinding]:
    """Find every fault of every node, including those in bodies and model functions."""
    functions = {(function.domain, function.name) for function in model.functions.values()}
    nodes = [*model.graph.all_nodes()]
    for function in model.functions.values():
        nodes.extend(function.all_nodes())
    for node in nodes:
        if (node.domain, node.op_type) in functions:
            continue
        known = domain_of(node) == "" and node.op_type in SUPPORTED
        yield from _check_operator(node, context) if known else _unknown_operator(node, context)


def _unknown_operator(node: Node, context: RuleContext) -> Iterator[TrtFinding]:
    """An operator outside the table: TensorRT looks for a plugin of that name."""
    name, domain = node.op_type, domain_of(node)
    if domain in OWN_DOMAINS:
        return
    if is_standard_plugin(name):
        yield context.make_finding(
            node,
            TrtFault.UNCHECKED_PLUGIN,
            f"{name} is one of TensorRT's plugins; not checked here",
            sure=False,
        )
    elif context.plugins:
        yield context.make_finding(
            node,
            TrtFault.UNCHECKED_PLUGIN,
            f"{name} must be in one of the plugin libraries; not checked here",
            sure=False,
        )
    elif domain:
        yield context.make_finding(
            node,
            TrtFault.MISSING_PLUGIN,
            f"{name} of {domain} needs a plugin: name its library with --plugins",
        )
    else:
        fault, problem = (
            (TrtFault.UNSUPPORTED_OPERATOR, "is not supported")
            if name in REFUSED
            else (TrtFault.UNLISTED_OPERATOR, f"is not in the table of {TABLE_VERSION}")
        )
        yield context.make_finding(node, fault, f"{name} {problem}")


def _check_operator(node: Node, context: RuleContext) -> Iterator[TrtFinding]:
    for restriction in find_violations(node):
        yield context.make_finding(
            node, TrtFault.RESTRICTION, f"{node.op_type}: {restriction.text}", sure=restriction.sure
        )
    if node.op_type in DATA_DEPENDENT:
        yield context.make_finding(
            node, TrtFault.SIZE_FROM_DATA,
            f"{node.op_type} makes a tensor whose size depends on the data; an output that is of "
            "that size needs an output allocator",
            sure=False,
        )  # fmt: skip
    if node.op_type not in _PAIR:
        yield from _check_types(node, context)


def _check_types(node: Node, context: RuleContext) -> Iterator[TrtFinding]:
    """Report types that TensorRT lacks or that the table does not list for the operator."""
    names = {name for value in (*node.inputs, *node.outputs) if (name := element_type(value))}
    for name in sorted(names - SUPPORTED_TYPES):
        yield context.make_finding(
            node, TrtFault.UNKNOWN_TYPE, f"TensorRT has no type {name.lower()}"
        )
    if "UINT8" in names and node.op_type not in _CASTS:
        yield context.make_finding(
            node,
            TrtFault.INNER_UINT8,
            "uint8 inside the model: TensorRT has it for inputs, outputs and casts alone",
        )
        return
    if node.op_type in BODIES:
        return
    indices = DATA_INPUTS.get(node.op_type, tuple(range(len(node.inputs))))
    data = {element_type(node.inputs[index]) for index in indices if index < len(node.inputs)}
    data = {"FLOAT" if name == "DOUBLE" else name for name in data if name in SUPPORTED_TYPES}
    unlisted = data - SUPPORTED[node.op_type]
    for name in sorted(unlisted):
        yield context.make_finding(
            node,
            TrtFault.UNLISTED_TYPE,
            f"{node.op_type} of {name.lower()} is not in the table of {TABLE_VERSION}",
            sure=False,
        )


def element_type(value: Value | None) -> str:
    """Return the name of a tensor's element type; empty if unknown."""
    if value is None:
        return ""
    dtype = value.dtype
    if dtype is None and (tensor := constant_tensor(value)) is not None:
        dtype = tensor.dtype
    return "" if dtype is None or dtype.name == "UNDEFINED" else dtype.name


def double_findings(model: Model) -> Iterator[TrtFinding]:
    """Report doubles: they become float32, clamped to its range.

    INT64 is TensorRT's own type from 9.0 on and is not narrowed, so it needs no rule.
    """
    import numpy as np

    values = [v for v in model.graph.inputs if element_type(v) == "DOUBLE"]
    weights = [v for v in model.graph.initializers.values() if element_type(v) == "DOUBLE"]
    computed = [
        v for n in model.graph.all_nodes() for v in n.outputs if element_type(v) == "DOUBLE"
    ]
    found = [*values, *weights, *computed]
    if found:
        yield TrtFinding(
            fault=TrtFault.DOUBLE,
            severity=TrtSeverity.WARNING,
            what="tensors of double: TensorRT computes them in float32",
            detail=f"{len(found)}, as {found[0].name}",
        )
    for value in weights:
        tensor = constant_tensor(value)
        if tensor is not None and (np.abs(tensor.numpy()) > _FLOAT_MAX).any():
            yield TrtFinding(
                fault=TrtFault.DOUBLE_RANGE,
                severity=TrtSeverity.WARNING,
                what="a constant of double beyond float32, which TensorRT clamps",
                place=value.name or "",
            )
