"""Where the nodes of an ONNX model come from: modules and source lines, from its debug sidecar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UsageError
from .guarded import call_framework

if TYPE_CHECKING:
    import onnx

_BELOW = ".*"  # at the end of a module path: what lies below, which a bare path takes too


@dataclass(frozen=True, kw_only=True)
class NodeOrigin:
    """The module that a node was traced from, its class, and the line; empty where unknown.

    `weights` is the module that owns its weights, where that is another. `operator` is the node's
    own, and `after` the node that makes its first input.
    """

    module: str = ""
    cls: str = ""
    source: str = ""
    code: str = ""
    weights: str = ""
    operator: str = ""
    after: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The paths that it goes by."""
        return tuple(path for path in (self.module, self.weights) if path)


UNKNOWN_ORIGIN = NodeOrigin()


def debug_sidecar_path(path: Path) -> Path:
    """`model.fp16.debug.json` beside `model.fp16.onnx`; it need not exist."""
    return path.with_suffix(".debug.json")


def read_origins(path: Path) -> Mapping[str, NodeOrigin]:
    """Origins by node name; empty where the model has no sidecar.

    Raises:
        UsageError: the sidecar is not what modelc writes.
    """
    sidecar = debug_sidecar_path(path)
    if not sidecar.is_file():
        return {}
    try:
        nodes: dict[str, dict[str, str]] = json.loads(sidecar.read_text("utf-8"))["nodes"]
        return {name: _parse_origin(entry) for name, entry in nodes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{sidecar.name} is not a debug sidecar: {error}",
            hint=f"delete {sidecar} or export the model again",
        ) from error


def _parse_origin(entry: Mapping[str, str]) -> NodeOrigin:
    return NodeOrigin(
        module=entry.get("module", ""),
        cls=entry.get("class", ""),
        source=entry.get("source", ""),
        code=entry.get("code", ""),
        weights=entry.get("weights", ""),
        operator=entry.get("operator", ""),
        after=entry.get("after", ""),
    )


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of the bodies of its If, Loop and Scan nodes."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)
            for body in attribute.graphs:
                yield from all_nodes(body)


def node_title(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> str:
    """`encoder.layer.3.mlp (MatMul node_MatMul_71)`: how messages name a node."""
    module = origins.get(node.name, UNKNOWN_ORIGIN).module
    title = " ".join(part for part in (node.op_type, node.name) if part)
    return f"{module} ({title})" if module else title


def module_or_node(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> str:
    """The module of a node; the node itself where it has none."""
    return origins.get(node.name, UNKNOWN_ORIGIN).module or node_title(node, {})


def match_nodes(path: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the nodes that `--keep-fp` patterns mean, in the order of the graph.

    A pattern is compared, with `*`, `?` and `[...]` as in a shell, with each node's name, its
    operator and its module path. A module path also takes what lies below it: `layers.3` and
    `layers.3.*` both mean the whole of that module.

    Args:
        path: the ONNX model; its debug sidecar gives the module paths.
        patterns: what the user wrote.

    Raises:
        UsageError: a pattern means no node, or one that has no name to keep it by.
        ConversionError: the model cannot be read.
    """
    import onnx

    if not patterns:
        return ()
    model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
    origins = read_origins(path)
    nodes = list(all_nodes(model.graph))
    found: set[str] = set()
    for pattern in patterns:
        taken = {node.name for node in nodes if _is_match(pattern, node, origins)}
        if not taken:
            raise _no_match_error(pattern, nodes, origins)
        if "" in taken:
            raise UsageError(
                f"--keep-fp {pattern!r} means nodes of {path.name} that have no name",
                hint="give its nodes names, as modelc's own export does",
                option="keep-fp",
            )
        found |= taken
    return tuple(dict.fromkeys(node.name for node in nodes if node.name in found))


def _is_match(pattern: str, node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> bool:
    if pattern == node.name:  # a name may hold brackets, which a pattern would read
        return True
    if fnmatchcase(node.name, pattern) or fnmatchcase(node.op_type, pattern):
        return True
    path = pattern.removesuffix(_BELOW)
    modules = origins.get(node.name, UNKNOWN_ORIGIN).modules
    return any(fnmatchcase(above, path) for module in modules for above in _module_prefixes(module))


def _module_prefixes(module: str) -> Iterator[str]:
    """`a`, `a.b`, `a.b.c` for `a.b.c`; nothing for the model itself."""
    parts = module.split(".") if module else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _no_match_error(
    pattern: str, nodes: Sequence[onnx.NodeProto], origins: Mapping[str, NodeOrigin]
) -> UsageError:
    paths = [path for origin in origins.values() for path in origin.modules]
    modules = [above for path in paths for above in _module_prefixes(path)]
    named = [node.name for node in nodes if node.name]
    known = dict.fromkeys([*modules, *(node.op_type for node in nodes), *named])
    wanted = pattern.removesuffix(_BELOW)
    near = get_close_matches(wanted, list(known), n=3, cutoff=0.4) or list(known)[:3]
    return UsageError(
        f"--keep-fp {pattern!r} matches no node, operator or module of the model",
        hint=f"did you mean {', '.join(near)}?",
        option="keep-fp",
    )
