"""Infer why eager rejects a feed, by running it on other sizes and values, and suggest a fix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..checkpoints.eager_model import Eager
from ..core.contract import Feed
from ..core.dims import Relation, bisect_boundary
from ..core.domain import DimFit, Sizes, multiples_fit, range_fit, relation_fit, single_size_fit
from ..core.errors import CheckpointError, ErrorCode
from ..core.signature import FLOATS, UNBOUNDED, Dim, InputSpec, RowOrder, Signature
from ..validators.feeds import FeedDrawer
from .stated_inputs import find_narrower_input

_STEPS = (2, 3, 4, 8, 16, 32, 64)  # common divisors of a length
_LINES = ((1, 0), (2, 0), (1, 1), (1, -1))  # (times, plus) of sizes that depend on another size
_MAX_TRIAL_RUNS = 120  # runs of eager: enough for four dims
_MAX_OTHER_FEEDS = 3  # feeds with other random values per size
_SHORT_RANGE = 32  # ranges up to this width are tried in full
_NEAR_SIZES = 8  # sizes to try on either side of opt in a wider range
_RANGE_PARTS = 4  # parts of a range whose ends are tried as the start
_TIMES_LARGER = 4  # limit of a feed, relative to the largest declared feed
_SMALL_FEED = 1 << 20  # elements; feeds up to this size are always allowed


class EagerTrials:
    """Runs eager on trial feeds, with a limit on the number of runs.

    Args:
        eager: the eager model.
        signature: its inputs and dims.
        seed: seed of the random values, as in the feeds.
        samples: the user's own inputs, as in the feeds.
    """

    def __init__(self, eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> None:
        self.signature = signature
        self.left = _MAX_TRIAL_RUNS
        self._eager = eager
        self._seed, self._samples = seed, samples
        self._drawer = FeedDrawer.of(signature, seed, samples)
        self._known: dict[tuple[tuple[str, int], ...], bool] = {}
        self._other: dict[tuple[tuple[str, int], ...], bool] = {}

    def runs(self, sizes: Sizes) -> bool:
        """Return whether eager accepts a feed at these sizes; False when no runs are left."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            if self.left <= 0 or not self._fits(sizes):
                return False
            self.left -= 1
            self._known[key] = self.takes(self._drawer.feed("relation", dict(sizes)).arrays)
        return self._known[key]

    def runs_along(self, sizes: Sizes, name: str) -> Callable[[int], bool]:
        """Return `runs` as a function of the size of one dim."""
        return lambda size: self.runs({**sizes, name: size})

    def _fits(self, sizes: Sizes) -> bool:
        """Return whether the sizes are valid and the feed is not much larger than the largest."""
        count, dims = self.signature.count_elements, self.signature.free_dims
        limit = max(_TIMES_LARGER * count(self.signature.high_sizes), _SMALL_FEED)
        least = all(size >= min(dims[name].low, 1) for name, size in sizes.items() if name in dims)
        return least and count(sizes) <= limit

    def takes(self, arrays: Feed) -> bool:
        """Return whether eager accepts this feed."""
        try:
            self._eager.run(arrays)
        except CheckpointError:
            return False
        return True

    def takes_others(self, sizes: Sizes) -> bool:
        """Return whether eager accepts other values at these sizes.

        If it does, the sizes are not the cause of the rejection.
        """
        key = tuple(sorted(sizes.items()))
        if key not in self._other:
            self._other[key] = any(map(self.takes, self.others(dict(sizes))))
        return self._other[key]

    def others(self, sizes: dict[str, int]) -> Iterator[Feed]:
        """Yield trial feeds at these sizes.

        First with new random values, then with all integer inputs at an end of their range, then
        with one integer input at an end. Values that follow the sizes, such as positions, stay as
        they are: other ones are another model's.
        """
        feeds = [self._drawer.feed(f"other-{number}", sizes) for number in range(_MAX_OTHER_FEEDS)]
        yield from (feed.arrays for feed in feeds)
        whole = [
            spec.name
            for spec in self.signature.inputs
            if spec.dtype not in FLOATS and not (spec.values and spec.values.high_dim)
        ]
        for names in (whole, *([name] for name in whole if len(whole) > 1)):
            yield from self._drawer.at_ends(feeds[0], names)

    def takes_sorted(self, sizes: Sizes) -> InputSpec | None:
        """Return the first integer input that eager accepts only with sorted values.

        The other inputs keep their values. Return None if sorting is not needed or does not help.
        """
        names = [f"in-order-{number}" for number in range(_MAX_OTHER_FEEDS)]
        if all(self.takes(self._drawer.feed(name, dict(sizes)).arrays) for name in names):
            return None
        whole = [s for s in self.signature.inputs if s.dtype not in FLOATS and s.dims]
        for spec, order in itertools.product(whole, filter(None, RowOrder)):
            if spec.values is None or spec.values.order:
                continue
            ordered = replace(spec, values=replace(spec.values, order=order))
            inputs = tuple(ordered if one is spec else one for one in self.signature.inputs)
            drawer = FeedDrawer.of(
                replace(self.signature, inputs=inputs), self._seed, self._samples
            )
            if all(self.takes(drawer.feed(name, dict(sizes)).arrays) for name in names):
                return ordered
        return None


