"""Finds, by trying other sizes on eager, how the dims of a feed that it rejects must be related."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..core.contract import Feed
from ..core.dims import Relation
from ..core.errors import CheckpointError
from ..core.fitting import Fit, Sizes, as_relation, multiples, narrower
from ..core.signature import Dim, Signature
from ..sources.eager import Eager
from ..validators.feeds import Drawer

_STEPS = (2, 3, 4, 8, 16, 32, 64)  # what nets divide a length by
_LINES = ((1, 0), (2, 0), (1, 1), (1, -1))  # times, plus: sizes that follow from another
_MOST = 80  # runs of eager: enough for four dims
_LARGER = 4  # times the largest feed that is judged on
_SMALL = 1 << 20  # elements: so many are never too many
_REJECTS = "eager rejects "


class Trials:
    """Runs eager at sizes, not too often; `seed` and `samples` as the feeds have them."""

    def __init__(self, eager: Eager, signature: Signature, seed: int, samples: Feed | None) -> None:
        self.signature = signature
        self.left = _MOST
        self._eager = eager
        self._drawer = Drawer.of(signature, seed, samples)
        self._known: dict[tuple[tuple[str, int], ...], bool] = {}

    def runs(self, sizes: Sizes) -> bool:
        """Whether eager takes a feed at these sizes; False beyond the number of runs."""
        key = tuple(sorted(sizes.items()))
        if key not in self._known:
            if self.left <= 0 or not self._fits(sizes):
                return False
            self.left -= 1
            self._known[key] = self._try(dict(sizes))
        return self._known[key]

    def _fits(self, sizes: Sizes) -> bool:
        """Whether there is such a size, and a feed of it is not far larger than the largest."""
        most = {name: dim.high for name, dim in self.signature.free_dims.items()}
        limit = max(_LARGER * self._elements(most), _SMALL)
        return min(sizes.values(), default=1) >= 1 and self._elements(sizes) <= limit

    def _elements(self, sizes: Sizes) -> int:
        return sum(
            math.prod(dim.size(sizes) for dim in spec.dims) for spec in self.signature.inputs
        )

    def _try(self, sizes: dict[str, int]) -> bool:
        try:
            self._eager.run(self._drawer.feed("relation", sizes).arrays)
        except CheckpointError:
            return False
        return True


@contextmanager
def explaining(trials: Trials, sizes: Sizes) -> Iterator[None]:
    """Eager's rejection of a feed of these sizes, with the relation of dims that mends it."""
    try:
        yield
    except CheckpointError as error:
        found = related(error, trials, sizes)
        if found is None:
            raise
        raise CheckpointError(f"{error.message}: {found.said}", hint=found.write) from error


def related(error: CheckpointError, trials: Trials, sizes: Sizes) -> Fit | None:
    """What the dims must be for eager to run, where it rejects a feed of these sizes.

    Sizes are made equal, or made multiples, or moved into the range, one after another; a finding
    must run at other sizes too, and break where it is not kept.
    """
    if not error.message.startswith(_REJECTS) or not sizes:
        return None
    for find in (_line, _multiple, _end):
        found = find(trials, sizes)
        if found is not None:
            return found
    return None


def _line(trials: Trials, sizes: Sizes) -> Fit | None:
    """A dim whose size follows from another's."""
    dims = trials.signature.free_dims
    for first, second in _both_ways(list(dims)):
        for times, plus in _LINES:
            relation = Relation(base=first, times=times, plus=plus)
            places = ({**sizes, first: size} for size in _two(dims[first]))
            if all(_keeps(trials, at, second, relation) for at in places):
                return as_relation(trials.signature, second, relation)
    return None


def _both_ways(names: list[str]) -> Iterator[tuple[str, str]]:
    """Pairs with the later dim following from the earlier, then the other way round."""
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    yield from pairs
    yield from ((other, one) for one, other in pairs)


def _two(dim: Dim) -> tuple[int, int]:
    """Two sizes of a dim, apart from 1 where its range has them: 1 broadcasts."""
    low = min(max(dim.low, 2), dim.high)
    return low, max(min(dim.high, low + 1), low)


def _keeps(trials: Trials, sizes: Sizes, name: str, relation: Relation) -> bool:
    """Whether eager runs where the relation is kept, and does not one or two beside it."""
    size = relation.size(sizes[relation.base])
    kept = trials.runs({**sizes, name: size})
    return kept and not any(trials.runs({**sizes, name: size + by}) for by in (1, 2))


def _multiple(trials: Trials, sizes: Sizes) -> Fit | None:
    """Dims that must be multiples of the same number."""
    dims = trials.signature.free_dims
    names = list(dims)[1:] if len(dims) > 1 else list(dims)  # the first counts rows, most often
    for step in _STEPS:
        odd = {name: max(dims[name].opt // step | 1, 3) for name in names}  # no multiple of 2*step
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
            return _stepped(trials.signature, [dims[name] for name in kept], step)
    return None


def _stepped(signature: Signature, dims: Sequence[Dim], step: int) -> Fit:
    """Multiples of the step within each range, with a name of its own for each factor."""
    fits = []
    for number, dim in enumerate(dims):
        low = -(-dim.low // step) * step
        ends = low, max(dim.high // step * step, low)
        fits.append(multiples(signature, dim, step=step, ends=ends, number=number))
    return Fit(
        said=" and ".join(one.said for one in fits),
        write="write " + " and ".join(one.write.removeprefix("write ") for one in fits),
    )


def _end(trials: Trials, sizes: Sizes) -> Fit | None:
    """A dim that is below its least size, or above its greatest."""
    for name, dim in trials.signature.free_dims.items():
        if not trials.runs({**sizes, name: dim.opt}) or sizes[name] == dim.opt:
            continue
        last = _boundary(_at(trials, sizes, name), dim.opt, sizes[name])
        low, high = (last, dim.high) if sizes[name] < dim.opt else (dim.low, last)
        return narrower(trials.signature, dim, low, high)
    return None


def _at(trials: Trials, sizes: Sizes, name: str) -> Callable[[int], bool]:
    return lambda size: trials.runs({**sizes, name: size})


def _boundary(runs: Callable[[int], bool], good: int, bad: int) -> int:
    """The last size that runs on the way from one that does to one that does not, by halving."""
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if runs(middle):
            good = middle
        else:
            bad = middle
    return good
