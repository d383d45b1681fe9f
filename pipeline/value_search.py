"""Choose ranges for integer inputs that the user leaves open, by running eager on values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from ..checkpoints.eager_model import Eager, open_eager
from ..checkpoints.run_limits import MoreWorkError, Work
from ..core.dims import Relation, bisect_boundary
from ..core.errors import CheckpointError
from ..core.signature import InputSpec, RowOrder, Signature, ValueRange
from ..validators.feeds import FeedDrawer
from ..validators.wide_integer_feeds import SMALL, draw_wide_feeds
from .run_reference import nonfinite_outputs, preserve_state

if TYPE_CHECKING:
    from ..checkpoints.loaded_module import LoadedModule
    from ..core.contract import Feed
    from .order import Judging
    from .run_progress import Progress

LARGEST = {"int64": 2**40, "int32": 2**31 - 1, "int16": 2**15 - 1, "int8": 127, "uint8": 255}
# Values to try in ascending order until eager rejects one. Coarse: bisection finds the end.
_VALUE_LADDER = (
    2, 4, 16, 64, 256, 1024, 4096, 16384, 2**16, 2**18, 2**20, 2**22, 2**24, 2**31 - 1, 2**31 + 5,
    2**40,
)  # fmt: skip
_MAX_TABLE = 2**24  # assumed limit of tables; a larger end is not bisected
_MAX_VALUE_RUNS = 96  # of eager per input; a table of 2^24 rows that follows a dim takes about 80
_FACTOR = 8  # times the work of the least value; more means that the value controls the work
_SLACK = Work(operators=64, elements=1 << 16)
_MAX_RETRIES = 5  # draws at the opt sizes; two values are in order in all of them once in 64
_MASK = "mask"


def choose_values(
    eager: Eager, signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> Signature:
    """Return the signature with a range for each integer input without one, as eager accepts.

    An input that accepts any value gets the full range of its dtype, within -2^40..2^40. Its feeds
    are drawn from the usual part (the values of its sample, else 0 and 1; bytes 0..255), and edge
    values have feeds of their own. Other inputs are treated as indices or lengths: the range ends
    at the largest value that eager accepts, and follows a dim if that value does. An input with
    `mask` in its name holds 0 and 1.

    If eager rejects values drawn from a range, sorted ones are tried: ascending, as for corners of
    boxes and starts of segments, and descending, as for lengths of sorted sequences. An input for
    which eager accepts none of these stays without a range.

    Raises:
        CheckpointError: running other values changed the outputs of eager.
    """
    found: dict[str, ValueRange] = {}
    first = FeedDrawer.of(signature, seed, samples).corners()["opt"]
    with preserve_state(eager, first.arrays if samples is None else samples):
        for _ in range(2):  # a range for one input may let eager accept values of the others
            known, before = _with_ranges(signature, found), len(found)
            for spec in known.inputs:
                if spec.values is not None or spec.dtype not in LARGEST:
                    continue
                search = _RangeSearch(eager, known, spec, seed=seed, samples=samples)
                values = search.values()
                if values is not None:
                    found[spec.name] = values
            if len(found) == before:
                break
        return _keep_runnable(eager, signature, found, seed=seed, samples=samples)


def _with_ranges(signature: Signature, ranges: Mapping[str, ValueRange]) -> Signature:
    specs = (
        replace(spec, values=ranges[spec.name]) if spec.name in ranges else spec
        for spec in signature.inputs
    )
    return replace(signature, inputs=tuple(specs))


def choose_and_report_values(
    loaded: LoadedModule,
    signature: Signature,
    judging: Judging,
    samples: Feed | None,
    progress: Progress,
) -> Signature:
    """Run `choose_values` on the loaded model and report the chosen ranges."""
    if all(spec.values is not None or spec.dtype not in LARGEST for spec in signature.inputs):
        return signature
    with progress.step("choose values", log="eager") as clock:
        eager = open_eager(loaded, signature)
        chosen = choose_values(eager, signature, seed=judging.seed or 0, samples=samples)
        clock.detail = describe_chosen(chosen) or "none"
    return chosen


def describe_chosen(signature: Signature) -> str:
    """List the chosen ranges, as in `ids {0..30521}, edges {0..nodes-1}`."""
    return ", ".join(
        f"{spec.name} {spec.values}"
        for spec in signature.inputs
        if spec.values is not None and spec.values.chosen
    )


class _RunOutcome(Enum):
    TAKEN = "taken"
    REJECTED = "rejected"
    OVERWORKED = "overworked"  # accepted, but the value controls the amount of work


class _RangeSearch:
    """Finds the range of one input in at most `_MAX_VALUE_RUNS` runs of eager."""

    def __init__(
        self,
        eager: Eager,
        signature: Signature,
        spec: InputSpec,
        *,
        seed: int,
        samples: Feed | None,
    ) -> None:
        self._eager = eager
        self._signature = signature
        self._spec = spec
        self._sample = None if samples is None else samples.get(spec.name)
        self._drawer = FeedDrawer.of(signature, seed, samples)
        self._left = _MAX_VALUE_RUNS
        self._known: dict[tuple[tuple[int, ...], int], _RunOutcome] = {}
        self._usually: dict[tuple[int, ...], tuple[Work, frozenset[str]]] = {}  # by sizes

    def values(self) -> ValueRange | None:
        """Return the range; None if eager accepts no value that is tried."""
        sample = self._sample
        if _MASK in self._spec.name.rsplit(".", 1)[-1].lower() and (
            sample is None or (sample.size and {0, 1}.issuperset(sample.ravel().tolist()))
        ):
            return ValueRange(low=0, high=1, chosen=True)
        opt, low = self._signature.opt_sizes, self._signature.low_sizes
        sizes = opt if self._start(low) is None else low
        start = self._start(sizes)
        if start is None:
            return None
        high = self._highest(sizes, start)
        if high == LARGEST[self._spec.dtype] and self._takes(opt, high):
            return self._wide(opt, start, high)
        return self._indices(opt, high)

    def _start(self, sizes: Mapping[str, int]) -> int | None:
        """Return a value that eager accepts at these sizes: from the sample, else 0, 1 or 2."""
        sample = self._sample
        tried = [0, 1, 2]
        if sample is not None and sample.size:
            tried = [int(sample.max()), int(sample.min()), *tried]
        return next((value for value in tried if self._takes(sizes, value)), None)

    def _wide(self, sizes: Mapping[str, int], start: int, high: int) -> ValueRange:
        """Return the range of an input that accepts the largest value of its dtype."""
        low = self._lowest(sizes, start)
        if self._spec.dtype != "uint8" and self._takes(sizes, -1) and self._takes(sizes, -high):
            low = -high
        return ValueRange(low=low, high=high, chosen=True, usual=self._usual(max(low, 0)))

    def _lowest(self, sizes: Mapping[str, int], start: int) -> int:
        """Return 0 or 1 if eager accepts it, else the least value of the sample, else `start`."""
        sample = self._sample
        least = start if sample is None or not sample.size else min(int(sample.min()), start)
        return next((v for v in (0, 1, least) if v <= start and self._takes(sizes, v)), start)

    def _usual(self, low: int) -> tuple[float, float]:
        """Return the range of the sample, else the default range to draw from."""
        sample = self._sample
        if sample is None or not sample.size:
            return low, 255 if self._spec.dtype == "uint8" else low + 1
        least, most = int(sample.min()), int(sample.max())
        return (0 if least == most == 1 else least), most

    def _indices(self, opt: Mapping[str, int], high: int) -> ValueRange | None:
        """Return the range of an input whose largest value is a constant or follows a dim."""
        start = self._start(opt)
        if start is None:
            return None
        low = self._lowest(opt, start)
        if not self._ends_at(opt, high):
            high = self._highest(opt, start)
        corners = [self._signature.low_sizes, self._signature.high_sizes]
        if not all(self._ends_at(sizes, high) for sizes in corners):
            relation = self._find_followed_dim(opt, high)
            if relation is not None:
                most = relation.size(self._signature.dynamic_dims[relation.base].high)
                return ValueRange(low=low, high=most, high_dim=relation, chosen=True)
            high = min(high, *(self._end_at(sizes, high) for sizes in corners))
        if self._spec.dtype != "uint8" and low == 0 and self._starts_at(opt, -high - 1):
            return ValueRange(low=-high - 1, high=high, chosen=True, usual=(0, high))
        return ValueRange(low=low, high=max(high, low), chosen=True)

    def _ends_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Return whether the value is the largest that eager accepts at these sizes."""
        most = LARGEST[self._spec.dtype]
        return self._takes(sizes, value) and (value >= most or not self._takes(sizes, value + 1))

    def _starts_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Return whether the value is the least that eager accepts.

        Negative indices count from the end of a table.
        """
        return self._takes(sizes, value) and not self._takes(sizes, value - 1)

    def _end_at(self, sizes: Mapping[str, int], high: int) -> int:
        if self._ends_at(sizes, high):
            return high
        start = self._start(sizes)
        return high if start is None else self._highest(sizes, start)

    def _find_followed_dim(self, opt: Mapping[str, int], high: int) -> Relation | None:
        """Find the dim that the largest value follows one to one, tested at its ends."""
        for name, dim in self._signature.dynamic_dims.items():
            relation = Relation(base=name, plus=high - dim.opt)
            bases = (self._signature.free_dims[base] for base in dim.bases)
            ends = [
                {**opt, base.name or "": size}
                for base in bases
                for size in {base.low, base.high} - {base.opt}
            ]
            if ends and all(self._ends_at(at, relation.size(dim.size(at))) for at in ends):
                return relation
        return None

    def _highest(self, sizes: Mapping[str, int], start: int) -> int:
        """Return the largest value from `start` that eager accepts: a ladder, then bisection.

        If the work grows too much, return the previous step of the ladder.
        """
        good, most = start, LARGEST[self._spec.dtype]
        for step in (*(one for one in _VALUE_LADDER if start < one < most), most):
            outcome = self._outcome(sizes, step)
            if outcome is _RunOutcome.REJECTED and step <= _MAX_TABLE:
                return self._bisect(sizes, good, step)
            if outcome is not _RunOutcome.TAKEN:
                return good
            good = step
        return good

    def _bisect(self, sizes: Mapping[str, int], good: int, bad: int) -> int:
        rows = {len(one) - 1 for one in self._eager.weights().values() if one.ndim > 1}
        for guess in sorted(row for row in rows if good <= row < bad)[:2]:  # ends of its tables
            if self._ends_at(sizes, guess):
                return guess
        return bisect_boundary(lambda value: self._takes(sizes, value), good, bad)

    def _takes(self, sizes: Mapping[str, int], value: int) -> bool:
        return self._outcome(sizes, value) is _RunOutcome.TAKEN

    def _outcome(self, sizes: Mapping[str, int], value: int) -> _RunOutcome:
        """Run eager on the input filled with the value; `REJECTED` once the runs are used up."""
        key = tuple(sizes.values()), value
        if key not in self._known:
            if self._left <= 0:
                return _RunOutcome.REJECTED
            self._left -= 1
            self._known[key] = self._run(sizes, value)
        return self._known[key]

    def _run(self, sizes: Mapping[str, int], value: int) -> _RunOutcome:
        """Run one value; the first at these sizes sets the usual work and the usual NaN and Inf."""
        import numpy as np

        feed = dict(self._drawer.feed("values", dict(sizes)).arrays)
        feed[self._spec.name] = np.full_like(feed[self._spec.name], value)
        key = tuple(sizes.values())
        usual = self._usually.get(key)
        allowed = usual and Work(
            operators=_FACTOR * usual[0].operators + _SLACK.operators,
            elements=_FACTOR * usual[0].elements + _SLACK.elements,
        )
        try:
            outputs, work = self._eager.run_metered(feed, allowed)
        except MoreWorkError:
            return _RunOutcome.OVERWORKED
        except CheckpointError:
            return _RunOutcome.REJECTED
        if usual is None:
            self._usually[key] = work, frozenset(nonfinite_outputs(outputs))
            return _RunOutcome.TAKEN
        return _RunOutcome.REJECTED if nonfinite_outputs(outputs) - usual[1] else _RunOutcome.TAKEN


def _keep_runnable(
    eager: Eager,
    signature: Signature,
    found: Mapping[str, ValueRange],
    *,
    seed: int,
    samples: Feed | None,
) -> Signature:
    """Keep the ranges from which eager accepts drawn values, as many as possible."""
    if not found or _accepts_drawn(eager, _with_ranges(signature, found), seed, samples):
        return _with_ranges(signature, found)
    kept: dict[str, ValueRange] = {}
    for name, values in found.items():
        for one in (values, *(_as_sorted(values, order) for order in RowOrder if order)):
            trial = _with_ranges(signature, {**kept, name: one})
            if _accepts_drawn(eager, trial, seed, samples):
                kept[name] = one
                break
    return _with_ranges(signature, kept)


def _as_sorted(values: ValueRange, order: RowOrder) -> ValueRange:
    """Return the range as sorted and non-negative, with wide ranges cut to their usual part."""
    usual = 0 if values.usual is None else values.usual[1]
    high = values.high if values.high <= _MAX_TABLE else max(usual, SMALL)
    return replace(values, low=max(values.low, 0), high=high, usual=None, order=order)


def _accepts_drawn(eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> bool:
    """Return whether eager accepts feeds drawn at the least and opt sizes, and edge values.

    Several are drawn at the opt sizes because a few values may be in order by chance.
    """
    drawer = FeedDrawer.of(signature, seed, samples)
    corners = drawer.corners()
    feeds = [corners[name] for name in ("min", "opt") if name in corners]
    feeds += [
        drawer.feed(f"again-{number}", corners["opt"].sizes) for number in range(_MAX_RETRIES)
    ]
    try:
        for feed in (*feeds, *draw_wide_feeds(signature, seed=seed, samples=samples)):
            eager.run_with_deadline(feed.arrays)
    except CheckpointError:
        return False
    return True
