"""The signature's dims as OpenVINO says them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import ConversionError

if TYPE_CHECKING:
    import openvino

    from ..core.signature import InputSpec, Signature


def bounded(spec: InputSpec) -> openvino.PartialShape:
    """The shape of an input: sizes, ranges, and `?` for a dim without bounds."""
    import openvino

    return openvino.PartialShape(
        [
            openvino.Dimension(dim.low, dim.high) if dim.bounded else openvino.Dimension()
            for dim in spec.dims
        ]
    )


def check_bounds(model: openvino.Model, signature: Signature) -> None:
    """That every dim that varies still does.

    Raises:
        ConversionError: OpenVINO made a dim a constant.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    for port in model.inputs:
        name = next((name for name in port.get_names() if name in specs), "")
        for dim, made in zip(
            specs[name].dims if name else (), port.get_partial_shape(), strict=False
        ):
            if dim.dynamic and made.is_static:
                raise ConversionError(
                    f"OpenVINO fixed dim {dim.name!r} of {name} at {made.get_length()}",
                    hint=f"if one size will do, --static {dim.name} fixes it",
                )
