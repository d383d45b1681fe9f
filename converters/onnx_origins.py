"""Where nodes of an ONNX model come from, and the debug sidecar that records it."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..capture.framework_errors import call_framework
from ..core.errors import UsageError
from ..core.target_extensions import ProbeNode

if TYPE_CHECKING:
    import onnx
    import onnx_ir

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


_ACTIVATIONS = ("Relu", "Clip")
_QUANTIZERS = ("QuantizeLinear", "FakeQuantize")
_INTEGER = ("DequantizeLinear", "Convert")  # what follows where the values become integers
_REST = ("Convert", "Subtract", "Multiply")  # OpenVINO's dequantizer


def assign_absorbed_layers(
    nodes: Sequence[ProbeNode], origins: Mapping[str, NodeOrigin]
) -> tuple[ProbeNode, ...]:
    """The nodes; the end of a quantizer that stands for an activation belongs to its module.

    Args:
        nodes: of the artifact.
        origins: of the model that it was made of, in the order of its graph.
    """
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[ProbeNode]] = defaultdict(list)
    for node in nodes:
        for name in node.inputs:
            readers[name].append(node)
    taken: dict[str, NodeOrigin] = {}
    for name, origin in origins.items():
        before = by_name.get(origin.after)
        if name in by_name or before is None or origin.operator not in _ACTIVATIONS:
            continue
        for output in before.outputs:
            for reader in readers[output]:
                if reader.operator in _QUANTIZERS:
                    taken[_find_dequantize(reader, readers).name] = origin
    return tuple(_with_origin(node, taken.get(node.name)) for node in nodes)


def _with_origin(node: ProbeNode, origin: NodeOrigin | None) -> ProbeNode:
    if origin is None:
        return node
    return replace(node, module=origin.module, kind=origin.cls, source=origin.source)


def _find_dequantize(quantizer: ProbeNode, readers: Mapping[str, list[ProbeNode]]) -> ProbeNode:
    """The node with which the values are floats again."""
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
_NOBODY = "_empty_nn_module_stack_from_metadata_hook"  # torch's scope for what is of no module
_NOTES = ("namespace", "pkg.")  # metadata of exporters: paths, scopes, traces


def write_sidecar(model: onnx_ir.Model, path: Path, *, scope: str) -> Path:
    """Write `{"nodes": {name: {module, class, ...}}}` and strip the model of it.

    `weights` is the module that owns the node's weights, where it is another than `module`: a
    convolution that a batch norm was folded into is the norm's by the exporter's account.
    `operator` and `after`, the node that makes its first input, say where it stood: a quantizer
    takes an activation out and clips in its place. `source` and `code` are the user's line.

    Args:
        model: changed in place: no doc string and no exporter metadata stays.
        path: the sidecar.
        scope: the attribute of our wrapper to cut from module paths.
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
    """Module path, class, source line and code of one node; empty where nothing is known."""
    scopes = _parse_list(node.metadata_props.get("pkg.torch.onnx.name_scopes"))
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
    """What the node is, and the node before it."""
    makers = [value.producer() for value in node.inputs if value is not None]
    before = next((maker.name for maker in makers if maker is not None and maker.name), "")
    found = {"operator": node.op_type}
    return {**found, "after": before} if before else found


def _weight_owner(node: onnx_ir.Node, scope: str) -> str:
    """The module of the first weight among the node's inputs; empty where there is none."""
    for value in node.inputs:
        if value is None or not value.is_initializer() or "." not in (value.name or ""):
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
    """The innermost frame that is neither torch's nor ours."""
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
