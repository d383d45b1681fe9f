"""Decoders whose cache is kept by OpenVINO: states in place of inputs and outputs.

The form is the one that optimum-intel writes and openvino-genai reads: inputs `input_ids`,
`attention_mask`, `position_ids` and `beam_idx`, output `logits`. A state begins empty, and
`beam_idx` selects its rows before each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.contract import Array, Feed, Outputs
from ..core.errors import ErrorCode, Hint, Option, UsageError
from ..core.generation import LOGITS, PAST, PRESENT, DecoderLoop, find_cached_loop
from ..core.kinds import Precision
from ..core.signature import Signature
from .openvino_reader import check_dtype, openvino_error, read_ir
from .openvino_rewrites import int64_constant
from .runner_base import RunnerBase, order_inputs

if TYPE_CHECKING:
    import openvino

BEAMS = "beam_idx"
_TOKENS, _MASK, _PLACES = "input_ids", "attention_mask", "position_ids"
_ALONG = 2  # the axis of positions in keys and values
_FLOAT_CACHE = (Precision.FP32, Precision.FP16)  # what else rounds more than 8 bits of a cache do
_MERGED = Option("model-arg", "task=text-generation-merged")


def check_decoder(signature: Signature) -> DecoderLoop:
    """Return the loop of a decoder that takes prompts and steps.

    Raises:
        UsageError: the model is another one, as its inputs and outputs show.
    """
    loop = find_cached_loop(signature)
    if loop is not None:
        return loop
    held = (spec.name for spec in signature.inputs if spec.name.startswith(f"{PAST}."))
    other = next((name for name in held if not name.endswith((".key", ".value"))), None)
    if other is not None:
        raise UsageError(
            f"--stateful keeps keys and values alone, and {other} is the state of another layer",
            hint=Hint("leave out ", Option("stateful"), ": the states stay inputs and outputs"),
            option="stateful",
            code=ErrorCode.UNSUPPORTED,
        )
    raise UsageError(
        "--stateful requires a decoder that takes prompts and steps: input_ids, "
        f"{PAST}.*, {PRESENT}.* and {LOGITS}, 1 or more tokens after 0 or more",
        hint=Hint("export the folder of a Hugging Face decoder with ", _MERGED),
        option="stateful",
        code=ErrorCode.UNSUPPORTED,
    )


def add_states(model: openvino.Model, signature: Signature, precision: Precision) -> None:
    """Replace the cache's inputs and outputs by states, and add `beam_idx`.

    On a CPU, OpenVINO keeps states in 8 bits unless the file says otherwise.
    """
    import numpy as np
    import openvino
    from openvino import opset15 as op
    from openvino._offline_transformations import apply_make_stateful_transformation

    pairs = {one.past: one.present for one in check_decoder(signature).cache}
    tokens = model.input(_TOKENS)
    beams = op.parameter([tokens.get_partial_shape()[0]], openvino.Type.i32, name=BEAMS)
    beams.output(0).get_tensor().set_names({BEAMS})
    model.add_parameters([beams])
    for name in pairs:
        past = model.input(name).get_node()
        shape = past.get_partial_shape()
        shape[_ALONG] = openvino.Dimension()  # it grows beyond the longest past that is given
        past.set_partial_shape(shape)
        readers = past.output(0).get_target_inputs()
        rows = op.gather(past, beams, np.int64(0))
        for reader in readers:
            reader.replace_source_output(rows.output(0))
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, pairs)
    batch = op.gather(op.shape_of(tokens.get_node(), "i64"), int64_constant(0), np.int64(0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            sizes = [int64_constant(dim.min_length) for dim in node.get_output_partial_shape(0)]
            empty = op.concat([batch, *sizes[1:]], 0)
            zero = op.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([op.broadcast(zero, empty).output(0)])
    model.validate_nodes_and_infer_types()
    if precision in _FLOAT_CACHE:
        model.set_rt_info("f32", ["runtime_options", "KV_CACHE_PRECISION"])


def read_stateless(path: Path) -> openvino.Model:
    """Read an IR, with the states of a decoder as inputs and outputs.

    Raises:
        RunnerError: OpenVINO cannot read it.
    """
    from openvino import opset15 as op

    model = read_ir(path)
    reads = [node for node in model.get_ops() if node.get_type_name() == "ReadValue"]
    if not reads or _find_input(model, BEAMS) is None:
        return model
    for node in reads:
        past, _ = _names_of_state(node.get_variable_id())
        shape = node.get_output_partial_shape(0)
        given = op.parameter(shape, node.get_output_element_type(0), name=past)
        given.output(0).get_tensor().set_names({past})
        for reader in node.output(0).get_target_inputs():
            gather = reader.get_node()  # of the rows that `beam_idx` selects
            gather.output(0).replace(given.output(0))
        model.add_parameters([given])
    for node in list(model.get_sinks()):
        _, present = _names_of_state(node.get_variable_id())
        made = node.input_value(0)
        made.get_tensor().add_names({present})
        model.add_results([op.result(made)])
        model.remove_sink(node)
    model.remove_parameter(_find_input(model, BEAMS))
    model.validate_nodes_and_infer_types()
    return model


def describe_states(path: Path) -> dict[str, str]:
    """Return the entry of a description that says where the cache is; empty without states."""
    kinds = [node.get_type_name() for node in read_ir(path).get_ops()]
    count = kinds.count("ReadValue")
    kept = f"{count} states in place of {PAST}.* and {PRESENT}.*; {BEAMS} is an input, their rows"
    return {"cache": kept} if "ReadValue" in kinds else {}


def _find_input(model: openvino.Model, name: str) -> Any:
    found = (port.get_node() for port in model.inputs if name in port.get_names())
    return next(found, None)


def _names_of_state(identifier: str) -> tuple[str, str]:
    """Return the input and the output that a state stands for, by its identifier: both joined."""
    _, _, rest = identifier.rpartition(f"{PRESENT}.")
    return f"{PAST}.{rest}", f"{PRESENT}.{rest}"


def has_states(compiled: openvino.CompiledModel) -> bool:
    """Return whether a model keeps a decoder's cache, so that `StatefulRunner` can run it."""
    return any(BEAMS in port.get_names() for port in compiled.inputs)


