"""Find faults outside any single layer: a missing operation, or an error of the whole artifact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...checkpoints.activation_tape import TracedTensor
from ...core.contract import Array, Outputs
from ...core.kinds import Precision
from ...validators.tolerance import tolerance_for
from .layer_comparer import WORST_DB, LayerComparer, finite_sqnr, is_below, worse_sqnr
from .refine_culprit import NEARLY, Culprit

if TYPE_CHECKING:
    from .layer_errors import LayerErrors

_MAX_PART_RUNS = 48  # runs of one part
_MIN_PART_GAIN = 20.0  # dB that the SQNR of the result must rise


@dataclass(frozen=True, kw_only=True)
class MissingOperation:
    """A value of eager's that is missing before or after the wrong part.

    `tensor` is the artifact's tensor in its place. With `there`, the artifact computes the value
    elsewhere but reads the wrong tensor. `after` is the order of the eager value that `tensor`
    equals.
    """

    value: TracedTensor
    tensor: str
    culprit: Culprit
    there: bool = False
    after: int = -1

    @property
    def module(self) -> str:
        """The module that the artifact lacks; with `there`, the one that reads a wrong tensor."""
        return self.culprit.module if self.there else self.value.module

    @property
    def cause(self) -> str:
        """A message that names the missing operation and the tensor in place of its result."""
        owner = self.value.module or "the model's forward"
        what = f"{self.value.operation or self.value.kind.rpartition('.')[2]} of {owner}"
        node = self.culprit.node
        reader = f"{node.operator} {node.name} ({self.culprit.module or 'the model'})"
        if self.there:
            return f"{reader} reads {self.tensor} where eager reads the result of {what}"
        if self.tensor == self.culprit.tensor:
            stands = bool(node.module) and node.module == self.value.module
            lacks = "has no effect" if stands else "has no counterpart"
            return f"{what} {lacks}: {self.tensor} is what eager has before it"
        return (
            f"{what} has no counterpart: {reader}, the first that differs, reads {self.tensor}, "
            "which is what eager has before it"
        )


def find_missing(layers: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Find the value that the artifact omits, if this alone explains the wrong part.

    Either the part computes eager's result when it is fed with a later value of eager's, or its
    result equals an eager value that precedes the expected one.
    """
    if culprit.body is not None or culprit.value.discrete:
        return None
    behind = _find_behind(layers, culprit)
    if behind is not None and len(_list_operations(layers, behind.after, culprit.value.order)) == 1:
        return behind
    return _find_before(layers, culprit) or behind


def find_exchanged_input(layers: LayerComparer, culprit: Culprit) -> tuple[str, str]:
    """Name the input that the wrong part reads in place of another, and the module that reads it.

    Both are empty if this alone does not explain the part.
    """
    import numpy as np

    feed, tensor = layers.feed, culprit.tensor
    for name in [one for one in layers.probe.inputs if one in culprit.given and one in feed]:
        for other, array in feed.items():
            like = array.shape == feed[name].shape and array.dtype == feed[name].dtype
            if not like or np.array_equal(array, feed[name]) or not layers.more():
                continue
            if _is_right(layers, culprit, {**culprit.given, name: array}):
                cause = f"{tensor} is computed from {name} where eager reads {other}"
                return cause, layers.scope_of(name)
    return "", ""


