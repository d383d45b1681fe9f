"""Which quantized layers to return to floating point first, by the noise that each brings alone.

Noises of layers are nearly independent, so that their powers add up: the noise that is left when
some are returned is predicted by a sum. Prediction only orders and guesses; what counts is judged
on real artifacts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Noise: TypeAlias = tuple[float, ...]  # noise over signal (powers), one for each sample and output
Measure: TypeAlias = Callable[[tuple[int, ...]], Noise]  # of these layers, by index, in 8 bits

MOST = 1e12  # of a noise: the output is lost, or not finite
_SINGLY = 48  # layers: so many are measured one by one, more in blocks first
_BLOCKS = 16
_NEGLIGIBLE = 0.25  # of what is allowed: blocks that stay below it together are not taken apart


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Layers by index in the order in which they are to be returned, and the noise of each."""

    order: tuple[int, ...]
    noise: tuple[Noise, ...]

    def predicted(self, kept: Collection[int]) -> float:
        """SQNR in dB of the worst output, with these layers in floating point."""
        left = [noise for layer, noise in enumerate(self.noise) if layer not in kept]
        return decibel(max(map(math.fsum, zip(*left, strict=True)), default=0.0))

    def guess(self, target: float) -> int:
        """How many layers, one at least, are predicted to reach `target` dB."""
        for count in range(1, len(self.order)):
            if self.predicted(self.order[:count]) >= target:
                return count
        return len(self.order)


def ranked(noise: Sequence[Noise]) -> Ranking:
    """The order: always the layer that takes most from the output that is worst by then."""
    left = set(range(len(noise)))
    order: list[int] = []
    while left:
        sums = [math.fsum(entries) for entries in zip(*(noise[i] for i in sorted(left)))]  # noqa: B905 - alike
        worst = max(range(len(sums)), key=sums.__getitem__)
        order.append(max(sorted(left), key=lambda layer: (noise[layer][worst], sum(noise[layer]))))
        left.remove(order[-1])
    return Ranking(order=tuple(order), noise=tuple(noise))


def noises(
    count: int, measure: Measure, *, allowed: float, more: Callable[[], bool]
) -> tuple[Noise, ...]:
    """The noise of each of `count` layers.

    Up to 48 are measured one by one. Of more, blocks of neighbours are measured and halved until
    they are single layers or too quiet to matter; a quiet block's noise is shared out evenly. So
    the number of runs stays near that of the layers that matter.

    Args:
        count: how many layers there are.
        measure: runs a block.
        allowed: noise over signal that the budget allows.
        more: whether there is time; without, a block stays whole, and those not yet measured count
            as quiet, so that they are returned last.
    """
    everything = tuple(range(count))
    size, least = 1, 0.0
    if count > _SINGLY:
        least = _NEGLIGIBLE * min(allowed, worst_of(measure(everything))) / _BLOCKS
        size = -(-count // _BLOCKS)
    found: dict[int, Noise] = {}
    for start in range(0, count, size):
        block = everything[start : start + size]
        if found and not more():
            found |= dict.fromkeys(block, (0.0,) * len(found[0]))
        else:
            found |= _taken_apart(block, measure, least, more)
    return tuple(found[layer] for layer in everything)


def _taken_apart(
    block: tuple[int, ...], measure: Measure, least: float, more: Callable[[], bool]
) -> dict[int, Noise]:
    noise = measure(block)
    if len(block) == 1 or worst_of(noise) <= least or not more():
        return dict.fromkeys(block, tuple(entry / len(block) for entry in noise))
    half = len(block) // 2
    return _taken_apart(block[:half], measure, least, more) | _taken_apart(
        block[half:], measure, least, more
    )


def worst_of(noise: Noise) -> float:
    """The largest of its entries."""
    return max(noise, default=0.0)


def decibel(noise: float) -> float:
    """SQNR in dB of a noise over signal; Inf without any."""
    return -10 * math.log10(noise) if noise > 0 else math.inf
