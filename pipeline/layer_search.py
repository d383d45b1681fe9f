"""Search for the fewest layers to keep in floating point.

Layers are ranked by the noise that each adds alone. The search builds and judges artifacts for
prefixes of the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..core.findings import TradeOff

_MAX_FRUITLESS = 8  # stop after so many consecutive layers that cannot be dropped


Layers: TypeAlias = tuple[int, ...]  # indices of layers
TryLayers: TypeAlias = Callable[[Layers], TradeOff]


@dataclass(frozen=True, kw_only=True)
class LayerChoice:
    """The chosen layers.

    Attributes:
        kept: layers to keep in floating point; None if no set meets the budget.
        ended: whether the limit on trials ended the search.
    """

    kept: Layers | None
    ended: bool = False


def find_fewest(
    ranking: Ranking, target: float | None, try_layers: TryLayers, more: Callable[[], bool]
) -> LayerChoice:
    """Find a small set of layers that meets the budget when kept in floating point.

    Try prefixes of the ranking first: grow from the predicted count, at most doubling it, then
    bisect between the last prefix that failed and the first that passed. Finally, drop single
    layers from the set, the quietest first.

    Args:
        ranking: the ranked layers. The last one is never kept, so that one stays in 8 bits.
        target: SQNR in dB that guides the search, or None; `try_layers` alone decides whether a
            set passes.
        try_layers: builds and judges the artifact with these layers in floating point.
        more: returns whether another trial is allowed.
    """
    low, high = _find_bracket(ranking, target, try_layers, more)
    if high is None:
        return LayerChoice(kept=None, ended=low < len(ranking.order) - 1)
    while high - low > 1:
        if not more():
            return LayerChoice(kept=ranking.order[:high], ended=True)
        middle = (low + high) // 2
        if try_layers(ranking.order[:middle]).passed:
            high = middle
        else:
            low = middle
    return _drop_unneeded(ranking, ranking.order[:high], try_layers, more)


def _find_bracket(
    ranking: Ranking, target: float | None, try_layers: TryLayers, more: Callable[[], bool]
) -> tuple[int, int | None]:
    """Return the lengths of the longest failed prefix and of the first that passed, or None."""
    most = len(ranking.order) - 1
    low = 0
    count = min(1 if target is None else ranking.guess(target), most)
    while low < most and more():
        point = try_layers(ranking.order[:count])
        if point.passed:
            return low, count
        low, further = count, 2 * count
        if target is not None and point.sqnr is not None and point.sqnr < target:
            # assume that the prediction error stays the same
            missed = ranking.predict(ranking.order[:count]) - point.sqnr
            further = min(max(ranking.guess(target + missed), count + 1), 2 * count + 2)
        count = min(most, further)
    return low, None


def _drop_unneeded(
    ranking: Ranking, kept: Layers, try_layers: TryLayers, more: Callable[[], bool]
) -> LayerChoice:
    """Drop layers that are not needed to meet the budget.

    The last layer is needed, since the prefix without it failed.
    """
    needed = 0
    for layer in sorted(kept[:-1], key=lambda layer: sum(ranking.noise[layer])):
        if needed == _MAX_FRUITLESS:
            break
        if not more():
            return LayerChoice(kept=kept, ended=True)
        fewer = tuple(other for other in kept if other != layer)
        if try_layers(fewer).passed:
            kept, needed = fewer, 0
        else:
            needed += 1
    return LayerChoice(kept=kept)


Noise: TypeAlias = tuple[float, ...]  # noise over signal (powers), per sample and output
Measure: TypeAlias = Callable[[Layers], Noise]  # noise with these adjacent layers in 8 bits

MAX_NOISE = 1e12  # for an output that is lost or not finite
_DOUBLE_COUNTING = 3.1  # dB; upper bound on the effect of counting each noise twice
_MAX_SINGLE = 48  # up to so many layers are measured one by one, more in blocks
_BLOCKS = 16
_NEGLIGIBLE = 0.25  # share of the allowed noise; quieter blocks are not split


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Layers in the order in which to return them to floating point.

    Attributes:
        order: layer indices.
        noise: noise of each layer, by index.
    """

    order: Layers
    noise: tuple[Noise, ...]

    def predict(self, kept: Collection[int]) -> float:
        """Predict the SQNR in dB of the worst output with these layers in floating point."""
        left = [noise for layer, noise in enumerate(self.noise) if layer not in kept]
        return to_decibel(max(map(math.fsum, zip(*left, strict=True)), default=0.0))

    def guess(self, target: float) -> int:
        """Return the number of layers, at least 1, that is predicted to give `target` dB."""
        for count in range(1, len(self.order)):
            if self.predict(self.order[:count]) >= target:
                return count
        return len(self.order)

    def scale_to(self, plain: float) -> Ranking:
        """Scale the noises so that their sum matches the SQNR of plain INT8 (`plain`, in dB).

        The sum is too large, because a tensor between two layers counts for both. Limit the
        correction to `_DOUBLE_COUNTING` dB: noise that dominates the output is not additive.
        """
        over = max(self.predict(()) - plain, -_DOUBLE_COUNTING)
        if not over < 0:
            return self
        factor = 10 ** (over / 10)
        return replace(
            self, noise=tuple(tuple(entry * factor for entry in one) for one in self.noise)
        )