class RejectedSizesError(CheckpointError):
    """Eager rejects sizes within the domain.

    Attributes:
        sizes: sizes of the free dims.
    """

    def __init__(self, message: str, *, hint: str, sizes: Sizes) -> None:
        super().__init__(message, hint=hint, option="input", code=ErrorCode.FEED_REJECTED)
        self.sizes = dict(sizes)


@contextmanager
def explain_rejection(trials: EagerTrials, sizes: Sizes, *, drawn: bool = True) -> Iterator[None]:
    """Add the cause and a hint to eager's rejection of a feed.

    Args:
        trials: runs eager at other sizes and on other values.
        sizes: sizes of the free dims in the feed.
        drawn: whether the values are random, so that other values may be tried; False for the
            user's own samples.

    Raises:
        RejectedSizesError: the sizes are the cause, or eager accepts only some values at these
            sizes and all values at the opt sizes. The hint names the relation of dims, if found.
        CheckpointError: the values are the cause, or eager failed for another reason.
    """
    try:
        yield
    except CheckpointError as error:
        if error.code is not ErrorCode.FEED_REJECTED:
            raise
        if drawn and trials.takes_others(sizes):
            hint = _suggest_values(trials, sizes)
            if sizes and all(map(trials.takes, trials.others(trials.signature.opt_sizes))):
                raise RejectedSizesError(error.message, hint=hint, sizes=sizes) from error
            raise CheckpointError(
                error.message, hint=hint, option="input", code=error.code
            ) from error
        if not sizes:
            raise
        found = infer_dim_constraints(error, trials, sizes)
        if found is None:
            if not trials.runs(trials.signature.opt_sizes):
                raise  # the sizes are not the cause
            free = trials.signature.free_dims.values()
            dims = ", ".join(str(dim) for dim in free if dim.bounded and dim.low < dim.high)
            hint = f"state sizes that eager accepts: narrow {dims}, or fix one with --static"
            hint = hint if dims else error.hint
            raise RejectedSizesError(error.message, hint=hint, sizes=sizes) from error
        message = f"{error.message}: {found.said}"
        raise RejectedSizesError(message, hint=found.write, sizes=sizes) from error


