"""The fewest layers to keep in floating point: a search over real artifacts, by a ranking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .budget_ranking import Ranking

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
