"""What looking at an ONNX model found: where, what, and how bad; repeated ones told as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from ..onnx_origins import UNKNOWN_ORIGIN, NodeOrigin

if TYPE_CHECKING:
    import onnx_ir

    Model: TypeAlias = onnx_ir.Model
    Node: TypeAlias = onnx_ir.Node
    Value: TypeAlias = onnx_ir.Value
else:
    Model = Node = Value = Any  # onnx_ir's own, which is only imported where it is used

_SHOWN = 8  # lines of an error message; all are in the log
_FAR = 3  # nodes to walk from a Q or DQ to the layer that it serves


class TrtSeverity(StrEnum):
    """Whether TensorRT will refuse it (or compute something else), or only may."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True)
class TrtFinding:
    """One thing found. `what` is the same for all of its kind; `detail` is of this one alone."""

    severity: TrtSeverity
    what: str
    place: str = ""  # `encoder.layer.3.mlp (MatMul node_MatMul_71)`
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.place}: {self.what}{detail}" if self.place else f"{self.what}{detail}"


def describe_findings(findings: Iterable[TrtFinding], severity: TrtSeverity) -> tuple[str, ...]:
    """A line for each kind of finding: the one that there is, or how many and which is first."""
    kinds: dict[str, list[TrtFinding]] = {}
    for finding in findings:
        if finding.severity is severity:
            kinds.setdefault(finding.what, []).append(finding)
    return tuple(_describe_kind(found) for found in kinds.values())


def _describe_kind(found: list[TrtFinding]) -> str:
    first = found[0]
    if len(found) == 1:
        return str(first)
    detail = f" ({first.detail})" if first.detail else ""
    where = f", first at {first.place}" if first.place else ""
    return f"{len(found)} × {first.what}{where}{detail}"  # noqa: RUF001 - a count


def join_lines(lines: tuple[str, ...]) -> str:
    """The lines as one message, cut where there are many."""
    more = f" (and {len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def node_place(node: Node, origins: Mapping[str, NodeOrigin]) -> str:
    """`layers.3.fc1 (QuantizeLinear fc1_q)`: the module that a node is of, or serves."""
    module = nearest_module(node, origins)
    title = " ".join(part for part in (node.op_type, node.name) if part)
    return f"{module} ({title})" if module else title


def nearest_module(node: Node, origins: Mapping[str, NodeOrigin]) -> str:
    """The module of a node; that of the next one along where a tool put the node in."""
    near = (node, *walk_readers(node))
    return next(
        (m for one in near if (m := origins.get(one.name or "", UNKNOWN_ORIGIN).module)), ""
    )


def walk_readers(node: Node) -> Iterator[Node]:
    """The readers of what a node makes, and theirs, as far as a Q and a DQ lie from a layer."""
    edge = [node]
    for _ in range(_FAR):
        edge = [reader for one in edge for reader in direct_readers(one)]
        yield from edge


def direct_readers(node: Node) -> tuple[Node, ...]:
    """The nodes that read what a node makes."""
    return tuple(use.node for value in node.outputs for use in value.uses())


def domain_of(node: Node) -> str:
    """The domain of a node's operator; empty for ONNX's own."""
    return "" if node.domain == "ai.onnx" else node.domain
