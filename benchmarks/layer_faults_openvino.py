"""Faults for layer_faults.py in OpenVINO IRs of decoders, plain and stateful.

Each is planted with OpenVINO only: nodes between a tensor and its readers, or another constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

WINDOWS = (8, 16, 64)  # of the models that token_models.py trains, and smaller ones
_COMPARES = ("Subtract", "Add", "Less", "Greater", "LessEqual", "GreaterEqual")
_INTEGERS = ("u4", "i4", "u8", "i8")
_HALF = 16  # columns of a head's half


def _feed_through(output: Any, make: Callable[[Any], Any]) -> None:
    """Let the readers of an output read what `make` computes from it."""
    readers = list(output.get_target_inputs())
    if not readers:
        raise LookupError("no reader")
    made = make(output)
    for one in readers:
        one.replace_source_output(made.output(0))


def _shift_along(axis: int, output: Any) -> Any:
    """Return a tensor with each element one place late along an axis; the first is repeated."""
    from openvino import opset13 as ops

    zero, one = (ops.constant(np.int64(value)) for value in (0, 1))
    stop = ops.gather(ops.shape_of(output), ops.constant(np.int64(axis)), zero)
    index = ops.maximum(ops.subtract(ops.range(zero, stop, one, "i64"), one), zero)
    return ops.gather(output, index, ops.constant(np.int64(axis)))


def _find_input(model: Any, name: str) -> Any:
    """Return the output of a parameter, or of a state after its reordering, by name."""
    for one in model.get_parameters():
        if name in one.output(0).get_names():
            return one.output(0)
    for one in model.get_ordered_ops():
        if one.get_type_name() == "ReadValue" and one.get_variable_id().startswith(name):
            readers = [reader.get_node() for reader in one.output(0).get_target_inputs()]
            reordered = [node for node in readers if node.get_type_name() == "Gather"]
            return (reordered or [one])[0].output(0)
    raise LookupError(f"no {name}")


def _find_state(model: Any, layer: int) -> tuple[str, str]:
    """Return the names of a layer's cached keys and values."""
    for middle in (".", ".decoder."):
        names = f"past_key_values.{layer}{middle}key", f"past_key_values.{layer}{middle}value"
        try:
            _find_input(model, names[0])
        except LookupError:
            continue
        return names
    raise LookupError("no cache")


def _shift_cache(model: Any) -> None:
    for name in _find_state(model, 1):
        _feed_through(_find_input(model, name), partial(_shift_along, 2))


def _shift_mask(model: Any) -> None:
    _feed_through(_find_input(model, "attention_mask"), partial(_shift_along, 1))


def _freeze_positions(model: Any) -> None:
    from openvino import opset13 as ops

    def freeze(output: Any) -> Any:
        one, zero = ops.constant(np.int64(1)), ops.constant(np.int64(0))
        length = ops.gather(ops.shape_of(output), one, zero)
        return ops.multiply(output, ops.convert(ops.not_equal(length, one), "i64"))

    _feed_through(_find_input(model, "position_ids"), freeze)


def _list_products(model: Any) -> Iterator[Any]:
    """Yield products with a constant matrix, in order."""
    for one in model.get_ordered_ops():
        if one.get_type_name() == "MatMul" and _find_constants(one.input_value(1).get_node()):
            yield one


def _find_constants(node: Any) -> list[Any]:
    """Return the constants that a matrix is computed from; none if an activation is read."""
    if node.get_type_name() == "Constant":
        return [node]
    found: list[Any] = []
    for one in node.inputs():
        inner = _find_constants(one.get_source_output().get_node())
        if not inner:
            return []
        found += inner
    return found


def _swap_heads(model: Any) -> None:
    from openvino import opset13 as ops

    product = next(_list_products(model))
    width = product.output(0).get_partial_shape()[-1].get_length()
    order = [*range(_HALF, 2 * _HALF), *range(_HALF), *range(2 * _HALF, width)]

    def swap(output: Any) -> Any:
        return ops.gather(output, ops.constant(np.array(order)), ops.constant(np.int64(-1)))

    _feed_through(product.output(0), swap)


def _replace_constant(node: Any, array: Any) -> None:
    from openvino import opset13 as ops

    made = ops.constant(array, dtype=node.get_element_type())
    made.set_friendly_name(node.get_friendly_name())
    for one in list(node.output(0).get_target_inputs()):
        one.replace_source_output(made.output(0))


def _ignore_window(model: Any) -> None:
    def is_window(one: Any) -> bool:
        if one.get_type_name() != "Constant" or not one.get_element_type().is_integral():
            return False
        readers = [reader.get_node() for reader in one.output(0).get_target_inputs()]
        compared = any(reader.get_type_name() in _COMPARES for reader in readers)
        return compared and one.data.size == 1 and abs(int(one.data.flat[0])) in WINDOWS

    found = [one for one in model.get_ordered_ops() if is_window(one)]
    if not found:
        raise LookupError("no window")
    for one in found:
        _replace_constant(one, np.sign(one.data) * 1000)


def _double_scale(model: Any) -> None:
    product = list(_list_products(model))[-2]
    constants = _find_constants(product.input_value(1).get_node())
    stored = [one.get_element_type().get_type_name() for one in constants]
    scales = [one for one in constants if one.get_element_type().is_real()]
    if not set(stored) & set(_INTEGERS) or not scales:
        raise LookupError("no blocks")
    data = scales[-1].data.copy()
    data.reshape(-1)[5] *= 2
    _replace_constant(scales[-1], data)


PLANTS: dict[str, Callable[[Any], None]] = {
    "two heads swapped": _swap_heads,
    "cache one token late": _shift_cache,
    "mask shifted by one": _shift_mask,
    "position frozen": _freeze_positions,
    "window ignored": _ignore_window,
    "one block's scale doubled": _double_scale,
}
"""By the names of layer_faults.py."""


def write_faulty(path: Path, fault: str, copy: Path) -> None:
    """Write a copy of an IR with a fault.

    Raises:
        LookupError: the model has nothing to plant it in.
    """
    import openvino

    if fault not in PLANTS:
        raise LookupError("for ONNX only")
    model = openvino.Core().read_model(path)
    PLANTS[fault](model)
    model.validate_nodes_and_infer_types()
    openvino.save_model(model, copy, compress_to_fp16=False)
