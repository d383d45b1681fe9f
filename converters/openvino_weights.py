"""Integer weights of an IR: constants that become floats before a layer reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.kinds import Precision
from ..core.weights import IntegerWeights
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


def read_integer_weights(path: Path) -> Iterator[IntegerWeights]:
    """Yield the integer weights of an IR, one matrix at a time."""
    for top, _ in list_integer_weights(read_ir(path)):
        found = _evaluate(top)
        if found is not None:
            yield found


def _type_name(node: Any) -> str:
    return str(node.get_output_element_type(0).to_string())


def _find_integers(node: Any) -> Any:
    """Return the constant of integers that a node makes floats of; None if there is none."""
    while node.get_type_name() in _BETWEEN:
        node = node.input_value(0).get_node()
    known = node.get_type_name() == "Constant" and _type_name(node) in WEIGHT_TYPES
    return node if known else None


def _evaluate(top: Any) -> IntegerWeights | None:
    """Compute weights from their integers down to `top`; None without scales."""
    import numpy as np

    chain = [top]
    while chain[-1].get_type_name() != "Constant":
        chain.append(chain[-1].input_value(0).get_node())
    zeroed = any(node.get_type_name() == "Subtract" for node in chain)
    parts = [_constant_values(chain.pop())]  # and, after the scales, radius and blocks
    for node in reversed(chain):
        kind = node.get_type_name()
        if kind == "Convert":
            continue
        other = _constant_values(_skip_conversions(node.input_value(1).get_node()))
        if kind == "Subtract":
            parts[0] = parts[0] - other
        elif kind == "Multiply":
            radius, numbers = np.abs(other) * (0.5 if zeroed else 1.0), np.arange(other.size)
            shared = [radius, numbers.reshape(other.shape)]
            shape = parts[0].shape
            parts = [parts[0] * other, *(np.broadcast_to(one, shape) for one in shared)]
        elif kind == "Reshape":
            parts = [one.reshape(tuple(node.get_output_shape(0))) for one in parts]
        else:
            parts = [one.transpose(other.astype(int).reshape(-1)) for one in parts]
    if len(parts) == 1:
        return None
    values, radius, blocks = parts
    return IntegerWeights(values=values, radius=radius, blocks=blocks, zeroed=zeroed)


def _skip_conversions(node: Any) -> Any:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node


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
