"""Probe ONNX models: run them with additional outputs or in parts, in ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.contract import Array, Feed, Outputs
from ..core.errors import RunnerError
from ..core.target_extensions import ProbeNode, QuantizedRange, TensorForm
from .onnx_files import detach_weights
from .onnx_guard import read_graph
from .onnx_half_emulation import (
    bfloat16_ends,
    cast_ends,
    computes_in_half,
    emulate_half,
    has_half_io,
)
from .onnx_origins import (
    UNKNOWN_ORIGIN,
    NodeOrigin,
    assign_absorbed_layers,
    read_origins,
)
from .onnx_sessions import open_session, run_session
from .onnx_topology import all_nodes, constant_values, name_nodes, node_bodies
from .runner_base import nodes_between, runner_error, text_lines

if TYPE_CHECKING:
    import onnx

    from .onnx_files import WeightStore

_HALVES = (10, 16)  # onnx.TensorProto.FLOAT16 and BFLOAT16
_LAST_PLAIN = 16  # BFLOAT16; ONNX Runtime has only Q and DQ for the types beyond, FP8 and INT4
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
_MADE = "::made"  # suffix of a tensor that is still computed while its readers get another
_FORM = "::form"
_LOADER = """
import onnxruntime


def run(model, given, output):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run([output], given)[0]
"""
_ROUNDING = "::cast::"  # nodes of `onnx_half_emulation.py`


def open_probe(path: Path) -> OnnxProbe:
    """Load a model with its origins.

    A model with half tensors is probed as it is judged: as a copy that rounds them.

    Raises:
        RunnerError: the model cannot be read.
        UsageError: its debug sidecar is invalid.
    """
    model = read_graph(path)
    name_nodes(model.graph)
    origins = read_origins(path) or _own_origins(path)
    slim, held = detach_weights(model)
    del model  # its weights are now held separately: they may take gigabytes
    if has_half_io(slim) or computes_in_half(slim):
        slim = emulate_half(slim, float_io=has_half_io(slim))
    return OnnxProbe(slim, path.parent, origins, held=held)


def _own_origins(path: Path) -> Mapping[str, NodeOrigin]:
    """Return the origins that torch's exporter left in the model itself."""
    import onnx_ir

    from .onnx_origins import _node_origin

    model = onnx_ir.load(path)
    found = {node.name: _node_origin(node, "") for node in model.graph.all_nodes() if node.name}
    return {
        name: NodeOrigin(
            module=o.get("module", ""),
            cls=o.get("class", ""),
            source=o.get("source", ""),
            weights=o.get("weights", ""),
        )
        for name, o in found.items()
    }


