"""The preflight: find what TensorRT rejects in an ONNX model, without TensorRT."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from ...capture.framework_errors import call_framework
from ...core.contract import Job, Preflight
from ...core.kinds import QUANTIZED
from ...core.signature import Signature
from ..onnx_origins import NodeOrigin, read_origins
from .engine_options import (
    BuilderChoice,
    EngineOptions,
    parse_options,
)
from .engine_profiles import find_unbounded, profiles_for, size_findings
from .parser_support import (
    BODIES,
    DATA_DEPENDENT,
    DATA_INPUTS,
    LAST_OPSET,
    LEAST_OPSET,
    OWN_DOMAINS,
    PLUGIN_OPERATORS,
    STANDARD_PLUGIN,
    SUPPORTED,
    SUPPORTED_TYPES,
    TABLE_OPSET,
    TABLE_SOURCE,
    TABLE_VERSION,
    UNSUPPORTED,
    find_unsupported_types,
    find_violations,
)
from .parser_verdict import PARSER, ParserVerdict, use_verdict
from .qdq_rules import check_qdq
from .trt_findings import (
    DEQUANTIZE,
    QUANTIZE,
    Model,
    Node,
    NodeFindings,
    TrtFault,
    TrtFinding,
    TrtSeverity,
    constant_tensor,
    describe_findings,
    domain_of,
    element_type,
    log_findings,
)
from .trt_installation import TrtLibrary, find_tensorrt
from .trt_memory import MemoryEstimate, estimate_memory

_LOG = logging.getLogger(__name__)
_VOLUME = 2**31 - 1  # elements of a tensor that kernels index with 32 bits


AskParser: TypeAlias = Callable[[Path], ParserVerdict]


def run_preflight(
    job: Job,
    library: TrtLibrary = TrtLibrary.TENSORRT,
    ask: AskParser | None = None,
    capabilities: Sequence[str] = (),
) -> Preflight:
    """Check the job's parent: operators, types, Q/DQ, dims, control flow, opset, memory.

    Every finding is logged; the result has one line for each kind of finding.

    Args:
        job: its settings are those of `engine_options`.
        library: what the engine is for.
        ask: returns the verdict of NVIDIA's parser, which is used in place of the table; None
            where it is not installed.
        capabilities: compute capabilities of the GPUs that the engine is for, where known.

    Raises:
        ConversionError: the parent cannot be read.
    """
    findings, memory = examine_parent(job, library, capabilities)
    source = TABLE_SOURCE
    plugins = bool(parse_options(job.settings).plugins)  # which the parser would lack
    if ask is not None and job.parent is not None and not plugins:
        verdict = ask(job.parent)
        findings = use_verdict(findings, verdict, read_origins(job.parent), library)
        source = source if verdict.failure else f"{PARSER} {verdict.version}"
    unknown = {one.fault for one in findings if one.severity is TrtSeverity.ERROR} & _NO_OPERATOR
    plugin_helps = bool(unknown) and library is TrtLibrary.TENSORRT
    log_findings(findings, _LOG)
    _LOG.info("memory, an estimate: %s", memory)
    return Preflight(
        blockers=describe_findings(findings, TrtSeverity.ERROR),
        warnings=describe_findings(findings, TrtSeverity.WARNING),
        memory=memory.total,
        source=source,
        option="plugins" if plugin_helps else "",
    )


_NO_OPERATOR = frozenset({
    TrtFault.UNSUPPORTED_OPERATOR, TrtFault.UNLISTED_OPERATOR, TrtFault.MISSING_PLUGIN,
    TrtFault.PARSER,
})  # fmt: skip


def examine_parent(
    job: Job, library: TrtLibrary = TrtLibrary.TENSORRT, capabilities: Sequence[str] = ()
) -> tuple[tuple[TrtFinding, ...], MemoryEstimate]:
    """Return every finding in the job's parent, and the estimate of the engine's memory.

    Raises:
        ConversionError: the parent cannot be read.
    """
    if job.parent is None:
        raise RuntimeError("the TensorRT preflight needs an ONNX parent")
    options = parse_options(job.settings)
    model = load_typed_model(job.parent)
    profiles = profiles_for(job.signature, options.profiles)
    memory = estimate_memory(model, profiles, options)
    findings = [
        *_all_findings(model, job.parent, job, options),
        *size_findings(model, profiles[0]),
        *_volume_findings(memory),
    ]
    origins = read_origins(job.parent)
    findings += find_unsupported_types(model, origins, library, capabilities)
    if library is TrtLibrary.TENSORRT and _may_use_trtexec(options):
        findings += _attention_findings(model, origins)
    if library is TrtLibrary.RTX:
        findings += _plugin_findings(model, origins)
    return tuple(findings), memory


def look_up_table(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the blockers and the warnings of the tables on the operators and Q/DQ of a model."""
    model = load_typed_model(path)
    found = (
        *_opset_findings(model),
        *_node_findings(model, {}, plugins=False),
        *check_qdq(model, {}, required=False),
    )
    severities = (TrtSeverity.ERROR, TrtSeverity.WARNING)
    blockers, warnings = (describe_findings(found, severity) for severity in severities)
    return blockers, warnings


