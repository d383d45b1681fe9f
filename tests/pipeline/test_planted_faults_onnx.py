"""Faults planted in ONNX files, each found and named; without its fault each passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from modelc.core.verdict import State, Verdict

pytestmark = pytest.mark.needs("onnx")
Judged = Callable[[str, str, Callable[[Path], None]], Verdict]
Change = Callable[[onnx.GraphProto], object]
Floats = NDArray[np.float32]


def edit(path: Path, change: Change) -> None:
    """Load, change and save."""
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def weight(change: Callable[[Floats], Floats], operator: str, index: int) -> Change:
    """Change the weight of the first (0) or last (-1) node of that operator."""

    def changed(graph: onnx.GraphProto) -> None:
        names = {tensor.name: tensor for tensor in graph.initializer}
        nodes = [n for n in graph.node if n.op_type == operator and n.input[1] in names]
        tensor = names[nodes[index].input[1]]
        array = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))

    return changed


def one_percent(array: Floats) -> Floats:
    """The largest element, one percent larger."""
    array.flat[np.abs(array).argmax()] *= 1.01
    return array


def one_nan(array: Floats) -> Floats:
    array.flat[0] = np.nan
    return array


def renamed(old: str, new: str) -> Change:
    """Another name for a tensor wherever it stands, the graph's outputs left alone."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    names[place] = new if name == old else name

    return change


def in_turn(*changes: Change) -> Change:
    def change(graph: onnx.GraphProto) -> None:
        for one in changes:
            one(graph)

    return change


SWAPPED = in_turn(
    renamed("boxes.0", "held"), renamed("boxes.1", "boxes.0"), renamed("held", "boxes.1")
)


def other_order(graph: onnx.GraphProto) -> None:
    values = {value.name: value for value in map(_copied, graph.output)}
    names = ["boxes.1", "boxes.0", "scores", "aux.embedding", "aux.energy"]
    del graph.output[:]
    graph.output.extend(values[name] for name in names)


def _copied(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def without_output(graph: onnx.GraphProto) -> None:
    del graph.output[-1]


def with_output_called(name: str) -> Change:
    """The last output under another name."""

    def change(graph: onnx.GraphProto) -> None:
        renamed(graph.output[-1].name, name)(graph)
        graph.output[-1].name = name

    return change


def with_one_more_output(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Neg", ["scores"], ["more"]))
    graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["batch", 5]))


def followed_by(output: str, *operators: tuple[str, Sequence[str], int | None]) -> Change:
    """Nodes between what computes an output and the output: (operator, more inputs, `to`)."""

    def change(graph: onnx.GraphProto) -> None:
        renamed(output, "held_0")(graph)
        for place, (operator, more, to) in enumerate(operators):
            name = output if place == len(operators) - 1 else f"held_{place + 1}"
            inputs = [f"held_{place}", *more]
            node = helper.make_node(operator, inputs, [name])
            if to is not None:
                node.attribute.append(helper.make_attribute("to", to))
            graph.node.append(node)

    return change


def constant(name: str, array: NDArray[np.generic]) -> Change:
    return lambda graph: graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))


TO_HALF = ("Cast", (), int(TensorProto.FLOAT16))
TO_SINGLE = ("Cast", (), int(TensorProto.FLOAT))
LITERAL = constant("literal", np.array([4, 10]))


def declared_as_half(graph: onnx.GraphProto) -> None:
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def static_batch(graph: onnx.GraphProto) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4


def literal_in_reshape(graph: onnx.GraphProto) -> None:
    """The flattening of digits to a batch of four."""
    (node,) = [node for node in graph.node if node.op_type == "Reshape"]
    (shape,) = [tensor for tensor in graph.initializer if tensor.name == node.input[1]]
    shape.CopyFrom(numpy_helper.from_array(np.array([4, 128]), shape.name))


def with_all_tokens_on(graph: onnx.GraphProto) -> None:
    """The values of BERT's mask replaced by ones; its shape is still read."""
    (node,) = [n for n in graph.node if n.op_type == "Equal" and n.input[0] == "mask"]
    node.input[0] = "ones"
    graph.initializer.append(numpy_helper.from_array(np.ones((1, 1), np.int64), "ones"))


def without_mask(graph: onnx.GraphProto) -> None:
    """The same, and no such input."""
    with_all_tokens_on(graph)
    renamed("mask", "ids")(graph)
    graph.input.remove(next(value for value in graph.input if value.name == "mask"))


def epsilon(graph: onnx.GraphProto) -> None:
    """PyTorch's usual 1e-5 in the first LayerNorm instead of BERT's 1e-12."""
    node = next(node for node in graph.node if node.op_type == "LayerNormalization")
    next(a for a in node.attribute if a.name == "epsilon").f = 1e-5


def shifted(array: Floats) -> Floats:
    """Rows moved down by one: an index that is off by one."""
    return np.roll(array, 1, axis=0)


