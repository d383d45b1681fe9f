"""Rewrites of OpenVINO models into operators that its CPU device computes as ONNX asks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino

_LARGEST_STEP = 1 << 20  # the largest divisor whose remainders are rewritten
_LANES = 64  # bytes in a register of AVX-512


def keep_order_of_equals(model: openvino.Model) -> None:
    """Make each sorting TopK order equal elements by index, in place.

    ONNX requires it, and a stable sort of torch becomes such a TopK; OpenVINO's ONNX reader leaves
    the order open, and its CPU depends on the partition of work. A TopK without sorting has no such
    order in OpenVINO, and stays.
    """
    for node in _nodes_of_type(model, "TopK"):
        attributes = node.get_attributes()
        if attributes.get("stable") is False and attributes.get("sort") != "none":
            node.set_attribute("stable", True)


def keep_small_softplus(model: openvino.Model) -> None:
    """Write each SoftPlus as max(x, 0) + 2 atanh(t / (2 + t)) with t = exp(-abs(x)), in place.

    That is log(1 + exp(x)), by log1p(t) = 2 atanh(t / (2 + t)). OpenVINO's CPU adds t to 1 first:
    at x = -10 it is off by 1 % and below -16.7 it gives 0, where float32 has numbers down to -87,
    such as time steps of state-space models. A softplus in a Mish, x * tanh(softplus(x)), stays:
    OpenVINO fuses the two.
    """
    from openvino import opset13 as op

    for node in _nodes_of_type(model, "SoftPlus"):
        readers = [port.get_node().get_type_name() for port in node.output(0).get_target_inputs()]
        if set(readers) != {"Tanh"}:
            x = node.input_value(0)
            two = op.constant(2, dtype=x.get_element_type())
            small = op.exp(op.negative(op.abs(x)))
            log1p = op.multiply(two, op.atanh(op.divide(small, op.add(two, small))))
            replace_node(node, op.add(op.relu(x), log1p))


def keep_remainders(model: openvino.Model) -> None:
    """Write remainders of sizes r(a) = a - (a / b) b as min(max(r(r(a) + b), 0), b - 1).

    Twice, as OpenVINO's CPU divides integers towards zero: a remainder of -53 is negative first.
    The maximum and the minimum bound the result for shape inference, which computes with intervals
    and rejects sizes whose interval begins below zero. Where both ends of a bounded dim have one
    remainder, OpenVINO 2026.4 takes it for that of all sizes between: 32 % 4 and 72 % 4 are 0, so
    an image of 53 rows is not padded. Bytes, and steps whose double exceeds 32 bits, stay: FloorMod
    is right there, and this is not.
    """
    from openvino import opset13 as op

    for node in _nodes_of_type(model, "FloorMod"):
        rank, kind = node.get_output_partial_shape(0).rank, node.get_output_element_type(0)
        step = node.input_value(1)
        if (
            kind.get_type_name() in ("i32", "i64")
            and rank.is_static
            and rank.get_length() <= 1
            and step.get_node().get_type_name() == "Constant"
            and (step.get_node().data > 0).all()
            and (step.get_node().data < _LARGEST_STEP).all()
        ):
            rest = floor_remainder(node.input_value(0), step)
            least, most = op.constant(0, dtype=kind), op.subtract(step, op.constant(1, dtype=kind))
            replace_node(node, op.minimum(op.maximum(rest, least), most))


def floor_remainder(size: Any, step: Any) -> openvino.Node:
    """Return the remainder of non-negative 32-bit integers without OpenVINO's float32 division."""
    from openvino import opset13 as op

    for again in (False, True):
        whole_part = op.add(size, step) if again else size
        size = op.subtract(whole_part, op.multiply(op.divide(whole_part, step), step))
    return size