def _suggest_values(trials: EagerTrials, sizes: Sizes) -> str:
    """Return the hint if eager accepts other values at the same sizes."""
    ordered = trials.takes_sorted(sizes)
    if ordered is not None and ordered.values is not None:
        order = ordered.values.order
        return f"eager accepts values that are {order} along the last axis: --input '{ordered}'"
    bounded = find_narrower_input(trials, sizes)
    if bounded is not None and bounded.values is not None:
        end = int(bounded.values.high)
        return f"eager accepts {bounded.name} up to {end}: --input '{bounded}'"
    signature = trials.signature
    whole = [s for s in signature.inputs if s.dtype not in (*FLOATS, "bool")]
    names = list(signature.dynamic_dims)
    stated = f"state them, as in {whole[-1].name}{{1..{names[-1]}}}, or " if whole and names else ""
    return f"eager accepts other values at these sizes: {stated}give samples with --samples"


def infer_dim_constraints(
    error: CheckpointError, trials: EagerTrials, sizes: Sizes
) -> DimFit | None:
    """Infer the constraint on the dims that a rejected feed violates.

    Try, in order: a linear relation of two dims, multiples of a number, a smaller range, and a
    single size. A constraint must hold at its lowest, middle and highest sizes, and eager must
    reject sizes that violate it.

    Return None if no constraint is found, or the error is not a rejected feed.
    """
    if error.code is not ErrorCode.FEED_REJECTED or not sizes:
        return None
    for find in (_fit_line, _fit_multiple, _fit_end, _fit_single_size):
        found = find(trials, sizes)
        if found is not None:
            return found
    return None


def _fit_line(trials: EagerTrials, sizes: Sizes) -> DimFit | None:
    """Find a dim whose size is a linear function of another's."""
    dims = trials.signature.free_dims
    pairs = list(itertools.combinations(dims, 2))  # base and dependent dim, then the reverse
    for first, second in (*pairs, *((other, one) for one, other in pairs)):
        for times, plus in _LINES:
            relation = Relation(base=first, times=times, plus=plus)
            base = dims[first]
            places = ({**sizes, first: size} for size in _two_sizes(base))
            ends = (base.low, base.opt, base.high) if base.bounded else UNBOUNDED
            if all(_holds_relation(trials, at, second, relation) for at in places) and all(
                trials.runs({**sizes, first: size, second: relation.size(size)})
                for size in ends
                if relation.size(size) >= 1
            ):
                return relation_fit(trials.signature, second, relation)
    return None


def _two_sizes(dim: Dim) -> tuple[int, int]:
    """Return two low sizes of a dim, above 1 if the range permits, since 1 broadcasts."""
    low = min(max(dim.low, 2), dim.high)
    return low, max(min(dim.high, low + 1), low)


def _holds_relation(trials: EagerTrials, sizes: Sizes, name: str, relation: Relation) -> bool:
    """Return whether eager accepts the related size, and rejects it plus 1 and plus 2."""
    size = relation.size(sizes[relation.base])
    kept = trials.runs({**sizes, name: size})
    return kept and not any(trials.runs({**sizes, name: size + by}) for by in (1, 2))


