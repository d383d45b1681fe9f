"""Makes ONNX that the runtimes named with `--for` load, and refuses what none of this can mend.

The exporters write opset 18 to 23 themselves, so the opset is chosen and never converted. The IR
version is lowered where nothing in the model needs it. What is held against the limits is the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConversionError, Hint, Option, UsageError
from .guarded import call_framework
from .onnx_runtimes import AllowedOnnx, combine_runtimes

if TYPE_CHECKING:
    import onnx

LOADS_IN = "loads in"  # among an artifact's options
_CORE = ("", "ai.onnx")
_ML, _CONTRIB = "ai.onnx.ml", "com.microsoft"
# The IR version that brought each type; an older reader knows no such tensor.
_TYPES = {
    "FLOAT8E4M3FN": 9, "FLOAT8E4M3FNUZ": 9, "FLOAT8E5M2": 9, "FLOAT8E5M2FNUZ": 9,
    "UINT4": 10, "INT4": 10, "FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "UINT2": 13, "INT2": 13,
}  # fmt: skip
_FUNCTIONS, _OVERLOADS = 8, 10  # the IR versions that brought functions, and overloads of them


def choose_opset(asked: int | None, runtimes: Sequence[str], *, default: int, last: int) -> int:
    """The opset to write.

    Args:
        asked: `--opset`.
        runtimes: `--for`.
        default: without either.
        last: the newest that the exporter writes.

    Returns:
        what was asked for; else the newest that runs in all the runtimes and the exporter writes.

    Raises:
        UsageError: what was asked for is newer than one of the runtimes loads.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return asked or default
    if asked is not None and asked > allowed.opset:
        raise UsageError(
            f"--opset {asked} is beyond what --for allows: {allowed}",
            hint=Hint("use ", Option("opset", f"{allowed.opset}"), " or less, or leave it out"),
            option="opset",
        )
    return asked or min(allowed.best, last)


def lower_model(path: Path, runtimes: Sequence[str]) -> dict[str, str]:
    """Hold a model file to the runtimes, with its IR version lowered where that is needed.

    External weights are not read, and stay as they are.

    Returns:
        what an artifact's record says of it; nothing where no runtime was named.

    Raises:
        ConversionError: it needs more than one of the runtimes has.
    """
    allowed = combine_runtimes(runtimes)
    if allowed is None:
        return {}

    import onnx

    model = call_framework("onnx", lambda: onnx.load(str(path), load_external_data=False))
    for fault in _compatibility_faults(model, allowed):
        raise ConversionError(
            f"{path.name} would not load in {allowed}: {fault}",
            hint=Hint("name a later release with ", Option("for"), ", or leave it out"),
            option="for",
        )
    if model.ir_version > allowed.ir:
        model.ir_version = allowed.ir
        draft = path.with_name(f"{path.name}.draft")
        draft.write_bytes(model.SerializeToString())
        draft.replace(path)
    return {LOADS_IN: str(allowed), "ir": str(model.ir_version), "opset": str(opset_of(model))}


def opset_of(model: onnx.ModelProto) -> int:
    """The opset of ONNX's own operators."""
    return max((int(o.version) for o in model.opset_import if o.domain in _CORE), default=1)


def _compatibility_faults(model: onnx.ModelProto, allowed: AllowedOnnx) -> Iterator[str]:
    """Everything in a model that is beyond the limits, the gravest first."""
    opset = opset_of(model)
    if opset > allowed.opset:
        yield f"its opset is {opset}"
    for entry in model.opset_import:
        if entry.domain == _ML and entry.version > allowed.ml:
            yield f"its opset of {_ML} is {entry.version}, and {allowed.ml or 'none'} is known"
    yield from _foreign_operators(model, allowed)
    yield from _ir_requirements(model, allowed.ir)


def _foreign_operators(model: onnx.ModelProto, allowed: AllowedOnnx) -> Iterator[str]:
    """Operators of domains that the runtimes do not have and the model does not define."""
    own = {(function.domain, function.name) for function in model.functions}
    for node in _model_nodes(model):
        domain = node.domain
        known = domain in (*_CORE, _ML) or (domain, node.op_type) in own
        if known or (domain == _CONTRIB and allowed.contrib):
            continue
        yield f"{node.name or node.op_type} is an operator of {domain}: {node.op_type}"


def _ir_requirements(model: onnx.ModelProto, ir: int) -> Iterator[str]:
    """What is in the model that its IR version must be later for."""
    import onnx

    if model.functions and ir < _FUNCTIONS:
        yield f"it holds functions, which need IR {_FUNCTIONS}"
    if any(function.overload for function in model.functions) and ir < _OVERLOADS:
        yield f"it holds overloaded functions, which need IR {_OVERLOADS}"
    for code in sorted(_tensor_types(model)):
        name = onnx.TensorProto.DataType.Name(code)
        if _TYPES.get(name, 0) > ir:
            yield f"it holds {name.lower()} tensors, which need IR {_TYPES[name]}"


def _tensor_types(model: onnx.ModelProto) -> set[int]:
    """The types of all tensors that the model holds, declares or casts to."""
    found: set[int] = set()
    for graph in _all_graphs(model):
        values = (*graph.input, *graph.output, *graph.value_info)
        found |= {tensor.data_type for tensor in graph.initializer}
        found |= {value.type.tensor_type.elem_type for value in values}
    for node in _model_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.add(attribute.t.data_type)
            elif attribute.name in ("to", "output_dtype", "dtype"):
                found.add(attribute.i)
    return found


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph and those inside nodes, its functions' too."""
    waiting = [model.graph, *(body for one in model.functions for body in _node_bodies(one.node))]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += _node_bodies(graph.node)


def _node_bodies(nodes: Sequence[onnx.NodeProto]) -> list[onnx.GraphProto]:
    return [
        attribute.g for node in nodes for attribute in node.attribute if attribute.HasField("g")
    ]


def _model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _all_graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node
