"""Operators of the user's in ONNX: one function writes them, whichever exporter asks.

A function whose first parameter is `op` is given the operators of ONNX (`op.Mul(x, y)`) and serves
both exporters. Others serve one: an onnxscript function, or a plain one that takes the operator's
arguments, `torch.onnx.export(dynamo=True)`; one whose first parameter is `g`, as symbolics have
it, the TorchScript exporter.
"""

from __future__ import annotations

import copy
import functools
import inspect
import operator
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..capture.refusals import CUSTOM_OP, RefusedError, user_place
from ..core.errors import ErrorCode, UsageError, unknown_name_error
from .onnx_dynamo_ops import DYNAMO_OPS, floordiv
from .onnx_image_ops import POOL_OPS, RESIZE_OPS
from .onnx_linalg_ops import MATRIX_OPS
from .onnx_op_builder import SymbolicOpBuilder, python_value
from .onnx_reduction_ops import MEDIAN_OPS, SCATTER_OPS
from .onnx_shared_ops import SCRIPT_OPS, SHARED_OPS, OpWriter
from .onnx_torchscript_ops import TORCHSCRIPT_OPS

if TYPE_CHECKING:
    import torch

_OPS, _GRAPH = "op", "g"
_COMMON_OPS = {**MATRIX_OPS, **MEDIAN_OPS, **RESIZE_OPS, **SCATTER_OPS}
_OWN_WRITERS = frozenset(
    write
    for table in (SCRIPT_OPS, TORCHSCRIPT_OPS, POOL_OPS, DYNAMO_OPS, _COMMON_OPS)
    for write in table.values()
)


def program_operators(program: torch.export.ExportedProgram) -> frozenset[str]:
    """The operators of a program of torch.export, as `ns::op`, those of its branches included."""
    import torch

    return frozenset(
        str(node.target._schema.name)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )


def script_operators(module: torch.jit.ScriptModule) -> frozenset[str]:
    """The operators of a TorchScript module, as `ns::op`, those of its branches included."""
    found: set[str] = set()
    graph: Any = module.inlined_graph  # held: the nodes die with it
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            found.add(node.kind())
            blocks.extend(node.blocks())
    return frozenset(found)


def check_custom_ops(custom_ops: Mapping[str, OpWriter], operators: Collection[str]) -> None:
    """That the model has every operator that a function was given for.

    Raises:
        UsageError: it has not; the hint names one that is like it.
    """
    for name in custom_ops:
        if name not in operators:
            ours = sorted(one for one in operators if not one.startswith("prim::"))
            hint = unknown_name_error("operator", name, ours).hint
            raise UsageError(
                f"--custom-op {name} has no effect: the model has no {name}",
                hint=hint,
                option="custom-op",
                code=ErrorCode.NO_EFFECT,
            )


def translation_table(custom_ops: Mapping[str, OpWriter], opset: int) -> dict[Any, OpWriter]:
    """What `torch.onnx.export(dynamo=True)` takes: a function for every overload of an operator.

    modelc's own are among them, where the user gave none.
    """
    import onnxscript
    import torch

    ops = onnxscript.values.Opset("", opset)
    table: dict[Any, OpWriter] = {operator.floordiv: functools.partial(floordiv, ops)}
    ours = {**SHARED_OPS, **_COMMON_OPS, **POOL_OPS, **DYNAMO_OPS}
    for name, write in {**ours, **custom_ops}.items():
        space, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, space), base)
        first = _first_parameter(write)
        if first == _GRAPH:
            raise _wrong_exporter_error(name, "is a symbolic of the TorchScript exporter")
        bound = write
        if first == _OPS:
            bound = functools.partial(write, ops)
        for overload in packet.overloads():
            table[getattr(packet, overload)] = _name_operator_in_errors(name, write, bound)
    return table


@contextmanager
def register_symbolics(custom_ops: Mapping[str, OpWriter], opset: int) -> Iterator[None]:
    """While in the block, the TorchScript exporter writes operators with these functions.

    Where the user gave none, with modelc's own.

    Afterwards its registry is as it was: torch's own unregistering leaves an entry that is empty,
    over which the next export stumbles, and forgets what the model's code had registered.
    """
    from torch.onnx import utils
    from torch.onnx._internal.torchscript_exporter.registration import registry

    known: dict[str, Any] = registry._registry
    functions = {**SCRIPT_OPS, **_COMMON_OPS, **TORCHSCRIPT_OPS, **custom_ops}
    kept = {name: known.get(name) for name in functions}
    try:
        for name, write in functions.items():
            if kept[name] is not None:
                known[name] = copy.deepcopy(kept[name])
            utils.register_custom_op_symbolic(name, _make_symbolic(name, write), opset)
        yield
    finally:
        for name, group in kept.items():
            known.pop(name, None)
            if group is not None:
                known[name] = group


def _make_symbolic(name: str, write: OpWriter) -> OpWriter:
    first = _first_parameter(write)
    if first == _GRAPH:
        return _name_operator_in_errors(name, write, write)
    if first != _OPS:
        raise _wrong_exporter_error(name, "does not take op")

    def with_ops(graph: Any, *values: Any) -> object:
        return write(SymbolicOpBuilder(graph), *map(python_value, values))

    return _name_operator_in_errors(name, write, with_ops)


def _first_parameter(write: OpWriter) -> str:
    """The name of its first parameter; empty where it tells of none, as onnxscript's functions."""
    if not inspect.isfunction(write):
        return ""
    return next(iter(inspect.signature(write).parameters), "")


def _wrong_exporter_error(name: str, why: str) -> RefusedError:
    return RefusedError(
        f"--custom-op {name}: the function {why}, so it cannot write for this exporter",
        hint="let it take op first, for both exporters: def fn(op, x): return op.Relu(x)",
        cause=CUSTOM_OP,
        option="custom-op",
    )


def _name_operator_in_errors(name: str, write: OpWriter, bound: OpWriter) -> OpWriter:
    """The function, whose own errors say whose they are; without a signature, so it takes all."""
    if not inspect.isfunction(write):
        return write  # an onnxscript function is known by its type

    def call(*args: Any, **kwargs: Any) -> object:
        try:
            return bound(*args, **kwargs)
        except Exception as error:  # the user's own code
            if write in _OWN_WRITERS:
                raise
            place = user_place(error)
            where = f" (at {place})" if place else ""
            raise RefusedError(
                f"--custom-op {name}: {write.__name__} raised {type(error).__name__}:"
                f" {error}{where}",
                hint="correct the function; it is given the operator's arguments, in order",
                cause=CUSTOM_OP,
                option="custom-op",
            ) from error

    return call