def _find_before(layers: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Feed the part with later values of eager's in place of its inputs.

    If several inputs correct the result, choose the one with the fewest missing operations.
    """
    fewest, found = math.inf, None
    trials = 0
    for name in sorted(culprit.orders, key=layers.rank, reverse=True):
        order = culprit.orders[name]
        before = {n: a for n, a in culprit.known.items() if layers.rank(n) <= layers.rank(name)}
        for group in _values_between(layers, order, culprit.value.order, culprit.known[name]):
            trials += 1
            count = len(_list_operations(layers, order, group.value.order))
            if trials > _MAX_PART_RUNS or count >= fewest or not layers.more():
                break
            if not _is_right(layers, culprit, {**before, name: layers.cast(name, group.array)}):
                continue
            there = any(group.holds(anchor.value) for anchor in layers.anchors)
            fewest = count
            found = MissingOperation(value=group.value, tensor=name, culprit=culprit, there=there)
    return found


def _find_behind(layers: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Compare the part's result with the eager values that precede the expected one."""
    first, last = max(culprit.orders.values(), default=0) - 1, culprit.value.order
    for group in reversed([*_values_between(layers, first, last, culprit.made, equal=True)]):
        ratio = layers.gap(group.value, group.array, culprit.made)
        after = _list_operations(layers, group.value.order, last)
        if after and not is_below(ratio, layers.scale.plain) and _is_gain(culprit, ratio):
            order = group.values[-1].order
            return MissingOperation(
                value=after[0], tensor=culprit.tensor, culprit=culprit, after=order
            )
    return None


@dataclass(frozen=True, kw_only=True)
class _OperationGroup:
    """Equal values of eager's, such as an operation's and its module's."""

    array: Array
    values: list[TracedTensor]

    @property
    def value(self) -> TracedTensor:
        return self.values[0]

    def holds(self, other: TracedTensor) -> bool:
        return any(other.order == value.order for value in self.values)


def _list_operations(layers: LayerComparer, first: int, last: int) -> list[TracedTensor]:
    """Return the results of eager's operations after order `first`, up to and including `last`."""
    return [value for value in layers.values if value.operation and first < value.order <= last]


def _values_between(
    layers: LayerComparer, first: int, last: int, like: Array, *, equal: bool = False
) -> Iterator[_OperationGroup]:
    """Yield eager's values with the shape of `like` and an order between `first` and `last`.

    Skip values that equal `like`, unless `equal` is set.
    """
    import numpy as np

    fitting = [
        value
        for value in layers.values
        if first < value.order < last and value.is_floating and value.shape == like.shape
    ]
    held = layers.within_limit(fitting[:_MAX_PART_RUNS])
    arrays = layers.arrays({value.order for value in held})
    groups: list[_OperationGroup] = []
    for value in held:
        array = arrays[value.order]
        same = next((one for one in groups if np.array_equal(one.array, array)), None)
        if same is not None:
            same.values.append(value)
        elif equal or not np.array_equal(array, like):
            groups.append(_OperationGroup(array=array, values=[value]))
    yield from groups


def _is_right(layers: LayerComparer, culprit: Culprit, given: dict[str, Array]) -> bool:
    given = {name: array for name, array in given.items() if name != culprit.tensor}
    made = layers.try_part(given, culprit.tensor)
    if made is None:
        return False
    ratio = layers.gap(culprit.value, culprit.expected, made)
    return not is_below(ratio, NEARLY * layers.scale.plain) and _is_gain(culprit, ratio)


def _is_gain(culprit: Culprit, ratio: float | None) -> bool:
    return ratio is None or culprit.local is None or ratio > culprit.local + _MIN_PART_GAIN


_MAX_WHOLE_RUNS = 24  # runs of the whole artifact
_MIN_WHOLE_GAIN = 6.0  # dB; halves the error
_MAX_FUSED_NAMED = 3


def describe_whole_fault(
    layers: LayerComparer, found: LayerErrors, precision: Precision, *, passed: bool | None
) -> str:
    """Describe the fault of the whole artifact; return an empty string if there is none.

    The recorded verdict decides whether there is a fault; without one, the minimum SQNR of the
    precision does. If reading inner tensors corrects the outputs, the runtime's fusion causes the
    fault, and the message names the layers whose tensor alone corrects them.
    """
    plain = _whole_error(layers, found.plain)
    if passed or (passed is None and not is_below(plain, tolerance_for(precision).min_sqnr)):
        return ""
    fault = "each layer alone agrees with eager, but the artifact as a whole does not"
    if plain is not None:
        fault += f" (its outputs have an SQNR of {plain:.1f} dB on this feed)"
    read = _whole_error(layers, found.ends) if found.ends else plain
    if plain is None or (read is not None and read < plain + _MIN_WHOLE_GAIN):
        return f"{fault}: errors of its layers add up, or they occur on other feeds"
    fused = _find_fused(layers, plain)
    where = f" (reading {', '.join(fused)} alone is enough)" if fused else ""
    return f"{fault}: the runtime fuses layers wrongly, as reading inner tensors corrects it{where}"


def _whole_error(layers: LayerComparer, outputs: Outputs) -> float | None:
    """Return the worst SQNR in dB of the artifact's outputs; None if they equal eager's."""
    worst: float | None = None
    for name, eager in layers.outputs.items():
        tensor = layers.probe.ends.get(name, name)
        if tensor in outputs:
            worst = worse_sqnr(worst, finite_sqnr(eager, outputs[tensor]))
    return WORST_DB if not outputs else worst


def _find_fused(layers: LayerComparer, plain: float) -> list[str]:
    """Return the first few modules whose tensor corrects the outputs when it alone is read."""
    found: dict[str, None] = {}
    inner = [anchor for anchor in layers.anchors if anchor.tensor not in layers.probe.outputs]
    for anchor in inner[:_MAX_WHOLE_RUNS]:
        if len(found) >= _MAX_FUSED_NAMED or not layers.more():
            break
        error = _whole_error(layers, layers.probe.tap(layers.feed, [anchor.tensor]))
        if error is None or error >= plain + _MIN_WHOLE_GAIN:
            found[f"{anchor.value.module or 'the model'} ({anchor.node.name})"] = None
    return list(found)
