"""Rewrite exported ONNX graphs: int64 comparisons, half spectra, padding, pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.signature import Signature
from .trt.trt_memory import infer_sizes, static_sizes

if TYPE_CHECKING:
    import onnx_ir

_INT64 = 7  # onnx.TensorProto
_APART = 2**30  # values within this magnitude differ by less than 2^31
_SIZES = frozenset({"Shape", "Size"})


def rewrite_int64_comparisons(model: onnx_ir.Model, signature: Signature) -> int:
    """Rewrite comparisons of int64 that depend on wide inputs, in place.

    Args:
        model: as an exporter wrote it.
        signature: nothing is rewritten unless its integer inputs exceed -2^30..2^30.

    Returns:
        the number of rewritten nodes.
    """
    import onnx_ir

    if not has_wide_integers(signature, beyond=_APART):
        return 0
    found = [
        node
        for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type in _REWRITES
        and any(value and value.dtype == _INT64 for value in (*node.inputs[:1], *node.outputs))
        and _depends_on_data(node)
    ]
    return sum(_REWRITES[node.op_type](NodeWriter(node)) for node in found)


def has_wide_integers(signature: Signature, *, beyond: int) -> bool:
    """Return whether an integer input of 32 bits or more exceeds this magnitude."""
    for spec in signature.inputs:
        if spec.dtype in {"int64", "int32"}:
            values = spec.values
            if values is None or max(abs(values.low), abs(values.high)) > beyond:
                return True
    return False


def _depends_on_data(node: onnx_ir.Node) -> bool:
    """Return whether it is computed from an input (of the graph or body), not from sizes only."""
    seen: set[onnx_ir.Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one in seen or one.op_type in _SIZES:
            continue
        seen.add(one)
        for value in one.inputs:
            if value is None or value.is_initializer():
                continue
            producer = value.producer()
            if producer is None:
                return True
            waiting.append(producer)
    return False


class NodeWriter:
    """Writes nodes in front of a node: what replaces it, or its inputs."""

    def __init__(self, node: onnx_ir.Node) -> None:
        self.node = node
        self._count = 0

    def add(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node and return its first output."""
        import onnx_ir

        name = f"{self.node.outputs[0].name}::{operator.lower()}{self._count}"
        made = onnx_ir.node(
            operator,
            list(inputs),
            attributes=attributes,
            num_outputs=outputs,
            name=name,
            metadata_props=dict(self.node.metadata_props),
        )
        self._count += 1
        for number, value in enumerate(made.outputs):
            value.name = f"{name}.{number}"
        self._graph.insert_before(self.node, made)
        return made.outputs[0]

    def integers(self, *numbers: int, scalar: bool = False) -> Any:
        """Return an int64 constant."""
        import numpy as np

        return self.constant(np.array(numbers[0] if scalar else numbers, np.int64))

    def constant(self, array: Array) -> Any:
        """Return a constant."""
        import onnx_ir

        return self.add("Constant", value=onnx_ir.tensor(array))

    def finish(self, value: Any) -> bool:
        """Replace the node by a value, under the name of its output."""
        import onnx_ir

        node, known = self.node, self.node.outputs[0]
        value.shape, value.dtype = known.shape, known.dtype
        name, known.name = known.name, f"{known.name}::replaced"
        value.name = name
        onnx_ir.convenience.replace_all_uses_with(known, value, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        return True

    @property
    def _graph(self) -> Any:
        return self.node.graph


def _write_extreme(reader: str) -> Callable[[NodeWriter], bool]:
    def write(writer: NodeWriter) -> bool:
        first, *rest = [value for value in writer.node.inputs if value is not None]
        for other in rest:
            first = writer.add("Where", writer.add(reader, first, other), other, first)
        return writer.finish(first if rest else writer.add("Identity", first))

    return write


def _write_clip(writer: NodeWriter) -> bool:
    value, low, high = [*writer.node.inputs, None, None][:3]
    for end, reader in ((low, "Less"), (high, "Greater")):
        if end is not None:
            value = writer.add("Where", writer.add(reader, value, end), end, value)
    return writer.finish(writer.add("Identity", value))


def _write_sign(writer: NodeWriter) -> bool:
    value, zero = writer.node.inputs[0], writer.integers(0, scalar=True)
    above, below = (
        writer.add("Cast", writer.add(reader, value, zero), to=_INT64)
        for reader in ("Greater", "Less")
    )
    return writer.finish(writer.add("Sub", above, below))


def _write_reduction(*, largest: bool) -> Callable[[NodeWriter], bool]:
    """Reduce by TopK along one axis after the other; all axes as one row."""

    def write(writer: NodeWriter) -> bool:
        import onnx_ir

        value, axes, *_ = [*writer.node.inputs, None]
        known = None if axes is None else onnx_ir.convenience.get_const_tensor(axes)
        keeps = writer.node.attributes.get_int("keepdims", 1)
        if axes is not None and known is None:
            return False
        numbers = [] if known is None else [int(axis) for axis in known.numpy().reshape(-1)]
        if not numbers:
            if keeps or writer.node.attributes.get_int("noop_with_empty_axes", 0):
                return False
            value = writer.add("Reshape", value, writer.integers(-1))
            numbers = [0]
        one = writer.integers(1)
        for axis in numbers:
            value = writer.add("TopK", value, one, outputs=2, axis=axis, largest=int(largest))
        if not keeps:
            value = writer.add("Squeeze", value, writer.integers(*numbers))
        return writer.finish(value)

    return write


_REWRITES: dict[str, Callable[[NodeWriter], bool]] = {
    "Max": _write_extreme("Less"),
    "Min": _write_extreme("Greater"),
    "Clip": _write_clip,
    "Sign": _write_sign,
    "ReduceMax": _write_reduction(largest=True),
    "ReduceMin": _write_reduction(largest=False),
}


_BETWEEN = frozenset({"Div", "Mul", "Slice"})  # the factor of `norm`, and the real part
_PARTS = frozenset({"Gather", "Squeeze"})  # how the exporter reads a size of a shape


def complete_spectra(model: onnx_ir.Model) -> None:
    """Complete half spectra before their inverse transforms; a full one needs no length."""
    for node in list(model.graph):
        if node.op_type == "DFT" and _has_flag(node, "onesided"):
            if _has_flag(node, "inverse"):
                _complete_spectrum(node)
            elif _has_own_length(node):
                node.replace_input_with(1, None)
                _drop_shapes(node)


def _has_flag(node: onnx_ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and bool(attribute.as_int())


def _has_own_length(node: onnx_ir.Node) -> bool:
    """Return whether the given length is a size of the transform's input."""
    length = node.inputs[1]
    part = None if length is None else length.producer()
    while part is not None and part.op_type in _PARTS:
        shape = part.inputs[0]
        part = None if shape is None else shape.producer()
    return part is not None and part.op_type == "Shape" and part.inputs[0] is node.inputs[0]


def _transform_axis(node: onnx_ir.Node) -> int | None:
    """Return the transform's axis: an input since opset 20, an attribute before."""
    if "axis" in node.attributes:
        return node.attributes["axis"].as_int()
    given = node.inputs[2] if len(node.inputs) > 2 else None  # noqa: PLR2004 - input, length, axis
    if given is None or given.const_value is None:
        return None
    return int(given.const_value.numpy().reshape(-1)[0])


def _complete_spectrum(node: onnx_ir.Node) -> None:
    """Append the conjugate of the missing part in reverse order."""
    import numpy as np
    import onnx_ir

    half, length, axis = node.inputs[0], node.inputs[1], _transform_axis(node)
    if half is None or length is None or axis is None or half.dtype is None:
        return
    writer = NodeWriter(node)
    axes = writer.integers(axis)
    size = writer.add("Gather", writer.add("Shape", half), axes, axis=0)
    total = writer.add("Reshape", length, writer.integers(1))
    lacking = writer.add("Sub", total, size)
    rest = writer.add("Slice", half, lacking, writer.integers(0), axes, writer.integers(-1))
    signs = writer.constant(np.array([1, -1], half.dtype.numpy()))
    full = writer.add("Concat", half, writer.add("Mul", rest, signs), axis=axis)
    node.replace_input_with(0, full)
    node.attributes["onesided"] = onnx_ir.AttrInt64("onesided", 0)
    _drop_shapes(node)


def _drop_shapes(node: onnx_ir.Node) -> None:
    """Drop the exporter's shapes up to the sliced part: they have the wrong length.

    ONNX Runtime trusts them, and shares memory between values of equal shapes.
    """
    value = node.outputs[0]
    value.shape = None
    for user in value.consumers():
        if user.op_type in _BETWEEN:
            _drop_shapes(user)


def name_padded_axes(model: onnx_ir.Model) -> None:
    """Name the axes of each Pad before a MaxPool, in place: all of them, as if none is named.

    ONNX Runtime (1.24) fuses such a Pad into the pool, where the border is ignored instead of
    filled with zeros, which may exceed negative values; it leaves a Pad that names axes alone.
    """
    import onnx_ir

    for node in list(onnx_ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "Pad" or len(node.inputs) > 3 or node.graph is None:  # noqa: PLR2004 - axes
            continue
        ranks = [
            len(value.shape) for value in (*node.inputs[:1], *node.outputs) if value and value.shape
        ]
        if ranks and any(reader.op_type == "MaxPool" for reader, _ in node.outputs[0].uses()):
            node.resize_inputs(4)
            node.replace_input_with(3, NodeWriter(node).integers(*range(max(ranks))))


def rewrite_whole_pools(model: onnx_ir.Model, signature: Signature) -> int:
    """Rewrite an AveragePool whose window holds its whole input as a GlobalAveragePool, in place.

    With `ceil_mode` such a window may exceed its input by far (EfficientNet's has 1280 by 1280),
    and TensorRT rejects windows of a large volume.

    Args:
        model: as an exporter wrote it.
        signature: a window has to hold its input at the greatest sizes.

    Returns:
        the number of rewritten nodes.
    """
    dims = [dim for spec in signature.inputs for dim in spec.dims]
    pools = [node for node in model.graph if _has_one_window(node)]
    if not pools or not all(dim.bounded for dim in dims):
        return 0
    greatest = {spec.name: tuple(dim.high for dim in spec.dims) for spec in signature.inputs}
    fixed = infer_sizes(model, greatest)
    values = [*fixed.graph.inputs, *(value for node in fixed.graph for value in node.outputs)]
    found = {value.name: static_sizes(value) for value in values}
    whole = [node for node in pools if _holds_input(node, found)]
    for node in whole:
        node.op_type = "GlobalAveragePool"
        node.attributes.clear()
    return len(whole)


def _has_one_window(node: onnx_ir.Node) -> bool:
    """Return whether it is a pool without padding that has one window if it holds its input."""
    if node.op_type != "AveragePool" or not node.attributes.get_int("ceil_mode", 0):
        return False
    windows, steps = _integers_of(node, "kernel_shape"), _integers_of(node, "strides")
    spread = any(dilation != 1 for dilation in _integers_of(node, "dilations"))
    if spread or any(_integers_of(node, "pads")) or len(steps) != len(windows):
        return False
    return all(map(int.__ge__, steps, windows))


def _holds_input(pool: onnx_ir.Node, known: Mapping[str | None, tuple[int, ...] | None]) -> bool:
    sizes = known.get(pool.inputs[0].name) if pool.inputs[0] is not None else None
    return sizes is not None and all(map(int.__ge__, _integers_of(pool, "kernel_shape"), sizes[2:]))


def _integers_of(node: onnx_ir.Node, name: str) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints(name, ()))


_MASK = 3  # the input of Attention


def expand_attention_masks(model: onnx_ir.Model) -> int:
    """Repeat each mask of Attention that has one row for all queries, in place; return how many.

    ONNX allows such masks. ONNX Runtime 1.24 rejects them on the CPU.
    """
    import onnx_ir

    found = [
        node
        for node in onnx_ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type == "Attention" and node.domain == "" and _has_one_row(node)
    ]
    for node in found:
        writer, query = NodeWriter(node), node.inputs[0]
        # the queries are (batch, queries, width) with the number of heads, else one axis behind
        axis = 1 if "q_num_heads" in node.attributes else 2
        rows = writer.add("Shape", query, start=axis, end=axis + 1)
        shape = writer.add("Concat", rows, writer.integers(1), axis=0)
        node.replace_input_with(_MASK, writer.add("Expand", node.inputs[_MASK], shape))
    return len(found)


def _has_one_row(node: onnx_ir.Node) -> bool:
    mask = node.inputs[_MASK] if len(node.inputs) > _MASK else None
    shape = None if mask is None else mask.shape
    return shape is not None and len(shape) > 1 and shape[-2] == 1