def load_typed_model(path: Path) -> Model:
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
    yield from _node_findings(model, origins, plugins=bool(options.plugins))
    yield from check_qdq(model, origins, required=job.precision in QUANTIZED)
    yield from _double_findings(model)


def _find_missing_files(model: Model, path: Path) -> Iterator[TrtFinding]:
    """Report external weight files that do not exist."""
    import onnx_ir

    tensors = (value.const_value for value in model.graph.initializers.values())
    places = (Path(one.path) for one in tensors if isinstance(one, onnx_ir.ExternalTensor))
    for place in dict.fromkeys(places):
        if not place.is_file():
            what = f"the weights of {path.name} are in {place.name}, which does not exist"
            yield TrtFinding(TrtFault.MISSING_WEIGHTS, TrtSeverity.ERROR, what)


def _opset_findings(model: Model) -> Iterator[TrtFinding]:
    opset = model.opset_imports.get("", LEAST_OPSET)
    if opset > LAST_OPSET:
        what = f"opset {opset} is newer than {LAST_OPSET}, the last that NVIDIA lists: use --opset"
        yield TrtFinding(TrtFault.OPSET, TrtSeverity.WARNING, what)
    elif opset > TABLE_OPSET:
        what = f"opset {opset} requires TensorRT 11; TensorRT 10 supports up to {TABLE_OPSET}"
        yield TrtFinding(TrtFault.OPSET, TrtSeverity.WARNING, what)
    elif opset < LEAST_OPSET:
        what = f"opset {opset} is older than {LEAST_OPSET}, the first that the parser supports"
        yield TrtFinding(TrtFault.OPSET, TrtSeverity.WARNING, what)


def _dim_findings(
    model: Model, signature: Signature, options: EngineOptions
) -> Iterator[TrtFinding]:
    """Dynamic dims need bounds, and must be dynamic in the model too."""
    shapes = {value.name: value.shape for value in model.graph.inputs}
    for spec in signature.inputs:
        shape = shapes.get(spec.name)
        for index, dim in enumerate(spec.dims):
            size = shape[index] if shape is not None and index < len(shape) else None
            if isinstance(size, int) and (dim.dynamic or dim.opt != size):
                what = f"dim {index} of {spec.name} is {size} in the model, not {dim}"
                yield TrtFinding(TrtFault.FIXED_DIM, TrtSeverity.ERROR, what)
    for unbounded in find_unbounded(signature, options.profiles):
        what = f"{unbounded.message}: {unbounded.hint}"
        yield TrtFinding(TrtFault.UNBOUNDED_DIM, TrtSeverity.ERROR, what)


