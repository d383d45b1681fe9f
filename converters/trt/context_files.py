"""Files of a model with engines for ONNX Runtime: the model, its weights, engines and profiles.

A context model names the engines in its EPContext nodes; any other model has engines whose names
start with its own, as the engine cache of ONNX Runtime's TensorRT provider names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...capture.framework_errors import call_framework
from ...core.errors import ErrorCode, RunnerError
from ..onnx_files import save_model, set_metadata
from ..onnx_guard import external_path_fault, list_model_files, read_graph

if TYPE_CHECKING:
    import onnx

SUFFIX = ".ctx.onnx"
CONTEXT_NODE = "EPContext"  # an operator of ONNX Runtime that holds a part of a model
_ENGINE_FILE = "ep_cache_context"  # its attribute that names the file of the engine
_ENGINE, _PROFILE = ".engine", ".profile"


def is_whole(context: Path, path: Path) -> bool:
    """Return whether a context model has the inputs and outputs of the model itself.

    Of a model that TensorRT takes in part, the provider writes a context model of one part.
    """
    written, model = read_graph(context).graph, read_graph(path).graph
    contexts = [node for node in written.node if node.op_type == CONTEXT_NODE]
    weights = {tensor.name for tensor in model.initializer}
    return (
        bool(contexts)
        and {one.name for one in written.input} == {one.name for one in model.input} - weights
        and {one.name for one in written.output} == {one.name for one in model.output}
    )


def replace_by_context(path: Path, context: Path, origin: Mapping[str, str]) -> None:
    """Replace the model and its weights by the context model, with the model's metadata."""
    import onnx_ir

    model = call_framework("onnx_ir", lambda: onnx_ir.load(context))
    set_metadata(model, origin)
    for file in list_model_files(path):
        file.unlink()
    context.unlink()
    save_model(model, path)


def find_engines(path: Path) -> tuple[Path, ...]:
    """Return the engines of a model: those that its nodes name, or those of its name beside it.

    Raises:
        RunnerError: a node names a file outside the model's folder, or holds the engine itself.
    """
    named = [_engine_name(path, node) for node in _contexts(read_graph(path))]
    if named:
        return tuple(path.parent / name for name in named)
    stem = path.name.removesuffix(SUFFIX)
    files = (one for one in path.parent.iterdir() if one.name.startswith(f"{stem}_"))
    return tuple(sorted(one for one in files if one.suffix == _ENGINE))


def _contexts(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == CONTEXT_NODE]


def _engine_name(path: Path, node: onnx.NodeProto) -> str:
    values = {one.name: one for one in node.attribute}
    name = values[_ENGINE_FILE].s.decode("utf-8", "replace") if _ENGINE_FILE in values else ""
    fault = external_path_fault(path, name) if name else "names no engine"
    if fault or ("embed_mode" in values and values["embed_mode"].i):
        raise RunnerError(
            f"{path.name} {fault or 'holds an engine itself'}",
            hint="give the file as modelc made it",
            code=ErrorCode.UNSAFE_PATH,
        )
    return name


def list_files(path: Path, engines: tuple[Path, ...]) -> tuple[tuple[str, str], ...]:
    """Return the model, its weights, the engines and their profiles, with their roles."""
    model, *weights = list_model_files(path)
    profiles = (engine.with_suffix(_PROFILE) for engine in engines)
    data = (*weights, *engines, *(one for one in profiles if one.is_file()))
    return ((model.name, "model"), *((one.name, "data") for one in data))
