"""Run eager and an artifact on one feed and compare their tensors."""

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
from ...core.errors import CheckpointError, RunnerError
from ...core.kinds import Precision
from ...core.target_extensions import Probe, ProbeNode
from ..float64_reference import PAIRS, SHARES
from ..rounding_ties import mark_undecided
from .layer_anchors import Anchor, find_anchors, resolve_scopes


class LayerComparer:
    """An artifact and eager's values on one feed.

    `memory` is the peak size of activations in bytes. It stays within `limit`, unless the tensors
    of a single layer exceed it. `more` returns whether there is time for another run.
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
        self.ended = False  # whether the time limit cut the search short
        self.memory = 0
        self.eager_runs = 0
        self._limit = limit
        self._cached: dict[int, Array] = {}
        self._others: dict[int, list[Array]] = {}  # eager's integers under perturbation
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
        """What matches the artifact's operators with modules: scopes, weights or values."""
        if self.scoped:
            return "scopes"
        return "weights" if any(self.named) else "values"

    @property
    def watched(self) -> bool:
        """Whether values inside eager were recorded; a script allows none."""
        return any(value.operation or value.module for value in self.values)

    def within_limit(self, values: Iterable[TracedTensor]) -> list[TracedTensor]:
        """Return as many of the first values as the memory limit allows, at least one."""
        found: list[TracedTensor] = []
        size = 0
        for value in values:
            size += value.size
            if found and size > self._limit:
                break
            found.append(value)
        return found

    def more(self) -> bool:
        """Return whether there is time for another run; once False, it stays False."""
        self.ended = self.ended or not self._more()
        return not self.ended

    def tape(
        self, arrays: Collection[int] = (), operations: Collection[int] = ()
    ) -> ActivationTape:
        """Run eager again and record the given arrays and operations."""
        self.eager_runs += 1
        return record_activations(self.eager, self.feed, arrays=arrays, operations=operations)

    def drop(self, tensors: Collection[str]) -> None:
        """Remove the anchors of these tensors, which do not correspond to eager's values."""
        self.anchors = tuple(a for a in self.anchors if a.tensor not in tensors)
        self.by_tensor = {anchor.tensor: anchor for anchor in self.anchors}

    def reads(self, anchor: Anchor) -> tuple[Anchor, ...]:
        """Return the anchors at which the part that ends in this one starts."""
        return tuple(
            self.by_tensor[name]
            for name in sorted(self._cuts(anchor.tensor), key=self.rank)
            if name in self.by_tensor
        )

    def followers(self, anchor: Anchor) -> tuple[Anchor, ...]:
        """Return the anchors whose parts start at this one."""
        return tuple(one for one in self.anchors if anchor.tensor in self._cuts(one.tensor))

    def between(self, given: Collection[str], tensor: str) -> tuple[ProbeNode, ...]:
        """Return the nodes that compute `tensor` from `given`, in execution order."""
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
        """Return the place of a tensor's node in execution order; -1 for an input."""
        node = self.makers.get(tensor)
        return -1 if node is None else self.place[node.name]

    def blocks(self, anchors: Iterable[Anchor]) -> Iterator[tuple[Anchor, ...]]:
        """Split the anchors, in order, into blocks whose arrays fit into the memory limit.

        A block's arrays are eager's inputs and results, and the artifact's results twice: on
        eager's values and in a run of the whole artifact.
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
        """Return the feed and eager's values at the starts of these parts and at `also`."""
        needed = {one.tensor: one for anchor in anchors for one in self.reads(anchor)}
        needed.update({one.tensor: one for one in also})
        arrays = self.arrays({one.value.order for one in needed.values()})
        given = {name: self.cast(name, arrays[one.value.order]) for name, one in needed.items()}
        return {**self.feed, **given}

    def arrays(self, orders: Collection[int]) -> dict[int, Array]:
        """Return eager's arrays by order; compute only those that are not cached."""
        missing = set(orders) - set(self._cached)
        if missing:
            known = self._kept(set(orders))
            self._cached = known  # free memory before the next run
            self._cached = {**known, **self.tape(arrays=missing).arrays}
        self.count(self._cached.values())
        return {order: self._cached[order] for order in orders}

    def _kept(self, orders: set[int]) -> dict[int, Array]:
        """Return the cached arrays to keep: all if both fit into the limit, else the given ones.

        A block's arrays may use half of the limit: the artifact's arrays use the other half.
        """
        both = sum(value.size for value in self.values if value.order in {*self._cached, *orders})
        if 2 * both <= self._limit:
            return self._cached
        return {order: array for order, array in self._cached.items() if order in orders}

    def cast(self, tensor: str, array: Array) -> Array:
        """Cast an array to the dtype of the artifact's tensor."""
        form = self.forms.get(tensor)
        return array if form is None else array.astype(form.dtype, copy=False)

    def count(self, *groups: Iterable[Array]) -> None:
        """Update the peak memory with arrays that exist at the same time."""
        self.memory = max(self.memory, sum(a.nbytes for group in groups for a in group))

    def gap(self, value: TracedTensor, expected: Array, made: Array) -> float | None:
        """Return the SQNR in dB of a tensor to eager's value; ignore ties of integers and bools.

        A tie is a value that changes in eager under perturbation, as in the verdict on an output.
        """
        import numpy as np

        ratio = finite_sqnr(expected, made)
        if not value.discrete or ratio is None or expected.shape != made.shape:
            return ratio
        self.settle([value.order])
        marks = mark_undecided(made, expected, self._others[value.order])
        return finite_sqnr(expected, np.where(marks, expected, made))

    def settle(self, orders: Collection[int]) -> None:
        """Draw eager's integers under perturbation of weights and inputs, for `gap`."""
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
                    continue  # the model checks the range of its inputs
                if len(tape.values) != len(self.values):
                    continue  # the model took another branch
                for order, array in tape.arrays.items():
                    drawn[order].append(array)
        self._others.update(drawn)

    def try_part(self, given: dict[str, Array], tensor: str) -> Array | None:
        """Return a part's result; None if it rejects the values, as of a shape that is another."""
        try:
            return self.probe.part(given, [tensor])[tensor]
        except RunnerError:
            return None

    def scope_of(self, tensor: str) -> str:
        """Return the module of the first node that reads a tensor and has one, further on too."""
        waiting, seen = [tensor], {tensor}
        while waiting:
            name = waiting.pop(0)
            for node in self.makers.values():
                if name in node.inputs and node.module:
                    return node.module
                waiting += [one for one in node.outputs if name in node.inputs and one not in seen]
                seen.update(node.outputs if name in node.inputs else ())
        return ""

    def perturbed(self, anchor: Anchor, given: dict[str, Array]) -> Array:
        """Return a part's result when its inputs change by a rounding step."""
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


