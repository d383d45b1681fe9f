"""Decoders with states: equal to the same decoder without, and what a fault in the states does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from modelc.converters import openvino_ir
from modelc.converters.openvino_stateful import BEAMS, add_states, read_stateless
from modelc.core.contract import Feed, Outputs
from modelc.core.errors import ErrorCode, RunnerError, UsageError
from modelc.core.grammar import parse_input
from modelc.core.kinds import Precision
from modelc.core.signature import Signature, merge_inputs

from ..reasons import has_code

if TYPE_CHECKING:
    import openvino

pytestmark = pytest.mark.needs("openvino")
OUTPUTS = ("logits", "present.0.key", "present.0.value")
CACHE = "float32[batch=1..8,1,past=0..8,4]"
INPUTS = (
    "input_ids:int64[batch=1..8,sequence=1..8]{0..15}",
    "attention_mask:int64[batch=1..8,total=past+sequence]{0..1 ascending}",
    f"past_key_values.0.key:{CACHE}",
    f"past_key_values.0.value:{CACHE}",
)
SIZES = {  # batch, tokens, past, hidden tokens of the first row, which still see themselves
    "token": (1, 1, 0, 0), "prompt": (1, 5, 0, 0), "prompts": (3, 5, 0, 0), "step": (3, 1, 4, 0),
    "chunk": (3, 4, 5, 2), "largest": (8, 8, 8, 3),
}  # fmt: skip


def signature(*inputs: str, outputs: tuple[str, ...] = OUTPUTS) -> Signature:
    return merge_inputs([parse_input(text) for text in inputs or INPUTS], {}).with_outputs(outputs)


def make_decoder() -> openvino.Model:
    """One causal layer of attention over embedded tokens, whose cache is an input and an output."""
    import openvino
    from openvino import opset15 as op

    random = np.random.default_rng(0)
    ids, mask = (
        op.parameter([-1, -1], np.int64, name=name.partition(":")[0]) for name in INPUTS[:2]
    )
    pasts = [
        op.parameter([-1, 1, -1, 4], np.float32, name=one.partition(":")[0]) for one in INPUTS[2:]
    ]
    tables = [op.constant(random.standard_normal((16, 4)).astype(np.float32)) for _ in range(3)]
    query, *new = (op.unsqueeze(op.gather(one, ids, np.int64(0)), np.int64(1)) for one in tables)
    present = [op.concat(list(pair), 2) for pair in zip(pasts, new, strict=True)]
    scores = op.matmul(query, present[0], False, True)
    places = op.cum_sum(
        op.convert(op.broadcast(np.int64(1), op.shape_of(mask)), "i64"), np.int64(1)
    )
    count = op.gather(op.shape_of(ids), np.int64(1), np.int64(0))
    total = op.gather(op.shape_of(mask), np.int64(1), np.int64(0))
    own = op.range(
        op.add(op.subtract(total, count), np.int64(1)),
        op.add(total, np.int64(1)),
        np.int64(1),
        "i64",
    )
    seen = op.less_equal(
        op.unsqueeze(places, np.array([1, 2])), op.reshape(own, np.array([1, 1, -1, 1]), False)
    )
    shown = op.logical_and(seen, op.equal(op.unsqueeze(mask, np.array([1, 2])), np.int64(1)))
    weights = op.softmax(op.select(shown, scores, np.float32(-1e9)), -1)
    logits = op.squeeze(op.matmul(weights, present[1], False, False), np.int64(1))
    results = []
    for name, node in zip(OUTPUTS, (logits, *present), strict=True):
        node.output(0).set_names({name})
        results.append(op.result(node))
    for parameter in (ids, mask, *pasts):
        parameter.output(0).set_names({parameter.get_friendly_name()})
    return openvino.Model(results, [ids, mask, *pasts], "decoder")


def make_feed(name: str) -> Feed:
    batch, tokens, past, hidden = SIZES[name]
    random = np.random.default_rng(1)
    mask = np.ones((batch, past + tokens), np.int64)
    mask[0, :hidden] = 0
    cache = random.standard_normal((2, batch, 1, past, 4)).astype(np.float32)
    return {
        "input_ids": random.integers(0, 16, (batch, tokens)), "attention_mask": mask,
        "past_key_values.0.key": cache[0], "past_key_values.0.value": cache[1],
    }  # fmt: skip


def save(model: openvino.Model, path: Path) -> Path:
    import openvino

    openvino.save_model(model, str(path), compress_to_fp16=False)
    return path


@pytest.fixture
def stateless(tmp_path: Path) -> Path:
    return save(make_decoder(), tmp_path / "plain.xml")


@pytest.fixture
def stateful(tmp_path: Path) -> Callable[..., Path]:
    """`stateful(fault)`: the decoder with states, changed by the fault."""

    def write(fault: Callable[[Any], object] = lambda _: None) -> Path:
        model = make_decoder()
        add_states(model, signature(), Precision.FP32)
        fault(model)
        return save(model, tmp_path / "stateful.xml")

    return write


def run(path: Path, *feeds: Feed) -> list[Outputs]:
    with openvino_ir.open_runner(path, "cpu", signature()) as runner:
        return [runner.run(feed) for feed in feeds]


def is_equal(one: Outputs, other: Outputs) -> bool:
    return tuple(one) == tuple(other) and all(
        one[name].shape == other[name].shape and np.allclose(one[name], other[name], atol=1e-5)
        for name in one
    )


@pytest.mark.parametrize("name", SIZES)
def test_states_compute_what_inputs_and_outputs_do(
    name: str, stateless: Path, stateful: Callable[..., Path]
) -> None:
    (wanted,), (found,) = (run(path, make_feed(name)) for path in (stateless, stateful()))
    assert tuple(found) == OUTPUTS
    assert is_equal(found, wanted)


def test_no_request_sees_the_states_of_another(stateful: Callable[..., Path]) -> None:
    names = ("prompts", "chunk", "prompts", "step", "chunk", "token", "prompts")
    found = run(stateful(), *map(make_feed, names))
    first = {name: found[names.index(name)] for name in names}
    assert all(is_equal(one, first[name]) for name, one in zip(names, found, strict=True))


def _ignore_rows(model: Any) -> None:
    """The rows of the states stay where they are."""
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            for reader in node.output(0).get_target_inputs():
                gather = reader.get_node()
                for port in gather.output(0).get_target_inputs():
                    port.replace_source_output(node.output(0))


def _begin_with_a_token(model: Any) -> None:
    """Each state begins with a position of zeros."""
    from openvino import opset15 as op

    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            start = node.input_value(0)
            ends = np.array([0, 0, 0, 0]), np.array([0, 0, 1, 0])
            one = op.pad(start, *ends, "constant", np.float32(0))
            node.set_arguments([one.output(0)])
    model.validate_nodes_and_infer_types()


def _keep_old(model: Any) -> None:
    """A state takes no new tokens."""
    for sink in model.get_sinks():
        concat = sink.input_value(0).get_node()
        sink.input(0).replace_source_output(concat.input_value(0))


def _exchange(model: Any) -> None:
    """Each of the two states is given the value of the other."""
    first, second = (sink.input_value(0) for sink in model.get_sinks())
    for sink, source in zip(model.get_sinks(), (second, first), strict=True):
        sink.input(0).replace_source_output(source)


@pytest.mark.parametrize("fault", [_ignore_rows, _begin_with_a_token, _keep_old, _exchange])
def test_a_fault_in_the_states_is_seen(
    fault: Callable[[Any], object], stateless: Path, stateful: Callable[..., Path]
) -> None:
    path, seen = stateful(fault), []
    for name in SIZES:
        (wanted,) = run(stateless, make_feed(name))
        try:
            (found,) = run(path, make_feed(name))
        except RunnerError:
            seen.append(name)
            continue
        if not is_equal(found, wanted):
            seen.append(name)
    assert seen


def test_a_file_has_the_inputs_of_openvino_genai(stateful: Callable[..., Path]) -> None:
    import openvino

    model = openvino.Core().read_model(str(stateful()))
    names = [port.get_any_name() for port in model.inputs]
    assert names == ["input_ids", "attention_mask", BEAMS]
    assert [port.get_any_name() for port in model.outputs] == ["logits"]
    assert model.get_rt_info(["runtime_options", "KV_CACHE_PRECISION"]).astype(str) == "f32"


def test_a_description_has_the_cache_and_says_where_it_is(stateful: Callable[..., Path]) -> None:
    found = openvino_ir.inspect(stateful())
    assert {one.name for one in found.inputs} == {text.partition(":")[0] for text in INPUTS}
    assert {one.name for one in found.outputs} == set(OUTPUTS)
    count, *words = found.facts["cache"].split()
    assert (count, BEAMS in words) == ("2", True)


def test_states_become_inputs_and_outputs_again(
    stateless: Path, stateful: Callable[..., Path], tmp_path: Path
) -> None:
    back = save(read_stateless(stateful()), tmp_path / "back.xml")
    (wanted,), (found,) = (run(path, make_feed("chunk")) for path in (stateless, back))
    assert is_equal(found, wanted)


def test_another_dtype_is_refused(stateful: Callable[..., Path]) -> None:
    feed = {**make_feed("step"), "attention_mask": np.ones((3, 5), np.int32)}
    with pytest.raises(RunnerError, match="attention_mask"):
        run(stateful(), feed)


@pytest.mark.parametrize(
    "given",
    [
        signature(INPUTS[0], outputs=("logits",)),
        signature(*INPUTS, "token_type_ids:int64[batch=1..8,sequence=1..8]"),
        signature(*INPUTS, outputs=("logits", "present.0.key")),
        signature(INPUTS[0].replace("sequence=1..8", "1"), *INPUTS[2:]),
        signature(*(text.replace("past=0..8", "past=1..8") for text in INPUTS)),
    ],
    ids=["no cache", "another input", "a lost state", "one token", "always a past"],
)
def test_a_model_that_is_no_decoder_for_prompts_and_steps_is_an_error(given: Signature) -> None:
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming="--stateful")):
        openvino_ir.check_states(given)


def test_a_state_that_is_no_key_or_value_is_named() -> None:
    state = "past_key_values.0.conv_state"
    given = signature(
        *INPUTS, f"{state}:float32[batch=1..8,4,3]",
        outputs=("logits", "present.0.conv_state"),
    )  # fmt: skip
    with pytest.raises(UsageError, check=has_code(ErrorCode.UNSUPPORTED, naming=state)):
        openvino_ir.check_states(given)
