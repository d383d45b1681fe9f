"""Inputs whose values set the size of a tensor, such as TopK's K or the end of a Range.

TensorRT reads them on the host and requires the range of their values in each profile. Its Python
package says which they are; for trtexec and the pre-flight they are found in the ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...capture.framework_errors import call_framework
from ...core.errors import ConversionError, ErrorCode, Hint, Option
from .engine_options import Profile
from .trt_findings import Model, TrtFault, TrtFinding, TrtSeverity, Value, domain_of

# Operator -> the operands whose values set a size.
_SIZE_OPERANDS: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "CumSum": (1,),  # the axis, which TensorRT reads as a size
    "Expand": (1,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}
_SIZE_READERS = frozenset({"Shape", "Size"})  # they need no values of their operand
_INTEGERS = frozenset({"INT32", "INT64"})


def read_size_inputs(path: Path) -> tuple[str, ...]:
    """Return the inputs of an ONNX file that set a size.

    Raises:
        ConversionError: the file cannot be read.
    """
    import onnx_ir

    return find_size_inputs(call_framework("onnx_ir", lambda: onnx_ir.load(path)))


def find_size_inputs(model: Model) -> tuple[str, ...]:
    """Return the integer inputs from which an operand that sets a size is computed, in order."""
    pending: list[Value | None] = []
    for node in model.graph.all_nodes():
        if domain_of(node) == "":
            operands = _SIZE_OPERANDS.get(node.op_type, ())
            pending.extend(node.inputs[i] for i in operands if i < len(node.inputs))
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        maker = value.producer()
        if maker is not None and maker.op_type not in _SIZE_READERS:
            pending.extend(maker.inputs)
    return tuple(
        value.name or "" for value in model.graph.inputs if id(value) in seen and _may_set(value)
    )


def _may_set(value: Value) -> bool:
    """Return whether TensorRT takes values of this type and rank for sizes."""
    rank = 0 if value.shape is None else len(value.shape)
    return value.dtype is not None and value.dtype.name in _INTEGERS and rank <= 1


def range_error(name: str, dtype: str, shape: Sequence[int]) -> ConversionError:
    """Return the error for an input that sets a size and has no stated range of values."""
    dims = ",".join(map(str, shape))
    return ConversionError(
        f"input {name!r} sets a size, and TensorRT requires the range of its values",
        hint=Hint(
            "state the range, for example ", Option("input", f'"{name}:{dtype}[{dims}]{{1..10}}"')
        ),
        option="input",
        code=ErrorCode.MISSING_DIMS,
    )


def size_findings(model: Model, profile: Profile) -> Iterator[TrtFinding]:
    """Inputs that set a size need a range of values. A warning: only the parser is sure of them."""
    ranges = {one.name: one for one in profile}
    for name in find_size_inputs(model):
        one = ranges.get(name)
        if one is not None and one.values is None:
            error = range_error(name, "int64", one.opt)
            what = f"{error.message}: {error.hint}"
            yield TrtFinding(TrtFault.UNSTATED_RANGE, TrtSeverity.WARNING, what)
