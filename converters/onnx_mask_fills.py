"""Clamp the fills of attention masks that half precision cannot hold, where softmaxes read them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from ..capture.framework_errors import call_framework
from ..core.contract import Array, Feed
from ..core.kinds import Precision
from .onnx_half_ranges import HALF_LIMITS
from .onnx_sessions import open_session, run_session
from .onnx_topology import GraphWiring, constant_values, float_constants

if TYPE_CHECKING:
    import onnx

# A score up to 2^13 plus this fill stays finite, three times over, and its exp() is 0. bfloat16
# has float32's exponents: its lowest number behaves as float32's does.
_HALF_FILLS = {Precision.FP16: -(2.0**14), Precision.BF16: -HALF_LIMITS[Precision.BF16]}
_ENDS = frozenset({"Softmax", "LogSoftmax"})
_THROUGH = frozenset({
    "Add", "Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "Max", "Min",
    "Mul", "Reshape", "ScatterND", "Slice", "Split", "Squeeze", "Sub", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
_CLOSE = 1e-5  # of the largest output; a visible change of the fill exceeds this by far


def clamp_masks(
    model: onnx.ModelProto, folder: Path, feeds: Sequence[Feed], low: Precision
) -> tuple[str, ...]:
    """Clamp the fills that only softmaxes read, in place; none if an output would change.

    Args:
        model: float32.
        folder: the folder of its external weights.
        feeds: the outputs on each of them must stay the same.
        low: the precision that the fills must fit.

    Returns:
        the names of the changed constants.

    Raises:
        ConversionError: ONNX Runtime cannot run the model.
    """
    wiring = GraphWiring(model.graph)
    changes = [
        (name, tensor, clamped)
        for name, tensor in float_constants(model.graph)
        if _is_softmax_only(name, wiring)
        and (clamped := _clamp_fill(tensor, folder, low)) is not None
    ]
    if not changes:
        return ()
    originals = [deepcopy(tensor) for _, tensor, _ in changes]
    before = call_framework("ONNX Runtime", lambda: _run_model(model, folder, feeds))
    for _, tensor, clamped in changes:
        tensor.CopyFrom(clamped)
    after = call_framework("ONNX Runtime", lambda: _run_model(model, folder, feeds))
    if all(_is_alike(one, other) for one, other in zip(before, after, strict=True)):
        return tuple(name for name, _, _ in changes)
    for (_, tensor, _), original in zip(changes, originals, strict=True):
        tensor.CopyFrom(original)
    return ()


def _is_softmax_only(tensor: str, wiring: GraphWiring) -> bool:
    """Return whether a tensor affects the outputs through softmaxes only."""
    seen: set[str] = set()
    waiting = [tensor]
    while waiting:
        name = waiting.pop()
        if name in wiring.outputs or name in wiring.captured or not wiring.readers.get(name):
            return False
        seen.add(name)
        for node in wiring.readers[name]:
            if node.op_type in _ENDS:
                continue
            if node.op_type not in _THROUGH:
                return False
            waiting.extend(output for output in node.output if output and output not in seen)
    return True


def _clamp_fill(tensor: onnx.TensorProto, folder: Path, low: Precision) -> onnx.TensorProto | None:
    """Return the constant with its finite fills clamped; None if none exceeds the range."""
    import numpy as np
    from onnx import numpy_helper

    values = constant_values(tensor, folder)
    beyond = np.isfinite(values) & (np.abs(values) > HALF_LIMITS[low])
    if not beyond.any():
        return None
    fill = np.copysign(np.float32(_HALF_FILLS[low]), values)
    return numpy_helper.from_array(np.where(beyond, fill, values), tensor.name)


def _run_model(model: onnx.ModelProto, folder: Path, feeds: Sequence[Feed]) -> list[Array]:
    session = open_session(model, folder)
    return [array for feed in feeds for array in run_session(session, feed).values()]


def _is_alike(one: Array, other: Array) -> bool:
    """Return whether two outputs agree within float32 noise, with equal NaN and Inf."""
    import numpy as np

    if one.shape != other.shape or one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    limit = _CLOSE * float(np.abs(one[finite]).max())
    return bool(np.abs(one[finite] - other[finite]).max() <= limit)
