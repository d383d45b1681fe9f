"""Rules on the nodes and tensors of an ONNX graph: what TensorRT's parser will not take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..onnx_origins import NodeOrigin
from .findings import Model, Node, TrtFinding, TrtSeverity, Value, domain_of, node_place
from .operators import (
    BODIES,
    DATA_DEPENDENT,
    DATA_INPUTS,
    OWN_DOMAINS,
    REFUSED,
    SUPPORTED,
    SUPPORTED_TYPES,
    TABLE_VERSION,
    is_standard_plugin,
)
from .qdq_pairs import DEQUANTIZE, QUANTIZE, constant_tensor
from .restrictions import find_violations

_CASTS = frozenset({"Cast", "CastLike"})
_PAIR = frozenset({DEQUANTIZE, QUANTIZE})  # whose types `qdq.py` looks at
_FLOAT_MAX = 3.4028234663852886e38  # of float32


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """What the rules need to know beside the node. `plugins`: the user names plugin libraries."""

    origins: Mapping[str, NodeOrigin]
    plugins: bool = False

    def make_finding(
        self, node: Node, what: str, detail: str = "", *, sure: bool = True
    ) -> TrtFinding:
        """A blocker where the parser is sure to refuse the node, else a warning."""
        return TrtFinding(
            severity=TrtSeverity.ERROR if sure else TrtSeverity.WARNING,
            what=what,
            place=node_place(node, self.origins),
            detail=detail,
        )


def node_findings(model: Model, look: RuleContext) -> Iterator[TrtFinding]:
    """Every fault of every node, bodies and the model's own functions included."""
    own = {(function.domain, function.name) for function in model.functions.values()}
    nodes = [*model.graph.all_nodes()]
    for function in model.functions.values():
        nodes.extend(function.all_nodes())
    for node in nodes:
        if (node.domain, node.op_type) in own:
            continue
        known = domain_of(node) == "" and node.op_type in SUPPORTED
        yield from _check_operator(node, look) if known else _unknown_operator(node, look)


def _unknown_operator(node: Node, look: RuleContext) -> Iterator[TrtFinding]:
    """What the table does not have: TensorRT looks for a plugin of that name."""
    name, domain = node.op_type, domain_of(node)
    if domain in OWN_DOMAINS:
        return
    if is_standard_plugin(name):
        yield look.make_finding(
            node, f"{name} is one of TensorRT's plugins; not checked here", sure=False
        )
    elif look.plugins:
        yield look.make_finding(
            node, f"{name} must be in one of the plugin libraries; not checked here", sure=False
        )
    elif domain:
        yield look.make_finding(
            node, f"{name} of {domain} needs a plugin: name its library with --plugins"
        )
    else:
        said = "is not supported" if name in REFUSED else f"is not in the table of {TABLE_VERSION}"
        yield look.make_finding(node, f"{name} {said}")


def _check_operator(node: Node, look: RuleContext) -> Iterator[TrtFinding]:
    for restriction in find_violations(node):
        yield look.make_finding(node, f"{node.op_type}: {restriction.text}", sure=restriction.sure)
    if node.op_type in DATA_DEPENDENT:
        yield look.make_finding(
            node,
            f"{node.op_type} makes a tensor whose size depends on the data; an output that is of "
            "that size needs an output allocator",
            sure=False,
        )  # fmt: skip
    if node.op_type not in _PAIR:
        yield from _check_types(node, look)


def _check_types(node: Node, look: RuleContext) -> Iterator[TrtFinding]:
    """A type that TensorRT does not have, or that the table does not list for the operator."""
    names = {name for value in (*node.inputs, *node.outputs) if (name := element_type(value))}
    for name in sorted(names - SUPPORTED_TYPES):
        yield look.make_finding(node, f"TensorRT has no type {name.lower()}")
    if "UINT8" in names and node.op_type not in _CASTS:
        yield look.make_finding(
            node, "uint8 inside the model: TensorRT has it for inputs, outputs and casts alone"
        )
        return
    if node.op_type in BODIES:
        return
    indices = DATA_INPUTS.get(node.op_type, tuple(range(len(node.inputs))))
    data = {element_type(node.inputs[index]) for index in indices if index < len(node.inputs)}
    data = {"FLOAT" if name == "DOUBLE" else name for name in data if name in SUPPORTED_TYPES}
    unlisted = data - SUPPORTED[node.op_type]
    for name in sorted(unlisted):
        yield look.make_finding(
            node,
            f"{node.op_type} of {name.lower()} is not in the table of {TABLE_VERSION}",
            sure=False,
        )


def element_type(value: Value | None) -> str:
    """The name of a tensor's element type; empty where it is not known."""
    if value is None:
        return ""
    dtype = value.dtype
    if dtype is None and (tensor := constant_tensor(value)) is not None:
        dtype = tensor.dtype
    return "" if dtype is None or dtype.name == "UNDEFINED" else dtype.name


def double_findings(model: Model) -> Iterator[TrtFinding]:
    """Doubles become float32, and what is beyond its range is clamped.

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
            severity=TrtSeverity.WARNING,
            what="tensors of double: TensorRT computes them in float32",
            detail=f"{len(found)}, as {found[0].name}",
        )
    for value in weights:
        tensor = constant_tensor(value)
        if tensor is not None and (np.abs(tensor.numpy()) > _FLOAT_MAX).any():
            yield TrtFinding(
                severity=TrtSeverity.WARNING,
                what="a constant of double beyond float32, which TensorRT clamps",
                place=value.name or "",
            )