def keep_truth_of_nan(model: openvino.Model) -> None:
    """Rewrite casts and comparisons for which OpenVINO's CPU treats NaN differently, in place.

    It casts NaN to false, which is true in ONNX: casts of floats to bool become a comparison with
    0. It treats NaN as greater than all: `a > b` becomes `b < a`, which is false for NaN.
    """
    from openvino import opset13 as op

    for node in list(model_nodes(model)):
        kind = node.get_type_name()
        if not node.get_input_size() or not node.get_input_element_type(0).is_real():
            continue
        x = node.input_value(0)
        if kind == "Convert" and node.get_output_element_type(0).get_type_name() == "boolean":
            replace_node(node, op.not_equal(x, op.constant(0, dtype=x.get_element_type())))
        elif kind in {"Greater", "GreaterEqual"}:
            write = op.less if kind == "Greater" else op.less_equal
            replace_node(node, write(node.input_value(1), x))


def keep_lone_keys(model: openvino.Model) -> None:
    """Reshape around each softmax whose dynamic last axis may be 1, in place.

    Between two products it is an attention, which OpenVINO 2026.4's CPU compiles into one kernel.
    If that first runs with one key, it is silently wrong for most later lengths. It is not compiled
    where the softmax has another rank than the products; the reshapes copy nothing. Call this after
    the bounds of the inputs are set.
    """
    from openvino import opset13 as op

    for node in _nodes_of_type(model, "Softmax"):
        shape = node.get_output_partial_shape(0)
        axis = node.get_attributes()["axis"]
        if shape.rank.is_dynamic or axis not in (-1, len(shape) - 1):
            continue
        if shape[-1].is_dynamic and shape[-1].get_min_length() <= 1:
            first = op.constant([0], dtype="int64")
            within = op.softmax(op.unsqueeze(node.input_value(0), first), -1)
            replace_node(node, op.squeeze(within, first))


def keep_lone_columns(model: openvino.Model) -> None:
    """Rewrite INT8 convolutions whose kernel is as wide as their input, in place.

    OpenVINO 2026.4's CPU computes them wrong in 8 bits (AVX-512), silently, if the stride is not
    below the kernel's width and a row of the kernel has a multiple of 64 values, while its channels
    alone do not, as in SegFormer's reductions of keys. With one column the stride has no effect,
    and becomes 1. If the width is dynamic, the input is padded by a stride, and the additional
    column cut off. Both keep the convolution in 8 bits. Call this after the bounds of the inputs
    are set.
    """
    for node in _nodes_of_type(model, "Convolution"):
        data, kernel = (node.get_input_partial_shape(i) for i in (0, 1))
        attributes = node.get_attributes()
        if kernel.is_dynamic or data.rank.is_dynamic or attributes["auto_pad"].startswith("same"):
            continue
        wide = (kernel[-1].get_length() - 1) * attributes["dilations"][-1] + 1
        padded = attributes["pads_begin"][-1] + attributes["pads_end"][-1] > 0
        if padded or wide == 1 or attributes["strides"][-1] < wide:
            continue
        row, channels = math.prod(kernel.to_shape()[i] for i in (1, -1)), kernel[1].get_length()
        if data[-1].is_static and data[-1].get_length() == wide:
            node.set_attribute("strides", [*attributes["strides"][:-1], 1])
        elif (
            data[-1].is_dynamic
            and data[-1].get_min_length() <= wide
            and row % _LANES == 0 < channels % _LANES
        ):
            replace_node(node, _add_column(node, attributes))


def _add_column(node: Any, attributes: dict[str, Any]) -> openvino.Node:
    """Compute the convolution with one more column, and cut that off."""
    from openvino import opset13 as op

    right = [*attributes["pads_end"][:-1], attributes["strides"][-1]]
    wider = op.convolution(
        node.input_value(0),
        node.input_value(1),
        attributes["strides"],
        attributes["pads_begin"],
        right,
        attributes["dilations"],
    )
    return op.slice(
        wider, int64_constant(0), int64_constant(-1), int64_constant(1), int64_constant(-1)
    )


def keep_signed_joins(model: openvino.Model) -> None:
    """Write signed Q/DQ after a Concat as one FakeQuantize in real values, in place.

    OpenVINO 2026.4's CPU moves the quantizer to the inputs of the Concat, even past a Relu, and
    makes it unsigned there, but rescales as signed, silently. The FakeQuantize computes the same,
    and later kernels stay in 8 bits.
    """
    from openvino import opset13 as op

    for node in _nodes_of_type(model, "FakeQuantize"):
        maker = node.input_value(0).get_node()
        if maker.get_type_name() == "Relu":
            maker = maker.input_value(0).get_node()
        found = _find_signed_dequantize(node) if maker.get_type_name() == "Concat" else None
        if found is not None:
            last, zero, scale = found
            low, high = (
                op.constant((node.input_value(i).get_node().data - zero) * scale, dtype="float32")
                for i in (3, 4)
            )
            inputs = [node.input_value(i) for i in range(3)]
            levels = node.get_attributes()["levels"]
            replace_node(last, op.fake_quantize(*inputs, low, high, levels))


