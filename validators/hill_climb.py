"""Seeded hill climbing on feeds: change the feeds with the smallest margin to find a worse one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from ..core.signature import FLOATS, InputSpec
from .feed_values import ValueDistribution, make_generator
from .feeds import FeedDrawer, NamedFeed

if TYPE_CHECKING:
    import numpy as np

    from ..core.contract import Array, Feed

SEARCH = "search"
_KEPT = 8  # feeds to climb from at once, so as not to search one hill only
_STEPS = 1.0, 0.02  # of an input's spread: the first and the smallest step
_COOLING = 0.985  # reaches the smallest step after 250 changes
_FAR = 8.0  # spreads; exceeds any input's range, so that clipping gives the end of the range
_FRESH = 0.1  # share of steps that draw a new feed at random sizes instead

Score: TypeAlias = Callable[[NamedFeed], float | None]


@dataclass(frozen=True, kw_only=True)
class SearchPoint:
    """A feed and the artifact's margin on it in dB."""

    feed: NamedFeed
    headroom: float


@dataclass(frozen=True, kw_only=True)
class ClimbResult:
    """The worst feed found, and the number of feeds tried."""

    worst: SearchPoint
    tried: int


def hill_climb(
    starts: Sequence[SearchPoint], drawer: FeedDrawer, score: Score, *, more: Callable[[int], bool]
) -> ClimbResult:
    """Change the feeds with the smallest margin until `more` returns False or a margin is negative.

    The changes depend only on the drawer's seed and on earlier results, so a longer search starts
    with the same feeds. All feeds stay within the drawer's values and the declared sizes.

    Args:
        starts: at least one feed with its margin.
        drawer: the values of the inputs, and the seed.
        score: returns the margin on a feed in dB, negative over a limit; None if there is no
            result.
        more: called before each change with the number of feeds tried.
    """
    margin = attrgetter("headroom")
    kept = sorted(starts, key=margin)[:_KEPT]
    known = {point.feed.name for point in starts}
    tried = 0
    while more(tried) and kept[0].headroom >= 0:
        generator = make_generator(drawer.seed, SEARCH, tried)
        feed = _mutate_feed(kept, drawer, generator, tried)
        while feed.name in known:  # an earlier search used the name
            feed = replace(feed, name=f"{feed.name}+")
        headroom = score(feed)
        tried += 1
        if headroom is not None:
            found = SearchPoint(feed=feed, headroom=headroom)
            kept = sorted([*kept, found], key=margin)[:_KEPT]
    return ClimbResult(worst=kept[0], tried=tried)


def _mutate_feed(
    kept: Sequence[SearchPoint], drawer: FeedDrawer, generator: np.random.Generator, number: int
) -> NamedFeed:
    """Change one or all inputs of a kept feed, preferring the worst, or draw a new feed."""
    name = f"{SEARCH}-{number + 1}"
    if generator.random() < _FRESH:
        return replace(drawer.draw_seeded(name), kind=SEARCH)
    parent = kept[int(len(kept) * generator.random() ** 2)].feed
    others = [p.feed.arrays for p in kept if p.feed is not parent and _is_same_feed(p.feed, parent)]
    step = max(_STEPS[0] * _COOLING**number, _STEPS[1])
    names = [spec.name for spec in drawer.signature.inputs]
    if generator.random() < 0.5:  # noqa: PLR2004 - as often one input as all
        names = [names[int(generator.integers(len(names)))]]
    other = others[int(generator.integers(len(others)))] if others else None
    arrays = dict(parent.arrays)
    for spec in drawer.signature.inputs:
        if spec.name in names:
            change = _InputMutation(spec, drawer.values_in(spec, parent.arrays), generator, step)
            arrays[spec.name] = change(arrays[spec.name], other)
    return NamedFeed(name=name, arrays=arrays, sizes=parent.sizes, kind=SEARCH)


def _is_same_feed(one: NamedFeed, other: NamedFeed) -> bool:
    return all(one.arrays[name].shape == other.arrays[name].shape for name in one.arrays)


class _InputMutation:
    """Random change of one input; `step` is relative to the spread of its values."""

    def __init__(
        self,
        spec: InputSpec,
        values: ValueDistribution,
        generator: np.random.Generator,
        step: float,
    ) -> None:
        self.spec = spec
        self.values = values
        self.generator = generator
        self.step = step

    def __call__(self, array: Array, other: Feed | None) -> Array:
        import numpy as np

        if not array.size:
            return array
        if self.values.masks(self.spec):
            name = ("max", "opt", "random")[int(self.generator.integers(3))]
            return self.values.draw_mask(self.spec, array.shape, self.generator, name)
        if other is not None and self.generator.random() < 0.2:  # noqa: PLR2004 - one in five
            return self._blend(array, other[self.spec.name])
        if self.spec.dtype not in FLOATS:
            return self._sparse(array)
        ways = (self._scale, self._shift, self._noisy, self._flip, self._sparse, self._ends)
        found = ways[int(self.generator.integers(len(ways)))](array.astype(np.float64))
        return self.values.hold(found)

    @property
    def _spread(self) -> float:
        low, high = self.values.low, self.values.high
        if low is not None and high is not None:
            return (high - low) / 2
        return self.values.std or 1.0

    def _scale(self, array: Array) -> Array:
        return array * math.exp(self.step * self.generator.standard_normal())

    def _shift(self, array: Array) -> Array:
        return array + self.step * self._spread * self.generator.standard_normal()

    def _noisy(self, array: Array) -> Array:
        return array + self.step * self._spread * self.generator.standard_normal(array.shape)

    def _flip(self, array: Array) -> Array:
        import numpy as np

        mirrored = self.values.mirror(array).astype(np.float64)
        return np.where(self._some(array), mirrored, array)

    def _ends(self, array: Array) -> Array:
        """Move some elements to an end of the input's range."""
        import numpy as np

        far = array + self.generator.choice((-1.0, 1.0)) * _FAR * self._spread
        return np.where(self._some(array), far, array)

    def _sparse(self, array: Array) -> Array:
        """Redraw some elements; for integers, one token or more."""
        import numpy as np

        fresh = self.values.draw(array.shape, self.generator)
        return np.asarray(np.where(self._some(array), fresh, array)).astype(array.dtype)

    def _some(self, array: Array) -> Array:
        """Choose random elements, at least one, and fewer as the steps get smaller."""
        import numpy as np

        share = self.generator.random() * min(self.step, 0.5)
        chosen = np.asarray(self.generator.random(array.shape) < share)
        chosen.reshape(-1)[int(self.generator.integers(array.size))] = True
        return chosen

    def _blend(self, array: Array, other: Array) -> Array:
        """Blend with another feed; for integers, copy some of its elements."""
        import numpy as np

        if self.spec.dtype not in FLOATS:
            return np.where(self._some(array), other, array)
        part = self.generator.random()
        return self.values.hold(part * array.astype(np.float64) + (1 - part) * other)
