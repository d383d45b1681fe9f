"""Search for the fewest layers to keep in floating point.

Layers are ranked by the noise that each adds alone; real artifacts are judged along the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

_MAX_FRUITLESS = 8  # layers in a row that could not be dropped: those left are needed too


@dataclass(frozen=True, kw_only=True)
class BudgetPoint:
    """What the artifact with some layers kept gave: whether the budget holds, SQNR in dB."""

    passed: bool
    sqnr: float | None = None


JudgeKept: TypeAlias = Callable[[tuple[int, ...]], BudgetPoint]


@dataclass(frozen=True, kw_only=True)
class LayerChoice:
    """The layers to keep, None where none was found; `ended` where the limit of trials did it."""

    kept: tuple[int, ...] | None
    ended: bool = False


def find_fewest(
    ranking: Ranking, target: float | None, judge: JudgeKept, more: Callable[[], bool]
) -> LayerChoice:
    """Find a small set of layers with which the budget holds.

    Prefixes of the ranking first: upward from the predicted count, by what is still missing and at
    most by doubling; then halving between the last that failed and the first that held. At last
    single layers are dropped from the set, the quietest first.

    Args:
        ranking: of the layers; the last of it is never kept: something must be in 8 bits.
        target: dB to aim at, None where the budget says none; whether a set holds is the judge's
            word alone.
        judge: makes and judges the artifact with these layers in floating point.
        more: whether another one is allowed.
    """
    low, high = _find_bracket(ranking, target, judge, more)
    if high is None:
        return LayerChoice(kept=None, ended=low < len(ranking.order) - 1)
    while high - low > 1:
        if not more():
            return LayerChoice(kept=ranking.order[:high], ended=True)
        middle = (low + high) // 2
        if judge(ranking.order[:middle]).passed:
            high = middle
        else:
            low = middle
    return _drop_unneeded(ranking, ranking.order[:high], judge, more)


def _find_bracket(
    ranking: Ranking, target: float | None, judge: JudgeKept, more: Callable[[], bool]
) -> tuple[int, int | None]:
    """The longest prefix that failed, and the first that held, if one did."""
    most = len(ranking.order) - 1
    low = 0
    count = min(1 if target is None else ranking.guess(target), most)
    while low < most and more():
        point = judge(ranking.order[:count])
        if point.passed:
            return low, count
        low = count
        count = min(most, _next_count(ranking, count, target, point))
    return low, None


def _next_count(ranking: Ranking, count: int, target: float | None, point: BudgetPoint) -> int:
    """A longer prefix: what would reach the target if all is as far off as this one was."""
    if target is None or point.sqnr is None or point.sqnr >= target:
        return 2 * count
    missed = ranking.predict(ranking.order[:count]) - point.sqnr
    return min(max(ranking.guess(target + missed), count + 1), 2 * count + 2)


def _drop_unneeded(
    ranking: Ranking, kept: tuple[int, ...], judge: JudgeKept, more: Callable[[], bool]
) -> LayerChoice:
    """The set without those of its layers that are not needed.

    Its last one is: the prefix without it has failed.
    """
    needed = 0
    for layer in sorted(kept[:-1], key=lambda layer: sum(ranking.noise[layer])):
        if needed == _MAX_FRUITLESS:
            break
        if not more():
            return LayerChoice(kept=kept, ended=True)
        fewer = tuple(other for other in kept if other != layer)
        if judge(fewer).passed:
            kept, needed = fewer, 0
        else:
            needed += 1
    return LayerChoice(kept=kept)


Noise: TypeAlias = tuple[float, ...]  # noise over signal (powers), one for each sample and output
Block: TypeAlias = tuple[int, ...]  # layers by index, neighbours
Measure: TypeAlias = Callable[[Block], Noise]  # of these layers in 8 bits

MAX_NOISE = 1e12  # of a noise: the output is lost, or not finite
_DOUBLE_COUNTING = 3.1  # dB: the most that counting each noise twice makes
_MAX_SINGLE = 48  # layers: so many are measured one by one, more in blocks first
_BLOCKS = 16
_NEGLIGIBLE = 0.25  # of what is allowed: blocks that stay below it together are not taken apart


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Layers by index in the order in which they are to be returned, and the noise of each."""

    order: tuple[int, ...]
    noise: tuple[Noise, ...]

    def predict(self, kept: Collection[int]) -> float:
        """SQNR in dB of the worst output, with these layers in floating point."""
        left = [noise for layer, noise in enumerate(self.noise) if layer not in kept]
        return to_decibel(max(map(math.fsum, zip(*left, strict=True)), default=0.0))

    def guess(self, target: float) -> int:
        """How many layers, one at least, are predicted to reach `target` dB."""
        for count in range(1, len(self.order)):
            if self.predict(self.order[:count]) >= target:
                return count
        return len(self.order)

    def scale_to(self, plain: float) -> Ranking:
        """The same order, with noises that add up to what plain INT8 has, an SQNR in dB.

        A tensor between two layers counts for both, so that the sum is too large. By no more than a
        few dB: noise that swamps the output is no sum any more.
        """
        over = max(self.predict(()) - plain, -_DOUBLE_COUNTING)
        if not over < 0:
            return self
        factor = 10 ** (over / 10)
        return replace(
            self, noise=tuple(tuple(entry * factor for entry in one) for one in self.noise)
        )


def rank_by_noise(noise: Sequence[Noise]) -> Ranking:
    """The order: always the layer that takes most from the output that is worst by then."""
    left = set(range(len(noise)))
    order: list[int] = []
    while left:
        sums = [math.fsum(entries) for entries in zip(*(noise[i] for i in sorted(left)))]  # noqa: B905 - alike
        worst = max(range(len(sums)), key=sums.__getitem__)
        order.append(max(sorted(left), key=lambda layer: (noise[layer][worst], sum(noise[layer]))))
        left.remove(order[-1])
    return Ranking(order=tuple(order), noise=tuple(noise))


def measure_noises(count: int, measure: Measure, *, allowed: float, most: int) -> tuple[Noise, ...]:
    """The noise of each of `count` layers, by at most `most` measurements.

    Up to 48 layers are measured one by one. Of more, blocks of neighbours are measured first; then
    always the loudest is halved, until all that are left are single layers or too quiet to matter.
    The noise of a block is shared evenly among its layers. So the number of measurements stays near
    that of the layers that matter, and where they are few, they go to the loudest.

    Args:
        count: how many layers there are.
        measure: runs a block.
        allowed: noise over signal that the budget allows.
        most: how often `measure` may be called, at least 2; what it answers from a cache counts.
    """
    everything = tuple(range(count))
    if count <= min(_MAX_SINGLE, most):
        found: dict[Block, Noise] = {(layer,): measure((layer,)) for layer in everything}
    else:
        whole = worst_noise(measure(everything))
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
    found: dict[Block, Noise], measure: Measure, least: float, *, halvings: int
) -> None:
    """Halve the loudest block, at most so often, while there is one that matters."""
    for _ in range(halvings):
        wide = [b for b, noise in found.items() if len(b) > 1 and worst_noise(noise) > least]
        if not wide:
            return
        loudest = max(wide, key=lambda block: worst_noise(found[block]))
        del found[loudest]
        half = len(loudest) // 2
        found |= {part: measure(part) for part in (loudest[:half], loudest[half:])}


def worst_noise(noise: Noise) -> float:
    """The largest of its entries."""
    return max(noise, default=0.0)


def to_decibel(noise: float) -> float:
    """SQNR in dB of a noise over signal; Inf without any."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