def _find_signed_dequantize(node: Any) -> tuple[Any, float, float] | None:
    """Return the Multiply that ends signed Q/DQ, its zero point and scale; None without one."""
    ends = [node.input_value(i).get_node().get_type_name() for i in (3, 4)]
    narrowed = _only_reader(node, "Convert") if ends == ["Constant"] * 2 else None
    if narrowed is None or narrowed.get_output_element_type(0).get_type_name() != "i8":
        return None
    last, zero = _only_reader(narrowed, "Convert"), 0.0
    shifted = None if last is None else _only_reader(last, "Subtract")
    if shifted is not None:
        point = _constant_number(shifted.input_value(1))
        if point is None:
            return None
        last, zero = shifted, point
    last = None if last is None else _only_reader(last, "Multiply")
    scale = None if last is None else _constant_number(last.input_value(1))
    return None if scale is None else (last, zero, scale)


def _only_reader(node: Any, kind: str) -> Any | None:
    """Return the only reader of a node, if it is of that type."""
    readers = [port.get_node() for port in node.output(0).get_target_inputs()]
    alone = len(readers) == 1 and readers[0].get_type_name() == kind
    return readers[0] if alone else None


def _constant_number(value: Any) -> float | None:
    """Return the value of a constant of one element, which may be cast."""
    node = value.get_node()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or node.data.size != 1:
        return None
    return float(node.data.reshape(-1)[0])


def int64_constant(*numbers: int) -> Any:
    """Return an int64 constant with one axis."""
    import numpy as np
    from openvino import opset13 as op

    return op.constant(np.array(numbers, np.int64))


def replace_node(node: Any, *instead: openvino.Node) -> None:
    """Replace a node by one node, or by one per output, under its names."""
    from openvino.utils import replace_node

    names = [output.get_names() for output in node.outputs()]
    instead[0].set_friendly_name(node.get_friendly_name())
    replace_node(node, [one.output(0) for one in instead])
    for one, known in zip(instead, names, strict=True):
        one.output(0).set_names(known)


def model_nodes(model: openvino.Model) -> Iterator[Any]:
    """Yield all nodes, including those in bodies of If and Loop."""
    for node in model.get_ordered_ops():
        yield node
        for body in node_bodies(node):
            yield from model_nodes(body)


def _nodes_of_type(model: openvino.Model, *kinds: str) -> list[Any]:
    return [node for node in model_nodes(model) if node.get_type_name() in kinds]


def node_bodies(node: Any) -> list[openvino.Model]:
    """Return the models inside a node: the branches of an If, the body of a loop."""
    kind = node.get_type_name()
    if kind == "If":
        return [node.get_then_body(), node.get_else_body()]
    return [node.get_function()] if kind in ("Loop", "TensorIterator") else []


_LSTM = "LSTMSequence"
_SEQUENCES = (_LSTM, "GRUSequence", "RNNSequence")
_ATTRIBUTES = (
    "hidden_size", "activations", "activations_alpha", "activations_beta", "clip",
    "linear_before_reset",
)  # fmt: skip
_CLOSED = 1e4  # saturates a gate: its sigmoid is 0 or 1 in float32 and in float16


def keep_lengths(model: openvino.Model) -> None:
    """Make sequences end at their lengths, in place.

    Results up to the end do not depend on what follows. So later outputs become 0, the last state
    is the output at the end, and the last cell of an LSTM comes from one more input that holds its
    gates after the end. The backward direction runs over reversed rows. Call this after the bounds
    of the inputs are set.
    """
    for node in _nodes_of_type(model, *_SEQUENCES):
        lengths = node.input_value(node.get_input_size() - 4)
        if node.get_input_partial_shape(0).is_dynamic and depends_on_data(lengths):
            replace_node(node, *_sequence_outputs(node, lengths))


