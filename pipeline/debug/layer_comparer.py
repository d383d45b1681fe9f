"""Runs eager and an artifact side by side on one feed and compares their tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...checkpoints.activation_tape import (
    ActivationTape,
    TracedTensor,
    paths_of,
    record_activations,
    record_perturbed,
)
from ...checkpoints.eager_model import Eager
from ...core.contract import Array, Feed
from ...core.errors import CheckpointError
from ...core.kinds import Precision
from ...core.target_extensions import Probe, ProbeNode
from ..rounding_ties import PAIRS, SHARES, mark_undecided
from .layer_anchors import Anchor, find_anchors, resolve_scopes


class LayerComparer:
    """One artifact, one feed and eager's values on it.

    `memory` is the most bytes of activations that were held at once, `limit` what it keeps to
    where a single layer's own tensors allow it. `more` says whether there is time for another run.
    """

    def __init__(  # noqa: PLR0913 - both sides, the feed, and three bounds
        self,
        eager: Eager,
        probe: Probe,
        feed: Feed,
        *,
        scale: PrecisionScale,
        limit: int,
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        self.eager, self.probe, self.feed, self.scale = eager, probe, feed, scale
        self._more = more
        self.ended = False  # whether something was left out for want of time
        self.memory = 0
        self.eager_runs = 0
        self._limit = limit
        self._cached: dict[int, Array] = {}
        self._others: dict[int, list[Array]] = {}  # eager's integers with all off by roundoff
        first = self.tape()
        self.values: Sequence[TracedTensor] = first.values
        self.outputs = first.outputs
        self.forms = probe.forms(feed)
        called = {value.module for value in self.values}
        nodes = resolve_scopes(probe.nodes, paths_of(eager), called)
        self.scoped = any(node.module or node.source for node in probe.nodes)
        self.named = {node.module for node in nodes}
        self.makers = {out: node for node in nodes for out in node.outputs}
        self.place = {node.name: place for place, node in enumerate(nodes)}
        self.anchors = find_anchors(probe, nodes, self.forms, self.values, tuple(self.outputs))
        self.by_tensor = {anchor.tensor: anchor for anchor in self.anchors}

    @property
    def named_by(self) -> str:
        """How the artifact's operators are matched with modules."""
        if self.scoped:
            return "scopes"
        return "weights" if any(self.named) else "values"

    @property
    def watched(self) -> bool:
        """Whether anything inside eager was seen; nothing is of a script."""
        return any(value.operation or value.module for value in self.values)

    def within_limit(self, values: Iterable[TracedTensor]) -> list[TracedTensor]:
        """As many of these as may be held at once, the first at least."""
        found: list[TracedTensor] = []
        size = 0
        for value in values:
            size += value.size
            if found and size > self._limit:
                break
            found.append(value)
        return found

    def more(self) -> bool:
        """Whether there is time for one more run; once there is none, there never is again."""
        self.ended = self.ended or not self._more()
        return not self.ended

    def tape(
        self, arrays: Collection[int] = (), operations: Collection[int] = ()
    ) -> ActivationTape:
        """Run eager once more, keeping what is asked for."""
        self.eager_runs += 1
        return record_activations(self.eager, self.feed, arrays=arrays, operations=operations)

    @property
    def orders(self) -> dict[str, int]:
        """The order of eager's value by the tensor that it is anchored to."""
        return {tensor: anchor.value.order for tensor, anchor in self.by_tensor.items()}

    def drop(self, tensors: Collection[str]) -> None:
        """These tensors are not what eager's modules gave after all."""
        self.anchors = tuple(a for a in self.anchors if a.tensor not in tensors)
        self.by_tensor = {anchor.tensor: anchor for anchor in self.anchors}

    def reads(self, anchor: Anchor) -> tuple[Anchor, ...]:
        """The anchors at which the part that ends in this one begins."""
        return tuple(
            self.by_tensor[name]
            for name in sorted(self._cuts(anchor.tensor), key=self.rank)
            if name in self.by_tensor
        )

    def followers(self, anchor: Anchor) -> tuple[Anchor, ...]:
        """The anchors whose parts begin at this one."""
        return tuple(one for one in self.anchors if anchor.tensor in self._cuts(one.tensor))

    def segment(self, anchor: Anchor) -> tuple[ProbeNode, ...]:
        """The nodes of the part that ends in this anchor, in order."""
        return self.between(self._cuts(anchor.tensor), anchor.tensor)

    def between(self, given: Collection[str], tensor: str) -> tuple[ProbeNode, ...]:
        """The nodes that a tensor needs when these are given, in order."""
        found: dict[str, ProbeNode] = {}
        waiting = [tensor]
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is None or node.name in found:
                continue
            found[node.name] = node
            waiting += [name for name in node.inputs if name not in given]
        return tuple(sorted(found.values(), key=lambda node: self.place[node.name]))

    def _cuts(self, tensor: str) -> set[str]:
        given = {*self.by_tensor, *self.probe.inputs}
        nodes = self.between(given, tensor)
        return {name for node in nodes for name in node.inputs if name in given}

    def rank(self, tensor: str) -> int:
        """The place of a tensor's node in the order of execution; -1 of an input."""
        node = self.makers.get(tensor)
        return -1 if node is None else self.place[node.name]

    def blocks(self, anchors: Iterable[Anchor]) -> Iterator[tuple[Anchor, ...]]:
        """The anchors in order, cut so that what a block holds at once keeps to the limit.

        It holds eager's values that go in and come out, and the artifact's twice: fed with
        eager's values, and as it runs.
        """
        block: list[Anchor] = []
        held: dict[str, int] = {}
        for anchor in anchors:
            more = {one.tensor: one.value.size for one in self.reads(anchor)}
            more[anchor.tensor] = 3 * anchor.value.size
            if block and sum({**held, **more}.values()) > self._limit:
                yield tuple(block)
                block, held = [], {}
            block.append(anchor)
            held = {**held, **more}
        if block:
            yield tuple(block)

    def inputs_of(
        self, anchors: Iterable[Anchor], *, also: Iterable[Anchor] = ()
    ) -> dict[str, Array]:
        """Eager's values at the beginnings of these parts, and at `also`; the feed among them."""
        needed = {one.tensor: one for anchor in anchors for one in self.reads(anchor)}
        needed.update({one.tensor: one for one in also})
        arrays = self.arrays({one.value.order for one in needed.values()})
        given = {name: self._fit(name, arrays[one.value.order]) for name, one in needed.items()}
        return {**self.feed, **given}

    def arrays(self, orders: Collection[int]) -> dict[int, Array]:
        """Eager's arrays by order; what is known is not computed again while it may be held."""
        missing = set(orders) - set(self._cached)
        if missing:
            known = self._kept(set(orders))
            self._cached = known  # what goes is gone before more comes
            self._cached = {**known, **self.tape(arrays=missing).arrays}
        self.count(self._cached.values())
        return {order: self._cached[order] for order in orders}

    def _kept(self, orders: set[int]) -> dict[int, Array]:
        """What is known and asked for; all that is known, where the limit has room for both.

        A block's own arrays may take half of the limit: the artifact's come beside them.
        """
        both = sum(value.size for value in self.values if value.order in {*self._cached, *orders})
        if 2 * both <= self._limit:
            return self._cached
        return {order: array for order, array in self._cached.items() if order in orders}

    def _fit(self, tensor: str, array: Array) -> Array:
        """Eager's value in the dtype that the artifact has there."""
        form = self.forms.get(tensor)
        return array if form is None else array.astype(form.dtype, copy=False)

    def fitted(self, tensor: str, array: Array) -> Array:
        """An array in the dtype that the artifact has at a tensor."""
        return self._fit(tensor, array)

    def count(self, *groups: Iterable[Array]) -> None:
        """Note what is held at once."""
        self.memory = max(self.memory, sum(a.nbytes for group in groups for a in group))

    def gap(self, value: TracedTensor, expected: Array, made: Array) -> float | None:
        """How far a tensor is from eager's value in dB; of integers and bools, without ties.

        Of these, what eager itself gives otherwise when it is off by roundoff is left out, as the
        verdict on an output does.
        """
        import numpy as np

        ratio = finite_sqnr(expected, made)
        if not value.discrete or ratio is None or expected.shape != made.shape:
            return ratio
        marks = mark_undecided(made, expected, self._drawn_off(value.order))
        return finite_sqnr(expected, np.where(marks, expected, made))

    def settle(self, orders: Collection[int]) -> None:
        """Draw eager's integers with weights and inputs off by roundoff, for `gap`."""
        missing = set(orders) - set(self._others)
        if not missing:
            return
        drawn: dict[int, list[Array]] = {order: [] for order in missing}
        for seed in range(PAIRS):
            for sign in (1, -1):
                self.eager_runs += 1
                try:
                    tape = record_perturbed(
                        self.eager, self.feed, sign * self.scale.off, seed, missing
                    )
                except CheckpointError:
                    continue  # a model that checks the range of its inputs
                if len(tape.values) != len(self.values):
                    continue  # it took another branch: its values are others
                for order, array in tape.arrays.items():
                    drawn[order].append(array)
        self._others.update(drawn)

    def _drawn_off(self, order: int) -> list[Array]:
        self.settle([order])
        return self._others[order]

    def floor(self, anchor: Anchor, given: dict[str, Array], made: Array) -> float | None:
        """What remains of a part's result when its inputs move by a rounding step."""
        return finite_sqnr(made, self.moved(anchor, given))

    def moved(self, anchor: Anchor, given: dict[str, Array]) -> Array:
        """A part's result when its inputs move by a rounding step."""
        import numpy as np

        draw = np.random.default_rng(0)
        moved = {
            name: (array * (1 + self.scale.step * draw.choice([-1, 1], array.shape))).astype(
                array.dtype
            )
            if array.dtype.kind == "f"
            else array
            for name, array in given.items()
            if name != anchor.tensor
        }
        return self.probe.part(moved, [anchor.tensor])[anchor.tensor]