class StatefulRunner(RunnerBase):
    """A decoder with states, as a decoder without: its cache is set before a call, and read after.

    All of its machinery is used on each feed. No past is a reset; a past is set with its rows in
    reverse order, which `beam_idx` reverses. Of several tokens the last one is a call of its own,
    with the rows that the first call left, in reverse order.
    """

    def __init__(
        self, compiled: openvino.CompiledModel, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        self.inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._request: openvino.InferRequest | None = compiled.create_infer_request()
        self._types = {LOGITS: "float32"}
        for port in compiled.inputs:
            dtype = str(port.get_element_type().to_dtype())
            self._types |= dict.fromkeys(port.get_names(), dtype)
        self._given = [name for name in (_TOKENS, _MASK, _PLACES) if name in self._types]

    def run(self, feed: Feed) -> Outputs:
        """Run all tokens but the last, then the last; return the logits and the states."""
        import numpy as np

        order_inputs(feed, self.inputs)
        for name in self.inputs:
            check_dtype(name, feed[name], self._types.get(name, "float32"))
        tokens = feed[_TOKENS].shape[1]
        parts = []
        try:
            self._begin(feed)
            if tokens > 1:
                parts.append(self._call(_cut_tokens(feed, tokens - 1), reverse=self._is_set(feed)))
                last = {name: feed[name][::-1] for name in self._given}
                last |= {n: last[n][:, -1:] for n in (_TOKENS, _PLACES) if n in last}
                parts.append(self._call(last, reverse=True)[::-1])
                made = self._read_states(reverse=True)
            else:
                parts.append(self._call(feed, reverse=self._is_set(feed)))
                made = self._read_states(reverse=False)
        except RuntimeError as error:
            raise openvino_error(error) from error
        made[LOGITS] = np.concatenate(parts, axis=1)
        return {name: made[name] for name in self._outputs}

    def prepare(self, feed: Feed) -> Callable[[], object]:
        """Return a call that sets the states and runs all tokens at once."""
        order_inputs(feed, self.inputs)

        def call() -> object:
            self._begin(feed)
            return self._call(feed, reverse=self._is_set(feed))

        return call

    def close(self) -> None:
        """Drop the request, and the model with it."""
        self._request = None

    @property
    def _open(self) -> openvino.InferRequest:
        if self._request is None:
            raise RuntimeError("the model is closed")
        return self._request

    def _is_set(self, feed: Feed) -> bool:
        past = next(feed[name] for name in self.inputs if name.startswith(PAST))
        return bool(past.shape[_ALONG])

    def _begin(self, feed: Feed) -> None:
        """Reset the states, or set them to a feed's cache with its rows in reverse order."""
        import numpy as np
        import openvino

        self._open.reset_state()
        for state in self._open.query_state() if self._is_set(feed) else ():
            past, _ = _names_of_state(state.name)
            state.state = openvino.Tensor(np.ascontiguousarray(feed[past][::-1]))

    def _call(self, feed: Feed, *, reverse: bool) -> Array:
        """Run one call on the rows of the states in this order; return the logits."""
        import numpy as np

        rows = np.arange(len(feed[_TOKENS]), dtype=np.int32)
        given = {name: np.ascontiguousarray(feed[name]) for name in self._given}
        result = self._open.infer({**given, BEAMS: rows[::-1].copy() if reverse else rows})
        found: Array = result[0]
        return found.copy()

    def _read_states(self, *, reverse: bool) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for state in self._open.query_state():
            _, present = _names_of_state(state.name)
            array = state.state.data
            found[present] = (array[::-1] if reverse else array).copy()
        return found


def _cut_tokens(feed: Feed, count: int) -> Mapping[str, Array]:
    """Return the part of a feed with the first tokens."""
    tokens = feed[_TOKENS].shape[1]
    found = {name: feed[name][:, :count] for name in (_TOKENS, _PLACES) if name in feed}
    if _MASK in feed:
        found[_MASK] = feed[_MASK][:, : feed[_MASK].shape[1] - tokens + count]
    return found