def rank_by_noise(noise: Sequence[Noise]) -> Ranking:
    """Rank greedily: next is the layer that adds most noise to the output that is now worst."""
    left = set(range(len(noise)))
    order: list[int] = []
    while left:
        sums = [math.fsum(entries) for entries in zip(*(noise[i] for i in sorted(left)))]  # noqa: B905 - alike
        worst = max(range(len(sums)), key=sums.__getitem__)
        order.append(max(sorted(left), key=lambda layer: (noise[layer][worst], sum(noise[layer]))))
        left.remove(order[-1])
    return Ranking(order=tuple(order), noise=tuple(noise))


def measure_noises(count: int, measure: Measure, *, allowed: float, most: int) -> tuple[Noise, ...]:
    """Return the noise of each of `count` layers, with at most `most` measurements.

    Up to `_MAX_SINGLE` layers are measured one by one. For more, measure blocks of adjacent layers
    and repeatedly halve the loudest block, until only single layers and negligible blocks are
    left. The layers of a block share its noise equally. The number of measurements thus depends
    on the number of noisy layers, and a small limit goes to the loudest ones.

    Args:
        count: number of layers.
        measure: measures the noise of a block.
        allowed: noise over signal that the budget allows.
        most: maximum number of calls of `measure`, at least 2; cached results count.
    """
    everything = tuple(range(count))
    if count <= min(_MAX_SINGLE, most):
        found: dict[Layers, Noise] = {(layer,): measure((layer,)) for layer in everything}
    else:
        whole = max(measure(everything), default=0.0)
        size = -(-count // min(_BLOCKS, most - 1))
        blocks = [everything[at : at + size] for at in range(0, count, size)]
        found = {block: measure(block) for block in blocks}
        least = _NEGLIGIBLE * min(allowed, whole) / _BLOCKS
        _split_blocks(found, measure, least, halvings=(most - 1 - len(blocks)) // 2)
    shared = {
        layer: tuple(entry / len(block) for entry in noise)
        for block, noise in found.items()
        for layer in block
    }
    return tuple(shared[layer] for layer in everything)


def _split_blocks(
    found: dict[Layers, Noise], measure: Measure, least: float, *, halvings: int
) -> None:
    """Halve the loudest block up to `halvings` times, while one exceeds `least`."""
    for _ in range(halvings):
        wide = {block: max(found[block], default=0.0) for block in found if len(block) > 1}
        loudest = max(wide, key=wide.__getitem__, default=())
        if wide.get(loudest, 0.0) <= least:
            return
        del found[loudest]
        half = len(loudest) // 2
        found |= {part: measure(part) for part in (loudest[:half], loudest[half:])}


def to_decibel(noise: float) -> float:
    """Convert noise over signal to SQNR in dB; Inf for zero noise."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
