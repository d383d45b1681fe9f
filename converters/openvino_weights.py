"""Integer weights of an IR: constants that become floats before a layer reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array
from ..core.kinds import Precision
from ..core.weights import IntegerMatrix, IntegerWeights, QuantizationStep
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
# Bytes of a weight in the CPU device's copies, by OpenVINO's name of its type: it computes in
# float32, and keeps zero points of 8 bits for each block of 4-bit integers.
COPIED_BYTES: Mapping[str, float] = {
    "f32": 4, "f16": 4, "bf16": 4, "u8": 1, "i8": 1, "u4": 0.75, "i4": 0.75,
}  # fmt: skip
_LARGE = 2**30  # bytes of weights
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


def read_integer_weights(path: Path) -> Iterator[IntegerMatrix]:
    """Yield the integer weights of an IR."""
    for top, _ in list_integer_weights(read_ir(path)):
        chain = [top]
        while chain[-1].get_type_name() != "Constant":
            chain.append(chain[-1].input_value(0).get_node())
        chain.reverse()
        if any(node.get_type_name() == "Multiply" for node in chain):
            shape = tuple(top.get_output_shape(0))
            kinds = {one.get_node().get_type_name() for one in top.output(0).get_target_inputs()}
            yield IntegerMatrix(
                shape=shape, read_rows=partial(_evaluate, chain),
                table="Gather" in kinds, factor=kinds != {"Gather"},
            )  # fmt: skip


def read_quantization_steps(path: Path) -> Iterator[QuantizationStep]:
    """Yield the roundings of an IR, and what makes floats of integers, with constant scales."""
    for node in read_ir(path).get_ordered_ops():
        kind = node.get_type_name()
        step = None
        if kind == "FakeQuantize":
            step = _read_rounding(node)
        elif kind == "Multiply" and node.get_output_element_type(0).is_real():
            step = _read_dequantization(node)
        if step is not None:
            yield step


def _read_rounding(node: Any) -> QuantizationStep | None:
    """Return the scale and zero point of a FakeQuantize whose results are integers."""
    import numpy as np

    ends = [_evaluate_constant(node.input_value(place).get_node()) for place in range(1, 5)]
    if any(one is None for one in ends):
        return None
    low, high, least, most = (np.asarray(one, np.float64) for one in ends)
    scales = (high - low) / (most - least)
    return QuantizationStep(
        place=str(node.get_friendly_name()),
        scales=scales.astype(np.float32),
        zeros=np.rint(least - low / scales),
        exact=False,
    )


def _read_dequantization(node: Any) -> QuantizationStep | None:
    """Return the scales of a product with integers, less their zero points; None for others."""
    import numpy as np

    source, zero = node.input_value(0).get_node(), None
    if source.get_type_name() == "Subtract":
        zero, source = (source.input_value(place).get_node() for place in (1, 0))
    given = source.input_value(0).get_node() if source.get_type_name() == "Convert" else None
    if given is None or _type_name(given) not in WEIGHT_TYPES:
        return None
    scales = _evaluate_constant(node.input_value(1).get_node())
    if scales is None:
        return None
    constant = given.get_type_name() == "Constant"
    return QuantizationStep(
        place=str(node.get_friendly_name()),
        scales=scales,
        zeros=np.zeros(1, np.float32) if zero is None else _evaluate_constant(zero),
        integers=_constant_values(given) if constant else None,
    )


def _evaluate_constant(node: Any) -> Array | None:
    """Return the values of a node that is computed from constants alone; None for others."""
    return _constant_values(_skip_conversions(node)) if _is_constant(node) else None


def _is_constant(node: Any) -> bool:
    """Whether a node is computed from constants alone."""
    waiting, seen = [node], {node.get_friendly_name()}
    while waiting:
        one = waiting.pop()
        sources = _list_sources(one)
        if not sources and one.get_type_name() != "Constant":
            return False
        waiting += [other for other in sources if other.get_friendly_name() not in seen]
        seen.update(other.get_friendly_name() for other in sources)
    return True


def _list_sources(node: Any) -> list[Any]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def count_copied_bytes(path: Path) -> int:
    """Estimate the memory of the CPU device's copies of weights; 0 for an IR with small ones.

    It copies the weights of products into the layout of its kernels, but no table of a lookup.
    """
    weights = path.with_suffix(".bin")
    if not weights.is_file() or weights.stat().st_size <= _LARGE:
        return 0
    found = 0.0
    for node in read_ir(path).get_ops():
        width = COPIED_BYTES.get(_type_name(node)) if node.get_type_name() == "Constant" else None
        if width is not None and not _is_looked_up(node):
            found += width * math.prod(node.get_output_shape(0))
    return int(found)


def _is_looked_up(node: Any) -> bool:
    """Whether a constant is a table, or the integers, scales or zero points of one."""
    while True:
        readers = node.output(0).get_target_inputs()
        reader = next(iter(readers)).get_node() if len(readers) == 1 else None
        if reader is None or reader.get_type_name() not in _BETWEEN:
            return reader is not None and reader.get_type_name() == "Gather"
        node = reader


def _type_name(node: Any) -> str:
    return str(node.get_output_element_type(0).to_string())


def _find_integers(node: Any) -> Any:
    """Return the constant of integers that a node makes floats of; None if there is none."""
    others = []
    while node.get_type_name() in _BETWEEN:
        node, *rest = _list_sources(node)
        others += rest
    known = node.get_type_name() == "Constant" and _type_name(node) in WEIGHT_TYPES
    return node if known and all(map(_is_constant, others)) else None


def _evaluate(chain: Sequence[Any], first: int, last: int) -> IntegerWeights:
    """Compute some rows of weights along a chain of nodes from their integers on.

    A transposed weight is computed whole.
    """
    import numpy as np

    stored, rows = chain[0].get_output_shape(0)[0], chain[-1].get_output_shape(0)[0]
    kinds = [kind for node in chain if (kind := node.get_type_name()) != "Convert"]
    whole = bool(rows % stored) or "Transpose" in kinds or "Reshape" in kinds[:-1]
    of_one = rows // stored  # rows of one row of the integers, unless `whole`
    begin, end = (0, stored) if whole else (first // of_one, -(-last // of_one))
    zeroed = "Subtract" in kinds
    parts = [_constant_values(chain[0], begin, end)]  # after the scales, also radius and blocks
    for node in chain[1:]:
        kind = node.get_type_name()
        if kind == "Convert":
            continue
        other = _skip_conversions(node.input_value(1).get_node())
        if kind == "Subtract":
            parts[0] = parts[0] - _select_rows(other, chain[0], begin, end)
        elif kind == "Multiply":
            scales = _select_rows(other, chain[0], begin, end)
            numbers = np.arange(scales.size, dtype=np.int32).reshape(scales.shape)
            shared: list[Array] = [np.abs(scales) * (0.5 if zeroed else 1.0), numbers]
            shape = parts[0].shape
            parts = [parts[0] * scales, *(np.broadcast_to(one, shape) for one in shared)]
        elif kind == "Reshape":
            parts = [one.reshape((-1, *node.get_output_shape(0)[1:])) for one in parts]
        else:
            order = _constant_values(other).astype(int).reshape(-1)
            parts = [one.transpose(order) for one in parts]
    skipped = 0 if whole else begin * of_one
    values, radius, blocks = (one[first - skipped : last - skipped] for one in parts)
    return IntegerWeights(values=values, radius=radius, blocks=blocks, zeroed=zeroed)


def _select_rows(node: Any, integers: Any, first: int, last: int) -> Array:
    """Return the scales or zero points of some rows of integers; a single row holds for all."""
    shape, other = tuple(node.get_output_shape(0)), tuple(integers.get_output_shape(0))
    by_row = len(shape) == len(other) and shape[0] == other[0]
    return _constant_values(node, first, last) if by_row else _constant_values(node)


def _skip_conversions(node: Any) -> Any:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node


def _constant_values(node: Any, first: int = 0, last: int | None = None) -> Array:
    """Return some rows of a constant in float32; a byte holds two 4-bit integers, the lower first.

    OpenVINO's ONNX reader reshapes scales, and cuts the half byte that fills up zero points.

    The node's memory is shared: nothing else is read from the file.
    """
    import numpy as np
    import openvino

    name, shape = _type_name(node), tuple(node.get_output_shape(0))
    if node.get_type_name() == "Reshape":
        whole = _constant_values(_skip_conversions(node.input_value(0).get_node()))
        return whole.reshape(shape)[first:last]
    if node.get_type_name() != "Constant":
        compiled = openvino.Core().compile_model(openvino.Model([node], []), "CPU")
        computed = np.asarray(compiled([])[0], np.float32)
        return computed[first:last] if shape else computed
    if name not in _FOUR_BITS:
        stored = np.asarray(node.data).reshape(shape)
        return (stored[first:last] if shape else stored).astype(np.float32)
    stored, last = np.asarray(node.data).view(np.uint8).reshape(-1), last or shape[0]
    width = math.prod(shape[1:])
    begin, end = first * width, last * width  # of the elements
    part = stored[begin // 2 : -(-end // 2)]
    halves = np.stack([part & 0x0F, part >> _NIBBLE], axis=-1).reshape(-1)
    found = halves[begin % 2 : begin % 2 + end - begin]
    values = found.astype(np.float32).reshape((last - first, *shape[1:]))
    return np.where(values >= _SIGN, values - 2 * _SIGN, values) if name == "i4" else values
