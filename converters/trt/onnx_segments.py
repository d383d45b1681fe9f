"""The parts of an ONNX model that ONNX Runtime's TensorRT provider would run as engines.

The plan needs no TensorRT and no GPU. Like the provider, it asks for each node whether TensorRT's
parser takes it, by the table of `parser_support.py`; each run of such nodes, in the order of the
file, is a part; short parts are dropped; and all parts become one engine if the rest of the model
does not lie between them. ONNX Runtime folds constants before, which the plan does too, and fuses
some nodes, which it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ErrorCode, UsageError
from ...core.grammar import parse_input
from ...core.segments import LeftOut, LeftOutReason, Segment, SegmentOptions, SegmentPlan
from ...core.signature import Signature, merge_inputs
from ..onnx_coverage import infer_flops
from ..onnx_origins import UNKNOWN_ORIGIN, NodeOrigin, read_origins
from .parser_support import DATA_DEPENDENT, TABLE_SOURCE
from .trt_findings import (
    Model,
    Node,
    TrtFault,
    TrtFinding,
    TrtSeverity,
    Value,
    constant_tensor,
    domain_of,
    tensor_shape,
)
from .trt_preflight import check_node, load_typed_model

if TYPE_CHECKING:
    import onnx_ir

RUNTIME = "ONNX Runtime"  # runs what TensorRT does not take, with CUDA or on the CPU
_RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})  # fmt: skip
_SIZE_READERS = frozenset({"Shape", "Size"})
_REASONS: Mapping[TrtFault, LeftOutReason] = {
    TrtFault.RESTRICTION: LeftOutReason.RESTRICTED,
    TrtFault.UNKNOWN_TYPE: LeftOutReason.TYPE,
    TrtFault.INNER_UINT8: LeftOutReason.TYPE,
}


@dataclass(frozen=True, kw_only=True)
class _NodeVerdict:
    """Why a node stays outside TensorRT, if it does, and whether TensorRT may yet reject it."""

    reason: LeftOutReason | None = None
    detail: str = ""
    uncertain: bool = False


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Nodes that run together, in the order of the file."""

    engine: bool
    nodes: list[Node]


def plan_onnx(
    path: Path, options: SegmentOptions | None = None, signature: Signature | None = None
) -> SegmentPlan:
    """Return the plan for a model.

    Args:
        path: the model, its weights and debug sidecar beside it.
        options: the least nodes of an engine.
        signature: gives the typical sizes; without it they are those that the model records.

    Raises:
        ConversionError: it cannot be read.
        UsageError: operators are named as torch names them.
    """
    chosen = options or SegmentOptions()
    if chosen.torch_ops:
        raise UsageError(
            "--torch-ops names operators of torch, which an ONNX model does not have",
            hint="leave it out",
            option="torch-ops",
            code=ErrorCode.NO_EFFECT,
        )
    model, origins = load_typed_model(path), read_origins(path)
    nodes = _list_computed(model)
    verdicts = {node: _judge_node(node, model, origins) for node in nodes}
    parts = _order_parts(nodes, _find_engines(nodes, verdicts, chosen.min_block_size))
    work = _measure_work(path, nodes, signature or _read_signature(model))
    return _describe_parts(parts, verdicts, work, origins, chosen.min_block_size)


def _list_computed(model: Model) -> list[Node]:
    """Return the nodes of the outer graph whose results are used and not constant."""
    nodes, used = list(model.graph), set[Node]()
    needed = set(model.graph.outputs)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            used.add(node)
            needed.update(_reads(node))
    varying: set[Node] = set()
    for node in nodes:
        if _is_varying(node, varying):
            varying.add(node)
    return [node for node in nodes if node in used and node in varying]


def _is_varying(node: Node, varying: Collection[Node]) -> bool:
    """Return whether the result of a node depends on the inputs of the model, or is random."""
    if node.op_type in _RANDOM:
        return True
    if node.op_type in _SIZE_READERS and domain_of(node) == "":
        sizes = tensor_shape(node.inputs[0])
        if sizes is not None and None not in sizes:
            return False
    return any(_varies(value, varying) for value in _reads(node))


