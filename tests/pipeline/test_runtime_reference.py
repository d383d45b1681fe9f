"""References that are not eager: one model file judged against another, without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.converters.registry import target_named
from modelc.converters.runner_base import RunnerBase
from modelc.core.contract import Feed, Outputs
from modelc.core.errors import CheckpointError, ErrorCode, ModelcError, UsageError
from modelc.core.kinds import Precision, ReasonCode
from modelc.core.signature import Signature
from modelc.core.verdict import Verdict
from modelc.pipeline.judge_case import Candidate
from modelc.pipeline.make_order import build_order, make_order
from modelc.pipeline.order import Judging, Order, Source, Wanted
from modelc.pipeline.recorded_run import Moved
from modelc.pipeline.run_order import run
from modelc.pipeline.validate_file import validate_file

_FLOAT, _QUICK = TensorProto.FLOAT, Judging(sensitivity=0)
_RANDOM = np.random.default_rng(0)


def _save(path: Path, graph: onnx.GraphProto, *, external: str = "", ir: int = 8) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir)
    onnx.checker.check_model(model)
    if external:
        onnx.save(model, path, save_as_external_data=True, size_threshold=0, location=external)
    else:
        onnx.save(model, path)
    return path


def _constant(name: str, array: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def _value(name: str, kind: int, dims: Sequence[str | int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


_WEIGHTS = [
    _constant("table", _RANDOM.standard_normal((50, 16)).astype("f")),
    _constant("scale", _RANDOM.standard_normal(16).astype("f")),
    _constant("bias", _RANDOM.standard_normal(16).astype("f")),
    _constant("last", np.array([-1])),
    _constant("middle", np.array([1])),
]


def make_text(
    inputs: tuple[str, ...] = ("ids", "mask", "gain"), outputs: tuple[str, ...] = ("y", "n")
) -> onnx.GraphProto:
    """A masked sum of embeddings: integer, bool and scalar inputs, float and integer outputs."""
    ids, mask, gain = inputs
    nodes = [
        helper.make_node("Gather", ["table", ids], ["rows"]),
        helper.make_node("LayerNormalization", ["rows", "scale", "bias"], ["e"], epsilon=1e-3),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Cast", [mask], ["m"], to=_FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["wide"]),
        helper.make_node("Mul", ["r", "wide"], ["kept"]),
        helper.make_node("ReduceMean", ["kept"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Sub", ["mean", gain], [outputs[0]]),
        helper.make_node("Cast", [mask], ["whole"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["whole", "middle"], [outputs[1]], keepdims=0),
    ]
    given = [
        _value(ids, TensorProto.INT64, ["batch", "seq len"]),
        _value(mask, TensorProto.BOOL, ["batch", "seq len"]),
        _value(gain, _FLOAT, []),
    ]
    given_back = [
        _value(outputs[0], _FLOAT, ["batch", 16]), _value(outputs[1], TensorProto.INT64, ["batch"])
    ]  # fmt: skip
    return helper.make_graph(nodes, "text", given, given_back, _WEIGHTS)


def make_difference(first: str = "a", second: str = "b") -> onnx.GraphProto:
    """Two float inputs in an operator that does not commute."""
    node = helper.make_node("Sub", [first, second], ["y"])
    ends = [_value(name, _FLOAT, ["n", 4]) for name in ("a", "b")]
    return helper.make_graph([node], "difference", ends, [_value("y", _FLOAT, ["n", 4])])


def make_decoder(prompt: float = 1.0) -> onnx.GraphProto:
    """Sums masked embeddings up to each token; `prompt` scales its logits without a past."""
    node, past = helper.make_node, ("past_key_values.0.key", "past_key_values.0.value")
    nodes = [
        node("Gather", ["table", "input_ids"], ["rows"]),
        node("Unsqueeze", ["rows", "middle"], ["new"]),
        node("Concat", [past[0], "new"], ["present.0.key"], axis=2),
        node("Concat", [past[1], "new"], ["present.0.value"], axis=2),
        node("Cast", ["attention_mask"], ["shown"], to=_FLOAT),
        node("Unsqueeze", ["shown", "outer"], ["wide"]),
        node("Mul", ["present.0.value", "wide"], ["kept"]),
        node("CumSum", ["kept", "along"], ["sums"]),
        node("Shape", [past[0]], ["past shape"]),
        node("Gather", ["past shape", "along"], ["start"]),
        node("Slice", ["sums", "start", "end", "along"], ["ours"]),
        node("Squeeze", ["ours", "middle"], ["flat"]),
        node("MatMul", ["flat", "head"], ["raw"]),
        node("Equal", ["start", "none"], ["is prompt"]),
        node("Where", ["is prompt", "scale of prompt", "one"], ["factor"]),
        node("Mul", ["raw", "factor"], ["logits"]),
    ]
    sizes = {"outer": [1, 3], "along": [2], "end": [10**6], "none": [0]}
    weights = [
        *_WEIGHTS, _constant("head", _RANDOM.standard_normal((16, 50)).astype("f")),
        _constant("one", np.float32(1)), _constant("scale of prompt", np.float32(prompt)),
        *(_constant(name, np.array(one)) for name, one in sizes.items()),
    ]  # fmt: skip
    given = [
        _value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        _value("attention_mask", TensorProto.INT64, ["batch", "total"]),
        *(_value(name, _FLOAT, ["batch", 1, "past", 16]) for name in past),
    ]
    made = [
        _value("logits", _FLOAT, ["batch", "sequence", 50]),
        *(
            _value(f"present.0.{one}", _FLOAT, ["batch", 1, "total", 16])
            for one in ("key", "value")
        ),
    ]
    return helper.make_graph(nodes, "decoder", given, made, weights)


def judge(path: Path, against: Path, **more: object) -> Verdict:
    """The verdict on a file whose reference is another one."""
    return validate_file(path, Source(checkpoint=against), judging=_QUICK, **more)  # type: ignore[arg-type]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """The reference of most tests."""
    return _save(tmp_path / "text.onnx", make_text())


def test_a_copy_passes_and_the_verdict_names_the_reference(text: Path) -> None:
    graph = make_text()
    reordered = helper.make_graph(
        graph.node, "text", graph.input[::-1], graph.output[::-1], graph.initializer
    )
    verdict = judge(_save(text.with_name("copy.onnx"), reordered), text)
    assert verdict.passed
    assert verdict.reference is not None
    assert verdict.reference.file == "text.onnx"
    assert verdict.reference.runtime.startswith("ONNX Runtime ")
    assert verdict.notes[0] == f"reference: {verdict.reference}"


def test_an_ir_of_it_passes_within_the_noise_floor(text: Path) -> None:
    import openvino

    openvino.save_model(
        openvino.convert_model(text), text.with_suffix(".xml"), compress_to_fp16=False
    )
    verdict = judge(text.with_suffix(".xml"), text)
    assert verdict.passed, verdict.reason
    assert verdict.tolerance.floor_factor
    assert max(one.times_floor or 0.0 for one in verdict.outputs) > 0


def _change_weight(graph: onnx.GraphProto) -> None:
    table = numpy_helper.to_array(graph.initializer[0]).copy()
    graph.initializer[0].CopyFrom(_constant("table", table * np.float32(1.01)))


def _change_epsilon(graph: onnx.GraphProto) -> None:
    graph.node[1].attribute[0].f *= 2


def _drop_relu(graph: onnx.GraphProto) -> None:
    graph.node[2].op_type = "Identity"


@pytest.mark.parametrize("fault", [_change_weight, _change_epsilon, _drop_relu])
def test_a_planted_fault_is_rejected(text: Path, fault: Callable[[onnx.GraphProto], None]) -> None:
    graph = make_text()
    fault(graph)
    assert not judge(_save(text.with_name("faulty.onnx"), graph), text).passed


def test_one_altered_element_is_rejected_by_name(text: Path) -> None:
    graph = make_text()
    table = numpy_helper.to_array(graph.initializer[0]).copy()
    table[7, 3] *= 1.01
    graph.initializer[0].CopyFrom(_constant("table", table))
    verdict = judge(_save(text.with_name("faulty.onnx"), graph), text)
    assert ReasonCode.WEIGHT_ALTERED in [one.code for one in verdict.reasons]


def test_swapped_inputs_are_rejected(tmp_path: Path) -> None:
    reference = _save(tmp_path / "a.onnx", make_difference())
    assert not judge(_save(tmp_path / "b.onnx", make_difference("b", "a")), reference).passed


class _OtherOrder(RunnerBase):
    """Takes the file's names in another order, as a model with states does; gives them back."""

    inputs: tuple[str, ...] = ("past.key", "past.value")

    def run(self, feed: Feed) -> Outputs:
        return {"present.key": feed["past.key"], "present.value": feed["past.value"]}


