"""From a part that is wrong to the operation in it that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...core.contract import Array
from ...core.probe import ProbeNode
from ...sources.activation_tape import TracedTensor
from .anchors import Anchor, is_comparable
from .bench import LayerComparer
from .measure import finite_sqnr, is_below

NEARLY = 0.9  # the end is rounded more often than one operation is
_MAX_TRIALS = 96  # runs of a part of a part
_MAX_TENSORS = 400  # of a part that are looked at


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The fewest nodes that hold the fault, what goes into them, and what should come out.

    `value` is what eager gives there: an operation, or a module's output. `given` are eager's own
    values, `made` is what the artifact makes of them, `expected` what eager does. `known` are all
    tensors of the part that are right, also before those given, and `orders` the orders of their
    values.
    """

    nodes: tuple[ProbeNode, ...]
    tensor: str
    value: TracedTensor
    given: Mapping[str, Array]
    made: Array
    expected: Array
    known: Mapping[str, Array] = field(default_factory=dict)
    orders: Mapping[str, int] = field(default_factory=dict)
    inner: bool = False  # the value is of a module inside, which the artifact does not name

    @property
    def body(self) -> ProbeNode | None:
        """The last loop or branch among the nodes: what is in it runs as one."""
        bodies = [node for node in self.nodes if node.inside is not None]
        bodies = [node for node in bodies if node.inside] or bodies
        return bodies[-1] if bodies else None

    @property
    def node(self) -> ProbeNode:
        """The one that a message names.

        The loop or branch, else the last with weights, else the last with an origin.
        """
        if self.body is not None:
            return self.body
        named = [node for node in self.nodes if node.module or node.source] or list(self.nodes)
        weighted = [node for node in named if node.constants]
        return (weighted or named)[-1]

    @property
    def module(self) -> str:
        """The module whose code holds the operation; of a loop, the one that its value is of."""
        if self.body is not None:
            inside = self.value.module in (self.body.inside or ())
            return self.value.module if inside else self.body.module
        modules = {node.module for node in self.nodes if node.module or node.source}
        one = next(iter(modules)) if len(modules) == 1 else self.value.module
        return self.value.module if self.inner else one

    @property
    def local(self) -> float | None:
        """The fault's own SQNR in dB."""
        return finite_sqnr(self.expected, self.made)


def refine_anchor(bench: LayerComparer, anchor: Anchor) -> Culprit:
    """Find the operation between the anchors before and this one.

    What an operation of eager's equals, on the way, is right and so is all before it. Then
    eager's values are put in place of the artifact's, the earliest first, until the end comes out
    right: what follows them is right as well, and they are what the artifact should have there.
    """
    given = bench.inputs_of([anchor])
    nodes = bench.between(given, anchor.tensor)
    inner = _inner_tensors(bench, nodes, anchor)
    made = bench.probe.part(given, [*inner, anchor.tensor])
    known = _candidate_values(bench, nodes, anchor)
    arrays = bench.arrays({*known, anchor.value.order})
    expected = bench.fitted(anchor.tensor, arrays[anchor.value.order])
    bench.count(given.values(), made.values(), arrays.values())
    right = {
        name: order
        for name in inner
        if (order := _find_matching_value(bench, name, made[name], known, arrays)) is not None
    }
    start = {**given, **{name: made[name] for name in right}}
    search = _FaultSearch(bench=bench, anchor=anchor, start=start, expected=expected)
    left = {order: value for order, value in known.items() if order not in right.values()}
    found = search.earliest([n for n in inner if n not in right], left, arrays)
    tensor, value = found or (anchor.tensor, anchor.value)
    culprit = _make_culprit(
        bench, start, made[tensor], tensor, value, bench.fitted(tensor, arrays[value.order])
    )
    orders = {**dict.fromkeys(bench.probe.inputs, -1), **bench.orders, **right}
    orders = {name: orders[name] for name in start if name in orders and name != tensor}
    return replace(culprit, known=start, orders=orders)