WORST_DB = -200.0  # dB, for non-finite values where eager is finite, or for another shape
_FILL = 1e4  # equal values this large belong to a mask and would dominate the signal


@dataclass(frozen=True, kw_only=True)
class PrecisionScale:
    """The errors that a precision explains, in dB.

    A layer whose own SQNR is below `plain` is a suspect. It is wrong if its SQNR is also `margin`
    below its noise floor, the SQNR under a relative change `step` of its inputs: some layers
    amplify any input error. `odd` is how far below the median a layer's SQNR may lie. Above
    `quiet`, errors of earlier layers have no effect. `off` is the relative perturbation of weights
    and inputs that shows which integers roundoff decides.
    """

    plain: float
    step: float
    margin: float
    odd: float
    quiet: float
    off: float


# `step` is the unit of rounding (float32: 2^-22, for sums of many terms; INT8: one step of 128).
# The others were set by hand. benchmarks/debug.py counts the faults that the FP32 values find and
# the false alarms on good conversions (see docs/debug.md); it does not measure the others.
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
    Precision.INT8_WEIGHTS: PrecisionScale(
        plain=28.0,
        step=2.0**-8,
        margin=12.0,
        odd=20.0,
        quiet=48.0,
        off=SHARES[Precision.INT8_WEIGHTS],
    ),
    Precision.INT8_DYNAMIC: PrecisionScale(
        plain=22.0,
        step=2.0**-7,
        margin=10.0,
        odd=18.0,
        quiet=42.0,
        off=SHARES[Precision.INT8_DYNAMIC],
    ),
    Precision.FP8: PrecisionScale(
        plain=15.0,
        step=2.0**-4,
        margin=6.0,
        odd=15.0,
        quiet=40.0,
        off=SHARES[Precision.FP8],
    ),
    Precision.INT4: PrecisionScale(
        plain=10.0,
        step=2.0**-4,
        margin=6.0,
        odd=10.0,
        quiet=30.0,
        off=SHARES[Precision.INT4],
    ),
}


def finite_sqnr(reference: Array, other: Array) -> float | None:
    """Return the SQNR in dB over the values that are finite in both; None if they are equal.

    Return `WORST_DB` for another shape, or for non-finite values where `reference` is finite.
    Ignore large equal values: they belong to masks.
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
    """Return the lower of two ratios; None stands for no error."""
    known = [value for value in (one, two) if value is not None]
    return min(known, default=None)


def is_below(value: float | None, limit: float) -> bool:
    """Return whether a ratio is below the limit; None stands for no error."""
    return value is not None and value < limit