@pytest.mark.parametrize("ends", ["inputs", "outputs"])
def test_equal_names_pair_by_name_in_any_order(ends: str) -> None:
    order = {"inputs": 1, "outputs": 1, ends: -1}
    inputs = ("past.key", "past.value")[:: order["inputs"]]
    outputs = ("present.key", "present.value")[:: order["outputs"]]
    target = target_named("openvino")
    candidate = Candidate(
        name="m", target=target, precision=Precision.FP32, path=Path("m.xml"),
        inputs=inputs, outputs=outputs,
    )  # fmt: skip
    runner = candidate.rename(_OtherOrder(), Signature(inputs=(), outputs=outputs))
    found = runner.run({"past.key": np.zeros(1), "past.value": np.ones(1)})
    assert {name: one.item() for name, one in found.items()} == {
        "present.key": 0.0, "present.value": 1.0,
    }  # fmt: skip


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    one, other = (tmp_path / folder / "model.onnx" for folder in ("a", "b"))
    _save(one, make_text(("ids", "attention", "gain")))
    with pytest.raises(UsageError) as raised:
        judge(one, _save(other, make_text()))
    assert str(one) in raised.value.message
    assert str(other) in raised.value.message


def test_other_names_pair_by_position_with_a_note(text: Path) -> None:
    graph = make_text(("tokens", "attention", "factor"), ("out", "count"))
    verdict = judge(_save(text.with_name("renamed.onnx"), graph), text)
    assert verdict.passed
    assert any("attention" in note and "mask" in note for note in verdict.notes)