def depends_on_data(value: openvino.Output) -> bool:
    """Return whether a value is computed from an input, not from its sizes only."""
    seen, open_values = set(), [value.get_node()]
    while open_values:
        node = open_values.pop()
        if node.get_type_name() == "Parameter":
            return True
        if node.get_type_name() != "ShapeOf" and node.get_name() not in seen:
            seen.add(node.get_name())
            open_values += [one.get_node() for one in node.input_values()]
    return False


def _sequence_outputs(node: Any, lengths: openvino.Output) -> list[Any]:
    """Return the new outputs of a sequence: all states, the last state, the last cell."""
    from openvino import opset13 as op

    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    ways = [
        _run_direction(node, lengths, number, reverse=reverse)
        for number, reverse in enumerate(directions[node.get_attributes()["direction"]])
    ]
    return [op.concat(list(parts), 1) for parts in zip(*ways, strict=True)]


def _run_direction(node: Any, lengths: Any, number: int, *, reverse: bool) -> list[Any]:
    """Return all states [rows, 1, steps, hidden], the last [rows, 1, hidden] and an LSTM's cell."""
    import numpy as np
    from openvino import opset13 as op

    given = [node.input_value(index) for index in range(node.get_input_size())]
    states = [_direction_part(state, number, axis=1) for state in given[1:-4]]
    weights = [_direction_part(weight, number, axis=0) for weight in given[-3:]]
    x = op.reverse_sequence(given[0], lengths, 0, 1) if reverse else given[0]
    count = op.gather(op.shape_of(given[0]), np.int64(1), np.int64(0))
    steps = op.unsqueeze(op.range(np.int64(0), count, np.int64(1), "i64"), int64_constant(0))
    ends = op.unsqueeze(op.convert(lengths, "i64"), int64_constant(1))
    inside = op.unsqueeze(op.less(steps, ends), int64_constant(2))  # [rows, steps, 1]
    zero, one = (op.constant(number, dtype=x.get_element_type()) for number in (0, 1))
    hidden = op.squeeze(
        _sequence_node(node, x, states, lengths, weights).output(0), int64_constant(1)
    )
    rows = op.select(inside, hidden, zero)
    last = op.gather(rows, op.subtract(ends, int64_constant(1)), np.int64(1), batch_dims=1)
    rows = op.reverse_sequence(rows, lengths, 0, 1) if reverse else rows
    found = [op.unsqueeze(rows, int64_constant(1)), last]
    if node.get_type_name() == _LSTM:
        marked = op.concat([op.select(inside, x, zero), op.select(inside, zero, one)], 2)
        held = _sequence_node(node, marked, states, lengths, _extend_lstm_weights(weights))
        found.append(op.concat([held.output(2)], 1))
    return found


def _extend_lstm_weights(weights: list[Any]) -> list[Any]:
    """Return the weights of an LSTM with one more input, which holds its cell.

    Gates are in OpenVINO's order: forget, input, candidate, output.
    """
    import numpy as np
    from openvino import opset13 as op

    w, r, bias = weights
    size = r.get_output_partial_shape(0)[2].get_length()
    column = np.repeat(np.array([_CLOSED, -_CLOSED, 0, 0]), size).reshape(1, -1, 1)
    return [op.concat([w, op.constant(column, dtype=w.get_output_element_type(0))], 2), r, bias]


def _sequence_node(node: Any, x: Any, states: list[Any], lengths: Any, weights: list[Any]) -> Any:
    """Create a forward sequence of the node's type."""
    from openvino import opset13 as op

    make = {_LSTM: op.lstm_sequence, "GRUSequence": op.gru_sequence, "RNNSequence": op.rnn_sequence}
    options = {name: value for name, value in node.get_attributes().items() if name in _ATTRIBUTES}
    return make[node.get_type_name()](x, *states, lengths, *weights, direction="forward", **options)


def _direction_part(value: openvino.Output, number: int, *, axis: int) -> Any:
    """Return the part of one direction with its axis."""
    import numpy as np
    from openvino import opset13 as op

    return op.gather(value, int64_constant(number), np.int64(axis))
