"""Moves what the exporter says of each node's origin from the model into a debug sidecar."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_ROOT = Path(__file__).parent.parent
_OWN_FOLDERS = (_ROOT / "sources", _ROOT / "core")  # the wrapper around the user's module
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
