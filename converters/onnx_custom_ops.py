"""Use the user's translations of custom operators with both exporters.

A function whose first parameter is `op` receives ONNX operators (`op.Mul(x, y)`) and serves both
exporters. The others serve one: an onnxscript function, or a plain function of the operator's
arguments, serves `torch.onnx.export(dynamo=True)`; a symbolic, whose first parameter is `g`, serves
the TorchScript exporter.
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
from .onnx_division_ops import DIVISION_OPS, DYNAMO_DIVISION_OPS, floordiv
from .onnx_dynamo_ops import DYNAMO_OPS
from .onnx_image_ops import POOL_OPS, RESIZE_OPS
from .onnx_numeric_ops import NUMERIC_OPS
from .onnx_quantized_ops import QUANTIZED_OPS, is_quantized
from .onnx_shared_ops import SCRIPT_OPS, SHARED_OPS, OpWriter
from .onnx_torchscript_ops import TORCHSCRIPT_OPS, SymbolicOpBuilder, python_value

if TYPE_CHECKING:
    import torch

_OPS, _GRAPH = "op", "g"
_COMMON_OPS = {**DIVISION_OPS, **NUMERIC_OPS, **RESIZE_OPS}
_DYNAMO_OPS = {**DYNAMO_DIVISION_OPS, **DYNAMO_OPS}
_OWN_WRITERS = frozenset(
    write
    for table in (
        SCRIPT_OPS,
        TORCHSCRIPT_OPS,
        POOL_OPS,
        _DYNAMO_OPS,
        _COMMON_OPS,
        QUANTIZED_OPS,
    )
    for write in table.values()
)


def program_operators(program: torch.export.ExportedProgram) -> frozenset[str]:
    """Return the operators of an exported program as `ns::op`, including those in branches."""
    import torch

    return frozenset(
        str(node.target._schema.name)
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )


def script_operators(module: torch.jit.ScriptModule) -> frozenset[str]:
    """Return the operators of a TorchScript module as `ns::op`, including those in branches."""
    found: set[str] = set()
    graph: Any = module.inlined_graph  # keeps the nodes alive
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            found.add(node.kind())
            blocks.extend(node.blocks())
    return frozenset(found)


def check_custom_ops(custom_ops: Mapping[str, OpWriter], operators: Collection[str]) -> None:
    """Check that the model contains every operator that has a user function.

    Raises:
        UsageError: it lacks one; the hint suggests a similar name.
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


def translation_table(
    custom_ops: Mapping[str, OpWriter], opset: int, operators: frozenset[str] = frozenset()
) -> dict[Any, OpWriter]:
    """Build the table for `torch.onnx.export(dynamo=True)`: a function for each operator overload.

    Contains modelc's own functions except where the user gives one; those of pt2e if the program's
    `operators` are among them.
    """
    import onnxscript
    import torch

    ops = onnxscript.values.Opset("", opset)
    table: dict[Any, OpWriter] = {operator.floordiv: functools.partial(floordiv, ops)}
    ours = {**SHARED_OPS, **_COMMON_OPS, **POOL_OPS, **_DYNAMO_OPS}
    if is_quantized(operators):
        ours |= QUANTIZED_OPS
    for name, write in {**ours, **custom_ops}.items():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), base)
        first = _first_parameter(write)
        if first == _GRAPH:
            raise _wrong_exporter_error(name, "is a symbolic of the TorchScript exporter")
        bound = write
        if first == _OPS:
            bound = functools.partial(write, ops)
        for one in [overload] if overload else packet.overloads():
            table[getattr(packet, one)] = _name_operator_in_errors(name, write, bound)
    return table


@contextmanager
def register_symbolics(custom_ops: Mapping[str, OpWriter], opset: int) -> Iterator[None]:
    """Register the functions with the TorchScript exporter for the duration of the block.

    Registers modelc's own functions except where the user gives one. Restores the registry
    afterwards: torch's own unregistering leaves an empty entry that breaks the next export, and
    drops what the model's code registered.
    """
    from torch.onnx import utils
    from torch.onnx._internal.torchscript_exporter.registration import registry

    known: dict[str, Any] = registry._registry
    functions = {**SCRIPT_OPS, **_COMMON_OPS, **TORCHSCRIPT_OPS, **custom_ops}
    previous = {name: known.get(name) for name in functions}
    try:
        for name, write in functions.items():
            if previous[name] is not None:
                known[name] = copy.deepcopy(previous[name])
            utils.register_custom_op_symbolic(name, _make_symbolic(name, write), opset)
        yield
    finally:
        for name, group in previous.items():
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
    """Return the name of the first parameter; empty if unknown, as for onnxscript functions."""
    if not inspect.isfunction(write):
        return ""
    return next(iter(inspect.signature(write).parameters), "")


def _wrong_exporter_error(name: str, why: str) -> RefusedError:
    return RefusedError(
        f"--custom-op {name}: the function {why}, so this exporter cannot use it",
        hint="make op its first parameter for both exporters: def fn(op, x): return op.Relu(x)",
        cause=CUSTOM_OP,
        option="custom-op",
    )


def _name_operator_in_errors(name: str, write: OpWriter, bound: OpWriter) -> OpWriter:
    """Wrap the function so that its errors name the operator; the wrapper has no signature."""
    if not inspect.isfunction(write):
        return write  # an onnxscript function is recognised by its type

    def call(*args: Any, **kwargs: Any) -> object:
        try:
            return bound(*args, **kwargs)
        except Exception as error:  # user code
            if write in _OWN_WRITERS:
                raise
            place = user_place(error)
            where = f" (at {place})" if place else ""
            raise RefusedError(
                f"--custom-op {name}: {write.__name__} raised {type(error).__name__}:"
                f" {error}{where}",
                hint="correct the function; it receives the operator's arguments in order",
                cause=CUSTOM_OP,
                option="custom-op",
            ) from error

    return call
