"""Which layers go back to floating point: the ranking and the search, without any model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from modelc.core.findings import TradeOff
from modelc.pipeline.layer_search import (
    MAX_NOISE,
    LayerChoice,
    Noise,
    Ranking,
    find_fewest,
    measure_noises,
    rank_by_noise,
    to_decibel,
)


class Bed:
    """Artifacts by arithmetic: noises of layers add up, `hidden` is there whatever is kept."""

    def __init__(self, noise: list[float], target: float, hidden: float = 0.0) -> None:
        self.noise, self.target, self.hidden = noise, target, hidden
        self.judged: list[tuple[int, ...]] = []
        self.ranking = rank_by_noise([(one,) for one in noise])

    def judge(self, kept: tuple[int, ...]) -> TradeOff:
        assert len(kept) < len(self.noise), "nothing would be left in 8 bits"
        self.judged.append(tuple(sorted(kept)))
        sqnr = to_decibel(self.hidden + sum(n for i, n in enumerate(self.noise) if i not in kept))
        return TradeOff(kept=(), passed=sqnr >= self.target, sqnr=sqnr)

    def find(self, more: Callable[[], bool] = lambda: True) -> LayerChoice:
        return find_fewest(self.ranking, self.target, self.judge, more)


def test_layers_are_ranked_by_the_output_that_is_worst_by_then() -> None:
    loud, quiet, other = (1e-2, 0.0), (1e-3, 1e-6), (0.0, 5e-3)
    assert rank_by_noise([quiet, other, loud]).order == (2, 1, 0)


def test_a_layer_that_loses_an_output_comes_first() -> None:
    assert rank_by_noise([(1e-2,), (MAX_NOISE,), (1e-3,)]).order[0] == 1


def test_the_remaining_noise_is_predicted_by_a_sum() -> None:
    ranking = rank_by_noise([(1e-3,), (1e-2,), (1e-4,)])
    assert ranking.predict(()) == pytest.approx(-10 * math.log10(1.11e-2))
    assert ranking.predict((1,)) == pytest.approx(-10 * math.log10(1.1e-3))
    assert ranking.predict((0, 1, 2)) == math.inf
    assert ranking.guess(29.0) == 1
    assert ranking.guess(35.0) == 2


def test_noise_that_was_counted_twice_keeps_no_more_layers() -> None:
    """Each layer was measured with its neighbour's tensor: 3 dB too much in all predictions."""
    bed = Bed([1e-4] * 20, target=30.0)
    twice = rank_by_noise([(2e-4,)] * 20)
    plain = bed.judge(()).sqnr
    assert plain is not None
    assert twice.scale_to(plain).predict(twice.order[:8]) == pytest.approx(
        to_decibel(12e-4), abs=0.05
    )
    assert twice.scale_to(plain).guess(30.0) == 10 < twice.guess(30.0)
    assert bed.ranking.scale_to(plain - 20) is bed.ranking  # noise that no layer has stays unseen


def test_two_loud_layers_of_forty_are_found_in_a_few_trials() -> None:
    noise = [1e-6] * 40
    noise[7], noise[23] = 1e-1, 3e-2
    bed = Bed(noise, target=40.0)
    assert set(bed.find().kept or ()) == {7, 23}
    assert len(bed.judged) <= 4


def test_noise_that_the_ranking_did_not_see_costs_more_layers_not_the_budget() -> None:
    bed = Bed([2.0**-i * 1e-2 for i in range(30)], target=36.0, hidden=1e-4)
    found = bed.find()
    assert found.kept is not None
    assert bed.judge(found.kept).passed
    assert not bed.judge(found.kept[:-1]).passed


def test_a_layer_that_is_not_needed_is_dropped_again() -> None:
    """The second looks as loud as the first, and is not: they share a tensor."""

    def judge(kept: tuple[int, ...]) -> TradeOff:
        return TradeOff(kept=(), passed=1 in kept, sqnr=40.0 if 1 in kept else 5.0)

    ranking = rank_by_noise([(2e-1,), (1e-1,), (1e-7,), (1e-7,)])
    assert find_fewest(ranking, 30.0, judge, lambda: True).kept == (1,)


