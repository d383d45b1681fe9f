"""The sizes that tensors of an ONNX model have at the largest shapes of an engine's profiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from .findings import Model, Value
from .profiles import Profile

if TYPE_CHECKING:
    import onnx_ir

TensorSizes: TypeAlias = Mapping[str, tuple[int, ...]]


def largest_inputs(profiles: Sequence[Profile]) -> TensorSizes:
    """For each input, dim by dim, the greatest size of any profile."""
    found: dict[str, tuple[int, ...]] = {}
    for one in (one for profile in profiles for one in profile):
        known = found.get(one.name, one.high)
        found[one.name] = tuple(max(a, b) for a, b in zip(known, one.high, strict=True))
    return found


def infer_sizes(model: Model, inputs: TensorSizes) -> Model:
    """A copy in which all tensors have the sizes that they have at these inputs, where it is known.

    By ONNX's shape inference from the inputs alone; where that knows nothing, by what the exporter
    wrote of the tensor, with the inputs' names for dims.
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
    """The tensor of most elements, and how many."""
    values = [*fixed.graph.inputs, *(v for node in fixed.graph.all_nodes() for v in node.outputs)]
    counts = {v.name or "": prod(sizes) for v in values if (sizes := static_sizes(v)) is not None}
    return max(counts.items(), key=lambda item: item[1], default=("", 0))


def _greatest_dims(values: Iterable[Value], inputs: TensorSizes) -> dict[str, int]:
    """The greatest size of each dim that the model's inputs name."""
    return {
        dim.value: size
        for value in values
        if value.shape is not None and value.name is not None and value.name in inputs
        for dim, size in zip(value.shape, inputs[value.name], strict=False)
        if not isinstance(dim, int) and dim.value is not None
    }


def _sizes_of_shape(shape: onnx_ir.Shape | None, dims: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape as sizes; None where a dim is neither a size nor one of `dims`."""
    if shape is None:
        return None
    sizes = [dim if isinstance(dim, int) else dims.get(dim.value or "", -1) for dim in shape]
    return tuple(sizes) if all(size >= 0 for size in sizes) else None


def static_sizes(value: Value) -> tuple[int, ...] | None:
    """The sizes of a tensor; None where any is not known."""
    return _sizes_of_shape(value.shape, {})
