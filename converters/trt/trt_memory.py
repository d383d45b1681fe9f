"""Estimate the device memory that an engine needs at its largest sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from .engine_options import EngineOptions, Profile
from .trt_findings import Model, Node, Value, constant_tensor, is_dequantize, is_quantize

if TYPE_CHECKING:
    import onnx_ir

_BITS = 8
# Views: the output is the input's memory under another shape.
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
# Fused into the producer of their input if nothing else reads it.
_FUSED = frozenset({
    "Abs", "Cast", "Clip", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Log", "Mish", "Neg", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes by use; `largest` is the greatest number of elements in one tensor.

    `unknown` counts tensors whose size cannot be inferred; they are left out of the sum.
    """

    weights: int
    activations: int
    workspace: int
    largest: int
    largest_name: str
    unknown: int

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return self.weights + self.activations + self.workspace

    def __str__(self) -> str:
        parts = (("weights", self.weights), ("activations", self.activations))
        limit = (("workspace", self.workspace),) if self.workspace else ()
        return ", ".join(f"{name} {size:,} bytes" for name, size in (*parts, *limit))


def estimate_memory(
    model: Model, profiles: Sequence[Profile], options: EngineOptions
) -> MemoryEstimate:
    """Estimate for the largest shapes of any profile."""
    fixed = infer_sizes(model, largest_inputs(profiles))
    walk = _LifetimeWalk()
    peak = walk.peak(fixed)
    largest, elements = largest_tensor(fixed)
    return MemoryEstimate(
        weights=_weight_bytes(model),
        activations=peak,
        workspace=options.workspace or 0,
        largest=elements,
        largest_name=largest,
        unknown=len(walk.unknown),
    )


def _weight_bytes(model: Model) -> int:
    """Return the bytes of the weights in an engine; a quantized element takes one byte."""
    total = 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None:
            continue
        readers = [use.node for use in value.uses()]
        quantized = bool(readers) and all(is_quantize(node) for node in readers)
        total += (
            tensor.size if quantized else tensor.size * _element_bits(tensor.dtype.name) // _BITS
        )
    return total


def _element_bits(dtype: str) -> int:
    """Return the bits of an element on the device: double becomes float32, bool is a byte."""
    import onnx_ir

    if dtype == "DOUBLE":
        return 32
    found = onnx_ir.DataType[dtype]
    return 8 if found in (onnx_ir.DataType.BOOL, onnx_ir.DataType.STRING) else int(found.bitwidth)


class _LifetimeWalk:
    """Tracks live tensors over a walk of the graph in order, including node bodies."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # tensor -> the tensor whose memory it has
        self._own: dict[str, int] = {}  # tensor -> bytes of the memory that it owns
        self._folded: set[str] = set()  # tensors that are made of constants, when it is built
        self.unknown: set[str] = set()

    def peak(self, model: Model) -> int:
        """Return the peak of live bytes; inputs and outputs live throughout."""
        nodes = list(model.graph)
        for value in model.graph.inputs:
            self._allot(value)
        for node in nodes:
            self._place(node)
        ends = (*model.graph.inputs, *model.graph.outputs)
        lasting = {self._owner(value) for value in ends} & set(self._own)
        live = set(lasting)
        last = self._last_reads(nodes)
        most = sum(self._own[name] for name in live)
        for index, node in enumerate(nodes):
            live |= {self._owner(value) for value in node.outputs} & set(self._own)
            most = max(most, sum(self._own[name] for name in live) + self._inside(node))
            live = {name for name in live if last.get(name, -1) > index or name in lasting}
        return most

    def _place(self, node: Node) -> None:
        """Assign memory to each output: its own, its input's, or none for a constant."""
        read = [value for value in node.inputs if value is not None]
        if read and all(self._is_constant(value) for value in read):
            self._folded |= {value.name for value in node.outputs if value.name}
        elif _is_view(node):
            self._owners[node.outputs[0].name or ""] = self._owner(read[0])
        elif read and _is_fused(node, read[0]):
            owner = self._owner(read[0])
            self._owners[node.outputs[0].name or ""] = owner
            self._own[owner] = self._bytes(node.outputs[0])  # what came before is never written
        else:
            for value in node.outputs:
                self._allot(value)

    def _allot(self, value: Value) -> None:
        if value.name:
            self._own[value.name] = self._bytes(value)

    def _owner(self, value: Value) -> str:
        name = value.name or ""
        return self._owners.get(name, name)

    def _is_constant(self, value: Value) -> bool:
        return value.name in self._folded or constant_tensor(value) is not None

    def _last_reads(self, nodes: Sequence[Node]) -> dict[str, int]:
        """Return by owner the index of the last node that reads it, directly or in a body."""
        last: dict[str, int] = {}
        for index, node in enumerate(nodes):
            inner = [one for graph in _node_bodies(node) for one in graph.all_nodes()]
            for one in (node, *inner):
                last |= {self._owner(value): index for value in one.inputs if value is not None}
        return last

    def _inside(self, node: Node) -> int:
        """Return the bytes of all tensors of the largest body of a node."""
        bodies = [
            [v for one in graph.all_nodes() for v in one.outputs] for graph in _node_bodies(node)
        ]
        return max((sum(map(self._bytes, values)) for values in bodies), default=0)

    def _bytes(self, value: Value) -> int:
        """Return the bytes of an activation; 0 for a constant or an unknown size."""
        if not value.name or constant_tensor(value) is not None:
            return 0
        sizes = static_sizes(value)
        if sizes is None or value.dtype is None:
            self.unknown.add(value.name)
            return 0
        return prod(sizes) * _element_bits(value.dtype.name) // _BITS