class OnnxProbe:
    """An ONNX model that runs in parts, each in a session of its own.

    Arrays of bfloat16 tensors are float32, as NumPy has no bfloat16.
    """

    loader = _LOADER

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        origins: Mapping[str, NodeOrigin],
        *,
        held: WeightStore,
    ) -> None:
        import onnx

        self.runs = 0
        self._held = held
        del model.graph.value_info[:]  # the half ones in a rounded copy
        self._model = onnx.shape_inference.infer_shapes(model)
        self._folder = folder
        graph = self._model.graph
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._known = {
            value.name: value for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self.inputs = tuple(v.name for v in graph.input if v.name not in self._constants)
        self.outputs = tuple(value.name for value in graph.output)
        self.ends: Mapping[str, str] = {name: name for name in self.outputs}
        self._makers = {out: node.name for node in graph.node for out in node.output if out}
        self._reads = {node.name: tuple(_reads(node)) for node in graph.node}
        self.nodes = assign_absorbed_layers(tuple(self._describe_nodes(origins)), origins)

    def _describe_nodes(self, origins: Mapping[str, NodeOrigin]) -> Iterator[ProbeNode]:
        made: dict[str, NodeOrigin] = {}
        fixed = set(self._constants)
        for node in self._model.graph.node:
            origin = origins.get(node.name, UNKNOWN_ORIGIN)
            if origin is UNKNOWN_ORIGIN and node.op_type not in _QUANTIZERS and node.input:
                # an inserted node belongs to its producer; a quantizer may stand for a ReLU too
                origin = made.get(node.input[0], UNKNOWN_ORIGIN)
            made.update(dict.fromkeys(node.output, origin))
            reads = self._reads[node.name]
            if reads and all(name in fixed for name in reads) and _ROUNDING in node.name:
                fixed.update(node.output)  # a widened half weight
            if node.op_type == "Constant":
                fixed.update(node.output)
            yield ProbeNode(
                name=node.name,
                operator=node.op_type,
                inputs=tuple(name for name in reads if name not in fixed),
                outputs=tuple(name for name in node.output if name),
                constants=tuple(name for name in reads if name in fixed),
                module=origin.module,
                kind=origin.cls,
                owner=origin.weights,
                source=origin.source,
                attributes={a.name: _text(a) for a in node.attribute},
                inside=_inside(node, origins),
                half=node.op_type == "Cast" and node.attribute[0].i in _HALVES,
            )

    def forms(self, feed: Feed) -> Mapping[str, TensorForm]:
        """Return shapes from a run that outputs only shapes; dtypes from inference.

        Tensors of FP8 and INT4 have none: ONNX Runtime has no Shape for them.
        """
        import onnx
        from onnx import helper

        codes = {name: value.type.tensor_type.elem_type for name, value in self._known.items()}
        typed = {
            name: _array_dtype(code) for name, code in codes.items() if 0 < code <= _LAST_PLAIN
        }
        made = [out for node in self.nodes for out in node.outputs if out in typed]
        probe = onnx.ModelProto()
        probe.CopyFrom(self._model)
        for index, name in enumerate(made):
            probe.graph.node.append(
                helper.make_node("Shape", [name], [f"{index}{_FORM}"], name=f"{index}{_FORM}")
            )
        del probe.graph.output[:]
        probe.graph.output.extend(
            helper.make_tensor_value_info(f"{index}{_FORM}", onnx.TensorProto.INT64, [None])
            for index in range(len(made))
        )
        shapes = self._run(probe, feed)
        return {
            name: TensorForm(
                shape=tuple(int(n) for n in shapes[f"{index}{_FORM}"]), dtype=typed[name]
            )
            for index, name in enumerate(made)
        }

    def tap(self, feed: Feed, tensors: Collection[str]) -> Outputs:
        """Run the whole model with additional outputs."""
        import onnx

        probe = onnx.ModelProto()
        probe.CopyFrom(self._model)
        more = [name for name in dict.fromkeys(tensors) if name not in self.outputs]
        probe.graph.output.extend(self._value(name, name) for name in more)
        return self._run(cast_ends(probe, bfloat16_ends(probe)), feed)

    def part(self, given: Feed, wanted: Collection[str]) -> Outputs:
        """Run the nodes between as a model of their own."""
        part, renamed = self._cut(given, tuple(wanted))
        found = self._run(part, given)
        return {name: found[renamed.get(name, name)] for name in wanted}

    def constant(self, name: str) -> Array:
        """Return an initializer, or the value of a Constant node."""
        if name in self._held.arrays:
            return self._held.arrays[name]
        if name in self._constants:
            return constant_values(self._constants[name], self._folder)
        return self.part({}, [name])[name]

    def range_of(self, node: ProbeNode) -> QuantizedRange | None:
        """Return the range of a QuantizeLinear."""
        import numpy as np

        if node.operator != "QuantizeLinear" or not node.inputs or not node.constants:
            return None
        scale, *rest = [self.constant(name) for name in node.constants]
        zero = rest[0] if rest else np.zeros((), np.uint8)
        form = self._known.get(node.inputs[0])
        rank = 0 if form is None else len(form.type.tensor_type.shape.dim)
        if scale.size > 1 and rank:
            shape = [1] * rank
            shape[int(node.attributes.get("axis", "1"))] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        ends = np.iinfo(zero.dtype)
        low, high = (end - zero.astype(np.int64) for end in (ends.min, ends.max))
        return QuantizedRange(
            tensor=node.inputs[0], low=low * scale, high=high * scale, scale=scale
        )

    def extract(self, given: Feed, wanted: Sequence[str], folder: Path) -> str:
        """Write `model.onnx` with its weights inside and without unused nodes."""
        import onnx
        from onnx.external_data_helper import load_external_data_for_model

        part, _ = self._cut({n: a for n, a in given.items() if n not in wanted}, tuple(wanted))
        self._held.put_back(part.graph)
        load_external_data_for_model(part, str(self._folder))
        onnx.save(part, str(folder / "model.onnx"))
        return "model.onnx"

    def _cut(self, given: Feed, wanted: tuple[str, ...]) -> tuple[onnx.ModelProto, dict[str, str]]:
        """Return the model of the required nodes, and the names of the outputs in it."""
        import onnx

        needed = nodes_between(self._makers, self._reads, {*given, *self._constants}, wanted)
        read = {name for node in needed for name in self._reads[node]}
        renamed = {name: name + _MADE for name in wanted if name in given}
        part = onnx.ModelProto()
        part.ir_version = self._model.ir_version
        part.opset_import.extend(self._model.opset_import)
        part.functions.extend(self._model.functions)
        part.graph.name = "part"
        for node in self._model.graph.node:
            if node.name not in needed:
                continue
            part.graph.node.add().CopyFrom(node)
            made = [renamed.get(name, name) for name in node.output]
            part.graph.node[-1].output[:] = made
        part.graph.initializer.extend(
            tensor for name, tensor in self._constants.items() if name in read
        )
        part.graph.input.extend(
            self._value(name, name, array) for name, array in given.items() if name in read
        )
        part.graph.output.extend(self._value(name, renamed.get(name, name)) for name in wanted)
        return cast_ends(part, bfloat16_ends(part)), renamed

    def _value(self, name: str, title: str, array: Array | None = None) -> onnx.ValueInfoProto:
        """Return a port of the tensor's type with an open shape."""
        import onnx

        known = self._known.get(name)
        code = 0 if known is None else known.type.tensor_type.elem_type
        if not code and array is not None:
            code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        value = onnx.ValueInfoProto(name=title)
        if code:
            value.type.tensor_type.elem_type = code
        return value

    def _run(self, model: onnx.ModelProto, feed: Feed) -> Outputs:
        self.runs += 1
        try:
            session = open_session(model, self._folder, held=self._held)
            names = {value.name for value in session.get_inputs()}
            return run_session(session, {n: a for n, a in feed.items() if n in names})
        except RunnerError:
            raise
        except Exception as error:  # any exception of the runtime
            raise runner_error("ONNX Runtime", error, " ".join(text_lines(error))) from error


def _array_dtype(code: int) -> str:
    """Return the dtype of a tensor's array."""
    from onnx import TensorProto, helper

    held = TensorProto.FLOAT if code == TensorProto.BFLOAT16 else code
    return str(helper.tensor_dtype_to_np_dtype(held))


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Return what a node reads, including the bodies inside it."""
    yield from dict.fromkeys(name for name in node.input if name)
    for body in node_bodies(node):
        inside = list(all_nodes(body))
        made = {name for one in inside for name in one.output}
        made |= {value.name for value in (*body.input, *body.initializer)}
        names = [*(n for one in inside for n in one.input), *(v.name for v in body.output)]
        yield from dict.fromkeys(n for n in names if n and n not in made)


def _inside(node: onnx.NodeProto, origins: Mapping[str, NodeOrigin]) -> tuple[str, ...] | None:
    """Return the modules of the operators in a node's bodies; None if it has no body."""
    bodies = list(node_bodies(node))
    if not bodies:
        return None
    names = [one.name for body in bodies for one in all_nodes(body)]
    modules = dict.fromkeys(origins.get(name, UNKNOWN_ORIGIN).module for name in names)
    return tuple(module for module in modules if module)


def _text(attribute: onnx.AttributeProto) -> str:
    import onnx

    if attribute.type in (attribute.GRAPH, attribute.GRAPHS, attribute.TENSOR):
        return attribute.name
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"{value:g}" if isinstance(value, float) else str(value)
