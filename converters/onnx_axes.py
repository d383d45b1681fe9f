"""Names of the outputs' axes in ONNX: the user's, where an exporter made up its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir


def name_output_axes(model: onnx_ir.Model, axes: Mapping[str, Mapping[int, str]]) -> None:
    """Name the axes of the outputs; one that the exporter fixed at a size is left as it is."""
    import onnx_ir

    for value in model.graph.outputs:
        names, shape = axes.get(value.name or "", {}), value.shape
        if shape is not None and names:
            value.shape = onnx_ir.Shape(
                dim if isinstance(dim, int) else names.get(axis, dim)
                for axis, dim in enumerate(shape)
            )