def _is_view(node: Node) -> bool:
    """Return whether a node reshapes or dequantizes its input without a copy."""
    return node.op_type in _VIEWS or is_dequantize(node)


def _is_fused(node: Node, source: Value) -> bool:
    """Return whether a node is fused into the producer of its input, its only reader."""
    alone = len(source.uses()) == 1 and not source.is_graph_output()
    made = source.producer() is not None
    return made and alone and (node.op_type in _FUSED or is_quantize(node))


def _node_bodies(node: Node) -> list[onnx_ir.Graph]:
    """Return the graphs inside a node."""
    import onnx_ir

    found: list[onnx_ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type is onnx_ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type is onnx_ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


TensorSizes: TypeAlias = Mapping[str, tuple[int, ...]]


def largest_inputs(profiles: Sequence[Profile]) -> TensorSizes:
    """Return for each input, dim by dim, the greatest size of any profile."""
    found: dict[str, tuple[int, ...]] = {}
    for one in (one for profile in profiles for one in profile):
        known = found.get(one.name, one.high)
        found[one.name] = tuple(max(a, b) for a, b in zip(known, one.high, strict=True))
    return found


def infer_sizes(model: Model, inputs: TensorSizes) -> Model:
    """Return a copy with the sizes of all tensors at these inputs, as far as known.

    Sizes come from ONNX's shape inference on the inputs, else from the exporter's shape of the
    tensor with the sizes of its named dims.
    """
    import onnx_ir
    from onnx_ir.passes.common import ShapeInferencePass

    fixed = model.clone()
    dims = _greatest_dims(fixed.graph.inputs, inputs)
    for value in fixed.graph.inputs:
        if value.name is not None and value.name in inputs:
            value.shape = onnx_ir.Shape(inputs[value.name])
    values = [value for node in fixed.graph.all_nodes() for value in node.outputs]
    written = {value.name: value.shape for value in values}
    for value in values:
        value.shape = None
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(fixed)
    for value in values:
        if static_sizes(value) is None:
            sizes = _sizes_of_shape(written[value.name], dims)
            value.shape = None if sizes is None else onnx_ir.Shape(sizes)
    return fixed


def largest_tensor(fixed: Model) -> tuple[str, int]:
    """Return the name of the largest tensor and its number of elements."""
    values = [*fixed.graph.inputs, *(v for node in fixed.graph.all_nodes() for v in node.outputs)]
    counts = {v.name or "": prod(sizes) for v in values if (sizes := static_sizes(v)) is not None}
    return max(counts.items(), key=lambda item: item[1], default=("", 0))


def _greatest_dims(values: Iterable[Value], inputs: TensorSizes) -> dict[str, int]:
    """Return the greatest size of each named dim of the model's inputs."""
    return {
        dim.value: size
        for value in values
        if value.shape is not None and value.name is not None and value.name in inputs
        for dim, size in zip(value.shape, inputs[value.name], strict=False)
        if not isinstance(dim, int) and dim.value is not None
    }


def _sizes_of_shape(shape: onnx_ir.Shape | None, dims: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the sizes of a shape; None if a dim is neither a size nor in `dims`."""
    if shape is None:
        return None
    sizes = [dim if isinstance(dim, int) else dims.get(dim.value or "", -1) for dim in shape]
    return tuple(sizes) if all(size >= 0 for size in sizes) else None


def static_sizes(value: Value) -> tuple[int, ...] | None:
    """Return the sizes of a tensor; None if any is unknown."""
    return _sizes_of_shape(value.shape, {})