def _may_use_trtexec(options: EngineOptions) -> bool:
    if options.builder is BuilderChoice.AUTO:
        return not find_tensorrt().importable
    return options.builder is BuilderChoice.TRTEXEC


def _attention_findings(model: Model, origins: Mapping[str, NodeOrigin]) -> list[TrtFinding]:
    """Report FP32 attention, which no kernel computes whole."""
    findings = NodeFindings(origins)
    for node in model.graph.all_nodes():
        whole = domain_of(node) == "" and node.op_type == "Attention"
        if whole and element_type(node.inputs[0]) == "FLOAT":
            what = (
                "trtexec cannot build Attention of float32: use --builder python, --fp16, or an "
                "--opset below 23, which has it in parts"
            )
            findings.add(node, TrtFault.WHOLE_ATTENTION, what, sure=False)
    return findings.found


def _volume_findings(memory: MemoryEstimate) -> Iterator[TrtFinding]:
    if memory.largest > _VOLUME:
        what = (
            f"{memory.largest_name} has {memory.largest:,} elements at the largest sizes; "
            f"many kernels support at most {_VOLUME:,}"
        )
        yield TrtFinding(TrtFault.LARGE_TENSOR, TrtSeverity.WARNING, what)
    if memory.unknown:
        what = f"the memory estimate excludes {memory.unknown} tensors whose sizes are not known"
        yield TrtFinding(TrtFault.UNKNOWN_SIZES, TrtSeverity.WARNING, what)


_CASTS = frozenset({"Cast", "CastLike"})
_PAIR = frozenset({DEQUANTIZE, QUANTIZE})  # `qdq_rules.py` checks their types


def _node_findings(
    model: Model, origins: Mapping[str, NodeOrigin], *, plugins: bool
) -> list[TrtFinding]:
    """Find every fault of every node, including those in bodies and model functions.

    With `plugins`, the user names plugin libraries.
    """
    findings = NodeFindings(origins)
    functions = {(function.domain, function.name) for function in model.functions.values()}
    for node in _every_node(model):
        if (node.domain, node.op_type) not in functions:
            _check_node(node, findings, plugins=plugins)
    return findings.found


def check_node(node: Node, origins: Mapping[str, NodeOrigin]) -> list[TrtFinding]:
    """Return what the table says against one node, without the bodies inside it."""
    findings = NodeFindings(origins)
    _check_node(node, findings, plugins=False)
    return findings.found


def _check_node(node: Node, findings: NodeFindings, *, plugins: bool) -> None:
    if domain_of(node) == "" and node.op_type in SUPPORTED:
        _check_operator(node, findings)
    else:
        _check_unknown_operator(node, findings, plugins=plugins)


def _check_unknown_operator(node: Node, findings: NodeFindings, *, plugins: bool) -> None:
    """Check an operator outside the table: TensorRT looks for a plugin of that name."""
    name, domain = node.op_type, domain_of(node)
    if domain in OWN_DOMAINS:
        return
    if name.endswith(STANDARD_PLUGIN):
        what = f"{name} is one of TensorRT's plugins; not checked here"
        findings.add(node, TrtFault.UNCHECKED_PLUGIN, what, sure=False)
    elif plugins:
        what = f"{name} must be in one of the plugin libraries; not checked here"
        findings.add(node, TrtFault.UNCHECKED_PLUGIN, what, sure=False)
    elif domain:
        what = f"{name} of {domain} requires a plugin: name its library with --plugins"
        findings.add(node, TrtFault.MISSING_PLUGIN, what)
    elif name in UNSUPPORTED:
        findings.add(node, TrtFault.UNSUPPORTED_OPERATOR, f"{name} is not supported")
    else:
        what = f"{name} is not in the table of {TABLE_VERSION}"
        findings.add(node, TrtFault.UNLISTED_OPERATOR, what)


