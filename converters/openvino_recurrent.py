"""Recurrent sequences of given lengths, said in what OpenVINO's CPU computes.

Where a size of the input is dynamic, OpenVINO 2026.4's CPU ignores the lengths of an LSTM, GRU or
RNN sequence: it goes on over the padding, and its last states are those of the padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .openvino_exact import int64_constant, model_nodes, replace_node

if TYPE_CHECKING:
    import openvino

_LSTM = "LSTMSequence"
_KINDS = (_LSTM, "GRUSequence", "RNNSequence")
_TAKEN = (
    "hidden_size", "activations", "activations_alpha", "activations_beta", "clip",
    "linear_before_reset",
)  # fmt: skip
_CLOSED = 1e4  # far beyond what opens a gate: its sigmoid is 0 or 1 in float32 and in float16


def keep_lengths(model: openvino.Model) -> None:
    """Have sequences end where their lengths say, in place.

    What was computed up to the end does not hang on what follows. So outputs behind it become 0,
    the last state is the output at the end, and the last cell of an LSTM is that of one whose gates
    are held still behind the end by one more input. Backwards runs over rows in reverse.
    Call it when the bounds of the inputs are set.
    """
    for node in [node for node in model_nodes(model) if node.get_type_name() in _KINDS]:
        lengths = node.input_value(node.get_input_size() - 4)
        if node.get_input_partial_shape(0).is_dynamic and depends_on_data(lengths):
            replace_node(node, *_sequence_outputs(node, lengths))


def depends_on_data(value: openvino.Output) -> bool:
    """Whether a value is computed from an input, and not from its sizes alone."""
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
    """What takes the place of the outputs of a sequence: all states, the last, the last cell."""
    from openvino import opset13 as op

    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    ways = [
        _run_direction(node, lengths, number, reverse=reverse)
        for number, reverse in enumerate(directions[node.get_attributes()["direction"]])
    ]
    return [op.concat(list(parts), 1) for parts in zip(*ways, strict=True)]


def _run_direction(node: Any, lengths: Any, number: int, *, reverse: bool) -> list[Any]:
    """All states [rows, 1, steps, hidden], the last [rows, 1, hidden] and, of an LSTM, its cell."""
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
    """The weights of an LSTM with one more input, which keeps its cell as it is.

    Gates are in OpenVINO's order: forget, input, candidate, output.
    """
    import numpy as np
    from openvino import opset13 as op

    w, r, bias = weights
    hidden = r.get_output_partial_shape(0)[2].get_length()
    column = np.repeat(np.array([_CLOSED, -_CLOSED, 0, 0]), hidden).reshape(1, -1, 1)
    return [op.concat([w, op.constant(column, dtype=w.get_output_element_type(0))], 2), r, bias]


def _sequence_node(node: Any, x: Any, states: list[Any], lengths: Any, weights: list[Any]) -> Any:
    """A sequence of the node's kind, forwards."""
    from openvino import opset13 as op

    make = {_LSTM: op.lstm_sequence, "GRUSequence": op.gru_sequence, "RNNSequence": op.rnn_sequence}
    taken = {name: value for name, value in node.get_attributes().items() if name in _TAKEN}
    return make[node.get_type_name()](x, *states, lengths, *weights, direction="forward", **taken)


def _direction_part(value: openvino.Output, number: int, *, axis: int) -> Any:
    """What belongs to one direction, with its axis."""
    import numpy as np
    from openvino import opset13 as op

    return op.gather(value, int64_constant(number), np.int64(axis))
