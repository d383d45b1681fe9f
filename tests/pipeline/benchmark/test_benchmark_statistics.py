"""Ratios of paired rounds: equal rows are no difference, and a slower one is found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from modelc.core.records import Interval
from modelc.pipeline.benchmark.benchmark_plan import BenchmarkPoint
from modelc.pipeline.benchmark.benchmark_records import (
    BenchmarkMachine,
    BenchmarkReport,
    BenchmarkRow,
    RowTimes,
)
from modelc.pipeline.benchmark.benchmark_statistics import (
    compare_reports,
    compare_speedups,
    find_rivals,
    group_equals,
    group_unclear,
    median_interval,
    pareto_front,
    ratio_interval,
    summarize_point,
)
from modelc.pipeline.benchmark.timed_turns import MAX_ROUNDS, MIN_ROUNDS, plan_rounds

ROUNDS, RUNS = 25, 4
POINT = BenchmarkPoint(sizes={}, samples=8)


def turns(seed: int, *, factor: float = 1.0, weather: int = 99) -> list[tuple[float, ...]]:
    """Milliseconds of runs whose machine slows all rows of a round alike."""
    common = np.random.default_rng(weather).uniform(1, 2, ROUNDS)
    own = np.random.default_rng(seed).normal(1, 0.02, (ROUNDS, RUNS))
    return [tuple(10 * factor * common[i] * own[i]) for i in range(ROUNDS)]


def test_the_median_lies_within_its_interval() -> None:
    median, interval = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert median == 3.0
    assert 1.0 <= interval.low < 3.0 < interval.high <= 5.0


@pytest.mark.parametrize("seed", range(20))
def test_equal_rows_are_no_difference_and_a_fifth_is(seed: int) -> None:
    rows = {
        "eager": turns(3 * seed), "same": turns(3 * seed + 1),
        "slow": turns(3 * seed + 2, factor=1.2),
    }  # fmt: skip
    found = summarize_point(rows, BenchmarkPoint(sizes={"batch": 4}, samples=4), {}, "eager")
    assert found["same"].equals == ("eager",)
    assert found["eager"].equals == ("same",)
    assert found["slow"].equals == ()
    assert found["slow"].speedup == pytest.approx(1 / 1.2, rel=0.02)


def test_what_slows_a_round_does_not_widen_the_ratio() -> None:
    """The rounds differ by a factor of two, the pairs by a few percent."""
    one = [float(np.median(runs)) for runs in turns(1)]
    other = [float(np.median(runs)) for runs in turns(2)]
    _, alone = median_interval(one)
    _, paired = ratio_interval(one, other)
    assert alone.high / alone.low > 1.2
    assert paired.high / paired.low < 1.05


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.99, 1.01, False), (1.01, 1.5, False), (1.02, 1.04, False), (1.04, 1.1, True),
     (0.9, 0.96, True), (0.5, 2.0, False)],
)  # fmt: skip
def test_a_difference_is_beyond_the_noise_with_all_of_its_interval(
    low: float, high: float, expected: bool
) -> None:
    assert Interval(low=low, high=high).is_difference is expected


def test_the_figures_of_a_row() -> None:
    rounds = {"onnx": [(2.0, 4.0), (4.0,), (4.0, 10.0)]}
    found = summarize_point(rounds, POINT, {}, "eager")["onnx"]
    assert found.median == 4.0
    assert found.throughput == 8 / 4.0e-3
    assert (found.runs, found.rounds, found.speedup) == (5, 3, None)
    assert 4.0 < found.p90 < 10.0


def test_rows_with_a_wide_interval_are_neither_equal_nor_different() -> None:
    eager = [(10.0,)] * 12
    other = [(7.0,), (14.0,)] * 6
    found = summarize_point({"eager": eager, "other": other}, POINT, {}, "eager")["other"]
    assert (found.equals, found.unclear) == ((), ("eager",))


def test_requests_in_flight_count_as_samples_of_their_time() -> None:
    rounds = {"eager": [(4.0,), (4.0,)], "several": [(6.0,), (6.0,)]}
    several = summarize_point(rounds, POINT, {"several": 3}, "eager")["several"]
    assert several.median == 6.0  # of each request, among the others
    assert several.throughput == 3 * 8 / 6.0e-3
    assert several.speedup == pytest.approx(2.0)


def rows(speedup: float, *, width: float = 0.02, batch: int = 1) -> list[BenchmarkRow]:
    times = RowTimes(
        sizes={"batch": batch}, median=1.0, interval=Interval(low=1.0, high=1.0), p90=1.0,
        throughput=1.0, runs=9, rounds=9, speedup=speedup,
        speedup_interval=Interval(low=speedup * (1 - width), high=speedup * (1 + width)),
    )  # fmt: skip
    return [
        BenchmarkRow(name="onnx", runtime="", precision="fp32", verdict="passed", times=(times,))
    ]


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (rows(2.0), rows(1.6), "slower"),
        (rows(2.0), rows(2.5), "faster"),
        (rows(2.0), rows(1.96), ""),
        (rows(2.0, width=0.3), rows(1.6), "unclear"),
        (rows(2.0), rows(2.0, width=0.1), "unclear"),
    ],
)
def test_a_speed_up_changes_only_beyond_both_intervals(
    before: list[BenchmarkRow], now: list[BenchmarkRow], change: str
) -> None:
    (found,) = compare_speedups(before, now)
    states = [name for name in ("slower", "faster", "unclear") if getattr(found, name)]
    assert states == ([change] if change else [])


def row_at(name: str, equals: tuple[str, ...], unclear: tuple[str, ...] = ()) -> tuple[
    BenchmarkRow, RowTimes
]:  # fmt: skip
    (row,) = rows(1.0)
    return replace(row, name=name), replace(row.times[0], equals=equals, unclear=unclear)


def test_rows_that_are_equal_are_named_once() -> None:
    found = [
        row_at("a", ("b",)), row_at("b", ("a", "c", "d")), row_at("c", ("b", "d")),
        row_at("d", ("b", "c")), row_at("e", ()),
    ]  # fmt: skip
    assert group_equals(found) == (("b", "a", "c", "d"),)


def test_a_pair_that_is_not_known_is_named_once() -> None:
    found = [row_at("a", (), ("b", "c")), row_at("b", (), ("a",)), row_at("c", (), ("a",))]
    assert group_unclear(found) == (("a", ("b", "c")),)


def report(folder: str, *found: BenchmarkRow, threads: int = 1) -> BenchmarkReport:
    machine = BenchmarkMachine(
        processor="", cores=1, memory=0, system="", python="3.12", versions={}
    )
    return BenchmarkReport(
        schema_version=1, modelc="0.1", date="2026-11-26", folder=folder, checkpoint="ab",
        device="cpu", threads=threads, seconds=1, machine=machine, rows=found,
    )  # fmt: skip


def test_a_comparison_says_what_it_cannot_compare() -> None:
    now = report("out", *rows(1.0))
    assert compare_reports([report("else", *rows(2.0))], now).compared[0].slower
    same = compare_reports([report("out", *rows(1.0))], now)
    assert same.compared
    assert not same.notes
    for other in (
        compare_reports([report("out", *rows(1.0, batch=2))], now),
        compare_reports([report("else", *rows(1.0))], now, several=True),
    ):
        assert (other.compared, len(other.notes)) == ((), 1)
    threads = compare_reports([report("out", *rows(1.0), threads=4)], now)
    assert threads.compared
    assert len(threads.notes) == 1


def test_other_points_are_not_compared() -> None:
    assert compare_speedups(rows(2.0), rows(1.0, batch=2)) == ()


@pytest.mark.parametrize(
    ("rows", "front"),
    [
        ({}, ()),
        ({"alone": (3.0, 40.0)}, ("alone",)),
        ({"slow": (3.0, 90.0), "fast": (1.0, 40.0), "lost": (3.5, 80.0)}, ("fast", "slow")),
        ({"one": (2.0, 50.0), "two": (2.0, 50.0)}, ("one", "two")),
        ({"worse": (2.0, 40.0), "better": (2.0, 50.0)}, ("better",)),
        ({"slower": (3.0, 50.0), "faster": (2.0, 50.0)}, ("faster",)),
        ({"exact": (2.0, math.inf), "near": (2.0, 150.0)}, ("exact",)),
        ({"exact": (2.0, math.inf), "late": (3.0, math.inf)}, ("exact",)),
        ({"none": (1.0, None), "nan": (1.0, math.nan), "known": (2.0, 1.0)}, ("known",)),
        ({"never": (math.inf, 90.0), "nan": (math.nan, 90.0)}, ()),
    ],
)
def test_the_front_holds_what_no_row_dominates(
    rows: dict[str, tuple[float, float | None]], front: tuple[str, ...]
) -> None:
    assert pareto_front(rows) == front


@pytest.mark.parametrize("seconds", [0.1, 3.0, 20.0, 600.0])
@pytest.mark.parametrize("runs", [[0.00002], [0.03, 0.005], [0.2, 0.001], [2.0, 0.001]])
def test_each_call_runs_for_the_seconds(seconds: float, runs: list[float]) -> None:
    rounds = plan_rounds(seconds, runs)
    assert MIN_ROUNDS <= rounds.count <= MAX_ROUNDS
    for run, turn in zip(runs, rounds.turns, strict=True):
        assert turn >= run
        assert rounds.count * turn >= 0.95 * seconds
        least = MIN_ROUNDS * max(run, 0.25)
        assert rounds.count * turn <= max(1.1 * seconds, least)


def test_rows_that_may_be_as_fast_as_the_best_are_named() -> None:
    best = row_at("onnx", (), ("eager", "onnx:default", "pt2"))
    eager, default = row_at("eager", ()), row_at("onnx:default", ())
    found = [
        best, row_at("pt2", ()), (replace(eager[0], verdict="reference"), eager[1]),
        (replace(default[0], verdict="not judged"), default[1]),
    ]  # fmt: skip
    assert find_rivals(found, best[1]) == ("eager", "pt2")