def _reads(node: Node) -> Iterator[Value]:
    """Return what a node reads, with what the bodies inside it read."""
    yield from (value for value in node.inputs if value is not None)
    for body in _bodies(node):
        yield from body.outputs
        for inner in body.all_nodes():
            yield from (value for value in inner.inputs if value is not None)


def _bodies(node: Node) -> Iterator[onnx_ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type.name == "GRAPH":
            yield attribute.as_graph()
        elif attribute.type.name == "GRAPHS":
            yield from attribute.as_graphs()


def _varies(value: Value, varying: Collection[Node]) -> bool:
    maker = value.producer()
    if maker is None:
        return value.is_graph_input() and constant_tensor(value) is None
    return maker in varying


def _judge_node(node: Node, model: Model, origins: Mapping[str, NodeOrigin]) -> _NodeVerdict:
    """Ask the table for a node; one with bodies is taken if all nodes inside it are."""
    inside = [one for body in _bodies(node) for one in body]  # each judges its own bodies
    function = model.functions.get((node.domain, node.op_type, node.overload))
    if function is not None:
        inside += function
        found: list[TrtFinding] = []
    else:
        found = check_node(node, origins)
    errors = [one for one in found if one.severity is TrtSeverity.ERROR]
    if errors:
        first = errors[0]
        reason = _REASONS.get(first.fault, LeftOutReason.NO_IMPORTER)
        named = reason is not LeftOutReason.NO_IMPORTER
        detail = first.what.removeprefix(f"{node.op_type}: ") if named else ""
        return _NodeVerdict(reason=reason, detail=detail)
    inner = [(one.op_type, _judge_node(one, model, origins)) for one in inside]
    rejected = dict.fromkeys(name for name, one in inner if one.reason is not None)
    if rejected:
        return _NodeVerdict(reason=LeftOutReason.BODY, detail=", ".join(rejected))
    doubts = [one for one in found if one.fault is not TrtFault.SIZE_FROM_DATA]
    return _NodeVerdict(uncertain=bool(doubts) or any(one.uncertain for _, one in inner))


def _find_engines(
    nodes: Sequence[Node], verdicts: Mapping[Node, _NodeVerdict], least: int
) -> list[list[Node]]:
    """Return the nodes of each engine: runs of the file's order, or all runs together."""
    runs: list[list[Node]] = [[]]
    for node in nodes:
        if verdicts[node].reason is None:
            runs[-1].append(node)
        elif runs[-1]:
            runs.append([])
    engines = [run for run in runs if len(run) >= least and run]
    if len(engines) > 1:
        together = [node for run in engines for node in run]
        if not _is_left_and_entered(together, nodes):
            return [together]
    return engines


def _predecessors(node: Node) -> set[Node]:
    return {maker for value in _reads(node) if (maker := value.producer()) is not None}


def _is_left_and_entered(engine: Sequence[Node], nodes: Sequence[Node]) -> bool:
    """Return whether a path of the graph leaves these nodes and comes back to them."""
    inside, after = set(engine), set[Node]()
    for node in nodes:  # what a node reads comes before it
        before = _predecessors(node)
        if node in inside:
            if before & after:
                return True
        elif before & (inside | after):
            after.add(node)
    return False


def _order_parts(nodes: Sequence[Node], engines: Sequence[list[Node]]) -> list[_Part]:
    """Return engines and the rest in an order in which they can run, the rest in few parts."""
    owners = {node: index for index, engine in enumerate(engines) for node in engine}
    units: list[list[Node]] = [*engines, *([node] for node in nodes if node not in owners)]
    places = {node: index for index, unit in enumerate(units) for node in unit}
    waiting = {
        index: {places[one] for node in unit for one in _predecessors(node) if one in places}
        - {index}
        for index, unit in enumerate(units)
    }
    parts: list[_Part] = []
    while waiting:
        ready = [index for index, before in waiting.items() if not before]
        # the rest first, while it can run: every change of the runtime costs
        rest = [index for index in ready if index >= len(engines)]
        chosen = rest or ready[:1]
        taken = [node for index in chosen for node in units[index]]
        if rest and parts and not parts[-1].engine:
            parts[-1].nodes.extend(taken)
        else:
            parts.append(_Part(engine=not rest, nodes=taken))
        for index in chosen:
            del waiting[index]
        for before in waiting.values():
            before.difference_update(chosen)
    return parts


def _read_signature(model: Model) -> Signature | None:
    """Return the inputs that modelc records in the model; None if it made none."""
    text = model.metadata_props.get("modelc.domain", "")
    try:
        inputs = [parse_input(one) for one in text.split()]
        return merge_inputs(inputs, {}) if inputs else None
    except UsageError:
        return None


def _measure_work(
    path: Path, nodes: Sequence[Node], signature: Signature | None
) -> dict[Node, int] | None:
    """Return the FLOPs of each node at the typical sizes; None where they are not known."""
    specs = () if signature is None else signature.inputs
    flops = infer_flops(path, {spec.name: [dim.opt for dim in spec.dims] for spec in specs})
    if flops is None:
        return None
    work = {node: flops.get(node.outputs[0].name or "", 0) for node in nodes}
    return work if any(work.values()) else None


def _describe_parts(
    parts: Sequence[_Part],
    verdicts: Mapping[Node, _NodeVerdict],
    work: Mapping[Node, int] | None,
    origins: Mapping[str, NodeOrigin],
    least: int,
) -> SegmentPlan:
    """Return the plan with the share of each part."""
    weights = work or dict.fromkeys(verdicts, 1)
    total = sum(weights.values()) or 1
    segments = tuple(
        Segment(
            engine=part.engine,
            operators=dict(Counter(map(_operator_name, part.nodes))),
            nodes=len(part.nodes),
            share=sum(weights[node] for node in part.nodes) / total,
        )
        for part in parts
    )
    inside = [node for part in parts if part.engine for node in part.nodes]
    outside = [node for part in parts if not part.engine for node in part.nodes]
    return SegmentPlan(
        segments=segments,
        switches=sum(a.engine != b.engine for a, b in pairwise(segments)),
        share=sum(one.share for one in segments if one.engine),
        work="FLOPs" if work else "operators",
        min_block_size=least,
        left_out=_list_left_out(outside, verdicts, origins),
        uncertain=_count(node for node in inside if verdicts[node].uncertain),
        data_dependent=_count(node for node in inside if node.op_type in DATA_DEPENDENT),
        source=TABLE_SOURCE,
        rest=RUNTIME,
    )


def _list_left_out(
    nodes: Iterable[Node],
    verdicts: Mapping[Node, _NodeVerdict],
    origins: Mapping[str, NodeOrigin],
) -> tuple[LeftOut, ...]:
    """Return the operators outside TensorRT by name and reason, the first module of each."""
    groups: dict[tuple[str, LeftOutReason, str], list[Node]] = {}
    for node in nodes:
        verdict = verdicts[node]
        reason = verdict.reason or LeftOutReason.SMALL_BLOCK
        groups.setdefault((_operator_name(node), reason, verdict.detail), []).append(node)
    return tuple(
        LeftOut(
            operator=name,
            reason=reason,
            count=len(found),
            module=_module_of(found, origins),
            detail=detail,
        )
        for (name, reason, detail), found in groups.items()
    )


def _module_of(nodes: Iterable[Node], origins: Mapping[str, NodeOrigin]) -> str:
    modules = (origins.get(node.name or "", UNKNOWN_ORIGIN).module for node in nodes)
    return next(filter(None, modules), "")


def _operator_name(node: Node) -> str:
    domain = domain_of(node)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _count(nodes: Iterable[Node]) -> dict[str, int]:
    return dict(Counter(map(_operator_name, nodes)))