def _fit_multiple(trials: EagerTrials, sizes: Sizes) -> DimFit | None:
    """Find dims that must be multiples of the same number."""
    dims = trials.signature.free_dims
    names = list(dims)[1:] if len(dims) > 1 else list(dims)  # the first usually is the batch
    for step in _STEPS:
        # odd factors: the size is not a multiple of 2*step
        odd = {name: max(dims[name].opt // step | 1, 3) for name in names}
        at = {**sizes, **{name: step * times for name, times in odd.items()}}
        if not trials.runs(at):
            continue
        needed = [
            name
            for name in names
            if not any(trials.runs({**at, name: at[name] + by}) for by in (1, step + 1))
        ]
        kept = [name for name in needed if trials.runs({**at, name: at[name] + 2 * step})]
        if kept and kept == needed:
            return _fit_step(trials, sizes, [dims[name] for name in kept], step)
    return None


def _fit_step(trials: EagerTrials, sizes: Sizes, dims: Sequence[Dim], step: int) -> DimFit | None:
    """Return the constraint that each dim is a multiple of `step`, each with its own factor."""
    ends = {dim.name or "": _multiple_range(dim, step) for dim in dims}
    if any(low > high for low, high in ends.values()):
        return None
    middles = {name: (low + high) // (2 * step) * step for name, (low, high) in ends.items()}
    lows, highs = ({name: both[at] for name, both in ends.items()} for at in (0, 1))
    if not all(trials.runs({**sizes, **at}) for at in (lows, middles, highs)):
        return None
    fits: list[DimFit] = []
    for dim in dims:
        number, (low, high) = len(fits), ends[dim.name or ""]
        if low == high:
            return _single_size_fit(trials.signature, dim, low)
        fits.append(
            multiples_fit(trials.signature, dim, step=step, ends=(low, high), number=number)
        )
    return DimFit(
        said=" and ".join(one.said for one in fits),
        write="write " + " and ".join(one.write.removeprefix("write ") for one in fits),
    )


def _multiple_range(dim: Dim, step: int) -> tuple[int, int]:
    """Return the lowest and highest multiple of `step` in the range of the dim."""
    if not dim.bounded:
        return UNBOUNDED[0] * step, UNBOUNDED[-1] * step
    return -(-dim.low // step) * step, dim.high // step * step


def _fit_end(trials: EagerTrials, sizes: Sizes) -> DimFit | None:
    """Find a dim that eager accepts only in a smaller range."""
    for name, dim in trials.signature.free_dims.items():
        runs = trials.runs_along(sizes, name)
        spread = (
            dim.low + (dim.high - dim.low) * part // _RANGE_PARTS
            for part in range(_RANGE_PARTS + 1)
        )
        others = (size for size in (dim.opt, *spread) if size != sizes[name])
        start = next(filter(runs, others), None)
        if start is None:
            continue
        low, high = (
            end if runs(end) else bisect_boundary(runs, start, end) for end in (dim.low, dim.high)
        )
        if low <= sizes[name] <= high:
            continue  # the rejected size lies between sizes that run: it is no end
        middle = (low + high) // 2  # an odd and an even size, and two at each end
        checked = {low, min(low + 1, high), middle, min(middle + 1, high), max(high - 1, low), high}
        if low < high and all(map(runs, checked)):
            return range_fit(trials.signature, dim, low, high)
    return None


def _fit_single_size(trials: EagerTrials, sizes: Sizes) -> DimFit | None:
    """Find a dim with a single accepted size: its opt, or any size of a short range."""
    for name, dim in trials.signature.free_dims.items():
        runs = trials.runs_along(sizes, name)
        short = dim.bounded and dim.high - dim.low < _SHORT_RANGE
        if not short and not runs(dim.opt):
            continue
        tried = range(dim.low, dim.high + 1) if short else _sizes_around(dim)
        good = [size for size in tried if runs(size)]
        sure = [size for size in good if size > 1] or good  # 1 broadcasts
        if len(sure) == 1 and trials.left > 0 and runs(sure[0]):
            return _single_size_fit(trials.signature, dim, sure[0])
    return None


def _sizes_around(dim: Dim) -> list[int]:
    """Return sizes of a wide range to try beside opt: near, spread out, multiples and half."""
    near = range(dim.opt - _NEAR_SIZES, dim.opt + _NEAR_SIZES + 1)
    spread = range(dim.low, dim.high + 1, max((dim.high - dim.low) // _NEAR_SIZES, 1))
    found = {*near, *spread, dim.high, 2 * dim.opt, 3 * dim.opt, dim.opt // 2}
    return sorted(size for size in found if dim.low <= size <= dim.high)


def _single_size_fit(signature: Signature, dim: Dim, size: int) -> DimFit | None:
    """Return the fix for a single size: `--static` if it is opt, else the size as a literal."""
    name = dim.name or ""
    found = single_size_fit(name, size)
    if size == dim.opt:
        return found
    if name not in signature.dynamic_dims:
        return None
    return replace(found, write=f"write {size} for {name} wherever it stands")