@pytest.mark.parametrize(
    "inputs", [("ids", "attention", "gain"), ("gain", "mask", "other")], ids=["some", "others"]
)
def test_names_of_which_some_differ_are_an_error(text: Path, inputs: tuple[str, ...]) -> None:
    path = _save(text.with_name("other.onnx"), make_text(inputs))
    with pytest.raises(UsageError) as raised:
        judge(path, text)
    assert raised.value.code is ErrorCode.SAMPLE_MISMATCH
    assert all(name in raised.value.message for name in (*inputs, "mask", "text.onnx"))


def test_dtypes_that_differ_are_an_error(text: Path) -> None:
    graph = make_text(("p", "q", "s"))
    given = [graph.input[2], graph.input[0], graph.input[1]]
    graph = helper.make_graph(graph.node, "g", given, graph.output, graph.initializer)
    with pytest.raises(UsageError) as raised:
        judge(_save(text.with_name("other.onnx"), graph), text)
    assert raised.value.code is ErrorCode.SAMPLE_MISMATCH


def test_half_precision_with_half_ends_is_judged_as_fp16(tmp_path: Path) -> None:
    def make(kind: int, dtype: str) -> onnx.GraphProto:
        weight = _constant("w", np.linspace(-1, 1, 64, dtype=dtype).reshape(8, 8))
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        ends = [_value(name, kind, ["n", 8]) for name in ("x", "y")]
        return helper.make_graph([node], "half", ends[:1], ends[1:], [weight])

    reference = _save(tmp_path / "whole.onnx", make(_FLOAT, "float32"))
    half = _save(tmp_path / "half.onnx", make(TensorProto.FLOAT16, "float16"))
    assert judge(half, reference, precision=Precision.FP16).passed
    assert not judge(half, reference).passed


def test_external_weights_and_weights_as_inputs(tmp_path: Path) -> None:
    weight = _constant("w", _RANDOM.standard_normal((8, 8)).astype("f"))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    ends = [_value(name, _FLOAT, [None, 8]) for name in ("x", "y")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    apart = _save(tmp_path / "apart.onnx", graph, external="apart.data")
    old = helper.make_graph([node], "g", [ends[0], _value("w", _FLOAT, [8, 8])], ends[1:], [weight])
    assert judge(apart, _save(tmp_path / "old.onnx", old, ir=3)).passed
    (tmp_path / "apart.data").unlink()
    with pytest.raises(ModelcError):
        judge(tmp_path / "old.onnx", apart)


def _make_string() -> onnx.GraphProto:
    ends = [_value(name, TensorProto.STRING, ["n"]) for name in ("s", "t")]
    return helper.make_graph([helper.make_node("Identity", ["s"], ["t"])], "g", ends[:1], ends[1:])


def _make_sequence() -> onnx.GraphProto:
    node = helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    sequence = helper.make_tensor_sequence_value_info("s", _FLOAT, ["n", 4])
    return helper.make_graph([node], "g", [sequence], [_value("y", _FLOAT, ["m", 4])])


def test_sizes_that_the_judged_file_declares_bound_the_domain(text: Path, tmp_path: Path) -> None:
    import openvino

    model = openvino.Core().read_model(text)
    dims = [openvino.Dimension(1, 4), openvino.Dimension(6)]
    model.reshape({"ids": openvino.PartialShape(dims), "mask": openvino.PartialShape(dims)})
    openvino.save_model(model, tmp_path / "few.xml", compress_to_fp16=False)
    verdict = judge(tmp_path / "few.xml", text)
    assert verdict.passed, verdict.reasons
    assert verdict.domain is not None
    ids = next(spec for spec in verdict.domain.inputs if spec.name == "ids")
    assert [(dim.low, dim.high) for dim in ids.dims] == [(1, 4), (6, 6)]
    stated = Source(checkpoint=text, inputs=("ids[batch=1..5,_]",))
    assert not validate_file(tmp_path / "few.xml", stated, judging=_QUICK).passed


@pytest.mark.parametrize(("make", "kind"), [(_make_string, "string"), (_make_sequence, "sequence")])
def test_an_input_that_is_no_tensor_of_numbers_is_refused(
    text: Path, make: Callable[[], onnx.GraphProto], kind: str
) -> None:
    with pytest.raises(CheckpointError) as raised:
        judge(text, _save(text.with_name("odd.onnx"), make()))
    assert raised.value.code is ErrorCode.UNSUPPORTED
    assert kind in raised.value.message


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"hello", ErrorCode.NOT_AN_ARTIFACT), (b"\x08\x08cut", ErrorCode.CORRUPT_FILE)],
)
def test_a_file_that_is_not_onnx_is_refused(text: Path, content: bytes, code: ErrorCode) -> None:
    other = text.with_name("other.onnx")
    other.write_bytes(content)
    with pytest.raises(ModelcError) as raised:
        judge(text, other)
    assert raised.value.code is code


