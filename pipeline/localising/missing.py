"""What eager computes and the artifact leaves out, shown by putting it back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...core.contract import Array
from ...sources.activation_tape import TracedTensor
from .bench import LayerComparer
from .measure import is_below
from .refine import NEARLY, Culprit

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


def find_missing(bench: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """The value of eager's that the artifact leaves out, where that alone makes the part wrong.

    Either the part gives eager's result once it is fed with a later value of eager's, or it gives
    what eager has just before that result.
    """
    if culprit.body is not None or culprit.value.discrete:
        return None
    behind = _find_behind(bench, culprit)
    if behind is not None and len(_list_operations(bench, behind.after, culprit.value.order)) == 1:
        return behind
    return _find_before(bench, culprit) or behind


def _find_before(bench: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Feeds the part with what eager computed later than what goes in.

    Of several tensors that set the result right, the one after which the fewest operations are
    missing is taken.
    """
    fewest, found = math.inf, None
    trials = 0
    for name in sorted(culprit.orders, key=bench.rank, reverse=True):
        order = culprit.orders[name]
        before = {n: a for n, a in culprit.known.items() if bench.rank(n) <= bench.rank(name)}
        for group in _values_between(bench, order, culprit.value.order, culprit.known[name]):
            trials += 1
            count = len(_list_operations(bench, order, group.value.order))
            if trials > _MAX_PART_RUNS or count >= fewest or not bench.more():
                break
            if not _is_right(bench, culprit, {**before, name: bench.fitted(name, group.array)}):
                continue
            there = any(group.holds(anchor.value) for anchor in bench.anchors)
            fewest = count
            found = MissingOperation(value=group.value, tensor=name, culprit=culprit, there=there)
    return found


def _find_behind(bench: LayerComparer, culprit: Culprit) -> MissingOperation | None:
    """Compares the part's result with what eager has before its own."""
    first, last = max(culprit.orders.values(), default=0) - 1, culprit.value.order
    for group in reversed([*_values_between(bench, first, last, culprit.made, equal=True)]):
        ratio = bench.gap(group.value, group.array, culprit.made)
        after = _list_operations(bench, group.value.order, last)
        if after and not is_below(ratio, bench.scale.plain) and _is_gain(culprit, ratio):
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


def _list_operations(bench: LayerComparer, first: int, last: int) -> list[TracedTensor]:
    """What eager's operations gave after one value, up to another."""
    return [value for value in bench.values if value.operation and first < value.order <= last]


def _values_between(
    bench: LayerComparer, first: int, last: int, like: Array, *, equal: bool = False
) -> Iterator[_OperationGroup]:
    """Eager's values of one shape after `first` and before `last`; not what is `like` itself."""
    import numpy as np

    fitting = [
        value
        for value in bench.values
        if first < value.order < last and value.floating and value.shape == like.shape
    ]
    held = bench.within_limit(fitting[:_MAX_PART_RUNS])
    arrays = bench.arrays({value.order for value in held})
    groups: list[_OperationGroup] = []
    for value in held:
        array = arrays[value.order]
        same = next((one for one in groups if np.array_equal(one.array, array)), None)
        if same is not None:
            same.values.append(value)
        elif equal or not np.array_equal(array, like):
            groups.append(_OperationGroup(array=array, values=[value]))
    yield from groups


def _is_right(bench: LayerComparer, culprit: Culprit, given: dict[str, Array]) -> bool:
    given = {name: array for name, array in given.items() if name != culprit.tensor}
    made = bench.probe.part(given, [culprit.tensor])[culprit.tensor]
    ratio = bench.gap(culprit.value, culprit.expected, made)
    return not is_below(ratio, NEARLY * bench.scale.plain) and _is_gain(culprit, ratio)


def _is_gain(culprit: Culprit, ratio: float | None) -> bool:
    return ratio is None or culprit.local is None or ratio > culprit.local + _MIN_PART_GAIN
