"""Rules on the nodes and tensors of an ONNX graph: what TensorRT's parser will not take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..onnx_origins import NodeOrigin
from .findings import Finding, Model, Node, Severity, Value, domain_of, place_of
from .operators import (
    BODIES,
    DATA_DEPENDENT,
    DATA_INPUTS,
    OWN_DOMAINS,
    REFUSED,
    SUPPORTED,
    TYPES,
    VERSION,
    is_standard_plugin,
)
from .qdq_pairs import DEQUANTIZE, QUANTIZE, constant
from .restrictions import violations

_CASTS = frozenset({"Cast", "CastLike"})
_PAIR = frozenset({DEQUANTIZE, QUANTIZE})  # whose types `qdq.py` looks at
_FLOAT_MAX = 3.4028234663852886e38  # of float32


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the rules need to know beside the node. `plugins`: the user names plugin libraries."""

    origins: Mapping[str, NodeOrigin]
    plugins: bool = False

    def finding(self, node: Node, what: str, detail: str = "", *, sure: bool = True) -> Finding:
        """A blocker where the parser is sure to refuse the node, else a warning."""
        return Finding(
            severity=Severity.ERROR if sure else Severity.WARNING,
            what=what,
            place=place_of(node, self.origins),
            detail=detail,
        )


def node_findings(model: Model, look: Look) -> Iterator[Finding]:
    """Every fault of every node, bodies and the model's own functions included."""
    own = {(function.domain, function.name) for function in model.functions.values()}
    nodes = [*model.graph.all_nodes()]
    for function in model.functions.values():
        nodes.extend(function.all_nodes())
    for node in nodes:
        if (node.domain, node.op_type) in own:
            continue
        known = domain_of(node) == "" and node.op_type in SUPPORTED
        yield from _known(node, look) if known else _unknown(node, look)


def _unknown(node: Node, look: Look) -> Iterator[Finding]:
    """What the table does not have: TensorRT looks for a plugin of that name."""
    name, domain = node.op_type, domain_of(node)
    if domain in OWN_DOMAINS:
        return
    if is_standard_plugin(name):
        yield look.finding(
            node, f"{name} is one of TensorRT's plugins; not checked here", sure=False
        )
    elif look.plugins:
        yield look.finding(
            node, f"{name} must be in one of the plugin libraries; not checked here", sure=False
        )
    elif domain:
        yield look.finding(
            node, f"{name} of {domain} needs a plugin: name its library with --plugins"
        )
    else:
        said = "is not supported" if name in REFUSED else f"is not in the table of {VERSION}"
        yield look.finding(node, f"{name} {said}")


def _known(node: Node, look: Look) -> Iterator[Finding]:
    for restriction in violations(node):
        yield look.finding(node, f"{node.op_type}: {restriction.text}", sure=restriction.sure)
    if node.op_type in DATA_DEPENDENT:
        yield look.finding(
            node,
            f"{node.op_type} makes a tensor whose size depends on the data; an output that is of "
            "that size needs an output allocator",
            sure=False,
        )  # fmt: skip
    if node.op_type not in _PAIR:
        yield from _typed(node, look)


def _typed(node: Node, look: Look) -> Iterator[Finding]:
    """A type that TensorRT does not have, or that the table does not list for the operator."""
    names = {name for value in (*node.inputs, *node.outputs) if (name := type_of(value))}
    for name in sorted(names - TYPES):
        yield look.finding(node, f"TensorRT has no type {name.lower()}")
    if "UINT8" in names and node.op_type not in _CASTS:
        yield look.finding(
            node, "uint8 inside the model: TensorRT has it for inputs, outputs and casts alone"
        )
        return
    if node.op_type in BODIES:
        return
    indices = DATA_INPUTS.get(node.op_type, tuple(range(len(node.inputs))))
    data = {type_of(node.inputs[index]) for index in indices if index < len(node.inputs)}
    data = {"FLOAT" if name == "DOUBLE" else name for name in data if name in TYPES}
    unlisted = data - SUPPORTED[node.op_type]
    for name in sorted(unlisted):
        yield look.finding(
            node, f"{node.op_type} of {name.lower()} is not in the table of {VERSION}", sure=False
        )


def type_of(value: Value | None) -> str:
    """The name of a tensor's element type; empty where it is not known."""
    if value is None:
        return ""
    dtype = value.dtype
    if dtype is None and (tensor := constant(value)) is not None:
        dtype = tensor.dtype
    return "" if dtype is None or dtype.name == "UNDEFINED" else dtype.name


def double_findings(model: Model) -> Iterator[Finding]:
    """Doubles become float32, and what is beyond its range is clamped.

    INT64 is TensorRT's own type from 9.0 on and is not narrowed, so it needs no rule.
    """
    import numpy as np

    values = [v for v in model.graph.inputs if type_of(v) == "DOUBLE"]
    weights = [v for v in model.graph.initializers.values() if type_of(v) == "DOUBLE"]
    computed = [v for n in model.graph.all_nodes() for v in n.outputs if type_of(v) == "DOUBLE"]
    found = [*values, *weights, *computed]
    if found:
        yield Finding(
            severity=Severity.WARNING,
            what="tensors of double: TensorRT computes them in float32",
            detail=f"{len(found)}, as {found[0].name}",
        )
    for value in weights:
        tensor = constant(value)
        if tensor is not None and (np.abs(tensor.numpy()) > _FLOAT_MAX).any():
            yield Finding(
                severity=Severity.WARNING,
                what="a constant of double beyond float32, which TensorRT clamps",
                place=value.name or "",
            )
