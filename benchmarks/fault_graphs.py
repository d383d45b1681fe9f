"""Faults that a graph has and no module: wrong at one size, in one range, in one row.

Each is an edit of the ONNX graph between what computes an output and the output, and the same said
in numpy, of exact outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelc.core.contract import Array, Feed, Outputs

Effect = Callable[[Feed, Outputs], Outputs]
HALF, BRAIN = int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What is done to the graph, and what that does to exact outputs."""

    change: Callable[[onnx.ModelProto], None]
    effect: Effect


Plan = Callable[[str], Edit]  # given the name of the output


def _rename_producer(graph: onnx.GraphProto, output: str) -> str:
    """Have the output computed under another name; that name."""
    held = f"{output}/held"
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == output:
                    names[place] = held
    return held


def _constant(graph: onnx.GraphProto, name: str, value: Array) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"fault/{name}"))
    return f"fault/{name}"


def _nodes(graph: onnx.GraphProto, *rows: tuple[str, Sequence[str], str]) -> None:
    graph.node.extend(helper.make_node(kind, list(taken), [given]) for kind, taken, given in rows)


def _scale_where(graph: onnx.GraphProto, hit: str, output: str, factor: float) -> None:
    """The output times `factor` where the scalar `hit` is true."""
    held = _rename_producer(graph, output)
    off = _constant(graph, "factor", np.array(factor, np.float32))
    on = _constant(graph, "one", np.array(1, np.float32))
    _nodes(graph, ("Where", [hit, off, on], "fault/times"), ("Mul", [held, "fault/times"], output))


def _times(outputs: Outputs, output: str, factor: float) -> Outputs:
    return {**outputs, output: outputs[output] * np.float32(factor)}


def at_size(name: str, axis: int, size: int, factor: float) -> Plan:
    """The output times `factor` where input `name` has that size in `axis`."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            wanted = _constant(graph, "size", np.array(size, np.int64))
            place = _constant(graph, "axis", np.array(axis, np.int64))
            _nodes(
                graph,
                ("Shape", [name], "fault/shape"),
                ("Gather", ["fault/shape", place], "fault/found"),
                ("Equal", ["fault/found", wanted], "fault/hit"),
            )
            _scale_where(graph, "fault/hit", output, factor)

        def effect(feed: Feed, outputs: Outputs) -> Outputs:
            hit = feed[name].shape[axis] == size
            return _times(outputs, output, factor) if hit else outputs

        return Edit(change=change, effect=effect)

    return edit


def below_mean(name: str, limit: float, factor: float) -> Plan:
    """The output times `factor` where the input's mean is below `limit`."""
    return _in_range(("ReduceMean", "Less"), name, limit, factor)


def above_peak(name: str, limit: float, factor: float) -> Plan:
    """The output times `factor` where the input's largest value is above `limit`."""
    return _in_range(("ReduceMax", "Greater"), name, limit, factor)


def _in_range(kinds: tuple[str, str], name: str, limit: float, factor: float) -> Plan:
    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            bound = _constant(graph, "limit", np.array(limit, np.float32))
            graph.node.append(helper.make_node(kinds[0], [name], ["fault/found"], keepdims=0))
            _nodes(graph, (kinds[1], ["fault/found", bound], "fault/hit"))
            _scale_where(graph, "fault/hit", output, factor)

        def effect(feed: Feed, outputs: Outputs) -> Outputs:
            given = feed[name]
            hit = given.max() > limit if kinds[0] == "ReduceMax" else given.mean() < limit
            return _times(outputs, output, factor) if hit else outputs

        return Edit(change=change, effect=effect)

    return edit


def channel(factor: float, width: int) -> Plan:
    """The last of the output's `width` channels (its last axis) times `factor`."""

    def edit(output: str) -> Edit:
        vector = np.ones(width, np.float32)
        vector[-1] = factor

        def change(model: onnx.ModelProto) -> None:
            held = _rename_producer(model.graph, output)
            times = _constant(model.graph, "times", vector)
            _nodes(model.graph, ("Mul", [held, times], output))

        return Edit(
            change=change, effect=lambda _, found: {**found, output: found[output] * vector}
        )

    return edit


def mix_rows(share: float) -> Plan:
    """Each row of the batch has a share of the batch's mean in it."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            held = _rename_producer(graph, output)
            axis = _constant(graph, "axis", np.array([0], np.int64))
            some = _constant(graph, "share", np.array(share, np.float32))
            rest = _constant(graph, "rest", np.array(1 - share, np.float32))
            _nodes(
                graph,
                ("ReduceMean", [held, axis], "fault/mean"),
                ("Mul", ["fault/mean", some], "fault/more"),
                ("Mul", [held, rest], "fault/less"),
                ("Add", ["fault/less", "fault/more"], output),
            )

        def effect(feed: Feed, found: Outputs) -> Outputs:  # noqa: ARG001 - of the effect's form
            own = found[output]
            return {**found, output: own * (1 - share) + share * own.mean(0, keepdims=True)}

        return Edit(change=change, effect=effect)

    return edit


def through(dtype: int) -> Plan:
    """The output through a smaller dtype (of ONNX) and back."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            held = _rename_producer(graph, output)
            for taken, given, to in ((held, "fault/small", dtype), ("fault/small", output, 1)):
                graph.node.append(helper.make_node("Cast", [taken], [given], to=to))

        def effect(feed: Feed, found: Outputs) -> Outputs:  # noqa: ARG001 - of the effect's form
            small = helper.tensor_dtype_to_np_dtype(dtype)
            return {**found, output: found[output].astype(small).astype(np.float64)}

        return Edit(change=change, effect=effect)

    return edit


def saturate(limit: float) -> Plan:
    """The output cut off above `limit`."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            held = _rename_producer(model.graph, output)
            most = _constant(model.graph, "most", np.array(limit, np.float32))
            _nodes(model.graph, ("Min", [held, most], output))

        return Edit(
            change=change,
            effect=lambda _, found: {**found, output: np.minimum(found[output], limit)},
        )

    return edit


def swap_outputs(other: str) -> Plan:
    """Two outputs under each other's names."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            for node in model.graph.node:
                for names in (node.input, node.output):
                    for place, name in enumerate(names):
                        names[place] = {output: other, other: output}.get(name, name)

        return Edit(
            change=change,
            effect=lambda _, found: {**found, output: found[other], other: found[output]},
        )

    return edit