def _make_culprit(  # noqa: PLR0913, PLR0917 - the record's own fields
    bench: LayerComparer,
    start: Mapping[str, Array],
    made: Array,
    tensor: str,
    value: TracedTensor,
    expected: Array,
) -> Culprit:
    kept = {name: array for name, array in start.items() if name != tensor}
    nodes = bench.between(kept, tensor)
    read = {name for node in nodes for name in node.inputs}
    return Culprit(
        nodes=nodes,
        tensor=tensor,
        value=value,
        given={name: array for name, array in kept.items() if name in read},
        made=made,
        expected=expected,
        inner=any(_is_unnamed(bench, value.module, node.module) for node in nodes),
    )


def _inner_tensors(bench: LayerComparer, nodes: tuple[ProbeNode, ...], anchor: Anchor) -> list[str]:
    """The tensors of a part that can be compared, in order, without its end."""
    made = [out for node in nodes for out in node.outputs if out != anchor.tensor]
    forms = {name: bench.forms[name] for name in made if name in bench.forms}
    return [n for n, form in forms.items() if form.floating or form.discrete][-_MAX_TENSORS:]


def _candidate_values(
    bench: LayerComparer, nodes: tuple[ProbeNode, ...], anchor: Anchor
) -> dict[int, TracedTensor]:
    """What eager computed in the modules of these nodes, up to the anchor's value.

    Where the artifact keeps no scopes, anything that eager computed may be theirs.
    """
    modules = {anchor.value.module, *(node.module for node in nodes)}
    modules |= {module for node in nodes for module in node.inside or ()}
    if not bench.scoped:
        modules = {value.module for value in bench.values}
    fitting = [
        value
        for value in bench.values
        if (value.floating or value.discrete)
        and value.order < anchor.value.order
        and (value.module in modules or _is_unnamed(bench, value.module, anchor.value.module))
    ]
    last = bench.within_limit(reversed(fitting[-_MAX_TENSORS:]))
    return {value.order: value for value in reversed(last)}


def _is_unnamed(bench: LayerComparer, module: str, other: str) -> bool:
    """Whether a module lies inside another and no node is named after it, as in some scripts."""
    inside = bool(other) and module.startswith(f"{other}.")
    return inside and module not in bench.named


def _find_matching_value(
    bench: LayerComparer,
    name: str,
    made: Array,
    known: Mapping[int, TracedTensor],
    arrays: Mapping[int, Array],
) -> int | None:
    """The order of eager's value that a tensor equals, in whatever shape; None for none.

    Integers and bools that are all one number equal too much to tell what they are.
    """
    form = bench.forms[name]
    if form.discrete and (not made.size or bool((made == made.flat[0]).all())):
        return None
    for order, value in known.items():
        array = arrays[order]
        if array.size != made.size or not is_comparable(form, value):
            continue
        limit = math.inf if form.discrete else bench.scale.plain
        if not is_below(finite_sqnr(array.reshape(made.shape), made), limit):
            return order
    return None


@dataclass(frozen=True, kw_only=True)
class _FaultSearch:
    """Puts eager's values in place of the artifact's and looks at the end."""

    bench: LayerComparer
    anchor: Anchor
    start: Mapping[str, Array]
    expected: Array

    def earliest(
        self, tensors: list[str], left: Mapping[int, TracedTensor], arrays: Mapping[int, Array]
    ) -> tuple[str, TracedTensor] | None:
        """The first tensor that sets the end right with one of eager's values."""
        trials = 0
        for name in self._doubtful(tensors):
            form = self.bench.forms[name]
            for order, value in left.items():
                if value.shape != form.shape or not is_comparable(form, value):
                    continue
                trials += 1
                if trials > _MAX_TRIALS or not self.bench.more():
                    return None
                if self._right(name, arrays[order]):
                    return name, value
        return None

    def _doubtful(self, tensors: list[str]) -> list[str]:
        """Those between what is known to be right and the end."""
        nodes = self.bench.between(self.start, self.anchor.tensor)
        made = {out for node in nodes for out in node.outputs}
        return [name for name in tensors if name in made]

    def _right(self, name: str, array: Array) -> bool:
        end = self.anchor.tensor
        given = {**self.start, name: self.bench.fitted(name, array)}
        made = self.bench.probe.part(given, [end])[end]
        ratio = self.bench.gap(self.anchor.value, self.expected, made)
        limit = NEARLY * self.bench.scale.plain
        return not is_below(ratio, math.inf if self.anchor.value.discrete else limit)
