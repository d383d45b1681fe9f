"""Integer weights of an IR: constants that become floats before a layer reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, RoundedWeights
from ..core.kinds import Precision
from .openvino_reader import read_ir

if TYPE_CHECKING:
    import openvino

# the precision of weights by OpenVINO's name of their type
WEIGHT_TYPES: Mapping[str, Precision] = {
    "u4": Precision.INT4,
    "i4": Precision.INT4,
    "u8": Precision.INT8_WEIGHTS,
    "i8": Precision.INT8_WEIGHTS,
}
_BETWEEN = ("Convert", "Multiply", "Reshape", "Subtract", "Transpose")  # integers and the layer
_FOUR_BITS, _NIBBLE, _SIGN = ("u4", "i4"), 4, 8


def list_integer_weights(model: openvino.Model) -> Iterator[tuple[Any, Precision]]:
    """Yield each node that a layer reads as float weights of integers, and their precision."""
    seen = set()
    for node in model.get_ordered_ops():
        if node.get_type_name() in _BETWEEN:
            continue
        for port in node.inputs():
            top = port.get_source_output().get_node()
            source = _find_integers(top) if port.get_element_type().is_real() else None
            if source is not None and top.get_friendly_name() not in seen:
                seen.add(top.get_friendly_name())
                yield top, WEIGHT_TYPES[_type_name(source)]


def read_rounded_weights(path: Path) -> Iterator[RoundedWeights]:
    """Yield the integer weights of an IR with the step of each, one matrix at a time."""
    for top, _ in list_integer_weights(read_ir(path)):
        values, steps = _evaluate(top)
        if steps is not None:
            yield RoundedWeights(values=values, steps=steps)


def _type_name(node: Any) -> str:
    return str(node.get_output_element_type(0).to_string())


def _find_integers(node: Any) -> Any:
    """Return the constant of integers that a node makes floats of; None if there is none."""
    while node.get_type_name() in _BETWEEN:
        node = node.input_value(0).get_node()
    known = node.get_type_name() == "Constant" and _type_name(node) in WEIGHT_TYPES
    return node if known else None


def _evaluate(node: Any) -> tuple[Array, Array | None]:
    """Return a node's values in float32 and, after the scales, the step of each."""
    import numpy as np

    kind = node.get_type_name()
    if kind == "Constant":
        return _constant_values(node), None
    values, steps = _evaluate(node.input_value(0).get_node())
    if kind == "Convert":
        return values, steps
    other, _ = _evaluate(node.input_value(1).get_node())
    if kind == "Subtract":
        return values - other, steps
    if kind == "Multiply":
        return values * other, np.broadcast_to(np.abs(other), values.shape)
    both = [values] if steps is None else [values, steps]
    if kind == "Reshape":
        both = [one.reshape(tuple(node.get_output_shape(0))) for one in both]
    else:
        both = [one.transpose(other.astype(int)) for one in both]
    return both[0], both[1] if steps is not None else None


def _constant_values(node: Any) -> Array:
    """Return a constant in float32; two 4-bit integers are in a byte, the lower half first."""
    import numpy as np

    name, shape = _type_name(node), tuple(node.get_output_shape(0))
    if name not in _FOUR_BITS:
        return np.asarray(node.data).astype(np.float32).reshape(shape)
    stored = np.asarray(node.data).view(np.uint8).reshape(-1)
    halves = np.stack([stored & 0x0F, stored >> _NIBBLE], axis=-1).reshape(-1)
    values = halves[: int(np.prod(shape))].astype(np.float32).reshape(shape)
    return np.where(values >= _SIGN, values - 2 * _SIGN, values) if name == "i4" else values
