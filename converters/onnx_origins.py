"""The origin of each node of an ONNX model, and the debug sidecar that records it."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ErrorCode, UsageError
from ..core.target_extensions import ProbeNode
from .onnx_topology import all_nodes, load_model

if TYPE_CHECKING:
    import onnx
    import onnx_ir

_BELOW = ".*"  # suffix of a module path: everything below it, which a bare path includes too


@dataclass(frozen=True, kw_only=True)
class NodeOrigin:
    """The module that a node was traced from, its class and source line; empty if unknown.

    `weights` is the module that owns the weights, if it is another. `operator` is the node's
    operator, `after` the node that produces its first input.
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
        """The module paths by which patterns find it."""
        return tuple(path for path in (self.module, self.weights) if path)


UNKNOWN_ORIGIN = NodeOrigin()


def debug_sidecar_path(path: Path) -> Path:
    """Return `model.fp16.debug.json` for `model.fp16.onnx`; it may not exist."""
    return path.with_suffix(".debug.json")


def read_origins(path: Path) -> Mapping[str, NodeOrigin]:
    """Return the origins by node name; empty if the model has no sidecar.

    Raises:
        UsageError: modelc did not write the sidecar.
    """
    sidecar = debug_sidecar_path(path)
    if not sidecar.is_file():
        return {}
    try:
        nodes: dict[str, dict[str, str]] = json.loads(sidecar.read_text("utf-8"))["nodes"]
        keys = {one.name: "class" if one.name == "cls" else one.name for one in fields(NodeOrigin)}
        return {
            name: NodeOrigin(**{field: entry.get(key, "") for field, key in keys.items()})
            for name, entry in nodes.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{sidecar.name} is not a debug sidecar: {error}",
            hint=f"delete {sidecar} or export the model again",
            code=ErrorCode.CORRUPT_FILE,
        ) from error


