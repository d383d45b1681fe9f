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
    from .torchscript_probe import TorchScriptStep

_Run: TypeAlias = Callable[[list[Any]], Sequence[Any]]


def _appended(args: list[Any]) -> Sequence[Any]:
    return [[*args[0], args[1]]]


def _extended(args: list[Any]) -> Sequence[Any]:
    return [[*args[0], *args[1]]]


def _inserted(args: list[Any]) -> Sequence[Any]:
    copy = list(args[0])
    copy.insert(args[1], args[2])
    return [copy]


def _reversed(args: list[Any]) -> Sequence[Any]:
    return [args[0][::-1]]


def _sorted(args: list[Any]) -> Sequence[Any]:
    return [sorted(args[0], reverse=bool(args[1:] and args[1]))]


def _set(args: list[Any]) -> Sequence[Any]:
    copy = args[0].copy()
    copy[args[1]] = args[2]
    return [copy]


def _deleted(args: list[Any]) -> Sequence[Any]:
    copy = args[0].copy()
    del copy[args[1]]
    return [copy]


def _updated(args: list[Any]) -> Sequence[Any]:
    return [{**args[0], **args[1]}]


def _popped(args: list[Any]) -> Sequence[Any]:
    """Return the changed copy, then the removed item."""
    copy = args[0].copy()
    item = copy.pop(*args[1:])
    return [copy, item]


def _with_default(args: list[Any]) -> Sequence[Any]:
    """Return the changed copy, then the value of the key."""
    copy = {args[1]: args[2], **args[0]}
    return [copy, copy[args[1]]]


def _sliced(args: list[Any]) -> Sequence[Any]:
    return [args[0][slice(*args[1:])]]


WITH_RESULT = ("aten::pop", "aten::setdefault")  # operators with a result beside the changed list
# Operators that change a list or a dict: each returns the changed copy, and for `WITH_RESULT` then
# the operator's result.
_CHANGES: Mapping[str, _Run] = {
    "aten::append": _appended,
    "aten::extend": _extended,
    "aten::insert": _inserted,
    "aten::reverse": _reversed,
    "aten::sort": _sorted,
    "aten::clear": lambda args: [type(args[0])()],
    "aten::pop": _popped,
    "aten::_set_item": _set,
    "aten::Delete": _deleted,
    "aten::update": _updated,
    "aten::setdefault": _with_default,
}
_PLAIN: Mapping[str, _Run] = {  # operators that torch lacks, or has without Python's lists
    "prim::ListConstruct": lambda args: [args],
    "prim::TupleConstruct": lambda args: [tuple(args)],
    "prim::DictConstruct": lambda args: [dict(zip(args[::2], args[1::2], strict=True))],
    "prim::ListUnpack": lambda args: list(args[0]),
    "prim::TupleUnpack": lambda args: list(args[0]),
    "prim::TupleIndex": lambda args: [args[0][args[1]]],
    "prim::TupleSlice": _sliced,
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
    "aten::slice": _sliced,
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


def is_collection(value: object) -> bool:
    """Return whether a value is a list, a dict, a tuple or a string."""
    return isinstance(value, (list, dict, tuple, str))


def is_changing(node: Any) -> bool:
    """Return whether a node changes its first argument: a list, dict, or tensor in place."""
    kind = str(node.kind())
    first = next((str(value.type().kind()) for value in node.inputs()), "")
    if first in ("ListType", "DictType"):
        return kind in _CHANGES or kind == "aten::add_"
    in_place = kind.startswith("aten::") and kind.endswith("_") and not kind.endswith("__")
    return first == "TensorType" and in_place


def _change(kind: str, args: list[Any]) -> Sequence[Any] | None:
    """Return the function for an operator that changes a list or a dict; None for others."""
    return _CHANGES[kind](args) if kind in _CHANGES and is_collection(args[0]) else None


def compute(step: TorchScriptStep, args: list[Any]) -> Sequence[Any]:
    """Run one operator; return its results in order.

    Raises:
        RunnerError: torch raised.
    """
    plain = _PLAIN.get(step.kind)
    if plain is None and args and is_collection(args[0]):
        plain = _OF_LISTS.get(step.kind)
    try:
        made = _change(step.kind, args)
        if made is None:
            made = plain(args) if plain else _by_torch(step, args)
    except Exception as error:  # any exception of the runtime
        raise runner_error("torch", error, f"{step.name}: {error}") from error
    if len(made) != len(step.outputs):
        raise RunnerError(
            f"torch returned {len(made)} results of {step.name}, not {len(step.outputs)}",
            hint="debug the ONNX of the same model",
        )
    return made


def _by_torch(step: TorchScriptStep, args: list[Any]) -> Sequence[Any]:
    import torch

    try:
        call, _ = torch._C._jit_get_operation(step.kind)
        named = {name: args[place] for place, name in step.named.items()}
        result = call(*[a for i, a in enumerate(args) if i not in step.named], **named)
    except (RuntimeError, TypeError):
        if step.node is None:
            raise
        result = _alone(step.node)(
            *args
        )  # with the types of the graph, which torch guesses wrong here
    return [result] * len(step.outputs) if len(step.outputs) <= 1 else list(result)


def _alone(node: Any) -> Callable[..., Any]:
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
