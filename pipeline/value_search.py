"""Chooses ranges of integer inputs that the user left open, by running eager on trial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from ..checkpoints.eager_model import Eager, open_eager
from ..checkpoints.run_limits import MoreWorkError, Work
from ..core.dims import Relation
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
# Values tried upwards until eager rejects one: coarse, as the end is found by halving.
_VALUE_LADDER = (
    2, 4, 16, 64, 256, 1024, 4096, 16384, 2**16, 2**18, 2**20, 2**22, 2**24, 2**31 - 1, 2**31 + 5,
    2**40,
)  # fmt: skip
_MAX_TABLE = 2**24  # a larger end than this is no table's: it is not looked for by halving
_MAX_VALUE_RUNS = (
    96  # of eager, for one input: a table of 2^24 rows that follows a dim takes some 80
)
_FACTOR = 8  # times the work of the least value: more, and the value says how much to do
_SLACK = Work(operators=64, elements=1 << 16)
_MAX_RETRIES = 5  # draws at the opt sizes: of two values, all are in order once in 64
_MASK = "mask"


def choose_values(
    eager: Eager, signature: Signature, *, seed: int = 0, samples: Feed | None = None
) -> Signature:
    """The signature with a range for each integer input that has none, as eager takes values.

    An input that takes any value gets all that its dtype holds, within -2^40..2^40; feeds are then
    drawn in its usual part (its sample's values, else 0 and 1; bytes 0..255), and edge values in
    feeds of their own. Others are taken for indices or lengths: the range ends at the largest value
    that eager takes, and follows a dim where that does. An input named as a mask holds 0 and 1.
    Where eager rejects values drawn from the range, ascending ones are tried, as the corners of
    boxes and the starts of segments are, and descending ones, as the lengths of sorted sequences.
    An input of which eager takes no value that was tried, or none of these, stays without a range.

    Raises:
        CheckpointError: eager answers otherwise after it ran on other values.
    """
    found: dict[str, ValueRange] = {}
    first = FeedDrawer.of(signature, seed, samples).corners()["opt"]
    with preserve_state(eager, first.arrays if samples is None else samples):
        for _ in range(2):  # what is found of one input lets eager take values of the others
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
    """As `choose_values` on the model as it was loaded; the ranges are noted."""
    if all(spec.values is not None or spec.dtype not in LARGEST for spec in signature.inputs):
        return signature
    with progress.step("choose values", log="eager") as clock:
        eager = open_eager(loaded, signature)
        chosen = choose_values(eager, signature, seed=judging.seed or 0, samples=samples)
        clock.detail = describe_chosen(chosen) or "none"
    return chosen


def describe_chosen(signature: Signature) -> str:
    """The chosen ranges in a line: `ids {0..30521}, edges {0..nodes-1}`; empty without any."""
    return ", ".join(
        f"{spec.name} {spec.values}"
        for spec in signature.inputs
        if spec.values is not None and spec.values.chosen
    )


class _RunOutcome(Enum):
    TAKEN = "taken"
    REJECTED = "rejected"
    OVERWORKED = "overworked"  # taken, but the value says how much there is to do


class _RangeSearch:
    """Finds the range of one input by runs of eager, `_RUNS` at most."""

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
        """The range; None where eager takes nothing that is tried."""
        if _MASK in self._spec.name.rsplit(".", 1)[-1].lower() and self._is_binary():
            return ValueRange(low=0, high=1, chosen=True)
        dims = self._signature.free_dims
        opt = {name: dim.opt for name, dim in dims.items()}
        low = {name: dim.low for name, dim in dims.items()}
        sizes = opt if self._start(low) is None else low
        start = self._start(sizes)
        if start is None:
            return None
        high = self._highest(sizes, start)
        if high == LARGEST[self._spec.dtype] and self._takes(opt, high):
            return self._wide(opt, start, high)
        return self._indices(opt, high)

    def _is_binary(self) -> bool:
        sample = self._sample
        return sample is None or (sample.size > 0 and {0, 1}.issuperset(sample.ravel().tolist()))

    def _start(self, sizes: Mapping[str, int]) -> int | None:
        """A value that eager takes at these sizes: of the sample, else 0, 1 or 2."""
        sample = self._sample
        tried = [0, 1, 2]
        if sample is not None and sample.size:
            tried = [int(sample.max()), int(sample.min()), *tried]
        return next((value for value in tried if self._takes(sizes, value)), None)

    def _wide(self, sizes: Mapping[str, int], start: int, high: int) -> ValueRange:
        """The range of an input that takes the largest value of all."""
        low = self._lowest(sizes, start)
        if self._spec.dtype != "uint8" and self._takes(sizes, -1) and self._takes(sizes, -high):
            low = -high
        return ValueRange(low=low, high=high, chosen=True, usual=self._usual(max(low, 0)))

    def _lowest(self, sizes: Mapping[str, int], start: int) -> int:
        """0 or 1 where eager takes it, else the least of the sample, else `start`."""
        sample = self._sample
        least = start if sample is None or not sample.size else min(int(sample.min()), start)
        return next((v for v in (0, 1, least) if v <= start and self._takes(sizes, v)), start)

    def _usual(self, low: int) -> tuple[float, float]:
        """The values of the sample, else those that are drawn where nothing is known."""
        sample = self._sample
        if sample is None or not sample.size:
            return low, 255 if self._spec.dtype == "uint8" else low + 1
        least, most = int(sample.min()), int(sample.max())
        return (0 if least == most == 1 else least), most

    def _indices(self, opt: Mapping[str, int], high: int) -> ValueRange | None:
        """The range of an input that ends before: at a number, or at a dim."""
        start = self._start(opt)
        if start is None:
            return None
        low = self._lowest(opt, start)
        if not self._ends_at(opt, high):
            high = self._highest(opt, start)
        dims = self._signature.free_dims
        corners = [
            {name: dim.low for name, dim in dims.items()},
            {name: dim.high for name, dim in dims.items()},
        ]
        if not all(self._ends_at(sizes, high) for sizes in corners):
            relation = self._followed(opt, high)
            if relation is not None:
                most = relation.size(self._signature.dynamic_dims[relation.base].high)
                return ValueRange(low=low, high=most, high_dim=relation, chosen=True)
            high = min(high, *(self._end_at(sizes, high) for sizes in corners))
        if self._spec.dtype != "uint8" and low == 0 and self._starts_at(opt, -high - 1):
            return ValueRange(low=-high - 1, high=high, chosen=True, usual=(0, high))
        return ValueRange(low=low, high=max(high, low), chosen=True)

    def _ends_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Whether the value is the largest that eager takes at these sizes."""
        most = LARGEST[self._spec.dtype]
        return self._takes(sizes, value) and (value >= most or not self._takes(sizes, value + 1))

    def _starts_at(self, sizes: Mapping[str, int], value: int) -> bool:
        """Whether it is the least value that eager takes: a table is indexed from its end too."""
        return self._takes(sizes, value) and not self._takes(sizes, value - 1)

    def _end_at(self, sizes: Mapping[str, int], high: int) -> int:
        if self._ends_at(sizes, high):
            return high
        start = self._start(sizes)
        return high if start is None else self._highest(sizes, start)

    def _followed(self, opt: Mapping[str, int], high: int) -> Relation | None:
        """The dim that the largest value follows, one for one, as is tried at its ends."""
        for name, dim in self._signature.dynamic_dims.items():
            free = dim.free
            relation = Relation(base=name, plus=high - dim.opt)
            ends = [{**opt, free.name or "": size} for size in {free.low, free.high} - {free.opt}]
            if ends and all(self._ends_at(at, relation.size(dim.size(at))) for at in ends):
                return relation
        return None

    def _highest(self, sizes: Mapping[str, int], start: int) -> int:
        """The largest value that eager takes from `start` on, by a ladder and then by halving.

        Where the work ends it, the last step of the ladder.
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
        for guess in self._guesses(good, bad):
            if self._ends_at(sizes, guess):
                return guess
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._takes(sizes, middle):
                good = middle
            else:
                bad = middle
        return good

    def _guesses(self, good: int, bad: int) -> Sequence[int]:
        """The ends of tables of the model between these values, two at most."""
        rows = {len(one) - 1 for one in self._eager.module.parameters() if one.dim() > 1}
        return sorted(row for row in rows if good <= row < bad)[:2]

    def _takes(self, sizes: Mapping[str, int], value: int) -> bool:
        return self._outcome(sizes, value) is _RunOutcome.TAKEN

    def _outcome(self, sizes: Mapping[str, int], value: int) -> _RunOutcome:
        """What eager makes of the input full of the value; `REJECTED` beyond the number of runs."""
        key = tuple(sizes.values()), value
        if key not in self._known:
            if self._left <= 0:
                return _RunOutcome.REJECTED
            self._left -= 1
            self._known[key] = self._run(sizes, value)
        return self._known[key]

    def _run(self, sizes: Mapping[str, int], value: int) -> _RunOutcome:
        """Run it: the first value at these sizes says what work and which NaN or Inf are usual."""
        import numpy as np

        feed = dict(self._drawer.feed("values", dict(sizes)).arrays)
        feed[self._spec.name] = np.full_like(feed[self._spec.name], value)
        key = tuple(sizes.values())
        usual = self._usually.get(key)
        try:
            outputs, work = self._eager.run_metered(feed, usual and _compute_allowed_work(usual[0]))
        except MoreWorkError:
            return _RunOutcome.OVERWORKED
        except CheckpointError:
            return _RunOutcome.REJECTED
        if usual is None:
            self._usually[key] = work, frozenset(nonfinite_outputs(outputs))
            return _RunOutcome.TAKEN
        return _RunOutcome.REJECTED if nonfinite_outputs(outputs) - usual[1] else _RunOutcome.TAKEN


def _compute_allowed_work(usual: Work) -> Work:
    return Work(
        operators=_FACTOR * usual.operators + _SLACK.operators,
        elements=_FACTOR * usual.elements + _SLACK.elements,
    )


def _keep_runnable(
    eager: Eager,
    signature: Signature,
    found: Mapping[str, ValueRange],
    *,
    seed: int,
    samples: Feed | None,
) -> Signature:
    """The signature with the ranges from which eager takes what is drawn, as many as there are."""
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
    """The values in order and not negative; of those that take any, as many as are drawn."""
    usual = 0 if values.usual is None else values.usual[1]
    high = values.high if values.high <= _MAX_TABLE else max(usual, SMALL)
    return replace(values, low=max(values.low, 0), high=high, usual=None, order=order)


def _accepts_drawn(eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> bool:
    """Whether eager takes drawn feeds at the least and the opt sizes, and those of edge values.

    Several at the opt sizes: a few values may be in order by chance.
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
