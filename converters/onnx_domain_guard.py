"""Add a check to an ONNX graph that makes its runtime fail on inputs outside the domain.

ONNX has no assertion and no bounds for dims, but ONNX Runtime rejects an index beyond a table. Each
condition of the domain looks up entry 0 of a table with one entry if it holds, and entry 1 if not.
The zeros found are added to the shape of an input, which is then reshaped to it: the reshape copies
nothing, and cannot run without the check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..core.dims import Dim
from ..core.signature import InputSpec, RowOrder, Signature

if TYPE_CHECKING:
    import onnx_ir as ir

GUARD_PREFIX = "modelc_domain"  # prefix of node names
_INTEGER_DTYPES = ("int64", "int32")  # types of masks and indices


def add_guard(model: ir.Model, signature: Signature) -> int:
    """Guard the inputs that vary; return the number of conditions that the graph checks.

    Checks the interval of every dim, relations between dims, and the stated or chosen range of
    integer inputs, but no range that follows a dim.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    specs = [spec for spec in signature.inputs if spec.name in inputs]
    carrier = next((inputs[s.name] for s in specs if s.dims and inputs[s.name].uses()), None)
    if carrier is None:
        return 0
    guard = _GuardBuilder()
    conditions = [
        *_size_conditions(guard, ((inputs[spec.name], spec) for spec in specs)),
        *(one for spec in specs for one in _value_conditions(guard, inputs[spec.name], spec)),
    ]
    if not conditions:
        return 0
    uses = [(use.node, use.idx) for use in carrier.uses() if use.node not in guard.nodes]
    zero = conditions[0]
    for other in conditions[1:]:
        zero = guard.op("Add", zero, other)
    shape = guard.op("Add", guard.op("Shape", carrier), zero)
    guarded = guard.op("Reshape", carrier, shape)
    guarded.shape, guarded.type = carrier.shape, carrier.type
    for node, index in uses:
        node.replace_input_with(index, guarded)
    first = next(iter(model.graph), None)
    if first is None:
        model.graph.extend(guard.nodes)
    else:
        model.graph.insert_before(first, guard.nodes)
    for value in guard.constants:
        model.graph.register_initializer(value)
    return len(conditions)


class _GuardBuilder:
    """Builds the nodes and constants of a guard; takes each size from the first input with it."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self.sizes: dict[str, ir.Value] = {}

    def op(self, kind: str, *inputs: ir.Value, name: str = "", **attributes: int) -> ir.Value:
        import onnx_ir

        node = onnx_ir.node(kind, list(inputs), attributes or None)
        node.name = name or f"{GUARD_PREFIX}_{len(self.nodes)}"
        node.outputs[0].name = f"{GUARD_PREFIX}_value_{len(self.nodes)}"
        self.nodes.append(node)
        return node.outputs[0]

    def number(self, *values: int, dtype: str = "int64", scalar: bool = True) -> ir.Value:
        import numpy as np
        import onnx_ir

        array = np.array(values[0] if scalar else values, dtype)
        name = f"{GUARD_PREFIX}_constant_{len(self.constants)}"
        tensor = onnx_ir.tensor(array, name=name)
        self.constants.append(
            onnx_ir.Value(
                name=name,
                const_value=tensor,
                shape=onnx_ir.Shape(array.shape),
                type=onnx_ir.TensorType(tensor.dtype),
            )
        )
        return self.constants[-1]

    def require(self, holds: ir.Value, what: str) -> ir.Value:
        """Return zero if the condition holds; else the runtime fails and names `what`."""
        import onnx_ir

        index = self.op("Cast", self.op("Not", holds), to=int(onnx_ir.DataType.INT64))
        table = self.number(0, scalar=False)
        return self.op("Gather", table, index, name=f"{GUARD_PREFIX}: {what}")


def _size_conditions(
    guard: _GuardBuilder, given: Iterable[tuple[ir.Value, InputSpec]]
) -> Iterator[ir.Value]:
    """Yield the conditions on the sizes of all inputs, dims that others follow first."""
    found: list[tuple[ir.Value, Dim, str]] = []
    for value, spec in given:
        if any(dim.dynamic for dim in spec.dims):
            shape = guard.op("Shape", value)
            found += [
                (guard.op("Gather", shape, guard.number(axis)), dim, spec.name)
                for axis, dim in enumerate(spec.dims)
                if dim.dynamic
            ]
    for size, dim, where in sorted(found, key=lambda one: (bool(one[1].relation), one[1].is_sum)):
        yield from _dim_conditions(guard, size, dim, where)


def _dim_conditions(
    guard: _GuardBuilder, size: ir.Value, dim: Dim, where: str
) -> Iterator[ir.Value]:
    name, relation = dim.name or "", dim.relation
    same = guard.sizes.setdefault(name, size)
    if same is not size:
        yield guard.require(guard.op("Equal", size, same), f"{name} of {where} is another {name}")
        return
    if dim.bounded:
        low = guard.op("GreaterOrEqual", size, guard.number(dim.low))
        high = guard.op("LessOrEqual", size, guard.number(dim.high))
        what = f"{name} of {where} must be {dim.low}..{dim.high}"
        yield guard.require(guard.op("And", low, high), what)
    if relation is None:
        return
    if relation.base not in guard.sizes:  # the first dim that follows it determines it
        rest = guard.op("Sub", size, guard.number(relation.plus))
        base = guard.op("Div", rest, guard.number(relation.times))
        guard.sizes[relation.base] = base
    follows = guard.number(relation.plus)
    for base_name, times in relation.terms:
        part = guard.op("Mul", guard.sizes[base_name], guard.number(times))
        follows = guard.op("Add", follows, part)
    holds = guard.op("Equal", size, follows)
    yield guard.require(holds, f"{name} of {where} must be {relation}")


def _value_conditions(guard: _GuardBuilder, value: ir.Value, spec: InputSpec) -> Iterator[ir.Value]:
    """Yield the range conditions of an integer input; an empty input has no minimum."""
    values = spec.values
    if values is None or values.follows or spec.dtype not in _INTEGER_DTYPES:
        return
    if any(dim.low == 0 for dim in spec.dims):
        return
    least = guard.op("ReduceMin", value, keepdims=0)
    most = guard.op("ReduceMax", value, keepdims=0)
    low = guard.op("GreaterOrEqual", least, guard.number(int(values.low), dtype=spec.dtype))
    high = guard.op("LessOrEqual", most, guard.number(int(values.high), dtype=spec.dtype))
    what = f"values of {spec.name} must be {int(values.low)}..{int(values.high)}"
    yield guard.require(guard.op("And", low, high), what)
    if values.order and spec.dims:
        what = f"values of {spec.name} must be {values.order} along the last axis"
        yield guard.require(_order_condition(guard, value, values.order), what)


def _order_condition(guard: _GuardBuilder, value: ir.Value, order: RowOrder) -> ir.Value:
    """Check that no element is less, or greater, than the one before it in its row."""
    import onnx_ir

    zero, one, last, end = (guard.number(at, scalar=False) for at in (0, 1, -1, 2**62))
    before = guard.op("Slice", value, zero, last, last)
    after = guard.op("Slice", value, one, end, last)
    wrong = guard.op("Less" if order is RowOrder.ASCENDING else "Greater", after, before)
    count = guard.op("Cast", wrong, to=int(onnx_ir.DataType.INT64))
    return guard.op("Equal", guard.op("ReduceSum", count, keepdims=0), guard.number(0))
