"""The signature's dims as OpenVINO says them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import ConversionError, Hint, Option
from .onnx_domain_guard import GUARD_PREFIX

if TYPE_CHECKING:
    import openvino

    from ..core.signature import InputSpec, Signature


def partial_shape(spec: InputSpec) -> openvino.PartialShape:
    """The shape of an input: sizes, ranges, and `?` for a dim without bounds."""
    import openvino

    return openvino.PartialShape(
        [
            openvino.Dimension(dim.low, dim.high) if dim.bounded else openvino.Dimension()
            for dim in spec.dims
        ]
    )


def drop_domain_guard(model: openvino.Model) -> None:
    """Take the check of `--guard` out of a model that was read from a guarded ONNX.

    It makes ONNX Runtime fail by an index beyond a table. OpenVINO 2026.4 reads what lies beyond
    the table instead, and it refuses sizes outside of a range by itself.
    """
    for node in model.get_ordered_ops():
        named = node.get_friendly_name().startswith(GUARD_PREFIX)
        if named and node.get_type_name() == "Reshape":
            node.output(0).replace(node.input_value(0))


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
                    hint=Hint(
                        "if one size will do, ", Option("static", f"{dim.name}"), " fixes it"
                    ),
                    option="static",
                )
