"""Turns of timed calls: warm-up, rounds of turns, and waits until the threads are idle.

A row's child and a step that compares two models of one process measure with these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from ...core.contract import Deferred, Feed, Native, Target
from ...core.signature import Signature
from ...core.target_extensions import Deployable, Preparing
from .benchmark_machine import LoadWatch

if TYPE_CHECKING:
    from ...core.contract import Runner

TimedCall: TypeAlias = Callable[[], float]  # runs a model once and returns the milliseconds
MIN_ROUNDS, MAX_ROUNDS = 11, 60
_TURN, _MAX_TURN = 0.08, 0.25  # seconds; a run that takes longer is a turn
_RUNS_PER_TURN = 3
_IDLE_WINDOW, _MAX_IDLE_WAIT = 0.005, 0.5  # seconds
_IDLE_SHARE = 0.1  # of one core, in a window
_STABLE = 0.03  # relative change of the median between two batches of warm-up runs
_MIN_WARMUP, _MAX_WARMUP = 0.3, 10.0  # seconds
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class WarmCall:
    """The runs of a call are stable at so many milliseconds, or did not become so."""

    milliseconds: float
    stable: bool


def open_for_timing(
    target: Target, path: Path, device: str, signature: Signature, *, trust: bool = False
) -> Runner:
    """Open an artifact as it is deployed, with the settings of the judge.

    An ONNX is the file itself: the judge runs a copy of a half one on the CPU.

    Raises:
        RunnerError: the runtime cannot open it.
    """
    if isinstance(target, Deployable):
        return target.open_deployment(path, "", device, signature)
    if isinstance(target, Deferred | Native):
        settings = {"trust_engine": "true"} if trust else {}
        return target.open_runner(path, device, signature, settings)
    return target.open_runner(path, device, signature)


def prepare_call(runner: Runner, feed: Feed) -> Callable[[], object]:
    """Return a call on the feed in the runtime's own form, where the runner has one."""
    if isinstance(runner, Preparing):
        return runner.prepare(feed)
    return lambda: runner.run(feed)


def time_call(call: Callable[[], object], rounds: int = 1) -> TimedCall:
    """Return the call as a timed one, of one of the `rounds` that it runs."""

    def measure() -> float:
        began = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - began) / rounds

    return measure


def warm_up(call: TimedCall) -> WarmCall:
    """Run until the medians of two batches of runs agree."""
    began, before = time.perf_counter(), 0.0
    while True:
        now = median(_run_for(call, _MIN_WARMUP / 2))
        spent, stable = time.perf_counter() - began, abs(now - before) <= _STABLE * now
        before = now
        if (stable and spent >= _MIN_WARMUP) or spent > _MAX_WARMUP:
            return WarmCall(milliseconds=now, stable=stable)


def take_turn(call: TimedCall, seconds: float) -> tuple[float, ...]:
    """Run for so many seconds, at least once; wait until the threads are idle."""
    runs = _run_for(call, seconds)
    wait_until_idle()
    return runs


def _run_for(call: TimedCall, seconds: float) -> tuple[float, ...]:
    began = time.perf_counter()
    runs = [call()]
    while time.perf_counter() - began < seconds:
        runs.append(call())
    return tuple(runs)


def wait_until_idle() -> None:
    """Wait until no thread of this process spins for further work."""
    began = time.perf_counter()
    while time.perf_counter() - began < _MAX_IDLE_WAIT:
        cpu = time.process_time()
        time.sleep(_IDLE_WINDOW)
        if time.process_time() - cpu < _IDLE_SHARE * _IDLE_WINDOW:
            return


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The number of rounds, and the seconds of each call in a round."""

    count: int
    turns: tuple[float, ...]


def plan_rounds(seconds: float, runs: Sequence[float]) -> Rounds:
    """Return the rounds that give each call so many seconds; a run of each takes `runs` seconds.

    A turn lasts three runs of the call, but at least 0.08 s and at most 0.25 s or one run. The call
    with the longest turn says how many rounds there are, and turns of the others are so much longer
    that all have their seconds.
    """
    turns = [max(run, min(max(_TURN, _RUNS_PER_TURN * run), _MAX_TURN)) for run in runs]
    count = min(max(round(seconds / max(turns, default=1.0)), MIN_ROUNDS), MAX_ROUNDS)
    return Rounds(count=count, turns=tuple(max(turn, seconds / count) for turn in turns))


def measure_calls(
    calls: Sequence[TimedCall], *, seconds: float, watch: LoadWatch
) -> tuple[list[tuple[float, ...]], ...]:
    """Warm up the calls of this process and run them in rounds, each in random order.

    Return the milliseconds of the runs of each call, by round.

    Args:
        calls: what is compared.
        seconds: of each call.
        watch: measures what else runs on the machine.
    """
    runs = []
    for call in calls:
        runs.append(warm_up(call).milliseconds / 1e3)
        wait_until_idle()
    found: tuple[list[tuple[float, ...]], ...] = tuple([] for _ in calls)
    generator, order = Random(_SEED), list(range(len(calls)))
    rounds = plan_rounds(seconds, runs)
    for _ in range(rounds.count):
        generator.shuffle(order)
        for number in order:
            with watch.turn():
                found[number].append(take_turn(calls[number], rounds.turns[number]))
    return found