def test_a_budget_without_decibels_is_met_by_doubling() -> None:
    judged: list[int] = []

    def judge(kept: tuple[int, ...]) -> TradeOff:
        judged.append(len(kept))
        return TradeOff(kept=(), passed=set(range(5)) <= set(kept), sqnr=20.0)

    ranking = rank_by_noise([(1.0 / (i + 1),) for i in range(64)])
    found = find_fewest(ranking, None, judge, lambda: True)
    assert sorted(found.kept or ()) == [0, 1, 2, 3, 4]
    assert judged[:4] == [1, 2, 4, 8]


def test_the_last_layer_is_never_returned() -> None:
    bed = Bed([1e-2, 1e-2, 1e-2], target=60.0)
    found = bed.find()
    assert found == LayerChoice(kept=None, ended=False)
    assert max(map(len, bed.judged)) == 2


def test_a_model_of_one_layer_is_not_searched() -> None:
    bed = Bed([1e-2], target=60.0)
    assert bed.find() == LayerChoice(kept=None, ended=False)
    assert bed.judged == []


def test_a_trial_that_breaks_is_a_trial_that_misses() -> None:
    def judge(kept: tuple[int, ...]) -> TradeOff:
        return (
            TradeOff(kept=(), passed=False)
            if len(kept) < 3
            else TradeOff(kept=(), passed=True, sqnr=50.0)
        )

    ranking = rank_by_noise([(1e-1,), (1e-2,), (1e-3,), (1e-4,), (1e-5,)])
    assert len(find_fewest(ranking, 12.0, judge, lambda: True).kept or ()) == 3


@pytest.mark.parametrize("trials", [0, 1, 2, 3, 5])
def test_it_ends_after_the_trials_allowed_with_the_best_so_far(trials: int) -> None:
    bed = Bed([2.0**-i * 1e-2 for i in range(40)], target=40.0, hidden=5e-5)
    found = bed.find(more=lambda: len(bed.judged) < trials)
    assert len(bed.judged) <= trials
    assert found.ended
    if found.kept is not None:
        assert bed.judge(found.kept).passed


def test_few_layers_are_measured_one_by_one() -> None:
    measured: list[tuple[int, ...]] = []

    def measure(layers: tuple[int, ...]) -> Noise:
        measured.append(layers)
        return (float(layers[0]),)

    found = measure_noises(5, measure, allowed=1.0, most=5)
    assert found == tuple((float(i),) for i in range(5))
    assert measured == [(i,) for i in range(5)]


def ranked_by(
    most: int, noise: Callable[[int], float], count: int = 512, *, used: int | None = None
) -> Ranking:
    """The ranking by at most `most` measurements, of which it takes at most `used`."""
    measured: list[tuple[int, ...]] = []
    allowed = 1e-6 if used is None else 1e-3

    def measure(layers: tuple[int, ...]) -> Noise:
        measured.append(layers)
        return (sum(map(noise, layers)),)

    found = measure_noises(count, measure, allowed=allowed, most=most)
    assert len(measured) <= (used or most)
    return rank_by_noise(found)


def test_only_loud_blocks_of_many_layers_are_split() -> None:
    few = 1 + 16 + 2 * 2 * 5
    ranking = ranked_by(1000, lambda layer: 1e-2 if layer in (17, 444) else 1e-9, used=few)
    assert set(ranking.order[:2]) == {17, 444}


def test_with_few_measurements_the_loudest_block_is_split_first() -> None:
    ranking = ranked_by(1 + 16 + 10, lambda layer: 1e-2 if layer == 444 else 1e-4)
    assert ranking.order[0] == 444


@pytest.mark.parametrize("most", [2, 3, 4, 17, 18, 19, 128])
@pytest.mark.parametrize("count", [1, 2, 10, 48, 49, 512])
def test_no_more_is_measured_than_allowed_and_every_layer_has_a_noise(
    most: int, count: int
) -> None:
    ranking = ranked_by(most, lambda layer: 1e-4 / (1 + layer), count=count)
    assert sorted(ranking.order) == list(range(count))
    whole = math.fsum(1e-4 / (1 + layer) for layer in range(count))
    assert ranking.predict(()) == pytest.approx(to_decibel(whole))


def test_with_few_measurements_layers_are_measured_in_blocks() -> None:
    ranking = ranked_by(4, lambda layer: 1e-2 if layer == 7 else 1e-6, count=10)
    assert set(ranking.order[:4]) == {4, 5, 6, 7}
