"""Names of the outputs' axes in ONNX: the user's, where an exporter made up its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir

GENERATED_AXIS = ".axis"  # in names of axes that follow no dim: `logits.axis1`


def name_output_axes(model: onnx_ir.Model, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Name the axes of the outputs that change their size in eager.

    An exporter that took a number for granted declares it as the size: a runtime then warns of each
    other one, and whoever reserves memory by it has too little.
    """
    import onnx_ir

    for value in model.graph.outputs:
        names, shape = axes.get(value.name or "", {}), value.shape
        if shape is not None and names:
            value.shape = onnx_ir.Shape(
                _axis_name(dim, names.get(axis, "")) for axis, dim in enumerate(shape)
            )


def _axis_name(dim: int | onnx_ir.SymbolicDim, name: str) -> int | str | onnx_ir.SymbolicDim:
    """The name, if there is one; one made up of the output's gives way to an exporter's own."""
    if not name:
        return dim
    known = not isinstance(dim, int) and dim.value is not None
    return dim if known and GENERATED_AXIS in name else name