def node_title(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> str:
    """Return how messages name a node: `encoder.layer.3.mlp (MatMul node_MatMul_71)`."""
    module = origins.get(node.name, UNKNOWN_ORIGIN).module
    title = " ".join(part for part in (node.op_type, node.name) if part)
    return f"{module} ({title})" if module else title


def module_or_node(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> str:
    """Return the module of a node; the node itself if unknown."""
    return origins.get(node.name, UNKNOWN_ORIGIN).module or node_title(node, {})


def match_nodes(path: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that match `--keep-fp` patterns, in graph order.

    A pattern, with `*`, `?` and `[...]` as in a shell, is compared with each node's name, operator
    and module path. A module path includes what is below it: `layers.3` and `layers.3.*` both mean
    the whole module.

    Args:
        path: the ONNX model; its debug sidecar gives the module paths.
        patterns: as the user wrote them.

    Raises:
        UsageError: a pattern matches no node, or a node without a name.
        ConversionError: the model cannot be read.
    """
    if not patterns:
        return ()
    model = load_model(path)
    origins = read_origins(path)
    nodes = list(all_nodes(model.graph))
    found: set[str] = set()
    for pattern in patterns:
        matched = {node.name for node in nodes if _is_match(pattern, node, origins)}
        if not matched:
            raise _no_match_error(pattern, nodes, origins)
        if "" in matched:
            raise UsageError(
                f"--keep-fp {pattern!r} matches nodes of {path.name} without a name",
                hint="name its nodes, as modelc export does",
                option="keep-fp",
            )
        found |= matched
    return tuple(dict.fromkeys(node.name for node in nodes if node.name in found))


def _is_match(pattern: str, node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> bool:
    if pattern == node.name:  # a name may contain brackets, which fnmatch would interpret
        return True
    if fnmatchcase(node.name, pattern) or fnmatchcase(node.op_type, pattern):
        return True
    path = pattern.removesuffix(_BELOW)
    modules = origins.get(node.name, UNKNOWN_ORIGIN).modules
    return any(fnmatchcase(above, path) for module in modules for above in _module_prefixes(module))


def _module_prefixes(module: str) -> Iterator[str]:
    """Return `a`, `a.b`, `a.b.c` for `a.b.c`; nothing for the root module."""
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
    name = pattern.removesuffix(_BELOW)
    near = get_close_matches(name, list(known), n=3, cutoff=0.4) or list(known)[:3]
    return UsageError(
        f"--keep-fp {pattern!r} matches no node, operator or module of the model",
        hint=f"did you mean {', '.join(near)}?",
        option="keep-fp",
        code=ErrorCode.UNKNOWN_NAME,
    )


_ACTIVATIONS = ("Relu", "Clip")
_QUANTIZERS = ("QuantizeLinear", "FakeQuantize")
_INTEGER = ("DequantizeLinear", "Convert")  # operators that may precede the conversion to integers
_REST = ("Convert", "Subtract", "Multiply")  # OpenVINO's dequantizer


def assign_absorbed_layers(
    nodes: Sequence[ProbeNode], origins: Mapping[str, NodeOrigin]
) -> tuple[ProbeNode, ...]:
    """Assign a quantizer that replaces an activation to the activation's module.

    Args:
        nodes: of the artifact.
        origins: of its parent model, in graph order.
    """
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[ProbeNode]] = defaultdict(list)
    for node in nodes:
        for name in node.inputs:
            readers[name].append(node)
    absorbed: dict[str, NodeOrigin] = {}
    for name, origin in origins.items():
        before = by_name.get(origin.after)
        if name in by_name or before is None or origin.operator not in _ACTIVATIONS:
            continue
        for output in before.outputs:
            for reader in readers[output]:
                if reader.operator in _QUANTIZERS:
                    absorbed[_find_dequantize(reader, readers).name] = origin
    return tuple(
        replace(node, module=found.module, kind=found.cls, source=found.source)
        if (found := absorbed.get(node.name))
        else node
        for node in nodes
    )


def _find_dequantize(quantizer: ProbeNode, readers: Mapping[str, list[ProbeNode]]) -> ProbeNode:
    """Return the node that converts the values back to floats."""
    end = quantizer
    following: tuple[str, ...] = _INTEGER
    while True:
        after = [node for output in end.outputs for node in readers.get(output, ())]
        if len(after) != 1 or len(after[0].inputs) != 1 or after[0].operator not in following:
            return end
        end = after[0]
        if end.operator in ("DequantizeLinear", "Multiply"):
            return end
        following = _REST


_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_ROOT = Path(__file__).parent.parent
_OWN_FOLDERS = tuple(_ROOT / name for name in ("capture", "checkpoints", "core"))
_NOBODY = "_empty_nn_module_stack_from_metadata_hook"  # torch's scope for nodes outside any module
_SCOPES = "pkg.torch.onnx.name_scopes"
_NOTES = ("namespace", "pkg.")  # exporter metadata: paths, scopes, traces


def write_sidecar(model: onnx_ir.Model, path: Path, *, scope: str) -> Path:
    """Write `{"nodes": {name: {module, class, ...}}}` and strip the model of it.

    `weights` is the module that owns the node's weights, if it is not `module`: the exporter
    attributes a convolution with a folded batch norm to the norm. `operator` and `after`, the
    producer of the first input, give the node's position: a quantizer removes an activation and
    clips in its place. `source` and `code` are the user's line.

    Args:
        model: changed in place: loses all doc strings and exporter metadata.
        path: the sidecar.
        scope: the attribute of our wrapper, which is cut from module paths.
    """
    nodes = {
        node.name: {**_node_origin(node, scope), **_node_position(node)}
        for node in _ir_nodes(model)
        if node.name
    }
    document = {"schema_version": 1, "nodes": {name: o for name, o in nodes.items() if o}}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    _strip_notes(model)
    return path


def _ir_nodes(model: onnx_ir.Model) -> Iterator[onnx_ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _node_origin(node: onnx_ir.Node, scope: str) -> dict[str, str]:
    """Return module path, class, source line and code of a node; empty if unknown."""
    scopes = _parse_list(node.metadata_props.get(_SCOPES))
    classes = _parse_list(node.metadata_props.get("pkg.torch.onnx.class_hierarchy"))
    origin: dict[str, str] = {}
    if len(scopes) > 1 and len(scopes) == len(classes) and classes[-2] != _NOBODY:
        origin = {"module": _strip_scope(scope, scopes[-2]), "class": classes[-2]}
    elif "/" in (node.name or ""):
        parts = [part for part in str(node.name).split("/") if part]
        origin = {"module": _strip_scope(scope, ".".join(parts[:-1]))}
    owner = _weight_owner(node, scope)
    if owner and owner != origin.get("module"):
        origin["weights"] = owner
    return {**origin, **_source_line(node.metadata_props.get("pkg.torch.onnx.stack_trace", ""))}


def _node_position(node: onnx_ir.Node) -> dict[str, str]:
    """Return the node's operator and the producer of its first input."""
    makers = [value.producer() for value in node.inputs if value is not None]
    before = next((maker.name for maker in makers if maker is not None and maker.name), "")
    found = {"operator": node.op_type}
    return {**found, "after": before} if before else found


def _weight_owner(node: onnx_ir.Node, scope: str) -> str:
    """Return the module of the first weight among the node's inputs; empty if there is none.

    The exporter merges equal weights: the name of one belongs to the module that reads it first.
    """
    for value in node.inputs:
        if value is None or not value.is_initializer() or "." not in (value.name or ""):
            continue
        first = next(use.node for use in value.uses())
        if first.metadata_props.get(_SCOPES) != node.metadata_props.get(_SCOPES):
            continue
        module = str(value.name).rpartition(".")[0]
        if not scope or module == scope or module.startswith(f"{scope}."):
            return _strip_scope(scope, module)
    return ""


def _strip_scope(scope: str, module: str) -> str:
    if not scope:
        return module
    return "" if module == scope else module.removeprefix(f"{scope}.")


def _parse_list(text: str | None) -> list[str]:
    value: Any = ast.literal_eval(text) if text else []
    return [str(item) for item in value]


def _source_line(trace: str) -> dict[str, str]:
    """Return the innermost frame outside torch and modelc."""
    import torch

    library = Path(torch.__file__).parent
    frames = [f for f in _FRAME.findall(trace) if not _is_within(f[0], (library, *_OWN_FOLDERS))]
    if not frames:
        return {}
    file, line, _, code = frames[-1]
    return {"source": f"{file}:{line}", "code": code.strip()}


def _is_within(file: str, folders: Iterable[Path]) -> bool:
    return any(Path(file).is_relative_to(folder) for folder in folders)


def _strip_notes(model: onnx_ir.Model) -> None:
    model.doc_string = None
    for graph in [model.graph, *(function.graph for function in model.functions.values())]:
        _clear_notes(graph)
        for value in [*graph.inputs, *graph.outputs, *graph.initializers.values()]:
            _clear_notes(value)
    for node in _ir_nodes(model):
        _clear_notes(node)
        for value in node.outputs:
            _clear_notes(value)
    _clear_notes(model)


def _clear_notes(thing: Any) -> None:
    thing.doc_string = None
    for key in [key for key in thing.metadata_props if key.startswith(_NOTES)]:
        del thing.metadata_props[key]
