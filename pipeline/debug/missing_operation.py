"""Faults of no single layer: an operation that is left out, or an error of the whole artifact."""

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

_MAX_PART_RUNS = 48  # runs of the part
_MIN_PART_GAIN = 20.0  # dB by which the result must come nearer to eager's


@dataclass(frozen=True, kw_only=True)
class MissingOperation:
    """A value of eager's that is missing before or after the part that is wrong.

    `tensor` is what the artifact has in its place. `there` says that the artifact does compute the
    value, elsewhere: it reads the wrong tensor. `after` is the order of what the tensor is.
    """

    value: TracedTensor
    tensor: str
    culprit: Culprit
    there: bool = False
    after: int = -1

    @property
    def module(self) -> str:
        """Whose code the artifact lacks; of a wrong input, the one that reads it."""
        return self.culprit.module if self.there else self.value.module

    @property
    def cause(self) -> str:
        """The missing operation, and the tensor that stands for its result."""
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
    """The value of eager's that the artifact leaves out, where that alone makes the part wrong.

    Either the part gives eager's result once it is fed with a later value of eager's, or it gives
    what eager has just before that result.
    """
    if culprit.body is not None or culprit.value.discrete:
        return None
    behind = _find_behind(layers, culprit)
    if behind is not None and len(_list_operations(layers, behind.after, culprit.value.order)) == 1:
        return behind
    return _find_before(layers, culprit) or behind


def _find_before(layers: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Feeds the part with what eager computed later than what goes in.

    Of several tensors that set the result right, the one after which the fewest operations are
    missing is taken.
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
            if not _is_right(layers, culprit, {**before, name: layers.fitted(name, group.array)}):
                continue
            there = any(group.holds(anchor.value) for anchor in layers.anchors)
            fewest = count
            found = MissingOperation(value=group.value, tensor=name, culprit=culprit, there=there)
    return found


def _find_behind(layers: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Compares the part's result with what eager has before its own."""
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
    """Values of eager's that are equal, as an operation's and its module's are."""

    array: Array
    values: list[TracedTensor]

    @property
    def value(self) -> TracedTensor:
        return self.values[0]

    def holds(self, other: TracedTensor) -> bool:
        return any(other.order == value.order for value in self.values)


def _list_operations(layers: LayerComparer, first: int, last: int) -> list[TracedTensor]:
    """What eager's operations gave after one value, up to another."""
    return [value for value in layers.values if value.operation and first < value.order <= last]


def _values_between(
    layers: LayerComparer, first: int, last: int, like: Array, *, equal: bool = False
) -> Iterator[_OperationGroup]:
    """Eager's values of one shape after `first` and before `last`; not what is `like` itself."""
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
    made = layers.probe.part(given, [culprit.tensor])[culprit.tensor]
    ratio = layers.gap(culprit.value, culprit.expected, made)
    return not is_below(ratio, NEARLY * layers.scale.plain) and _is_gain(culprit, ratio)


def _is_gain(culprit: Culprit, ratio: float | None) -> bool:
    return ratio is None or culprit.local is None or ratio > culprit.local + _MIN_PART_GAIN


_MAX_WHOLE_RUNS = 24  # runs of the whole artifact
_MIN_WHOLE_GAIN = 6.0  # dB: half of the error
_MAX_FUSED_NAMED = 3


def describe_whole_fault(
    layers: LayerComparer, found: LayerErrors, precision: Precision, *, passed: bool | None
) -> str:
    """What is wrong with the artifact as a whole; empty where nothing is known to be.

    It is wrong where its verdict on record says so, and without one where its outputs are below
    the least SQNR of its precision. Where it is right again once inner tensors are read, the
    runtime's fusion makes it wrong, and the layers are named whose tensors alone set it right.

    Args:
        layers: both sides.
        found: the layers' own errors, none of them guilty.
        precision: of the artifact.
        passed: the verdict on record, None for none.
    """
    plain = _whole_error(layers, found.plain)
    if passed or (passed is None and not is_below(plain, tolerance_for(precision).min_sqnr)):
        return ""
    told = "every layer alone agrees with eager, the artifact as a whole does not"
    if plain is not None:
        told += f" (its outputs have an SQNR of {plain:.1f} dB on this feed)"
    read = _whole_error(layers, found.ends) if found.ends else plain
    if plain is None or (read is not None and read < plain + _MIN_WHOLE_GAIN):
        return f"{told}: errors of its layers add up, or they show on other feeds"
    fused = _find_fused(layers, plain)
    where = f" (reading {', '.join(fused)} alone does)" if fused else ""
    return (
        f"{told}: the runtime fuses layers wrongly, as reading inner tensors sets it right{where}"
    )


def _whole_error(layers: LayerComparer, outputs: Outputs) -> float | None:
    """The worst SQNR of the artifact's outputs beside eager's, None for no error."""
    worst: float | None = None
    for name, eager in layers.outputs.items():
        tensor = layers.probe.ends.get(name, name)
        if tensor in outputs:
            worst = worse_sqnr(worst, finite_sqnr(eager, outputs[tensor]))
    return WORST_DB if not outputs else worst


def _find_fused(layers: LayerComparer, plain: float) -> list[str]:
    """The modules whose tensor, read alone, makes the outputs right, the first few."""
    found: dict[str, None] = {}
    inner = [anchor for anchor in layers.anchors if anchor.tensor not in layers.probe.outputs]
    for anchor in inner[:_MAX_WHOLE_RUNS]:
        if len(found) >= _MAX_FUSED_NAMED or not layers.more():
            break
        error = _whole_error(layers, layers.probe.tap(layers.feed, [anchor.tensor]))
        if error is None or error >= plain + _MIN_WHOLE_GAIN:
            found[f"{anchor.value.module or 'the model'} ({anchor.node.name})"] = None
    return list(found)