def gathered(change: Callable[[Floats], Floats]) -> Change:
    """Change the table of the second Gather: the positions of BERT."""

    def changed(graph: onnx.GraphProto) -> None:
        node = [node for node in graph.node if node.op_type == "Gather"][1]
        tensor = next(t for t in graph.initializer if t.name == node.input[0])
        array = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return changed


@dataclass(frozen=True, kw_only=True)
class Fault:
    model: str
    change: Change
    reason: str  # a pattern that names output, feed or input


EITHER = r"output '(hidden|pooled)' on feed "
FAULTS = {
    "a weight of the first conv off by 1 %": Fault(
        model="digits", change=weight(one_percent, "Conv", 0), reason="output 'output' on feed "
    ),
    "a weight of the last linear off by 1 %": Fault(
        model="digits", change=weight(one_percent, "Gemm", -1), reason="output 'output' on feed "
    ),
    "a NaN in a weight": Fault(
        model="digits", change=weight(one_nan, "Gemm", -1), reason="elements NaN/Inf where eager"
    ),
    "two outputs swapped": Fault(
        model="nested", change=SWAPPED, reason="looks like eager's output 'boxes."
    ),
    "outputs in another order": Fault(
        model="nested", change=other_order, reason="outputs are reordered: boxes.1, boxes.0, scores"
    ),
    "an output through half and back": Fault(
        model="nested",
        change=followed_by("aux.energy", TO_HALF, TO_SINGLE),
        reason="output 'aux.energy' on feed ",
    ),
    "an output in half": Fault(
        model="digits",
        change=in_turn(followed_by("output", TO_HALF), declared_as_half),
        reason=r"output 'output' on feed sample \(batch=8\): dtype float16, eager has float32",
    ),
    "a batch size in a Reshape": Fault(
        model="digits", change=literal_in_reshape, reason=r"refused feed sample \(batch=8\)"
    ),
    "a batch size in an Expand": Fault(
        model="digits",
        change=in_turn(LITERAL, followed_by("output", ("Expand", ["literal"], None))),
        reason=r"\(batch=1\): shape \[4, 10\], eager has \[1, 10\]",
    ),
    "a static batch": Fault(
        model="digits", change=static_batch, reason=r"refused feed sample \(batch=8\)"
    ),
    "an input that nothing reads": Fault(
        model="bert", change=with_all_tokens_on, reason="input 'mask' is ignored: eager's"
    ),
    "an input that is gone": Fault(
        model="bert",
        change=without_mask,
        reason="input 'mask' is ignored: the artifact does not take it",
    ),
    "an output missing": Fault(
        model="nested", change=without_output, reason="output 'aux.energy' is missing"
    ),
    "an output renamed": Fault(
        model="nested",
        change=with_output_called("energy"),
        reason="output 'aux.energy' is missing; output 'energy' is extra",
    ),
    "an output too many": Fault(
        model="nested", change=with_one_more_output, reason="output 'more' is extra"
    ),
    "another epsilon in a norm": Fault(model="bert", change=epsilon, reason=EITHER),
    "a square weight transposed": Fault(
        model="bert", change=weight(np.transpose, "MatMul", 0), reason=EITHER
    ),
    "positions off by one": Fault(model="bert", change=gathered(shifted), reason=EITHER),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_fails_and_is_named(judged: Judged, fault: Fault) -> None:
    verdict = judged(fault.model, "model.onnx", lambda path: edit(path, fault.change))
    assert verdict.state is State.FAILED
    assert re.search(fault.reason, verdict.reason)


@pytest.mark.parametrize("model", sorted({fault.model for fault in FAULTS.values()}))
def test_the_twin_without_a_fault_passes(judged: Judged, model: str) -> None:
    verdict = judged(model, "model.onnx", lambda path: edit(path, lambda _: None))
    assert verdict.reason == ""
    assert verdict.passed


def test_only_the_swapped_outputs_are_found_wrong(judged: Judged) -> None:
    verdict = judged("nested", "model.onnx", lambda path: edit(path, SWAPPED))
    assert {o.output for o in verdict.outputs if not o.passed} == {"boxes.0", "boxes.1"}


def test_half_is_recognised_by_its_values(judged: Judged) -> None:
    change = followed_by("aux.energy", TO_HALF, TO_SINGLE)
    verdict = judged("nested", "model.onnx", lambda path: edit(path, change))
    reasons = [output.reason for output in verdict.outputs if output.output == "aux.energy"]
    assert all("cast to half?" in reason for reason in reasons if reason)
    assert any(reasons)


def test_the_feed_of_the_folded_size_is_the_only_one_that_holds(judged: Judged) -> None:
    verdict = judged("digits", "model.onnx", lambda path: edit(path, literal_in_reshape))
    held = {output.shape[0] for output in verdict.outputs if output.passed}
    assert held == {4}
