"""Run operators of TorchScript graphs one by one, from Python values to Python values.

Lists and dicts are never mutated: an operator that changes one returns a changed copy, so that
every tensor of a graph can be recomputed from earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..core.errors import RunnerError
from .runner_base import runner_error

if TYPE_CHECKING:
    from .torchscript_graph import TorchScriptStep

_Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]


def _mutate(method: str, *, with_result: bool = False) -> _Run:
    """Return a function that calls the method on a copy and returns the copy."""

    def run(args: list[Any]) -> Sequence[Any]:
        copy = args[0].copy()
        result = getattr(copy, method)(*args[1:])
        return [copy, result] if with_result else [copy]

    return run


def _slice(args: list[Any]) -> Sequence[Any]:
    return [args[0][slice(*args[1:])]]


WITH_RESULT = ("aten::pop", "aten::setdefault")  # operators with a result beside the changed list
# Operators that change a list or a dict: each returns the changed copy, and for `WITH_RESULT` then
# the operator's result.
_CHANGES: Mapping[str, _Run] = {
    "aten::append": _mutate("append"),
    "aten::extend": _mutate("extend"),
    "aten::insert": _mutate("insert"),
    "aten::reverse": _mutate("reverse"),
    "aten::sort": lambda args: [sorted(args[0], reverse=bool(args[1:] and args[1]))],
    "aten::clear": _mutate("clear"),
    "aten::pop": _mutate("pop", with_result=True),
    "aten::_set_item": _mutate("__setitem__"),
    "aten::Delete": _mutate("__delitem__"),
    "aten::update": _mutate("update"),
    "aten::setdefault": _mutate("setdefault", with_result=True),
}
_PLAIN: Mapping[str, _Run] = {  # operators that torch lacks, or has without Python's lists
    "prim::ListConstruct": lambda args: [args],
    "prim::TupleConstruct": lambda args: [tuple(args)],
    "prim::DictConstruct": lambda args: [dict(zip(args[::2], args[1::2], strict=True))],
    "prim::ListUnpack": lambda args: list(args[0]),
    "prim::TupleUnpack": lambda args: list(args[0]),
    "prim::TupleIndex": lambda args: [args[0][args[1]]],
    "prim::TupleSlice": _slice,
    "prim::unchecked_cast": lambda args: [args[0]],
    "prim::Uninitialized": lambda args: [None],  # noqa: ARG005 - never read
    "aten::format": lambda args: [str(args[0]).format(*args[1:])],
    "aten::__is__": lambda args: [args[0] is args[1]],
    "aten::__isnot__": lambda args: [args[0] is not args[1]],
}
_OF_LISTS: Mapping[str, _Run] = {  # where the first argument is a list, a dict or a string
    "aten::__getitem__": lambda args: [args[0][args[1]]],
    "aten::__contains__": lambda args: [args[1] in args[0]],
    "aten::len": lambda args: [len(args[0])],
    "aten::slice": _slice,
    "aten::list": lambda args: [list(args[0])],
    "aten::copy": lambda args: [args[0].copy()],
    "aten::add": lambda args: [args[0] + args[1]],
    "aten::add_": lambda args: [args[0] + args[1]],
    "aten::mul": lambda args: [args[0] * args[1]],
    "aten::get": lambda args: [args[0].get(*args[1:])],
    "aten::keys": lambda args: [list(args[0])],
    "aten::values": lambda args: [list(args[0].values())],
    "aten::items": lambda args: [list(args[0].items())],
}


def is_changing(node: Any) -> bool:
    """Return whether a node changes its first argument: a list, dict, or tensor in place."""
    kind = str(node.kind())
    first = next((str(value.type().kind()) for value in node.inputs()), "")
    if first in ("ListType", "DictType"):
        return kind in _CHANGES or kind == "aten::add_"
    in_place = kind.startswith("aten::") and kind.endswith("_") and not kind.endswith("__")
    return first == "TensorType" and in_place


def compute(step: TorchScriptStep, args: list[Any]) -> Sequence[Any]:
    """Run one operator; return its results in order.

    Raises:
        RunnerError: torch raised.
    """
    run = _PLAIN.get(step.kind)
    if args and isinstance(args[0], (list, dict, tuple, str)):
        run = _CHANGES.get(step.kind) or run or _OF_LISTS.get(step.kind)
    try:
        made = run(args) if run else _call_torch(step, args)
    except Exception as error:  # any exception of the runtime
        raise runner_error("torch", error, f"{step.name}: {error}") from error
    if len(made) != len(step.outputs):
        raise RunnerError(
            f"torch returned {len(made)} results of {step.name}, not {len(step.outputs)}",
            hint="debug the ONNX of the same model",
        )
    return made


def _call_torch(step: TorchScriptStep, args: list[Any]) -> Sequence[Any]:
    import torch

    try:
        call, _ = torch._C._jit_get_operation(step.kind)
        named = {name: args[place] for place, name in step.named.items()}
        result = call(*[a for i, a in enumerate(args) if i not in step.named], **named)
    except (RuntimeError, TypeError):
        # with the types of the graph, which torch guesses wrong here
        result = _compile_node(step.node)(*args)
    return [result] * len(step.outputs) if len(step.outputs) <= 1 else list(result)


def _compile_node(node: Any) -> Callable[..., Any]:
    """Return a function of one node of a graph, with its types there."""
    import torch

    graph: Any = torch._C.Graph()
    inputs = {}
    for value in node.inputs():
        if value.debugName() not in inputs:
            inputs[value.debugName()] = graph.addInput()
            inputs[value.debugName()].setType(value.type())
    order = list(inputs)
    copy = graph.createClone(node, lambda value: inputs[value.debugName()])
    graph.insertNode(copy)
    outputs = list(copy.outputs())
    for value in outputs:
        graph.registerOutput(value)
    function: Callable[..., Any] = torch._C._create_function_from_graph("operator", graph)
    names = [value.debugName() for value in node.inputs()]

    def run(*args: Any) -> Any:
        given = dict(zip(names, args, strict=True))
        return function(*[given[name] for name in order])

    return run
