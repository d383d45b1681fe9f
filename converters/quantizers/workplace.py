"""A copy of the parent to work on: the libraries write beside what they read."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.contract import QuantizeJob
from ...core.errors import ConversionError, Hint, Option
from ..guarded import call_framework
from ..model_files import copy_external_weights

if TYPE_CHECKING:
    import onnx

_FOLDER = "work"
_NAME = "model.onnx"
_GEMM_INPUTS = 3  # with a bias


@dataclass(frozen=True, kw_only=True)
class QuantizerWorkspace:
    """The copy: its folder, its model file, and whether its weights lie in a file of their own."""

    folder: Path
    model: Path
    external: bool

    def load(self) -> onnx.ModelProto:
        """The copy with its weights in memory."""
        import onnx

        return onnx.load(str(self.model))

    def clear(self) -> None:
        """Delete it all."""
        shutil.rmtree(self.folder)


def create_workspace(job: QuantizeJob, *, opset: int) -> QuantizerWorkspace:
    """Copy the parent into the job's folder, every node named, at `opset` or later.

    Raises:
        ConversionError: the parent cannot be read, or cannot be raised to the opset.
    """
    import onnx

    folder = job.folder / _FOLDER
    folder.mkdir()
    model = call_framework("onnx", lambda: onnx.load(str(job.parent), load_external_data=False))
    external = copy_external_weights(model, job.parent, folder)
    path = folder / _NAME
    found = _model_opset(model)
    if found < opset:
        model = _raise_opset(model, found, opset, external=bool(external))
    changes = _name_nodes(model) + _lift_constants(model.graph) + _fold_beta(model.graph, folder)
    if changes or found < opset:
        onnx.save(model, str(path))
    else:
        shutil.copyfile(job.parent, path)
    return QuantizerWorkspace(folder=folder, model=path, external=bool(external))


def _model_opset(model: onnx.ModelProto) -> int:
    return max(
        (int(o.version) for o in model.opset_import if o.domain in {"", "ai.onnx"}), default=1
    )


def _raise_opset(
    model: onnx.ModelProto, found: int, opset: int, *, external: bool
) -> onnx.ModelProto:
    """The model at a later opset.

    The converter works on one protobuf in memory, so weights in files of their own stay behind.
    """
    from onnx import version_converter

    if external:
        raise ConversionError(
            f"the model has opset {found}, {opset} is needed, and its weights lie in another file",
            hint=Hint("export it with ", Option("opset", "21")),
            option="opset",
        )
    try:
        return version_converter.convert_version(model, opset)
    except Exception as error:
        raise ConversionError(
            f"the model has opset {found} and could not be raised to {opset}",
            hint=Hint("export it with ", Option("opset", "21")),
            option="opset",
        ) from error


def _lift_constants(graph: onnx.GraphProto) -> int:
    """Turn `Constant` nodes into initializers, which is where libraries look for weights."""
    lifted = [
        (node, attribute.t)
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for node, tensor in lifted:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = node.output[0]
        graph.node.remove(node)
    return len(lifted)


def _fold_beta(graph: onnx.GraphProto, folder: Path) -> int:
    """Multiply each Gemm's bias by its `beta`, which ONNX Runtime's quantizer drops; how many."""
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    scaled = [
        (node, attribute)
        for node in graph.node
        if node.op_type == "Gemm" and len(node.input) == _GEMM_INPUTS and node.input[2]
        for attribute in node.attribute
        if attribute.name == "beta" and attribute.f != 1
    ]
    for node, attribute in scaled:
        bias, beta = node.input[2], np.float32(attribute.f)
        node.input[2] = f"{node.name}::bias"
        attribute.f = 1.0
        if bias in constants:
            array = numpy_helper.to_array(constants[bias], str(folder))
            product = np.asarray(array * beta).astype(array.dtype)
            graph.initializer.append(numpy_helper.from_array(product, node.input[2]))
            continue
        graph.initializer.append(numpy_helper.from_array(np.asarray(beta), f"{node.name}::beta"))
        inputs, place = [bias, f"{node.name}::beta"], list(graph.node).index(node)
        name = f"{node.name}::scaled"
        graph.node.insert(place, helper.make_node("Mul", inputs, [node.input[2]], name=name))
    return len(scaled)


def _name_nodes(model: onnx.ModelProto) -> int:
    """Give every node without a name one of its own; how many there were."""
    nameless = [node for node in model.graph.node if not node.name]
    taken = {node.name for node in model.graph.node}
    for index, node in enumerate(nameless):
        name = f"{node.op_type}_{index}"
        node.name = name if name not in taken else f"unnamed_{name}"
    return len(nameless) + make_names_unique(model.graph)


def make_names_unique(graph: onnx.GraphProto) -> int:
    """Give nodes of one name a number behind it, but for the first; how many there were.

    ONNX Runtime loads no model with two nodes of one name, and a choice by name would mean both.
    """
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    changed = 0
    for node in graph.node:
        if node.name and node.name in seen:
            node.name = next(name for n in count(2) if (name := f"{node.name}_{n}") not in taken)
            taken.add(node.name)
            changed += 1
        seen.add(node.name)
    return changed