def test_a_reference_that_draws_random_numbers_is_refused(text: Path) -> None:
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"]),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    ends = [_value(name, _FLOAT, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    with pytest.raises(CheckpointError) as raised:
        judge(text, _save(text.with_name("random.onnx"), graph))
    assert raised.value.code is ErrorCode.UNSTABLE_OUTPUTS


def test_an_option_of_checkpoints_has_no_effect(text: Path) -> None:
    copy = _save(text.with_name("copy.onnx"), make_difference())
    with pytest.raises(UsageError) as raised:
        validate_file(copy, Source(checkpoint=text, method="encode"))
    assert raised.value.code is ErrorCode.NO_EFFECT


def _order(path: Path, out: Path, wanted: str) -> Order:
    given = {"out": out, "sensitivity": 0, "prepare-only": True}
    return build_order(path, make_order(given, path, (Wanted.parse(wanted),)))


def test_an_ir_is_built_from_a_model_that_no_manifest_records(text: Path) -> None:
    out = text.parent / "out"
    manifest = run(_order(text, out, "openvino"))
    (verdict,) = manifest.verdicts
    assert verdict.passed
    assert verdict.reference is not None
    assert verdict.reference.file == "text.onnx"
    assert manifest.checkpoint.kind == "onnx"
    assert validate_file(out / "model.xml", moved=Moved(), judging=_QUICK).passed


def test_a_model_is_prepared_for_tensorrt_from_such_a_model(text: Path) -> None:
    manifest = run(_order(text, text.parent / "out", "tensorrt-onnx"))
    assert [one.passed for one in manifest.verdicts] == [True]


def test_what_modelc_made_and_someone_changed_is_not_its_own_reference(text: Path) -> None:
    out = text.parent / "out"
    run(_order(text, out, "tensorrt-onnx"))
    made = next(out.glob("*.onnx"))
    made.write_bytes(made.read_bytes() + b" ")
    with pytest.raises(UsageError) as raised:
        _order(made, out, "tensorrt")
    assert raised.value.code is ErrorCode.FILE_CHANGED


@pytest.mark.parametrize(("prompt", "passes"), [(1.0, True), (1.5, False)])
def test_a_decoder_is_judged_from_its_prompt_on(
    tmp_path: Path, prompt: float, passes: bool
) -> None:
    reference = make_decoder()
    path = _save(tmp_path / "reference.onnx", reference)
    copy = make_decoder(prompt)
    copy.initializer.remove(next(one for one in copy.initializer if one.name == "head"))
    copy.initializer.append(next(one for one in reference.initializer if one.name == "head"))
    verdict = judge(_save(tmp_path / "copy.onnx", copy, ir=9), path)
    assert verdict.passed is passes
    assert verdict.domain is not None
    ids, mask, key, _ = verdict.domain.inputs
    assert (ids.dims[1].low, ids.dims[1].high) == (1, 64)
    assert (key.dims[2].low, key.dims[2].high) == (0, 64)
    assert str(mask.dims[1]) == "total=past+sequence"
    assert verdict.tokens is not None
