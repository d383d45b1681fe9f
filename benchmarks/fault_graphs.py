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


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What is done to the graph, and what that does to exact outputs."""

    change: Callable[[onnx.ModelProto], None]
    effect: Effect


def _held(graph: onnx.GraphProto, output: str) -> str:
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


def at_size(name: str, axis: int, size: int, factor: float) -> Callable[[str], Edit]:
    """The output times `factor` where input `name` has that size in `axis`."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            held = _held(graph, output)
            wanted = _constant(graph, "size", np.array(size, np.int64))
            place = _constant(graph, "axis", np.array(axis, np.int64))
            off = _constant(graph, "factor", np.array(factor, np.float32))
            on = _constant(graph, "one", np.array(1, np.float32))
            _nodes(
                graph,
                ("Shape", [name], "fault/shape"),
                ("Gather", ["fault/shape", place], "fault/found"),
                ("Equal", ["fault/found", wanted], "fault/hit"),
                ("Where", ["fault/hit", off, on], "fault/times"),
                ("Mul", [held, "fault/times"], output),
            )

        def effect(feed: Feed, outputs: Outputs) -> Outputs:
            if feed[name].shape[axis] != size:
                return outputs
            return {**outputs, output: outputs[output] * np.float32(factor)}

        return Edit(change=change, effect=effect)

    return edit


def in_range(name: str, below: float, factor: float, *, peak: bool) -> Callable[[str], Edit]:
    """The output times `factor` where the input's mean is below, or its peak is above, `below`."""

    def edit(output: str) -> Edit:
        def change(model: onnx.ModelProto) -> None:
            graph = model.graph
            held = _held(graph, output)
            limit = _constant(graph, "limit", np.array(below, np.float32))
            off = _constant(graph, "factor", np.array(factor, np.float32))
            on = _constant(graph, "one", np.array(1, np.float32))
            first = ("Abs", [name], "fault/size") if peak else ("Identity", [name], "fault/size")
            graph.node.extend([helper.make_node(*map(_listed, first))])
            kind = "ReduceMax" if peak else "ReduceMean"
            graph.node.append(
                helper.make_node(kind, ["fault/size"], ["fault/found"], keepdims=0)
            )
            _nodes(
                graph,
                ("Greater" if peak else "Less", ["fault/found", limit], "fault/hit"),
                ("Where", ["fault/hit", off, on], "fault/times"),
                ("Mul", [held, "fault/times"], output),
            )

        def effect(feed: Feed, outputs: Outputs) -> Outputs:
            given = feed[name]
            hit = np.abs(given).max() > below if peak else given.mean() < below
            return {**outputs, output: outputs[output] * np.float32(factor)} if hit else outputs

        return Edit(change=change, effect=effect)

    return edit


def _listed(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
