"""The signature's dims as OpenVINO says them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino

    from ..core.signature import InputSpec


def bounded(spec: InputSpec) -> openvino.PartialShape:
    """The shape of an input: sizes, ranges, and `?` for a dim without bounds."""
    import openvino

    return openvino.PartialShape(
        [
            openvino.Dimension(dim.low, dim.high) if dim.bounded else openvino.Dimension()
            for dim in spec.dims
        ]
    )