def _plugin_findings(model: Model, origins: Mapping[str, NodeOrigin]) -> list[TrtFinding]:
    """Report the operators that TensorRT-RTX lacks since it has no plugins."""
    findings = NodeFindings(origins)
    for node in _every_node(model):
        if domain_of(node) == "" and node.op_type in PLUGIN_OPERATORS:
            what = f"{node.op_type} requires a plugin that TensorRT-RTX does not have"
            findings.add(node, TrtFault.UNSUPPORTED_OPERATOR, what)
    return findings.found


def _every_node(model: Model) -> Iterator[Node]:
    """Return the nodes, including those in bodies and model functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _check_operator(node: Node, findings: NodeFindings) -> None:
    for restriction in find_violations(node):
        what = f"{node.op_type}: {restriction.text}"
        findings.add(node, TrtFault.RESTRICTION, what, sure=restriction.sure)
    if node.op_type in DATA_DEPENDENT:
        what = (
            f"{node.op_type} returns a tensor whose size depends on data; an output of that size "
            "requires an output allocator"
        )
        findings.add(node, TrtFault.SIZE_FROM_DATA, what, sure=False)
    if node.op_type not in _PAIR:
        _check_types(node, findings)


def _check_types(node: Node, findings: NodeFindings) -> None:
    """Report types that TensorRT lacks or that the table does not list for the operator."""
    names = {name for value in (*node.inputs, *node.outputs) if (name := element_type(value))}
    for name in sorted(names - SUPPORTED_TYPES):
        findings.add(node, TrtFault.UNKNOWN_TYPE, f"TensorRT has no type {name.lower()}")
    if "UINT8" in names and node.op_type not in _CASTS:
        what = "uint8 inside the model: TensorRT supports it only for inputs, outputs and casts"
        findings.add(node, TrtFault.INNER_UINT8, what)
        return
    if node.op_type in BODIES:
        return
    indices = DATA_INPUTS.get(node.op_type, tuple(range(len(node.inputs))))
    data = {element_type(node.inputs[index]) for index in indices if index < len(node.inputs)}
    data = {"FLOAT" if name == "DOUBLE" else name for name in data if name in SUPPORTED_TYPES}
    for name in sorted(data - SUPPORTED[node.op_type]):
        what = f"{node.op_type} of {name.lower()} is not in the table of {TABLE_VERSION}"
        findings.add(node, TrtFault.UNLISTED_TYPE, what, sure=False)


def _double_findings(model: Model) -> Iterator[TrtFinding]:
    """Report doubles: they become float32, clamped to its range.

    INT64 is TensorRT's own type from 9.0 on and is not narrowed, so it needs no rule.
    """
    import numpy as np

    weights = list(model.graph.initializers.values())
    computed = [value for node in model.graph.all_nodes() for value in node.outputs]
    values = (*model.graph.inputs, *weights, *computed)
    found = [value for value in values if element_type(value) == "DOUBLE"]
    if found:
        what = "tensors of double: TensorRT computes them in float32"
        detail = f"{len(found)}, as {found[0].name}"
        yield TrtFinding(TrtFault.DOUBLE, TrtSeverity.WARNING, what, detail=detail)
    for value in model.graph.inputs:
        if element_type(value) == "DOUBLE":
            what = f"the engine takes {value.name} in float32, not in float64"
            yield TrtFinding(TrtFault.DOUBLE, TrtSeverity.WARNING, what)
    for value in model.graph.outputs:
        if element_type(value) == "DOUBLE":
            what = f"the engine returns {value.name} in float32, not in float64"
            yield TrtFinding(TrtFault.DOUBLE, TrtSeverity.WARNING, what)
    largest = np.finfo(np.float32).max
    for value in weights:
        tensor = constant_tensor(value) if element_type(value) == "DOUBLE" else None
        if tensor is not None and (np.abs(tensor.numpy()) > largest).any():
            what = "a constant of double beyond float32, which TensorRT clamps"
            yield TrtFinding(TrtFault.DOUBLE_RANGE, TrtSeverity.WARNING, what, value.name or "")