WORST_DB = -200.0  # dB, for what is not finite where eager is, or has another shape
_FILL = 1e4  # a value this large that both have is a mask's, and would drown the rest


@dataclass(frozen=True, kw_only=True)
class PrecisionScale:
    """What a precision explains, in dB.

    A layer whose own error leaves less than `plain` is looked at. It is wrong when it is also
    `margin` below what remains when its inputs are moved by `step`, a part of themselves: some
    layers magnify whatever comes in. `odd` is how far below its neighbours a layer may lie. Above
    `quiet` nothing is heard of an error in what comes before. `off` is by what share weights and
    inputs are moved to see which integers roundoff decides.
    """

    plain: float
    step: float
    margin: float
    odd: float
    quiet: float
    off: float


# `step` is the unit of rounding (of float32 2^-22: sums of many terms; of INT8 one step of 128).
# The others were set by hand. What FP32's find, and what they name of good conversions, is counted
# by benchmarks/debug.py (see docs/debug.md); FP16, BF16 and INT8 it does not measure.
PRECISION_SCALES = {
    Precision.FP32: PrecisionScale(
        plain=120.0,
        step=2.0**-22,
        margin=12.0,
        odd=25.0,
        quiet=120.0,
        off=SHARES[Precision.FP32],
    ),
    Precision.FP16: PrecisionScale(
        plain=45.0,
        step=2.0**-11,
        margin=12.0,
        odd=25.0,
        quiet=65.0,
        off=SHARES[Precision.FP16],
    ),
    Precision.BF16: PrecisionScale(
        plain=28.0,
        step=2.0**-8,
        margin=12.0,
        odd=20.0,
        quiet=48.0,
        off=SHARES[Precision.BF16],
    ),
    Precision.INT8: PrecisionScale(
        plain=15.0,
        step=2.0**-7,
        margin=6.0,
        odd=15.0,
        quiet=40.0,
        off=SHARES[Precision.INT8],
    ),
}


def finite_sqnr(reference: Array, other: Array) -> float | None:
    """Signal to noise in dB over what is finite in both; None where there is no difference.

    What is not finite in one alone, or another shape, is the worst there is. Large values that
    both have to the bit are masks, and left out.
    """
    import numpy as np

    if reference.shape != other.shape:
        return WORST_DB
    one, two = reference.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)) and bool(np.any(finite & ~np.isfinite(two))):
        return WORST_DB
    mask = finite & np.isfinite(two) & ~((one == two) & (np.abs(one) >= _FILL))
    signal, noise = float(np.sum(one[mask] ** 2)), float(np.sum((one[mask] - two[mask]) ** 2))
    if noise == 0.0:
        return None
    if signal == 0.0:
        return 0.0
    return float(max(WORST_DB, 10.0 * np.log10(signal / noise)))


def worse_sqnr(one: float | None, two: float | None) -> float | None:
    """The worse of two ratios, None standing for no error."""
    known = [value for value in (one, two) if value is not None]
    return min(known, default=None)


def is_below(value: float | None, limit: float) -> bool:
    """Whether a ratio is worse than a limit."""
    return value is not None and value < limit
